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
from fedsub.method.groups import Cohort
from fedsub.method.parts import AnchoredSteps
from fedsub.method.slots import Method
from fedsub.method.training import Options
from fedsub.objective.problem import Problem
from fedsub.round.messages import MODEL, UPDATE, Uplink
from fedsub.round.prepare import Trainer, prepare
from fedsub.round.server import Opened
from fedsub.round.sums import Sums
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
    there: bool  # whether it took part; if not, ``update`` is the mean of those who did, cut to its rows
    named: Rows  # rows that it was asked for, by this client or, where that is hidden, by all together
    changed: Rows  # of those, rows whose part of the update is not 0
    sent: Tree  # the submodel as the client got it
    update: Tree  # Δ_i, or what the server must take for it
    rate: float  # of the local steps
    steps: int
    columns: tuple[str, ...]  # that the module and the loss read
    held: Rows  # S(i)
    used: Rows  # rows of the samples that were trained on, or would have been
    samples: Array  # those samples, each once


def watch(
    method: Method, problem: Problem, *, after: int = 0, most: int | None = None, others: int = 0, seed: int = 0
) -> list[Seen]:
    """Play ``after`` rounds and then one more, of which notes are taken: of its first ``most`` clients.

    So many ``others`` are clients with data who were not in that round: what the same attack says of them is what the
    round's mean says of everybody.
    """
    if not isinstance(method, Method) or method.pooled:
        name = getattr(method, "name", type(method).__name__)
        raise ConfigError(f"{name} has no rounds of clients that send updates, so that there is nothing to look at.")
    params = problem.params(torch.device("cpu"))
    trainer = prepare(method, problem, params, Options(seed=seed, rounds=after + 1)).trainer
    assert isinstance(trainer, Trainer)
    for number in range(1, after + 1):
        trainer.round(number)
    round = _Watching(trainer, after + 1)
    return [*round.look(most), *round.look_at_others(others)]


@dataclass(frozen=True)
class _Mean:
    """Σ a_i Δ_i / Σ a_i of a round, and the rows that each table's values are of."""

    values: Tree
    rows: Rows  # by table

    @classmethod
    def of(cls, sums: Sums | None) -> _Mean | None:
        if sums is None or not sums.count:
            return None
        total = sums.total()
        values = {name: value.double() / total.weight for name, value in total.values.items()}
        return cls(values, {table: rows.numpy() for table, rows in total.rows.items()})

    def cut(self, problem: Problem, client: int) -> Tree:
        """On the rows of one client, 0 where there is nothing."""
        out: Tree = {}
        for name, value in self.values.items():
            out[name] = value
            if name in problem.tables:
                mine = problem.tables[name].rows_of(client).astype(np.int64)
                out[name] = torch.zeros(len(mine), *value.shape[1:], dtype=value.dtype)
                _, here, there = np.intersect1d(mine, self.rows[name], assume_unique=True, return_indices=True)
                out[name][torch.from_numpy(here)] = value[torch.from_numpy(there)]
        return out


class _Watching:
    """The notes of one round."""

    def __init__(self, trainer: Trainer, number: int):
        self.trainer, self.number, self.problem = trainer, number, trainer.problem
        self.server, self.transport = trainer.server, trainer.transport
        # In rounds that take gradients these stand in place of updates, and point uphill.
        self.gradients = any(isinstance(p, AnchoredSteps) and p.anchors(number) for p in trainer.method.parts)
        self.mean: _Mean | None = None

    def look(self, most: int | None) -> list[Seen]:
        server, number = self.server, self.number
        self.cohort = server.choose(number, Probes(server, self.transport, number))
        if not len(self.cohort):
            return []
        self.opened = server.open(number, self.cohort, self.transport.rows(number, self.cohort))
        self.own = self.opened
        if self.trainer.secure is not None:
            self.own = server.cut(self.opened, self.trainer.here.rows(number, self.cohort))
        updates = self._plain() if self.trainer.secure is None else self._summed()
        which = [k for k in range(len(self.cohort)) if k in updates][:most]  # without those that refused themselves
        return [self._seen(self.own, k, *updates[k]) for k in which]

    def look_at_others(self, count: int) -> list[Seen]:
        sizes = self.problem.clients.sizes
        away = np.setdiff1d(np.flatnonzero(sizes), self.cohort.clients)[: count if self.mean is not None else 0]
        if not len(away):
            return []
        mean, cohort = self.mean, Cohort.of(away)
        assert mean is not None
        opened = self.server.open(self.number, cohort, self.trainer.here.rows(self.number, cohort))
        nothing = {space: np.zeros(0, np.int64) for space in self.problem.spaces}
        return [
            self._seen(opened, k, mean.cut(self.problem, client), nothing, nothing, there=False)
            for k, client in enumerate(away.tolist())
        ]

    def _seen(self, opened: Opened, k: int, update: Tree, named: Rows, changed: Rows, *, there: bool = True) -> Seen:
        """Of the ``k``-th client of an opened round."""
        half, client = self.trainer.here.half, int(opened.cohort.clients[k])
        batches = half.draw(opened.cohort.take(np.array([k])), self.number)
        used = np.unique(batches.samples[batches.weights > 0])
        rate, steps = self.trainer.method.local.rate(self.number), int(batches.steps[0])
        if self.gradients:
            update, rate, steps = {name: -value for name, value in update.items()}, 1.0, 1
        return Seen(
            client, there, named, changed, sent=dict(opened.downlink(slice(k, k + 1)).trees[MODEL]), update=update,
            rate=rate, steps=steps, columns=half.plan.columns,
            held={s.name: _real(s, s.rows_of(client)) for s in self.problem.spaces.values()},
            used=self._rows(used), samples=used,
        )  # fmt: skip

    def _plain(self) -> dict[int, tuple[Tree, Rows, Rows]]:
        """By place in the cohort: (Δ_i, rows asked for, rows that moved)."""
        out: dict[int, tuple[Tree, Rows, Rows]] = {}
        sums = self.server.sums(self.opened.layout)

        def note(uplink: Uplink, where: slice) -> None:
            sums.add(uplink, where)
            for j, k in enumerate(range(where.start, where.stop)):
                weight = float(uplink.sums["weight"][j])
                if uplink.refused[j] or not weight:
                    continue
                update = {n: self._of(n, v, where.start, j) / weight for n, v in uplink.trees[UPDATE].items()}
                named = self._asked(self.own, k)
                out[k] = update, named, self._changed(update, named)

        self.trainer.here.work(self.opened, note)
        self.trainer.here.forget()
        self.mean = _Mean.of(sums)
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
        self.mean = mean = _Mean.of(secure.exchange(self.opened).sums)
        secure.here.forget()
        if mean is None:
            return {}
        moved: Rows = {space: np.zeros(0, np.int64) for space in self.problem.spaces}
        for name, space in self.problem.tables.items():
            if name in mean.values:
                at = _real(space, mean.rows[name][_moves(mean.values[name])])
                moved[space.name] = np.union1d(moved[space.name], at)
        out: dict[int, tuple[Tree, Rows, Rows]] = {}
        for k, client in enumerate(self.cohort.clients.tolist()):
            named = self._asked(self.opened, 0) if secure.secure.rows == "union" else self._asked(self.own, k)
            changed = {s: np.intersect1d(rows, named[s]) for s, rows in moved.items()}
            out[k] = mean.cut(self.problem, client), named, changed
        return out

    def _asked(self, opened: Opened, k: int) -> Rows:
        """The rows of the ``k``-th that asked."""
        at = np.array([k])
        return {s.name: _real(s, opened.asked[s.name].take(at).rows) for s in self.problem.spaces.values()}

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
