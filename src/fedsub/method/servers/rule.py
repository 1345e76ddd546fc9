"""What every server has, and what it does unless it says otherwise."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from fedsub.trees import Tree


class ServerRule:
    """How the mean update of a round moves the model. Subclasses are frozen dataclasses that write `step`.

    ``params`` are changed in place; ``mean`` holds, of a table, the rows of ``rows`` only. State is named
    "slot/parameter". By default nothing is remembered, and rows that nobody sent stay as they are.
    """

    @property
    def lazy(self) -> bool:
        """Whether rows that nobody sent have something to catch up on."""
        return False

    @property
    def whole_tables(self) -> bool:
        """Whether a step changes all rows of a table, not only those that were sent."""
        return False

    @property
    def rowwise(self) -> bool:
        """Whether it treats every row by itself, so that a table may be kept in pieces."""
        return False

    def fitted(self, share: float, rounds: int | None = None) -> ServerRule:
        """The server for a population of which ``share`` takes part in a round (K/N), for so many rounds if known."""
        return self

    def init(self, params: Tree, tables: Collection[str]) -> Tree:
        """What it remembers, before the first round."""
        return {}

    def step(self, params: Tree, mean: Tree, rows: dict[str, Tensor], state: Tree, round: int) -> None:
        """Move the model by the mean update of a round."""
        raise NotImplementedError

    def advance(self, params: Tree, mean: Tree, rows: dict[str, Tensor], state: Tree, round: int) -> None:
        """`step` for rows that are up to date already."""
        self.step(params, mean, rows, state, round)

    def catch_up(self, params: Tree, rows: dict[str, Tensor] | None, state: Tree, round: int) -> None:
        """Bring rows (None: all) to the end of a round, where the server is lazy."""

    def outcome(self, params: Tree, state: Tree, round: int) -> Tree:
        """What is evaluated and kept after a round, all rows being up to date: the model, or a mean of its past."""
        return params
