"""What a server remembers, for a checkpoint; with clients in this process, or with what else is known of them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedsub.round.here import Here
from fedsub.round.remembered import Remembered
from fedsub.round.server import ServerHalf
from fedsub.trees import Tree


class OfServer(Remembered):
    """``here``: clients whose memory is saved too; ``more`` are other small tensors."""

    def __init__(self, server: ServerHalf, here: Here | None = None, more: Tree | None = None):
        self._server, self._here = server, here
        moved = dict(server.keeper.moved)
        moved |= {name: moved[table] for name, (_, table) in server.tables().items()}
        if here is not None:
            moved |= {f"client/{name}": one for name, one in here.memory.moved.items()}
        whole = server.noised is not None and server.noised.part.whole
        super().__init__(server.small() | (more or {}), {}, moved, all_rows=server.rule.whole_tables or whole)

    def tables(self) -> Tree:
        tables = {name: value for name, (value, _) in self._server.tables().items()}  # lazy ones grow
        kept = self._here.memory.tensors if self._here is not None else {}
        return tables | {f"client/{name}": value for name, value in kept.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        super().restore(tensors)
        self._server.keeper.restored()

    @property
    def tracking(self) -> bool:
        return self._server.keeper.tracking

    @tracking.setter
    def tracking(self, on: bool) -> None:
        self._server.keeper.tracking = on
        if self._here is not None:
            self._here.tracking = on
