"""Addition, plain or with momentum."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsub.checks import check_decay, check_flag
from fedsub.method.patterns import Groups
from fedsub.method.servers.base import Gaps, RowServer
from fedsub.trees import Tree


@dataclass(frozen=True)
class Add(RowServer):
    """X ← X + lr · Δ; rows that nobody sent stay untouched, bit for bit.

    With ``momentum`` μ > 0: b ← μ b + Δ and X ← X + lr · b, and rows that nobody sent go on moving by their b
    unless ``sparse_server`` (T.-M. H. Hsu et al., "Measuring the Effects of Non-Identical Data Distribution
    for Federated Visual Classification", 2019: FedAvgM). ``groups`` sets lr by parameter pattern.
    """

    lr: float = 1.0
    momentum: float = 0.0
    sparse_server: bool = False
    groups: Groups | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay("server momentum", self.momentum)
        check_flag("sparse_server", self.sparse_server)

    @property
    def lazy(self) -> bool:
        return self.momentum > 0 and not self.sparse_server

    @property
    def slots(self) -> tuple[str, ...]:
        return ("b",) if self.momentum > 0 else ()

    def move(self, update: Tensor, held: Tree) -> Tensor:
        return held["b"].mul_(self.momentum).add_(update) if self.momentum > 0 else update

    def drift(self, held: Tree, gaps: Gaps) -> Tensor:
        b = held["b"]
        moved = b * gaps.geometric(self.momentum, b)
        b.mul_(gaps.power(self.momentum, b))
        return moved

    def mean_drift(self, held: Tree, gaps: Gaps, fade: float) -> Tensor:
        return held["b"] * gaps.mean_geometric(self.momentum, fade, held["b"])
