"""Steps that shrink with the number of times a row was updated."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsub.checks import check_number
from fedsub.errors import MethodError
from fedsub.method.patterns import Groups
from fedsub.method.servers.base import RowServer, by_row
from fedsub.trees import Tree


@dataclass(frozen=True)
class FrequencyAware(RowServer):
    """X ← X + lr · Δ / n^power, n the rounds so far in which the row was updated, this one included.

    A dense parameter is updated in every round. Rows that nobody sent stay untouched, bit for bit. ``power`` 0
    is `Add`. After the counter-based frequency-aware SGD of Y. Li et al., "Frequency-aware SGD for Efficient
    Embedding Learning with Provable Benefits", ICLR 2022; counting a row's rounds at a federated server is ours.
    ``groups`` sets lr by parameter pattern.
    """

    lr: float = 1.0
    power: float = 0.5
    groups: Groups | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("power of FrequencyAware", self.power)
        if self.power < 0:
            raise MethodError(
                f"power of FrequencyAware must not be negative, got {self.power}: steps would grow with every "
                "round; 0 is plain addition, 0.5 the usual choice."
            )

    @property
    def slots(self) -> tuple[str, ...]:
        return ("count",)

    def first(self, slot: str, param: Tensor, table: bool) -> Tensor:
        return torch.zeros(len(param) if table else 1, dtype=torch.float32, device=param.device)

    def move(self, update: Tensor, held: Tree) -> Tensor:
        count = held["count"].add_(1)
        return update / by_row(count.double() ** self.power, update)
