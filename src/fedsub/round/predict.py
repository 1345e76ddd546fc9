"""Models of which every client has its own: what they are, and what they say to samples.

Client i uses its own values of some parameters and the shared ones of all others; of a table's row that it does not
hold it uses the shared one. Many clients are predicted at once: their rows are laid out one behind the other, as
for training (`fedsub.round.engines.batched`), and the module is mapped over the clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedsub.data.clients import Clients, Space
from fedsub.objective.losses import Batch
from fedsub.objective.problem import Problem
from fedsub.round.engines.base import Filled, columns_to, template
from fedsub.round.engines.recurrent import NotBatchable
from fedsub.round.engines.rewrite import Rewrite
from fedsub.trees import Model, RowSource, Tree, rows_of, take_rows

TOGETHER = 4096  # samples that are predicted at once
Laid = Callable[["PersonalModel", str], tuple[Tensor, np.ndarray]]  # (a table's rows, where each client's begin)


class Kept(Protocol):
    """What clients keep (`fedsub.round.memory.ClientState`), as far as it is read here: by "slot/parameter"."""

    @property
    def tensors(self) -> Tree: ...


@dataclass(frozen=True)
class Values:
    """`Kept` without clients: values that were read back, or that go elsewhere."""

    tensors: Tree


@dataclass(frozen=True)
class PersonalModel:
    """The shared parameters, and ``names``, of which client i has its own in a slot of what clients keep."""

    shared: Model
    kept: Kept
    slot: str
    names: tuple[str, ...]

    def dense(self, name: str, clients: np.ndarray) -> Tensor:
        """A dense parameter of some clients, [c, …]; −1 stands for somebody new, who has the shared one."""
        shared = _tensor(self.shared[name])
        if name not in self.names:
            return shared.expand(len(clients), *shared.shape).contiguous()
        own = self.kept.tensors[f"{self.slot}/{name}"]
        values = own[torch.from_numpy(np.maximum(clients, 0)).to(own.device)].to(shared.device)
        if (clients < 0).any():
            values[torch.from_numpy(clients < 0)] = shared
        return values

    def rows(self, name: str, places: np.ndarray, rows: np.ndarray) -> Tensor:
        """Rows of a table; ``places`` says where each lies among the clients' own ones, −1: it is the shared one."""
        values = rows_of(self.shared[name], torch.from_numpy(rows).to(self.shared[name].device))
        if name in self.names:
            held = np.flatnonzero(places >= 0)
            own = self.kept.tensors[f"{self.slot}/{name}"]
            values[torch.from_numpy(held)] = take_rows(own, torch.from_numpy(places[held])).to(values.device)
        return values


class Elsewhere:
    """A model of which others hold parts: it is asked for its answers, and ``shared`` are the parameters here."""

    @property
    def shared(self) -> Tree:
        raise NotImplementedError

    def answer(self, clients: Clients, chosen: np.ndarray) -> tuple[np.ndarray, Tensor]:
        """(losses [n], outputs [n, …]) of the samples ``chosen`` of ``clients``, in their order."""
        raise NotImplementedError


Evaluated = Model | PersonalModel | Elsewhere


class Predictor:
    """What personal models of ``problem``'s clients say to samples of a split, whose clients are found by their ids."""

    def __init__(self, problem: Problem, columns: tuple[str, ...], device: torch.device):
        self.problem, self.columns, self.device = problem, columns, device
        self._module: nn.Module = template(problem, device).eval()
        self._filled: Filled | None = None  # once vmap has refused the module
        self._keys: dict[str, np.ndarray] = {}
        order = np.argsort(problem.clients.client_ids, kind="stable")
        self._order, self._ids = order, problem.clients.client_ids[order]

    def __call__(self, model: PersonalModel, clients: Clients, chosen: np.ndarray) -> tuple[np.ndarray, Tensor]:
        """(losses [n], outputs [n, …]) of the samples ``chosen`` of ``clients``, in their order."""
        losses: np.ndarray = np.zeros(len(chosen))
        outputs: Tensor | None = None
        for some in self._chunks(clients, chosen):
            lost, said = self._predict(model, clients, some, chosen)
            if outputs is None:
                outputs = torch.zeros(len(chosen), *said.shape[1:], dtype=said.dtype)
            losses[some.flat], outputs[torch.from_numpy(some.flat)] = lost, said.cpu()
        return losses, outputs if outputs is not None else torch.zeros(0)

    def _chunks(self, clients: Clients, chosen: np.ndarray) -> Iterator[_Chunk]:
        """Clients with about as many samples, together: each is filled up to the most of them."""
        owners = clients.clients_of(chosen)
        by_owner = np.argsort(owners, kind="stable")
        who, starts, counts = np.unique(owners[by_owner], return_index=True, return_counts=True)
        order = np.argsort(counts, kind="stable")
        begin = 0
        while begin < len(order):
            end = begin + 1
            while end < len(order) and (end + 1 - begin) * counts[order[end]] <= TOGETHER:
                end += 1
            part = order[begin:end]
            place = np.minimum(np.arange(counts[part].max()), counts[part, None] - 1)
            real = np.arange(counts[part].max()) < counts[part, None]
            yield _Chunk(who[part], by_owner[starts[part, None] + place], real)
            begin = end

    def _predict(
        self, model: PersonalModel, clients: Clients, chunk: _Chunk, chosen: np.ndarray
    ) -> tuple[np.ndarray, Tensor]:
        arrays = clients.gather(chosen[chunk.samples], self.columns, local=False)
        losses, outputs = self.ask(model, clients.client_ids[chunk.clients], arrays, chunk.real)
        real = torch.from_numpy(chunk.real)
        return losses.double().cpu().numpy()[chunk.real], outputs[real.to(outputs.device)]

    def ask(
        self, model: PersonalModel, ids: np.ndarray, arrays: dict[str, np.ndarray], real: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        """(losses [c, B], outputs [c, B, …]) of the clients called ``ids``; columns [c, B, …] hold table rows.

        ``real`` [c, B] says which samples are not there to fill up.
        """
        problem, trained = self.problem, self._trained(ids)
        tables: Tree = {}
        starts: dict[str, np.ndarray] = {}
        laid: dict[str, Laid] = {}
        for name, space in problem.tables.items():
            if space.name not in laid:
                laid[space.name] = self._lay_out(space, model, arrays, trained)
            tables[name], starts[name] = laid[space.name](model, name)
        dense = {name: model.dense(name, trained) for name in problem.dense}
        batch = columns_to(arrays, self.device)
        batch["sample_mask"] = torch.from_numpy(real).to(self.device, torch.float32)
        with torch.no_grad():
            return self._computed(tables, dense, starts, batch)

    def _trained(self, ids: np.ndarray) -> np.ndarray:
        """Positions among the training clients, −1 if not there."""
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[at] == ids, self._order[at], -1)

    def _lay_out(self, space: Space, model: PersonalModel, arrays: dict[str, np.ndarray], trained: np.ndarray) -> Laid:
        """Where the clients' rows of a space lie in its tables.

        If no table of the space is personal, that is the shared one, where it is at hand. If clients ask for a good
        part of it, each gets a whole one. Else the rows that occur are laid out, and the ids of ``arrays`` renumbered,
        in place.
        """
        names = [name for name, one in self.problem.tables.items() if one.name == space.name]
        columns = [c for c in arrays if c in space.columns]
        elsewhere = any(not isinstance(model.shared[name], Tensor) for name in names)
        if not elsewhere and not {*names} & {*model.names}:
            return lambda model, name: (_tensor(model.shared[name]), np.zeros(len(trained), np.int64))
        if not elsewhere and 2 * sum(arrays[c][0].size for c in columns) >= space.size:
            return self._whole(space, trained)
        first = np.arange(len(trained), dtype=np.int64) * space.size
        keys = [(arrays[c].reshape(len(trained), -1) + first[:, None]).reshape(-1) for c in columns]
        found, inverse = np.unique(np.concatenate([*keys, first]), return_inverse=True)  # row 0 stays id 0
        owner, rows = found // space.size, found % space.size
        starts = np.searchsorted(owner, np.arange(len(trained)))
        begin = 0
        for column, key in zip(columns, keys, strict=True):
            local = inverse[begin : begin + len(key)] - starts[owner[inverse[begin : begin + len(key)]]]
            arrays[column], begin = local.reshape(arrays[column].shape), begin + len(key)
        if not {*names} & {*model.names}:
            nowhere = np.full(len(rows), -1)
            return lambda model, name: (model.rows(name, nowhere, rows), starts)
        if space.name not in self._keys:
            held = self.problem.spaces[space.name]
            owners = np.repeat(np.arange(len(held.counts), dtype=np.int64), held.counts)
            self._keys[space.name] = owners * held.size + held.rows
        own = self._keys[space.name]
        wanted = trained[owner] * space.size + rows
        at = np.minimum(np.searchsorted(own, wanted), max(0, len(own) - 1))
        places = np.where((trained[owner] >= 0) & (own[at] == wanted), at, -1)
        return lambda model, name: (model.rows(name, places, rows), starts)

    def _whole(self, space: Space, trained: np.ndarray) -> Laid:
        held = self.problem.spaces[space.name]
        there = np.flatnonzero(trained >= 0)
        counts = held.counts[trained[there]]
        ends = np.cumsum(counts)
        first = held.row_offsets[:-1][trained[there]]
        places = np.repeat(first - ends + counts, counts) + np.arange(int(ends[-1]) if len(ends) else 0)
        owner = np.repeat(there, counts)

        def laid(model: PersonalModel, name: str) -> tuple[Tensor, np.ndarray]:
            shared = _tensor(model.shared[name])
            starts = np.arange(len(trained), dtype=np.int64) * len(shared)
            values = shared.repeat(len(trained), *[1] * (shared.ndim - 1))
            if name in model.names:
                own = model.kept.tensors[f"{model.slot}/{name}"]
                at = torch.from_numpy(starts[owner] + held.rows[places]).to(values.device)
                values[at] = take_rows(own, torch.from_numpy(places)).to(values.device)
            return values, starts

        return laid

    def _computed(
        self, tables: Tree, dense: Tree, starts: dict[str, np.ndarray], batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """All clients at once; one by one from the first time on that the module cannot be mapped."""
        if self._filled is None:
            try:
                offsets = [torch.from_numpy(starts[name]).to(self.device) for name in tables]
                return self._mapped(tables, dense, offsets, batch)
            except (NotBatchable, RuntimeError, NotImplementedError):
                self._filled = Filled(self._module)
        return self._one_by_one(tables, dense, starts, batch)

    def _mapped(self, tables: Tree, dense: Tree, offsets: list[Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
        objective = self.problem.objective

        def one(own: Tree, offset: list[Tensor], values: Batch) -> tuple[Tensor, Tensor]:
            with Rewrite(list(zip(tables.values(), offset, strict=True)), None, batched=True):
                inputs = (values,) if objective.inputs is None else tuple(values[n] for n in objective.inputs)
                output = functional_call(self._module, tables | own, inputs)
                loss = objective.loss(output, values)
            return loss.expand(values["sample_mask"].shape), output

        return vmap(one)(dense, offsets, batch)

    def _one_by_one(self, tables: Tree, dense: Tree, starts: dict[str, np.ndarray], batch: Batch):
        assert self._filled is not None
        objective, losses, outputs = self.problem.objective, [], []
        for k in range(len(batch["sample_mask"])):
            own = {n: tables[n][slice(*_span(starts[n], k, len(tables[n])))] for n in tables}
            self._filled.fill(own | {n: value[k] for n, value in dense.items()})
            data = {n: values[k] for n, values in batch.items()}
            found, output = self._filled.losses(objective, data, data["sample_mask"])
            losses.append(found.expand(data["sample_mask"].shape))
            outputs.append(output)
        return torch.stack(losses), torch.stack(outputs)


def _tensor(value: Tensor | RowSource) -> Tensor:
    assert isinstance(value, Tensor)
    return value


def _span(starts: np.ndarray, k: int, rows: int) -> tuple[int, int]:
    """The rows of client k: up to where the next one's begin, or all if they share them."""
    behind = starts[starts > starts[k]]
    return int(starts[k]), int(behind[0]) if len(behind) else rows


@dataclass(frozen=True)
class _Chunk:
    """Clients predicted together: their samples (positions in the chosen ones), filled up by their last one."""

    clients: np.ndarray  # [c], of the split
    samples: np.ndarray  # [c, B]
    real: np.ndarray  # bool [c, B]

    @property
    def flat(self) -> np.ndarray:
        return self.samples[self.real]
