"""The local functions of any torch module: gradients of all clients by the engines' traced step.

Client i's data are cut into m_i = ⌈n_i/B⌉ terms of B samples in stored order (the last one may be shorter),

    f_ij(x) = (m_i/n_i) Σ_{s in batch j} loss_s(x) + (l2/2)‖x‖²,      so that  f_i = (1/m_i) Σ_j f_ij

is the mean loss of its samples, whatever B. The rows of all clients lie one behind the other, so a chunk of clients
reads its stretch of every table as it lies; nothing is copied. For the full gradient a client takes several places
of a chunk, as many as it has batches, all on its one copy of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedsub.errors import MethodError
from fedsub.families.mixture.layout import Layout
from fedsub.families.mixture.memory import TermMemory
from fedsub.objective.problem import Problem
from fedsub.round.engines.base import Filled, Plan, columns_to, template
from fedsub.round.engines.batched import CACHE_BYTES
from fedsub.round.engines.trace import Traced, trace
from fedsub.trees import Tree

WIDE = 32  # samples of a client at one place, for full gradients


@dataclass(frozen=True)
class Places:
    """What a chunk computes: samples [c, B] of clients [c], with the weight of each in its client's gradient."""

    clients: np.ndarray
    samples: np.ndarray
    weights: np.ndarray


class ModuleFunctions(Layout):
    """`fedsub.families.mixture.functions.Functions` of a problem. ``batched=False``: one client after the other."""

    def __init__(self, problem: Problem, params: Tree, plan: Plan, *, batch_size: int | None, batched: bool = True):
        super().__init__(problem, params)
        if isinstance(problem.objective.l2, Mapping):
            raise MethodError(
                "The mixture's constants need one l2 for all parameters, a modulus of strong convexity, and the "
                f"objective has l2={dict(problem.objective.l2)!r}; give one number."
            )
        self.l2 = problem.objective.l2
        self.plain = replace(problem, objective=replace(problem.objective, l2=0.0))  # l2 is added once, not by place
        self.plan, self.batched = plan, batched
        sizes = problem.clients.sizes
        self.batch = int(sizes.max()) if batch_size is None else min(int(batch_size), int(sizes.max()))
        self._sizes, self._first = sizes, problem.clients.offsets[:-1]
        self._terms = -(-sizes // self.batch)
        self._module = template(self.plain, next(iter(params.values())).device)
        self._filled: Filled | None = None
        self._traced: dict[tuple[int, int], Traced] = {}
        self._chunk: dict[int, int] = {}
        self._whole: Places | None = None
        self._dtype = next(iter(params.values())).dtype

    @property
    def clients(self) -> int:
        return self.n

    @property
    def terms(self) -> np.ndarray:
        return self._terms

    def start(self) -> Tree:
        return self.everybody(self.params)

    def memory(self) -> TermMemory:
        return TermMemory(self)

    def gradient(self, x: Tree, which: np.ndarray | None = None) -> tuple[np.ndarray, Tree]:
        places = self._everything() if which is None else self._of_terms(which)
        losses = np.zeros(self.n)
        out: Tree = {name: torch.zeros_like(leaf) for name, leaf in x.items()} if which is None else {}
        pieces: dict[str, list[Tensor]] = {name: [] for name in x}
        for chunk in self._chunks(places):
            found, grads = self._gradient(x, chunk) if self.batched else self._one_by_one(x, chunk)
            np.add.at(losses, chunk.clients, (found * chunk.weights).cumsum(1)[:, -1])
            for name, value in grads.items():
                if which is not None:
                    pieces[name].append(value)
                elif name in self.problem.tables:
                    out[name][self._stretch(name, chunk)] += value
                else:
                    out[name].index_add_(0, torch.from_numpy(chunk.clients), value)
        if which is not None:
            out = {name: found[0] if len(found) == 1 else torch.cat(found) for name, found in pieces.items()}
        if self.l2:
            for name, leaf in out.items():
                leaf.add_(x[name], alpha=self.l2)
        return losses, out

    def values(self, x: Tree) -> np.ndarray:
        """f_i(x_i) with the l2 term, float64 [n]; the losses of `gradient` are those of the samples alone."""
        return self.gradient(x)[0] + self.l2 / 2 * self.dot(x, x)

    def _of_terms(self, which: np.ndarray) -> Places:
        begin = which * self.batch
        place = begin[:, None] + np.arange(self.batch)
        real = place < self._sizes[:, None]
        samples = self._first[:, None] + np.minimum(place, self._sizes[:, None] - 1)
        return Places(np.arange(self.n), samples, real * (self._terms / self._sizes)[:, None])

    def _everything(self) -> Places:
        if self._whole is None:
            wide = min(WIDE, int(self._sizes.max()))
            counts = -(-self._sizes // wide)
            owners = np.repeat(np.arange(self.n), counts)
            block = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
            place = block[:, None] * wide + np.arange(wide)
            real = place < self._sizes[owners, None]
            samples = self._first[owners, None] + np.minimum(place, self._sizes[owners, None] - 1)
            self._whole = Places(owners, samples, real / self._sizes[owners, None])
        return self._whole

    def _chunks(self, places: Places) -> Iterator[Places]:
        """Pieces that the cache holds, as even as possible: every size is traced by itself."""
        count, width = places.samples.shape
        size = self._size(places, width)
        for low in range(0, count, size):
            part = slice(low, low + size)
            yield Places(places.clients[part], places.samples[part], places.weights[part])

    def _size(self, places: Places, width: int) -> int:
        if not self.batched:
            return len(places.clients)
        if width not in self._chunk:
            two = Places(places.clients[:2], places.samples[:2], places.weights[:2])
            if len(two.clients) < 2:
                two = Places(*(np.repeat(a, 2, axis=0) for a in (two.clients, two.samples, two.weights)))
            footprint = self._step(self._like(two), two).bytes_per_client
            self._chunk[width] = max(2, CACHE_BYTES // footprint)
        count = len(places.clients)
        pieces = -(-count // self._chunk[width])
        return -(-count // pieces)

    def _like(self, places: Places) -> Tree:
        """Parameters of the right shapes, to trace with."""
        out: Tree = {name: self.params[name][:1] for name in self.problem.tables}
        for name in self.problem.dense:
            out[name] = self.params[name].expand(len(places.clients), *self.params[name].shape).contiguous()
        return out

    def _stretch(self, name: str, places: Places) -> slice:
        offsets = self.problem.tables[name].row_offsets
        return slice(int(offsets[places.clients[0]]), int(offsets[places.clients[-1] + 1]))

    def _gradient(self, x: Tree, places: Places) -> tuple[np.ndarray, Tree]:
        lone = len(places.clients) == 1  # a pair with itself, at no weight: other kernels serve a single matrix
        if lone:
            twice = (np.repeat(a, 2, axis=0) for a in (places.clients, places.samples, places.weights))
            places = Places(*twice)
            places.weights[1] = 0.0
        consecutive = bool((np.diff(places.clients) == 1).all())
        own: Tree = {}
        offsets = []
        for name, space in self.problem.tables.items():
            stretch = self._stretch(name, places)
            own[name] = x[name][stretch]
            offsets.append(torch.from_numpy(space.row_offsets[places.clients] - stretch.start))
        for name in self.problem.dense:
            if consecutive:
                own[name] = x[name][places.clients[0] : places.clients[-1] + 1]
            else:
                own[name] = x[name].index_select(0, torch.from_numpy(places.clients))
        columns, weights = self._data(places)
        words = torch.zeros(len(places.clients), dtype=torch.int64)
        step = self._step(own, places).step
        alone = [tensor[None] for tensor in (*columns.values(), weights, words)]  # of the only step
        (share,) = step.shares([*offsets, *alone], 1)
        losses, *grads = step.run(*own.values(), *offsets, *share)
        found = dict(zip(self.problem.names, grads, strict=True))
        if lone:
            found = {n: g if n in self.problem.tables else g[:1] for n, g in found.items()}
            losses = losses[:1]
        return losses.double().numpy(), found

    def _data(self, places: Places) -> tuple[dict[str, Tensor], Tensor]:
        owners = np.broadcast_to(places.clients[:, None], places.samples.shape)
        arrays = self.problem.clients.gather(places.samples, self.plan.columns, local=True, owners=owners)
        columns = columns_to(arrays, torch.device("cpu"))
        weights = torch.from_numpy(places.weights).to(self._dtype)
        if self.plan.sample_mask:
            columns["sample_mask"] = (weights > 0).to(weights.dtype)
        return columns, weights

    def _step(self, own: Tree, places: Places) -> Traced:
        at = places.samples.shape
        if at not in self._traced:
            columns, weights = self._data(places)
            tables = [own[name] for name in self.problem.tables]
            dense = [own[name] for name in self.problem.dense]
            self._traced[at] = trace(self.plain, self._module, tables, dense, columns, weights, dropout=False)
        return self._traced[at]

    def _one_by_one(self, x: Tree, places: Places) -> tuple[np.ndarray, Tree]:
        """The same with autograd, place by place: the readable truth."""
        if self._filled is None:
            self._filled = Filled(self._module)
        objective, losses = self.plain.objective, np.zeros(places.samples.shape)
        out: Tree = {n: torch.zeros_like(x[n][self._stretch(n, places)]) for n in self.problem.tables}
        for name in self.problem.dense:
            out[name] = torch.zeros(len(places.clients), *x[name].shape[1:], dtype=x[name].dtype)
        for k, client in enumerate(places.clients.tolist()):
            own: Tree = {name: x[name][client] for name in self.problem.dense}
            at: dict[str, slice] = {}
            for name, space in self.problem.tables.items():
                begin, end = int(space.row_offsets[client]), int(space.row_offsets[client + 1])
                start = self._stretch(name, places).start
                own[name], at[name] = x[name][begin:end], slice(begin - start, end - start)
            leaves = self._filled.fill({name: own[name] for name in self.problem.names})
            real = places.weights[k] > 0
            data = columns_to(
                self.problem.clients.gather(places.samples[k][real], self.plan.columns, local=True), torch.device("cpu")
            )
            values, _ = self._filled.losses(objective, data, torch.ones(int(real.sum())))
            weights = torch.from_numpy(places.weights[k][real]).to(self._dtype)
            total = (values * weights).sum()
            losses[k, real] = values.detach().double().numpy()
            found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
            for name, g in zip(leaves, found, strict=True):
                if g is not None and name in at:
                    out[name][at[name]] += g
                elif g is not None:
                    out[name][k] = g
        return losses, out
