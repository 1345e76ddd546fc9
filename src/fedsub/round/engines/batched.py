"""Many clients per tensor operation: the arena.

The rows of the clients of a chunk lie one behind the other in one table per parameter (the arena), so
clients share no row and one lookup serves all of them; dense parameters are stacked [c, …]. Because
clients share nothing, the gradient of the sum of their losses is each client's own gradient.

    arena of 3 clients          ids of client 1 (local)     looked up at
    [ S(0) | S(1) | S(2) ]      [0, 2, 2]                   [0, 2, 2] + |S(0)|
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsub.method.batches import Batches
from fedsub.method.groups import Group
from fedsub.method.part import Work
from fedsub.objective.problem import Problem
from fedsub.round.engines.base import Engine, Plan, Sent, columns_to, first_steps, template
from fedsub.round.engines.compiled import CompiledSteps
from fedsub.round.engines.trace import Traced, trace
from fedsub.torch_private import reason, untested
from fedsub.trees import Tree

# What the operations of one step may write in all before the chunk falls out of the last-level cache (measured).
CACHE_BYTES = 52_000_000


@dataclass(frozen=True)
class Packed:
    """A chunk's batches laid out for the traced step."""

    columns: dict[str, Tensor]  # [steps, c, B, …]
    weights: Tensor  # [steps, c, B]


class Batched(Engine):
    """Runs chunks of clients through one traced step. ``chunk``: clients at a time, or None to choose."""

    name, stacked = "batched", True

    def __init__(self, problem: Problem, plan: Plan, *, chunk: int | None = None, compile: bool = False):
        self.problem, self.plan, self.chunk, self.compile = problem, plan, chunk, compile
        self._module: nn.Module | None = None
        self._traced: dict[Any, Traced] = {}
        self._compiled: dict[Any, CompiledSteps] = {}
        self._best_chunk: dict[int, int] = {}  # by batch size: not what came first, or a resumed run would differ

    def split(self, batches: Batches, sent: Sent) -> list[slice]:
        size = len(batches.steps)
        chunk = self.chunk or self._choose_chunk(batches, sent)
        pieces = -(-size // chunk)
        edges = [size * n // pieces for n in range(pieces + 1)]
        slices = [slice(a, b) for a, b in pairwise(edges) if b > a]
        # Trace before workers start: tracing swaps the parameters of the one module.
        for where in {where.stop - where.start: where for where in slices}.values():
            self._example(batches, sent, where)
        return slices

    def _choose_chunk(self, batches: Batches, sent: Sent) -> int:
        """As many clients as keep one step within the cache, judged from a trace of two clients."""
        size, _, width = batches.samples.shape
        if width not in self._best_chunk:
            footprint = self._example(batches, sent, slice(0, 1)).bytes_per_client
            self._best_chunk[width] = max(2, CACHE_BYTES // footprint)
        pieces = -(-size // self._best_chunk[width])
        # A few more pieces, if that makes them alike: every size is traced (and compiled) by itself.
        alike = (n for n in range(pieces, pieces * 5 // 4 + 1) if size % n == 0)
        return -(-size // next(alike, pieces))

    def _example(self, batches: Batches, sent: Sent, where: slice) -> Traced:
        """The traced step for a chunk like these clients; a lone one stands twice."""
        count, width = max(2, where.stop - where.start), batches.samples.shape[2]
        if (count, width) not in self._traced:
            which = np.arange(where.start, where.stop) if where.stop - where.start > 1 else np.full(2, where.start)
            own = sent(where)  # the number of rows is free, and dense values matter by their shape alone
            dense = {n: own[n].expand(count, *own[n].shape).contiguous() for n in self.problem.dense}
            self._step_for({**own, **dense}, self._pack(batches.take(which), next(iter(own.values())).device))
        return self._traced[count, width]

    def steps(self, work: Work, batches: Batches, keys: np.ndarray | None) -> tuple[Tree, np.ndarray]:
        steps, device = batches.steps, next(iter(work.sent.values())).device
        same = bool((steps == steps[0]).all())
        packed = self._pack(batches, device)
        words = torch.zeros((len(packed.weights), work.group.count), dtype=torch.int64, device=device)
        if keys is not None:
            words += torch.from_numpy(np.ascontiguousarray(keys[:, : len(words)].T)).to(device)
        by_table = {name: torch.cumsum(n, 0) - n for name, n in work.group.counts.items()}
        offsets = [by_table[name] for name in self.problem.tables]  # first arena row of each client, int64 [c]
        done = self._compiled_if_possible(work, packed, offsets, words) if self.compile and same else None
        params, losses = done or self._eager_steps(work, packed, offsets, words, steps, same)
        return params, losses.cpu().numpy()

    def _eager_steps(
        self, work: Work, packed: Packed, offsets: list[Tensor], words: Tensor, steps: np.ndarray, same: bool
    ) -> tuple[Tree, Tensor]:
        """All local steps, one after the other; clients may differ in how many they do."""
        method, step = work.method, self._step_for(work.sent, packed).step
        assert method is not None
        params: Tree = {name: value.clone() for name, value in work.sent.items()}
        leaves, data = list(params.values()), [*offsets, *packed.columns.values(), packed.weights, words]
        gradient, batches = step.run, step.shares(data, len(packed.weights))
        work.gradient = lambda at, share: _mean_gradient(
            gradient, params, at, work.group, offsets, batches, first_steps(steps, share)
        )
        work.same_batch = lambda at: dict(
            zip(params, gradient(*[at[name] for name in params], *offsets, *batches[work.step])[1:], strict=True)
        )
        state, losses = method.local.init(params), []
        for part in method.parts:
            part.begin(params, work)
        for work.step, batch in enumerate(batches):
            if not same:
                work.active = _active(work.step, steps, work.group.count, words.device)
            values, *found = gradient(*leaves, *offsets, *batch)
            grads = dict(zip(params, found, strict=True))
            for part in method.parts:
                grads = part.grad(grads, params, work)
            method.local.step(params, grads, state, work)
            losses.append(values)
        return params, _sums(losses, packed.weights)

    def _compiled_if_possible(
        self, work: Work, packed: Packed, offsets: list[Tensor], words: Tensor
    ) -> tuple[Tree, Tensor] | None:
        """All local steps compiled; None, from now on, if a torch that was never tested fails to."""
        try:
            return self._compiled_steps(work, packed, offsets, words)
        except Exception as err:
            if not untested():
                raise
            self.compile = False
            warnings.warn(f"compile=True has no effect, for torch.compile failed: {reason(err)}.", stacklevel=2)
            return None

    def _compiled_steps(self, work: Work, packed: Packed, offsets: list[Tensor], words: Tensor) -> tuple[Tree, Tensor]:
        names, total = self.problem.names, len(packed.weights)
        at = (work.group.count, packed.weights.shape[2], total)
        if at not in self._compiled:
            traced = self._step_for(work.sent, packed)
            assert work.method is not None
            self._compiled[at] = CompiledSteps(traced, names, len(self.problem.tables), work.method, total)
        steps, sent = self._compiled[at], list(work.sent.values())
        if steps.unroll == total:
            columns = list(packed.columns.values())
            leaves, lost = steps.run(sent, sent, work.group, offsets, columns, packed.weights, words)
            return dict(zip(names, leaves, strict=True)), lost.double()
        leaves, losses = sent, []
        for low in range(0, total, steps.unroll):
            span = slice(low, low + steps.unroll)
            columns = [c[span] for c in packed.columns.values()]
            leaves, lost = steps.run(leaves, sent, work.group, offsets, columns, packed.weights[span], words[span])
            losses.append(lost)
        return dict(zip(names, leaves, strict=True)), torch.cat(losses).double()

    def _pack(self, batches: Batches, device: torch.device) -> Packed:
        """Gather the samples of a chunk."""
        longest = int(batches.steps.max())  # of this chunk, not of the cohort
        samples = batches.samples[:, :longest].transpose(1, 0, 2)
        arrays = batches.clients.gather(np.ascontiguousarray(samples), self.plan.columns, local=True)
        shares = np.ascontiguousarray(batches.weights[:, :longest].transpose(1, 0, 2))
        weights = torch.from_numpy(shares).to(device)
        columns = columns_to(arrays, device)
        if self.plan.sample_mask:
            columns["sample_mask"] = (weights > 0).to(weights.dtype)
        return Packed(columns, weights)

    def _step_for(self, sent: Tree, packed: Packed) -> Traced:
        """The traced step for this chunk's shapes; traced on first use."""
        at = tuple(packed.weights.shape[1:])
        if at not in self._traced:
            columns = {name: c[0] for name, c in packed.columns.items()}
            weights = packed.weights[0]
            tables, dense = [sent[n] for n in self.problem.tables], [sent[n] for n in self.problem.dense]
            if self._module is None:
                self._module = template(self.problem, weights.device)
            self._traced[at] = trace(
                self.problem, self._module, tables, dense, columns, weights, dropout=self.plan.dropout
            )
        return self._traced[at]


def _sums(losses: list[Tensor], weights: Tensor) -> Tensor:
    """The weighted losses of each step and client, [steps, c] in float64."""
    # A running sum adds in order; sum(2) would add in another order for another chunk size.
    weighted = (torch.stack(losses) * weights).double()
    found = weighted.cumsum(2)[:, :, -1]
    if not np.isfinite(found.cpu().numpy()).all():  # 0 · ∞ of a padded place must not look like a client's NaN
        found = weighted.masked_fill(weights == 0, 0.0).cumsum(2)[:, :, -1]
    return found


def _active(step: int, steps: np.ndarray, count: int, device: torch.device) -> Tensor:
    """1 for the clients of the chunk that still have steps to do, 0 for the others."""
    return torch.from_numpy(np.asarray(step < steps, np.float32)).to(device).expand(count)


def _mean_gradient(
    gradient, params: Tree, at: Tree, group: Group, offsets: list[Tensor], batches: list, steps: np.ndarray
) -> Tree:
    """The mean over the first steps of each client of the gradient at ``at``."""
    out, same = None, bool((steps == steps[0]).all())
    device = next(iter(params.values())).device
    for step, batch in enumerate(batches[: steps.max()]):
        _, *found = gradient(*[at[name] for name in params], *offsets, *batch)
        grads = dict(zip(params, found, strict=True))
        if not same:
            active = _active(step, steps, group.count, device)
            grads = {n: g * group.spread(active.to(g.dtype), n, g) for n, g in grads.items()}
        out = grads if out is None else {n: out[n].add_(g) for n, g in grads.items()}
    assert out is not None
    if same:
        return {n: g.mul_(1.0 / int(steps[0])) for n, g in out.items()}
    shares = torch.from_numpy(1.0 / steps).to(device)
    return {n: g * group.spread(shares.to(g.dtype), n, g) for n, g in out.items()}
