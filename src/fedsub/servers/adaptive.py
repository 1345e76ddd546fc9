"""FedAdam, FedYogi and FedAdagrad: a step of each element's own size.

    m ← β1 m + (1−β1) Δ          m = 0 at the start
    v ← by the method            v = τ² at the start
    X ← X + lr · m / (√v + τ)    no bias correction

S. J. Reddi et al., "Adaptive Federated Optimization", ICLR 2021.

Fed with c·Δ they make the steps they make with Δ and τ/c: under an adaptive server a heat correction is a τ of
each row's own, and vanishes as τ → 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsub.core import Tree, take_rows
from fedsub.patterns import Groups
from fedsub.servers.base import RowServer, check_decay, check_flag, check_positive, geometric, power, put_rows

FEW = 2048  # values below which calls into torch take longer than their work
BLOCK = 1 << 16  # terms of Adam's sum that are made at once


class Adaptive(RowServer):
    """X ← X + lr · m/(√v + τ). Unless overridden, v stays as it is when Δ = 0."""

    beta1: float
    tau: float
    sparse_server: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay("beta1", self.beta1)
        check_positive("tau", self.tau)
        check_flag("sparse_server", self.sparse_server)

    @property
    def lazy(self) -> bool:
        return self.beta1 > 0 and not self.sparse_server

    @property
    def slots(self) -> tuple[str, ...]:
        return ("m", "v") if self.beta1 > 0 else ("v",)  # with β1 = 0, m is the update itself

    def first(self, slot: str, param: Tensor, table: bool) -> Tensor:
        return torch.full_like(param, self.tau**2 if slot == "v" else 0.0)

    def scale(self, v: Tensor, square: Tensor) -> None:
        """Change v, given Δ²."""
        raise NotImplementedError

    def move(self, update: Tensor, held: Tree) -> Tensor:
        self.scale(held["v"], update * update)
        m = held["m"].mul_(self.beta1).add_(update, alpha=1 - self.beta1) if self.beta1 > 0 else update
        root = held["v"].sqrt().add_(self.tau)
        return torch.div(m, root, out=root)

    def drift(self, held: Tree, gap: Tensor) -> Tensor:
        m, root = held["m"], held["v"].sqrt().add_(self.tau)
        moved = torch.div(m, root, out=root).mul_(geometric(self.beta1, gap, m))
        m.mul_(power(self.beta1, gap, m))
        return moved


@dataclass(frozen=True)
class Adam(Adaptive):
    """FedAdam: v ← β2 v + (1−β2) Δ², X ← X + lr · m/(√v + τ) (Reddi et al., ICLR 2021).

    Rows that nobody sent go on moving by their m, while both moments decay, unless ``sparse_server``.
    ``groups`` sets lr by parameter pattern.
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    sparse_server: bool = False
    groups: Groups | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay("beta2", self.beta2)

    @property
    def lazy(self) -> bool:
        return not self.sparse_server  # v decays even if β1 = 0

    def scale(self, v: Tensor, square: Tensor) -> None:
        v.mul_(self.beta2).add_(square, alpha=1 - self.beta2)

    @property
    def waits(self) -> tuple[str, ...]:
        return ("v",)

    def wait(self, held: Tree, gap: Tensor) -> None:
        held["v"].mul_(power(self.beta2, gap, held["v"]))

    def drift(self, held: Tree, gap: Tensor) -> Tensor:
        v = held["v"]
        moved = torch.zeros_like(v)
        if self.beta1 > 0:
            m = held["m"]
            size = m.reshape(len(m), -1).abs()
            live = (size @ size.new_ones(size.shape[1])).nonzero().view(-1)  # the others are at rest
            if len(live) == len(m):
                moved = self._sum(m, v.sqrt(), gap)
            elif len(live):
                some = [take_rows(one, live) for one in (m, v, gap)]
                put_rows(moved, live, self._sum(some[0], some[1].sqrt_(), some[2]))
            m.mul_(power(self.beta1, gap, m))
        v.mul_(power(self.beta2, gap, v))
        return moved

    def _sum(self, m: Tensor, root: Tensor, gap: Tensor) -> Tensor:
        """Σ_{j=1..k} β1^j m / (β2^{j/2} √v + τ) for each row, k its gap."""
        gaps, order = _longest_first(gap)  # each j works on a slice
        top, root = take_rows(m, order), take_rows(root, order)
        total = torch.zeros_like(top)
        last, decay = int(min(int(gaps[0]), self._terms(m.dtype))), math.sqrt(self.beta2)
        counts = np.searchsorted(-gaps, -np.arange(1, last + 1), side="right")
        width = max(1, m.numel() // len(m))
        many = int(np.count_nonzero(counts * width >= FEW))
        for count in counts[:many].tolist():
            top, root = top[:count].mul_(self.beta1), root[:count].mul_(decay)
            total[:count].addcdiv_(top, root + self.tau)
        while many < last:  # few values go on for long: many terms at once
            count = int(counts[many])
            terms = min(last - many, max(1, BLOCK // (count * width)))
            j = torch.arange(1, terms + 1, dtype=torch.float64, device=m.device)
            over = top[:count].reshape(-1, 1) * torch.pow(self.beta1, j).to(m.dtype)
            under = (root[:count].reshape(-1, 1) * torch.pow(decay, j).to(m.dtype)).add_(self.tau)
            ended = np.arange(many + 1, many + terms + 1) > np.repeat(gaps[:count], width)[:, None]
            over.div_(under).masked_fill_(torch.from_numpy(ended).to(m.device), 0.0)
            total[:count] += over.sum(1).reshape(total[:count].shape)
            top, root = top[:count] * self.beta1**terms, root[:count] * decay**terms
            many += terms
        return torch.empty_like(total).index_copy_(0, order, total)

    def _terms(self, dtype: torch.dtype) -> float:
        """How many terms it takes until the rest is less than half the last digit of the sum.

        A term is at most q = β1/√β2 times the one before, so those after the J-th sum to at most q^J/(1−q)
        times the first.
        """
        ratio = self.beta1 / math.sqrt(self.beta2) if self.beta2 else math.inf
        if ratio >= 1:
            return math.inf  # terms may grow at first
        return math.ceil(math.log(torch.finfo(dtype).eps / 2 * (1 - ratio)) / math.log(ratio))


def _longest_first(gap: Tensor) -> tuple[np.ndarray, Tensor]:
    """The gaps in descending order, and whose they are."""
    keys = gap.cpu().numpy()
    top = int(keys.max())
    keys = (top - keys).astype(np.int16) if top < 2**15 else top - keys  # numpy sorts short integers by their digits
    order = np.argsort(keys, kind="stable")
    return top - keys[order].astype(np.int64), torch.from_numpy(order).to(gap.device)


@dataclass(frozen=True)
class Yogi(Adaptive):
    """FedYogi: v ← v − (1−β2) Δ² sign(v − Δ²), X ← X + lr · m/(√v + τ) (Reddi et al., ICLR 2021).

    Rows that nobody sent go on moving by their m, with v as it is, unless ``sparse_server``.
    ``groups`` sets lr by parameter pattern.
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    sparse_server: bool = False
    groups: Groups | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay("beta2", self.beta2)

    def scale(self, v: Tensor, square: Tensor) -> None:
        v.addcmul_(square, torch.sign(v - square), value=self.beta2 - 1)


@dataclass(frozen=True)
class Adagrad(Adaptive):
    """FedAdagrad: v ← v + Δ², X ← X + lr · m/(√v + τ) (Reddi et al., ICLR 2021).

    The paper uses β1 = 0: then m = Δ and rows that nobody sent stay untouched. With β1 > 0 they go on moving
    by their m unless ``sparse_server``. ``groups`` sets lr by parameter pattern.
    """

    lr: float = 0.1
    beta1: float = 0.0
    tau: float = 1e-3
    sparse_server: bool = False
    groups: Groups | None = None

    def scale(self, v: Tensor, square: Tensor) -> None:
        v.add_(square)
