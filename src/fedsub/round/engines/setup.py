"""Choosing an engine: look at the module first, check batched against serial, fall back with a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsub.errors import ConfigError, FedsubError
from fedsub.method.batches import Batches
from fedsub.method.groups import Cohort
from fedsub.method.slots import Method
from fedsub.objective.problem import Problem
from fedsub.round.client import ClientHalf
from fedsub.round.engines.auto import Auto
from fedsub.round.engines.base import Engine, Plan
from fedsub.round.engines.batched import Batched
from fedsub.round.engines.compiled import impure
from fedsub.round.engines.inspecting import inspect
from fedsub.round.engines.probe import Usage
from fedsub.round.engines.recurrent import NotBatchable
from fedsub.round.engines.serial import Serial
from fedsub.round.layout import asked_of
from fedsub.round.memory import Memory, origin_in
from fedsub.round.messages import MODEL, UPDATE, Downlink, Kept, Uplink
from fedsub.round.told import Told
from fedsub.torch_private import reason, untested
from fedsub.trees import RowSource, Tree, rows_of

ENGINES = ("auto", "batched", "serial")
TOLERANCE = 1e-3  # of the largest value; rounding stays far below, a wrong mapping far above


@dataclass
class Choice:
    """The engine in use, and the sentence that says why."""

    engine: Engine
    plan: Plan
    reason: str
    fallback: bool = False  # whether batching was tried in vain


def choose(
    problem: Problem,
    method: Method,
    params: Tree,
    *,
    engine: str = "auto",
    chunk: int | None = None,
    compile: bool = False,
    seed: int = 0,
) -> Choice:
    """An engine that is right for this module, or the reason why it must be the serial one."""
    if engine not in ENGINES:
        raise ConfigError(f"engine must be one of {', '.join(ENGINES)}; got {engine!r}.")
    if compile and (slot := impure(method)):
        raise ConfigError(f"compile=True cannot be used with {slot}, whose steps depend on the round; leave it out.")
    trial = Trial(problem, method, params, seed)
    plan, usage = inspect(problem, params, int(trial.who.clients[0]), trial.batches)
    serial = Serial(problem, plan)
    if method.pooled:
        return Choice(serial, plan, "engine serial: all data is in one place, there is nothing to batch")
    if engine == "serial":
        return Choice(serial, plan, "engine serial, as asked")
    try:
        _refuse(usage)
        batched = Batched(problem, plan, chunk=chunk)
        _safely(trial.compare, serial, batched, plan)
        batched.compile = compile  # only now: two clients are not worth a compilation
    except NotBatchable as why:
        return Choice(serial, plan, f"engine serial, because clients cannot be batched: {why}", True)
    agrees = f"agrees with serial on two clients{trial.left_out}"
    if engine == "batched":
        return Choice(batched, plan, f"engine batched: {agrees}")
    return Choice(Auto(serial, batched), plan, f"batched {agrees}; timing both")


class Trial:
    """A small piece of work that covers the awkward case: the client with least data beside a typical one.

    Two rounds are tried, the second with what clients kept of the first. Codecs are left out, and solvers such as Adam
    are replaced by plain steps: both turn a rounding error into another sign.
    """

    def __init__(self, problem: Problem, method: Method, params: Tree, seed: int):
        self.problem, self.params, self.seed = problem, problem.untouched(params), seed
        smooth = method.local.smooth()
        self.method = replace(method, local=smooth, parts=tuple(p for p in method.parts if not p.codec))
        names = [f"without {type(p).__name__}" for p in method.parts if p.codec]
        if smooth is not method.local:
            names.append(f"with {type(smooth).__name__} in place of {type(method.local).__name__}")
        self.left_out = f" (compared {' and '.join(names)})" if names else ""
        sizes = problem.clients.sizes
        least, other = int(np.argmin(sizes)), int(np.argpartition(sizes, len(sizes) // 2)[len(sizes) // 2])
        if other == least or sizes[other] == 1:  # a lone sample shows nothing of how samples are mixed
            other = int(np.argmax(sizes))
        self.who = Cohort.of(np.sort([least, other] if other != least else [0, 1][: len(sizes)]))
        half = ClientHalf(problem, self.method, Plan(()), seed)
        self.batches = half.draw(self.who, 0).take(slice(None), slice(2))
        size = smooth.batch_size or int(sizes.max())
        if (sizes % size).any():
            _shorten(self.batches)

    def compare(self, serial: Engine, batched: Engine, plan: Plan) -> None:
        """Both engines must send and keep the same; raises NotBatchable where they do not."""
        half, memory = ClientHalf(self.problem, self.method, plan, self.seed), _Few(self)
        slots: Tree | None = None  # what parts send along: nothing at first, then something like an update
        for number in range(2 if any(p.client_slots or p.sent_slots for p in self.method.parts) else 1):
            found = []
            for engine in (serial, batched):
                down = self._downlinks(number, slots)
                groups = engine.split(self.batches, lambda where, down=down: half.example(down(where)))
                found.append([half.train(engine, down(at), memory, self.batches.take(at)) for at in groups])
            _agree(*(_together(self.problem, answers) for answers in found))
            kept = _together(self.problem, found[0])
            memory.keep(kept)
            slots = {n: kept[UPDATE, n] for n in self.problem.names if (UPDATE, n) in kept}

    def _downlinks(self, number: int, slots: Tree | None):
        asked = asked_of(self.problem.spaces, self.who.clients)
        private = self.method.private(self.problem.names)
        names = [name for name in self.problem.names if name not in private]

        def down(where: slice) -> Downlink:
            who = np.arange(where.start, where.stop)
            some = {space: one.take(who) for space, one in asked.items()}
            counts = {space: one.counts for space, one in some.items()}
            rows = {s: torch.from_numpy(one.rows.astype(np.int64)) for s, one in some.items()}
            model = {n: self._rows(n, self.params[n], rows) for n in names}
            trees = {MODEL: model}
            for part in self.method.parts:
                for slot in part.sent_slots:
                    trees[f"{part.key}.{slot}"] = {n: self._slot(n, v, slots, asked, where) for n, v in model.items()}
            return Downlink(number, self.who.take(who), counts, trees, Told(self.method.parts).values)

        return down

    def _rows(self, name: str, value: Tensor | RowSource, rows: dict[str, Tensor]) -> Tensor:
        space = self.problem.tables.get(name)
        if space is None:
            assert isinstance(value, Tensor)
            return value
        return rows_of(value, rows[space.name].to(value.device))

    def _slot(self, name: str, like: Tensor, slots: Tree | None, asked, where: slice) -> Tensor:
        if slots is None:
            return torch.zeros_like(like)
        space = self.problem.tables.get(name)
        if space is None:
            return 0.5 * slots[name][0]
        edges = np.concatenate([[0], np.cumsum(asked[space.name].counts)])
        return 0.5 * slots[name][edges[where.start] : edges[where.stop]]


class _Few(Memory):
    """What the two clients keep, without room for everybody's."""

    def __init__(self, trial: Trial):
        self.trial, self._kept = trial, dict[str, Tree]()
        origin = origin_in(trial.problem, trial.params, trial.seed)
        for part in trial.method.parts:
            for slot in part.client_slots:
                tree = self._kept[f"{part.key}.{slot}"] = {}
                for name in part.kept_names(slot, trial.problem.names):
                    start = origin(name, trial.who.clients)
                    first = part.first(slot, name, start)
                    tree[name] = torch.zeros_like(start.values) if first is None else first.clone()

    def read(self, slot: str, clients: np.ndarray) -> Tree:
        problem, which = self.trial.problem, [self.trial.who.clients.tolist().index(c) for c in clients.tolist()]
        out: Tree = {}
        for name, value in self._kept[slot].items():
            space = problem.tables.get(name)
            counts = np.ones(len(self.trial.who), np.int64) if space is None else space.counts[self.trial.who.clients]
            pieces = value.split(counts.tolist())
            out[name] = torch.cat([pieces[k] for k in which])
        return out

    def write(self, slot: str, clients: np.ndarray, values: Tree, *, note: bool = True) -> None:
        raise NotImplementedError("a trial keeps all of a round at once")

    def keep(self, found: dict[tuple[str, ...], Tensor]) -> None:
        for slot, tree in self._kept.items():
            for name in tree:
                value = found.get(("kept", slot, name), tree[name])
                if torch.isfinite(value).all():
                    tree[name] = value


def _together(problem: Problem, answers: list[tuple[Uplink, Kept]]) -> dict[tuple[str, ...], Tensor]:
    """Everything that the clients send and keep, by name, with all clients behind each other."""
    out: dict[tuple[str, ...], list[Tensor]] = {}
    for uplink, kept in answers:
        for tree, values in uplink.trees.items():
            for name, value in values.items():
                out.setdefault((tree, name), []).append(value)
        for name in uplink.sums:
            out.setdefault(("sum", name), []).append(torch.from_numpy(uplink.sums[name]))
        for part, slots in kept.items():
            for slot, tree in slots.items():
                for name, value in tree.items():
                    out.setdefault(("kept", f"{part}.{slot}", name), []).append(value)
    return {key: torch.cat(values) for key, values in out.items()}


def _shorten(batches: Batches) -> None:
    """Where short batches occur at all, have one in the first step: is what is padded really without effect?

    Draws alone may not show it: the padding of a lone sample is that sample again, and so is its mean.
    """
    real = (batches.weights[:, 0] > 0).sum(1)
    k = int(np.argmax(real))
    if real[k] > 1:
        batches.weights[k, 0, real[k] - 1] = 0
        batches.weights[k, 0, : real[k] - 1] = 1 / (real[k] - 1)


def _refuse(usage: Usage) -> None:
    if usage.whole:
        table, how = next(iter(usage.whole.items()))
        raise NotBatchable(
            f"the table {table!r} is used whole (by {how}), as Objective(whole=…) allows; a client sees just its own "
            "rows of it"
        )
    if usage.random:
        raise NotBatchable(f"it draws random numbers with {usage.random}; only dropout can be drawn per client")
    if usage.scalar_loss:
        raise NotBatchable("the loss returns one number for the batch; return one value per sample")


def _safely(compare: Callable[..., None], *arguments: Any) -> None:
    """Compare; a traced step may fail in any way on a torch that was never tested."""
    try:
        compare(*arguments)
    except Exception as err:
        if isinstance(err, NotBatchable | FedsubError) or not untested():
            raise
        raise NotBatchable(reason(err)) from err


def _agree(serial: dict[tuple[str, ...], Tensor], batched: dict[tuple[str, ...], Tensor]) -> None:
    """Both engines must give the same on the same work.

    Clients send their values times their weights, and so is the rounding error that no value is free of.
    """
    weights = serial.get(("sum", "weight"), torch.ones(1))
    rounding = 1e-7 * max(1.0, float(weights.abs().max()))
    for key, expected in serial.items():
        got, what = batched[key], "updates" if key[0] == UPDATE else " ".join(key[:-1])
        if not expected.numel() or not torch.isfinite(expected).all():
            continue
        worst, largest = float((got - expected).abs().max()), float(expected.abs().max())
        if not worst <= TOLERANCE * largest + (1e-7 if key[0] == "kept" else rounding):
            blame = "does the module mix the samples of a batch" if key[0] == UPDATE else "does a part mix clients"
            raise NotBatchable(
                f"batched and serial {what} of {key[-1]!r} differ by {worst:.2g} (largest {largest:.2g}); "
                f"{blame}, or reduce over one client's values without Group.total?"
            )
