"""Servers: how the mean update moves the model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsub.batches import check_number
from fedsub.core import Tree, add_rows
from fedsub.errors import MethodError


@dataclass(frozen=True)
class Add:
    """X ← X + lr · mean update; rows that nobody sent stay untouched, bit for bit."""

    lr: float = 1.0

    def __post_init__(self) -> None:
        check_number("server_lr", self.lr)
        if not self.lr > 0:
            raise MethodError(f"server_lr must be positive, got {self.lr}.")

    def init(self, params: Tree) -> Tree:
        return {}

    def step(self, params: Tree, mean: Tree, rows: dict[str, Tensor], state: Tree, round: int) -> None:
        for name, update in mean.items():
            if name in rows:
                add_rows(params[name], rows[name], update if self.lr == 1 else update * self.lr)
            else:
                params[name].add_(update, alpha=self.lr)
