"""Everything a run remembers besides the model: of the server, of parts, of clients, of the sampler.

For checkpoints it is a flat set of named tensors. Those that have a row per table row, or per row of a client,
are saved by the rows that moved; the rest is small and saved whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedsub.errors import CheckpointError
from fedsub.method.groups import Cohort
from fedsub.method.slots import Method
from fedsub.objective.problem import Problem
from fedsub.round.engines.base import Delivery
from fedsub.round.memory import ClientState, Moved
from fedsub.round.sums import SpaceRows
from fedsub.trees import Tree


class State:
    def __init__(
        self,
        problem: Problem,
        method: Method,
        params: Tree,
        sampler: dict[str, np.ndarray],
        folder: Path | None,
        seed: int = 0,
    ):
        self.problem, self.method, self.sampler = problem, method, sampler
        self.server: Tree = method.server.init(params, problem.tables)
        self.shared: dict[str, dict[str, Tree]] = {
            part.key: {slot: {n: torch.zeros_like(p) for n, p in params.items()} for slot in part.server_slots}
            for part in method.parts
            if part.server_slots
        }
        slots = {
            f"{part.key}.{slot}": part.kept_names(slot, problem.names)
            for part in method.parts
            for slot in part.client_slots
        }
        self.kept = ClientState(problem, params, slots, folder=folder) if slots else None
        if self.kept is not None:
            for part in method.parts:
                part.fill(self.kept, params, seed)
        self.skipped = torch.zeros((), dtype=torch.int64)  # rounds in which nobody took part
        self.tracking = True  # whether anybody will ask which rows moved
        self._moved = {name: Moved(len(params[name])) for name in problem.tables}
        self._by_table = {name: table for name, table in self._named().items() if table is not None}

    def _named(self) -> dict[str, str | None]:
        """Every tensor but the clients', and the table whose rows it shares."""
        out: dict[str, str | None] = {}
        for name, value in self.server.items():
            table = name.partition("/")[2]
            space = self.problem.tables.get(table)
            out[f"server/{name}"] = table if space is not None and value.ndim and len(value) >= space.size else None
        for part, slots in self.shared.items():
            for slot, tree in slots.items():
                for name in tree:
                    out[f"part/{part}.{slot}/{name}"] = name if name in self.problem.tables else None
        return out

    def _tensors(self) -> Tree:
        out = {f"server/{name}": value for name, value in self.server.items()}
        for part, slots in self.shared.items():
            for slot, tree in slots.items():
                out |= {f"part/{part}.{slot}/{name}": value for name, value in tree.items()}
        return out

    def note(self, rows: Mapping[str, Tensor]) -> None:
        """These rows of tables have moved, and with them what the server and parts keep of them."""
        if not self.tracking:
            return
        for name, moved in rows.items():
            self._moved[name].add(moved)

    def keep(self, delivery: Delivery, cohort: Cohort, rows: dict[str, SpaceRows], finite: np.ndarray) -> None:
        """Store what a group of clients keeps, except for those whose update was refused."""
        assert self.kept is not None
        good = finite[delivery.where]
        clients = cohort.clients[delivery.where]
        if cohort.repeats[delivery.where].any():  # of a client that takes part twice, the last one stays
            last = {client: k for k, client in enumerate(clients.tolist()) if good[k]}
            good = good & np.array([last.get(client) == k for k, client in enumerate(clients.tolist())])
        for part, slots in delivery.kept.items():
            for slot, tree in slots.items():
                values = dict(tree)
                if not delivery.stacked:
                    values = {n: v if n in self.problem.tables else v.unsqueeze(0) for n, v in tree.items()}
                if not good.all():
                    values = {n: v[self._which(n, good, delivery.where, rows).to(v.device)] for n, v in values.items()}
                if good.any():
                    self.kept.write(f"{part}.{slot}", clients[good], values, note=self.tracking)

    def _which(self, name: str, good: np.ndarray, where: slice, rows: dict[str, SpaceRows]) -> Tensor:
        """The entries of some clients of a group, as a mask."""
        space = self.problem.tables.get(name)
        return torch.from_numpy(good if space is None else np.repeat(good, rows[space.name].counts[where]))

    def copy_tables(self, params: Tree) -> tuple[Tree, Tree]:
        """Copies of tables and of the server's state, to look ahead without changing anything."""
        own = {name: p.clone() if name in self.problem.tables else p for name, p in params.items()}
        return own, {name: value.clone() for name, value in self.server.items()}

    # Checkpoints

    def small(self) -> Tree:
        """What is saved whole."""
        tensors = {name: value for name, value in self._tensors().items() if name not in self._by_table}
        sampler = {f"sampler/{name}": torch.from_numpy(value) for name, value in self.sampler.items()}
        return tensors | sampler | {"rounds/skipped": self.skipped}

    def tables(self) -> Tree:
        """What is saved by moved rows."""
        tensors = self._tensors()
        kept = {} if self.kept is None else {f"client/{name}": value for name, value in self.kept.tensors.items()}
        return {name: tensors[name] for name in self._by_table} | kept

    def take_moved(self) -> dict[str, np.ndarray] | None:
        """The rows of every saved table, the model's too, that moved since the last call; None: possibly all."""
        moved = {name: rows.take() for name, rows in self._moved.items()}
        moved |= {name: moved[table] for name, table in self._by_table.items()}
        if self.kept is not None:
            moved |= {f"client/{name}": rows.take() for name, rows in self.kept.moved.items()}
        return None if getattr(self.method.server, "whole_tables", False) else moved

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what `small` and `tables` gave to a checkpoint."""
        put_back({**self.small(), **self.tables()}, tensors)


def put_back(own: Tree, saved: Mapping[str, Tensor]) -> None:
    """Fill the tensors of a state with what a checkpoint saved of them."""
    for name, value in own.items():
        if name not in saved or saved[name].shape != value.shape:
            raise CheckpointError(
                f"The checkpoint has no {name} of the shape {tuple(value.shape)}, which the method keeps; it "
                "belongs to another method or version. Start the run again in another directory."
            )
        value.copy_(saved[name])
