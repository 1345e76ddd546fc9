"""One round as a curious server sees it: it does everything as it should, and keeps what it is sent.

    plain rounds         of every client the rows it asks for, and a_i Δ_i with a_i
    a secure sum         the rows that somebody holds, and Σ a_i Δ_i / Σ a_i on the rows that were opened
    (rows="clear")       each client's rows, and that sum

Codecs and noise of clients are in what was sent. Nothing of the run is changed: rounds are those of `fedsub.run`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from fedsub.data.clients import Space
from fedsub.errors import ConfigError
from fedsub.method.slots import Method
from fedsub.method.training import Options
from fedsub.objective.problem import Problem
from fedsub.round.messages import MODEL, UPDATE, Uplink
from fedsub.round.prepare import Trainer, prepare
from fedsub.round.server import Opened
from fedsub.round.transport import Probes
from fedsub.trees import Tree

Array = np.ndarray
Rows = dict[str, Array]  # by space, global and sorted, without the row of padding


@dataclass(frozen=True)
class Seen:
    """What the server has of one client after a round; ``held``, ``used`` and ``samples`` are the truth it has not.

    ``sent`` and ``update`` have the client's own rows of every table, in order. A secure sum hides them, but for the
    attack on labels and features the server is granted them, with 0 where no row was opened: its other attacks use
    ``named`` and ``changed`` alone.
    """

    client: int
    named: Rows  # rows that it was asked for, by this client or, where that is hidden, by all together
    changed: Rows  # of those, rows whose part of the update is not 0
    sent: Tree  # the submodel as the client got it
    update: Tree  # Δ_i, or what the server must take for it
    rate: float  # of the local steps
    steps: int
    columns: tuple[str, ...]  # that the module and the loss read
    held: Rows  # S(i)
    used: Rows  # rows of the samples that were trained on
    samples: Array  # those samples, each once


def watch(method: Method, problem: Problem, *, after: int = 0, most: int | None = None, seed: int = 0) -> list[Seen]:
    """Play ``after`` rounds and then one more, of which notes are taken: of its first ``most`` clients."""
    if not isinstance(method, Method) or method.pooled:
        name = getattr(method, "name", type(method).__name__)
        raise ConfigError(f"{name} has no rounds of clients that send updates, so that there is nothing to look at.")
    params = problem.params(torch.device("cpu"))
    trainer = prepare(method, problem, params, Options(seed=seed, rounds=after + 1)).trainer
    assert isinstance(trainer, Trainer)
    for number in range(1, after + 1):
        trainer.round(number)
    return _Watching(trainer, after + 1).look(most)


class _Watching:
    """The notes of one round."""

    def __init__(self, trainer: Trainer, number: int):
        self.trainer, self.number, self.problem = trainer, number, trainer.problem
        server, transport = trainer.server, trainer.transport
        self.cohort = server.choose(number, Probes(server, transport, number))
        self.opened = server.open(number, self.cohort, transport.rows(number, self.cohort))
        self.own = (
            self.opened if trainer.secure is None else server.cut(self.opened, trainer.here.rows(number, self.cohort))
        )

    def look(self, most: int | None) -> list[Seen]:
        if not len(self.cohort):
            return []
        batches = self.trainer.here.half.draw(self.cohort, self.number)
        updates = self._plain() if self.trainer.secure is None else self._summed()
        rate, columns, out = self.trainer.method.local.rate(self.number), self.trainer.here.half.plan.columns, []
        for k, client in enumerate(self.cohort.clients.tolist()[:most]):
            if k not in updates:
                continue  # it refused itself
            update, named, changed = updates[k]
            used = np.unique(batches.samples[k][batches.weights[k] > 0])
            sent = dict(self.own.downlink(slice(k, k + 1)).trees[MODEL])
            held = {s.name: _real(s, s.rows_of(client)) for s in self.problem.spaces.values()}
            steps = int(batches.steps[k])
            out.append(Seen(client, named, changed, sent, update, rate, steps, columns, held, self._rows(used), used))
        return out

    def _plain(self) -> dict[int, tuple[Tree, Rows, Rows]]:
        """By place in the cohort: (Δ_i, rows asked for, rows that moved)."""
        out: dict[int, tuple[Tree, Rows, Rows]] = {}

        def note(uplink: Uplink, where: slice) -> None:
            for j, k in enumerate(range(where.start, where.stop)):
                weight = float(uplink.sums["weight"][j])
                if uplink.refused[j] or not weight:
                    continue
                update = {n: self._of(n, v, where.start, j) / weight for n, v in uplink.trees[UPDATE].items()}
                named = self._asked(self.own, k)
                out[k] = update, named, self._changed(update, named)

        self.trainer.here.work(self.opened, note)
        self.trainer.here.forget()
        return out

    def _of(self, name: str, values: torch.Tensor, first: int, j: int) -> torch.Tensor:
        """The values of the ``j``-th client of a group that begins at the cohort's ``first``."""
        if name not in self.problem.tables:
            return values[j].double()
        rows = self.own.layout[self.problem.tables[name].name]
        begin = int(rows.starts[first + j] - rows.starts[first])
        return values[begin : begin + int(rows.counts[first + j])].double()

    def _summed(self) -> dict[int, tuple[Tree, Rows, Rows]]:
        """The mean of all that was opened, cut to every client's rows; which rows are whose, nobody tells."""
        secure = self.trainer.secure
        assert secure is not None
        sums = secure.exchange(self.opened).sums
        secure.here.forget()
        if sums is None or not sums.count:
            return {}
        total = sums.total()
        mean = {name: value.double() / total.weight for name, value in total.values.items()}
        rows = {table: total.rows[table].numpy() for table in self.problem.tables}
        out: dict[int, tuple[Tree, Rows, Rows]] = {}
        opened: Rows = {}
        for name, space in self.problem.tables.items():
            at = rows[name][_moves(mean[name])] if name in mean else rows[name][:0]
            opened[space.name] = _real(space, np.union1d(opened.get(space.name, at[:0]), at))
        for k in range(len(self.cohort)):
            update = {n: self._cut(n, v, rows, k) for n, v in mean.items()}
            shared = self._asked(self.opened, 0) if secure.secure.rows == "union" else self._asked(self.own, k)
            out[k] = update, shared, {s: np.intersect1d(found, shared[s]) for s, found in opened.items()}
        return out

    def _cut(self, name: str, mean: torch.Tensor, rows: Rows, k: int) -> torch.Tensor:
        if name not in self.problem.tables:
            return mean
        mine = self._asked(self.own, k, whole=True)[self.problem.tables[name].name]
        out = torch.zeros(len(mine), *mean.shape[1:], dtype=mean.dtype)
        _, here, there = np.intersect1d(mine, rows[name], assume_unique=True, return_indices=True)
        out[torch.from_numpy(here)] = mean[torch.from_numpy(there)]
        return out

    def _asked(self, opened: Opened, k: int, *, whole: bool = False) -> Rows:
        """The rows of the ``k``-th that asked; ``whole``: with that of padding."""
        out: Rows = {}
        for space in self.problem.spaces.values():
            rows = opened.asked[space.name].take(np.array([k])).rows
            out[space.name] = rows.astype(np.int64) if whole else _real(space, rows)
        return out

    def _changed(self, update: Tree, named: Rows) -> Rows:
        out = {space: rows[:0] for space, rows in named.items()}
        for name, space in self.problem.tables.items():
            if name in update:
                moves = _moves(update[name])[1 if space.padding else 0 :]
                out[space.name] = np.union1d(out[space.name], named[space.name][moves])
        return out

    def _rows(self, samples: Array) -> Rows:
        """The rows that some samples name."""
        clients = self.problem.clients
        out: Rows = {}
        for space in self.problem.spaces.values():
            ids = clients.gather(samples, space.columns, local=False)
            out[space.name] = _real(space, np.unique(np.concatenate([values.reshape(-1) for values in ids.values()])))
        return out


def _moves(values: torch.Tensor) -> Array:
    """Which rows are not 0."""
    return (values != 0).reshape(len(values), math.prod(values.shape[1:])).any(1).numpy()


def _real(space: Space, rows: Array) -> Array:
    rows = rows.astype(np.int64)
    return rows[rows != 0] if space.padding else rows
