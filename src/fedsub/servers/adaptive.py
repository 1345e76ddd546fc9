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

from fedsub.core import Tree
from fedsub.patterns import Groups
from fedsub.servers.base import RowServer, check_decay, check_flag, check_positive, geometric, power, put_rows


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
        return m / (held["v"].sqrt() + self.tau)

    def drift(self, held: Tree, gap: Tensor) -> Tensor:
        m = held["m"]
        moved = m / (held["v"].sqrt() + self.tau) * geometric(self.beta1, gap, m)
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

    def drift(self, held: Tree, gap: Tensor) -> Tensor:
        v = held["v"]
        moved = torch.zeros_like(v)
        if self.beta1 > 0:
            m = held["m"]
            live = m.reshape(len(m), -1).any(1).nonzero().view(-1)  # the others, most often, were never sent
            if len(live):
                put_rows(moved, live, self._sum(m[live], v[live].sqrt_(), gap[live]))
            m.mul_(power(self.beta1, gap, m))
        v.mul_(power(self.beta2, gap, v))
        return moved

    def _sum(self, m: Tensor, root: Tensor, gap: Tensor) -> Tensor:
        """Σ_{j=1..k} β1^j m / (β2^{j/2} √v + τ) for each row, k its gap."""
        gaps, order = gap.sort(descending=True, stable=True)  # rows that go on longest first: each j works on a slice
        top, root = m[order], root[order]
        total = torch.zeros_like(top)
        last = min(int(gaps[0]), self._terms(m.dtype))
        for count in np.searchsorted(-gaps.cpu().numpy(), -np.arange(1, last + 1), side="right"):
            top, root = top[:count].mul_(self.beta1), root[:count].mul_(math.sqrt(self.beta2))
            total[:count].addcdiv_(top, root + self.tau)
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
