"""Many clients per tensor operation: the arena.

The rows of the clients of a chunk lie one behind the other in one table per parameter (the arena), so
clients share no row and one lookup serves all of them; dense parameters are stacked [c, …]. Because
clients share nothing, the gradient of the sum of their losses is each client's own gradient.

    arena of 3 clients          ids of client 1 (local)     looked up at
    [ S(0) | S(1) | S(2) ]      [0, 2, 2]                   [0, 2, 2] + |S(0)|
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsub.method.groups import Group
from fedsub.method.slots import Message, Work
from fedsub.objective.problem import Problem
from fedsub.round.engines.base import (
    Delivery,
    Job,
    Plan,
    Workers,
    all_finite,
    columns_to,
    first_steps,
    load_state,
    make_work,
    template,
)
from fedsub.round.engines.compiled import CompiledSteps
from fedsub.round.engines.trace import Traced, trace
from fedsub.round.sums import places_of
from fedsub.torch_private import reason, untested
from fedsub.trees import Tree, take_rows

# What the operations of one step may write in all before the chunk falls out of the last-level cache (measured).
CACHE_BYTES = 52_000_000


@dataclass(frozen=True)
class Packed:
    """A chunk of clients laid out for the traced step."""

    who: np.ndarray  # position in the cohort of every client; a lone one stands there twice
    sent: Tree
    group: Group
    offsets: list[Tensor]  # by table: first arena row of each client, int64 [c]
    columns: dict[str, Tensor]  # [steps, c, B, …]
    weights: Tensor  # [steps, c, B]


class Batched:
    """Runs chunks of clients through one traced step. ``chunk``: clients at a time, or None to choose."""

    name = "batched"

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        *,
        chunk: int | None = None,
        workers: int = 1,
        compile: bool = False,
    ):
        self.problem, self.plan, self.chunk, self.compile = problem, plan, chunk, compile
        self.workers = Workers(workers)
        self._module: nn.Module | None = None
        self._traced: dict[Any, Traced] = {}
        self._compiled: dict[Any, CompiledSteps] = {}
        self._best_chunk: dict[int, int] = {}  # by batch size: not what came first, or a resumed run would differ

    def map(self, job: Job) -> Iterator[Delivery]:
        keys = job.keys() if self.plan.dropout else None
        size = len(job.cohort)
        chunk = self.chunk or self._choose_chunk(job)
        pieces = -(-size // chunk)
        edges = [size * n // pieces for n in range(pieces + 1)]
        slices = [slice(a, b) for a, b in pairwise(edges) if b > a]
        # Trace before the workers start: tracing swaps the parameters of the one module.
        for where in {where.stop - where.start: where for where in slices}.values():
            self._step_for(job, where)
        return self.workers.map(lambda where: self._chunk(job, where, keys), slices)

    def _choose_chunk(self, job: Job) -> int:
        """As many clients as keep one step within the cache, judged from a trace of two clients."""
        width = job.batches.samples.shape[2]
        if width not in self._best_chunk:
            footprint = self._step_for(job, slice(0, 1)).bytes_per_client
            self._best_chunk[width] = max(2, CACHE_BYTES // footprint)
        size = len(job.cohort)
        pieces = -(-size // self._best_chunk[width])
        # A few more pieces, if that makes them alike: every size is traced (and compiled) by itself.
        alike = (n for n in range(pieces, pieces * 5 // 4 + 1) if size % n == 0)
        return -(-size // next(alike, pieces))

    def _chunk(self, job: Job, where: slice, keys: np.ndarray | None) -> Delivery:
        problem, method, packed = self.problem, job.method, self._pack(job, where)
        sent, group, steps = packed.sent, packed.group, job.batches.steps[where]
        same = bool((steps == steps[0]).all())
        words = torch.zeros((packed.weights.shape[0], group.count), dtype=torch.int64, device=packed.weights.device)
        if keys is not None:
            words += torch.from_numpy(np.ascontiguousarray(keys[where, : len(words)].T)).to(words.device)
        work = make_work(job, problem.names, sent, group, packed.who)
        load_state(problem, job, work, packed.who, {s: places_of(rows, where) for s, rows in job.rows.items()})
        done = self._compiled_if_possible(job, where, packed, words) if self.compile and same else None
        params, losses = done or self._eager_steps(job, where, packed, words, work, None if same else steps)
        count = where.stop - where.start
        deltas: Tree = {name: params[name] - sent[name] for name in problem.names}
        finite = np.ones(count, bool)
        if not all_finite(deltas.values()):
            bad = [group.total(n, (~torch.isfinite(d)).to(torch.float32)) for n, d in deltas.items()]
            finite = (torch.stack(bad).sum(0) == 0).cpu().numpy()[:count]
        message = Message({"update": deltas})
        for part in method.parts:
            part.finish(message, params, work)
        if count < group.count:
            _halve(message, work)
        losses = losses[:, :count].cpu().numpy()  # [steps, c]; 0 where a client was done
        with np.errstate(invalid="ignore", over="ignore"):  # of a client that diverged, and is left out
            mean = losses.cumsum(0)[-1] / steps
            square = (losses**2).cumsum(0)[-1] / steps
            deviations = np.sqrt(np.maximum(square - mean**2, 0.0))
        return Delivery(where, message, mean, deviations, finite, stacked=True, kept=work.client)

    def _eager_steps(self, job: Job, where: slice, packed: Packed, words: Tensor, work: Work, steps: np.ndarray | None):
        """All local steps, one after the other; ``steps`` if clients differ in how many they do."""
        method, gradient = job.method, self._step_for(job, where).run
        params: Tree = {name: value.clone() for name, value in packed.sent.items()}
        leaves, columns = list(params.values()), list(packed.columns.values())
        state = method.local.init(params)
        losses = []
        batches = list(zip(*[c.unbind(0) for c in (*columns, packed.weights, words)], strict=True))
        work.gradient = lambda at, share: _mean_gradient(
            gradient, params, at, packed, batches, first_steps(job.batches.steps[packed.who], share)
        )
        for part in method.parts:
            part.begin(params, work)
        for work.step, batch in enumerate(batches):
            if steps is not None:
                work.active = _active(work.step, steps, packed.group.count, words.device)
            values, *found = gradient(*leaves, *packed.offsets, *batch)
            grads = dict(zip(params, found, strict=True))
            for part in method.parts:
                grads = part.grad(grads, params, work)
            method.local.step(params, grads, state, work)
            losses.append(values)
        # A running sum adds in order; sum(2) would add in another order for another chunk size.
        weighted = (torch.stack(losses) * packed.weights).double()
        return params, weighted.cumsum(2)[:, :, -1]

    def _compiled_if_possible(self, job: Job, where: slice, packed: Packed, words: Tensor):
        """All local steps compiled; None, from now on, if a torch that was never tested fails to."""
        try:
            return self._compiled_steps(job, where, packed, words)
        except Exception as err:
            if not untested():
                raise
            self.compile = False
            warnings.warn(f"compile=True has no effect, for torch.compile failed: {reason(err)}.", stacklevel=2)
            return None

    def _compiled_steps(self, job: Job, where: slice, packed: Packed, words: Tensor):
        names, total = self.problem.names, len(packed.weights)
        at = (packed.group.count, packed.weights.shape[2], total)
        if at not in self._compiled:
            traced = self._step_for(job, where)
            self._compiled[at] = CompiledSteps(traced, names, len(self.problem.tables), job.method, total)
        steps = self._compiled[at]
        sent = list(packed.sent.values())
        if steps.unroll == total:
            columns = list(packed.columns.values())
            leaves, lost = steps.run(sent, sent, packed.group, packed.offsets, columns, packed.weights, words)
            return dict(zip(names, leaves, strict=True)), lost.double()
        leaves, losses = sent, []
        for low in range(0, total, steps.unroll):
            span = slice(low, low + steps.unroll)
            columns = [c[span] for c in packed.columns.values()]
            leaves, lost = steps.run(
                leaves, sent, packed.group, packed.offsets, columns, packed.weights[span], words[span]
            )
            losses.append(lost)
        return dict(zip(names, leaves, strict=True)), torch.cat(losses).double()

    def _pack(self, job: Job, where: slice) -> Packed:
        """Gather rows, dense parameters and batches of a chunk.

        A chunk of one is run as a pair with itself: torch takes other kernels for one matrix than for a
        stack of them, and a client's result must not depend on how many others share its chunk.
        """
        problem, device = self.problem, next(iter(job.params.values())).device
        count = where.stop - where.start
        which = np.arange(where.start, where.stop) if count > 1 else np.full(2, where.start)
        sent: Tree = {}
        counts, offsets = {}, []
        by_space: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        for name, space in problem.tables.items():
            if space.name not in by_space:
                by_space[space.name] = _chunk_rows(job, space.name, where, which, device)
            rows, held, offset = by_space[space.name]
            sent[name] = take_rows(job.params[name], rows)
            counts[name] = held
            offsets.append(offset)
        for name in problem.dense:
            value = job.params[name]
            sent[name] = value.expand(len(which), *value.shape).contiguous()
        longest = int(job.batches.steps[which].max())  # of this chunk, not of the cohort
        samples = job.batches.samples[which, :longest].transpose(1, 0, 2)
        arrays = problem.clients.gather(np.ascontiguousarray(samples), self.plan.columns, local=True)
        shares = np.ascontiguousarray(job.batches.weights[which, :longest].transpose(1, 0, 2))
        weights = torch.from_numpy(shares).to(device)
        columns = columns_to(arrays, device)
        if self.plan.sample_mask:
            columns["sample_mask"] = (weights > 0).to(weights.dtype)
        return Packed(which, sent, Group(len(which), True, counts), offsets, columns, weights)

    def _step_for(self, job: Job, where: slice) -> Traced:
        """The traced step for this chunk's shapes; traced on first use."""
        count = max(2, where.stop - where.start)
        size = job.batches.samples.shape[2]
        if (count, size) not in self._traced:
            packed = self._pack(job, where)
            columns = {name: c[0] for name, c in packed.columns.items()}
            weights = packed.weights[0]
            tables = [packed.sent[n] for n in self.problem.tables]
            dense = [packed.sent[n] for n in self.problem.dense]
            if self._module is None:
                self._module = template(self.problem, weights.device)
            traced = trace(self.problem, self._module, tables, dense, columns, weights, dropout=self.plan.dropout)
            self._traced[count, size] = traced
        return self._traced[count, size]


def _active(step: int, steps: np.ndarray, count: int, device: torch.device) -> Tensor:
    """1 for the clients of the chunk that still have steps to do, 0 for the others."""
    return torch.from_numpy(np.asarray(step < steps, np.float32)).to(device).expand(count)


def _mean_gradient(gradient, params: Tree, at: Tree, packed: Packed, batches: list, steps: np.ndarray) -> Tree:
    """The mean over the first steps of each client of the gradient at ``at``."""
    group, out, same = packed.group, None, bool((steps == steps[0]).all())
    for step, batch in enumerate(batches[: steps.max()]):
        _, *found = gradient(*[at[name] for name in params], *packed.offsets, *batch)
        grads = dict(zip(params, found, strict=True))
        if not same:
            active = _active(step, steps, group.count, batch[-1].device)
            grads = {n: g * group.spread(active.to(g.dtype), n, g) for n, g in grads.items()}
        out = grads if out is None else {n: out[n].add_(g) for n, g in grads.items()}
    assert out is not None
    if same:
        return {n: g.mul_(1.0 / int(steps[0])) for n, g in out.items()}
    shares = torch.from_numpy(1.0 / steps).to(packed.weights.device)
    return {n: g * group.spread(shares.to(g.dtype), n, g) for n, g in out.items()}


def _halve(message: Message, work: Work) -> None:
    """Keep the first of two equal clients."""
    for tree in (*message.trees.values(), *[t for slots in work.client.values() for t in slots.values()]):
        for name, value in tree.items():
            tree[name] = value[: len(value) // 2]
    message.numbers = {name: value[:1] for name, value in message.numbers.items()}
    if message.encoded is not None:
        message.encoded = message.encoded[:1]


def _chunk_rows(job: Job, space: str, where: slice, which: np.ndarray, device) -> tuple[Tensor, Tensor, Tensor]:
    """The global row of every arena row, and by client its number of rows and its first one."""
    laid = job.rows[space]
    counts = laid.counts[which]
    begin = int(laid.starts[where.start])
    rows = laid.rows[begin : begin + int(laid.counts[where].sum())]
    if len(which) > where.stop - where.start:
        rows = torch.cat([rows, rows])
    return rows, torch.from_numpy(counts).to(device), torch.from_numpy(np.cumsum(counts) - counts).to(device)
