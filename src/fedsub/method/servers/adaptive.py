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

import torch
from torch import Tensor

from fedsub.checks import check_decay, check_flag, check_positive
from fedsub.method.patterns import Groups
from fedsub.method.servers.base import Gaps, RowServer, by_row
from fedsub.method.servers.fading import fading, mean_sum, means_usable, usable
from fedsub.trees import Tree

SHORT = 32  # rounds: the mean of a longer way is a difference of sums, in which a shorter one would lose digits


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

    def scale(self, v: Tensor, update: Tensor) -> None:
        """Change v, given Δ."""
        raise NotImplementedError

    def move(self, update: Tensor, held: Tree) -> Tensor:
        self.scale(held["v"], update)
        m = held["m"].mul_(self.beta1).add_(update, alpha=1 - self.beta1) if self.beta1 > 0 else update
        root = held["v"].sqrt().add_(self.tau)
        return torch.div(m, root, out=root)

    def drift(self, held: Tree, gaps: Gaps) -> Tensor:
        m, root = held["m"], held["v"].sqrt().add_(self.tau)
        moved = torch.div(m, root, out=root).mul_(gaps.geometric(self.beta1, m))
        m.mul_(gaps.power(self.beta1, m))
        return moved

    def mean_drift(self, held: Tree, gaps: Gaps, fade: float) -> Tensor:
        m, root = held["m"], held["v"].sqrt().add_(self.tau)
        return torch.div(m, root, out=root).mul_(gaps.mean_geometric(self.beta1, fade, m))


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

    def scale(self, v: Tensor, update: Tensor) -> None:
        v.mul_(self.beta2).addcmul_(update, update, value=1 - self.beta2)

    @property
    def waits(self) -> tuple[str, ...]:
        return ("v",)

    def wait(self, held: Tree, gaps: Gaps) -> None:
        held["v"].mul_(gaps.power(self.beta2, held["v"]))

    def drift(self, held: Tree, gaps: Gaps) -> Tensor:
        v = held["v"]
        moved = self._sum(held["m"], v.sqrt(), gaps) if self.beta1 > 0 else torch.zeros_like(v)
        if self.beta1 > 0:
            held["m"].mul_(gaps.power(self.beta1, v))
        v.mul_(gaps.power(self.beta2, v))
        return moved

    def mean_drift(self, held: Tree, gaps: Gaps, fade: float) -> Tensor:
        if self.beta1 == 0:
            return torch.zeros_like(held["v"])
        m, root, rounds = held["m"], held["v"].sqrt(), gaps.rounds
        closed = gaps.most > SHORT and means_usable(self.beta1, self.beta2, fade)
        near = self._mean_by_terms(m, root, Gaps(rounds.clamp(max=SHORT)) if closed else gaps, fade)
        if not closed:
            return near
        far = mean_sum(self.beta1, self.beta2, self.tau, root, gaps, fade).mul_(m).to(m.dtype)
        return torch.where(by_row(rounds, near) > SHORT, far, near)

    def _mean_by_terms(self, m: Tensor, root: Tensor, gaps: Gaps, fade: float) -> Tensor:
        place, mean, mass = torch.zeros_like(m), torch.zeros_like(m), 0.0
        decay, heard = math.sqrt(self.beta2), by_row(gaps.rounds, m)
        for j in range(1, gaps.most + 1):
            place += self.beta1**j * m / (root * decay**j + self.tau)
            mass = 1 + fade * mass
            mean += torch.where(heard >= j, (place - mean) / mass, 0.0)
        return mean

    def _sum(self, m: Tensor, root: Tensor, gaps: Gaps) -> Tensor:
        """Σ_{j=1..k} β1^j m / (β2^{j/2} √v + τ) for each row, k its gap."""
        if usable(self.beta1, self.beta2):
            return fading(self.beta1, self.beta2, self.tau, m.dtype).sum(root, gaps).mul_(m).to(m.dtype)
        total, decay, heard = torch.zeros_like(m), math.sqrt(self.beta2), by_row(gaps.rounds, m)
        for j in range(1, gaps.most + 1):
            total += torch.where(heard >= j, self.beta1**j * m / (root * decay**j + self.tau), 0.0)
        return total


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

    def scale(self, v: Tensor, update: Tensor) -> None:
        square = update * update
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

    def scale(self, v: Tensor, update: Tensor) -> None:
        v.addcmul_(update, update)
