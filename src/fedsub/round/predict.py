"""Models of which every client has its own: what they are, and what they say to samples.

Client i uses its own values of some parameters and the shared ones of all others; of a table's row that it does not
hold it uses the shared one. Many clients are predicted at once: their rows are laid out one behind the other, as
for training (`fedsub.round.engines.batched`), and the module is mapped over the clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

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
from fedsub.round.memory import ClientState
from fedsub.trees import Tree, take_rows

TOGETHER = 4096  # samples that are predicted at once


@dataclass(frozen=True)
class PersonalModel:
    """The shared parameters, and ``names``, of which client i has its own in a slot of what clients keep."""

    shared: Tree
    kept: ClientState
    slot: str
    names: tuple[str, ...]

    def dense(self, name: str, clients: np.ndarray) -> Tensor:
        """A dense parameter of some clients, [c, …]; −1 stands for somebody new, who has the shared one."""
        shared = self.shared[name]
        if name not in self.names:
            return shared.expand(len(clients), *shared.shape).contiguous()
        own = self.kept.tensors[f"{self.slot}/{name}"]
        values = own[torch.from_numpy(np.maximum(clients, 0)).to(own.device)].to(shared.device)
        if (clients < 0).any():
            values[torch.from_numpy(clients < 0)] = shared
        return values

    def rows(self, name: str, places: np.ndarray, rows: np.ndarray) -> Tensor:
        """Rows of a table; ``places`` says where each lies among the clients' own ones, −1: it is the shared one."""
        values = take_rows(self.shared[name], torch.from_numpy(rows).to(self.shared[name].device))
        if name in self.names:
            held = np.flatnonzero(places >= 0)
            own = self.kept.tensors[f"{self.slot}/{name}"]
            values[torch.from_numpy(held)] = take_rows(own, torch.from_numpy(places[held])).to(values.device)
        return values


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
        problem = self.problem
        trained = self._trained(clients.client_ids[chunk.clients])
        arrays = clients.gather(chosen[chunk.samples], self.columns, local=False)
        tables: Tree = {}
        offsets: list[Tensor] = []
        laid: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        for name, space in problem.tables.items():
            if space.name not in laid:
                laid[space.name] = self._lay_out(space, clients, arrays, trained)
            places, rows, starts = laid[space.name]
            tables[name] = model.rows(name, places, rows)
            offsets.append(torch.from_numpy(starts).to(self.device))
        dense = {name: model.dense(name, trained) for name in problem.dense}
        batch = columns_to(arrays, self.device)
        batch["sample_mask"] = torch.from_numpy(chunk.real).to(self.device, torch.float32)
        with torch.no_grad():
            losses, outputs = self._computed(tables, dense, offsets, batch, chunk)
        real = torch.from_numpy(chunk.real)
        return losses.double().cpu().numpy()[chunk.real], outputs[real.to(outputs.device)]

    def _trained(self, ids: np.ndarray) -> np.ndarray:
        """Positions among the training clients, −1 if not there."""
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[at] == ids, self._order[at], -1)

    def _lay_out(self, space: Space, clients: Clients, arrays: dict[str, np.ndarray], trained: np.ndarray):
        """Renumber the ids of a space by client, in place of ``arrays``.

        Returns, for every row laid out, where it lies among the clients' own rows (−1: nowhere) and its global row;
        and the first one of each client.
        """
        columns = [c for c in arrays if clients.columns[c].space == space.name]
        first = np.arange(len(trained), dtype=np.int64) * space.size
        keys = [(arrays[c].reshape(len(trained), -1) + first[:, None]).reshape(-1) for c in columns]
        found, inverse = np.unique(np.concatenate([*keys, first]), return_inverse=True)  # row 0 stays id 0
        owner, rows = found // space.size, found % space.size
        starts = np.searchsorted(owner, np.arange(len(trained)))
        begin = 0
        for column, key in zip(columns, keys, strict=True):
            local = inverse[begin : begin + len(key)] - starts[owner[inverse[begin : begin + len(key)]]]
            arrays[column], begin = local.reshape(arrays[column].shape), begin + len(key)
        if space.name not in self._keys:
            held = self.problem.spaces[space.name]
            owners = np.repeat(np.arange(len(held.counts), dtype=np.int64), held.counts)
            self._keys[space.name] = owners * held.size + held.rows
        own = self._keys[space.name]
        wanted = trained[owner] * space.size + rows
        at = np.minimum(np.searchsorted(own, wanted), max(0, len(own) - 1))
        places = np.where((trained[owner] >= 0) & (own[at] == wanted), at, -1)
        return places, rows, starts

    def _computed(
        self, tables: Tree, dense: Tree, offsets: list[Tensor], batch: Batch, chunk: _Chunk
    ) -> tuple[Tensor, Tensor]:
        """All clients at once; one by one from the first time on that the module cannot be mapped."""
        if self._filled is None:
            try:
                return self._mapped(tables, dense, offsets, batch)
            except (NotBatchable, RuntimeError, NotImplementedError):
                self._filled = Filled(self._module)
        return self._one_by_one(tables, dense, offsets, batch, chunk)

    def _mapped(self, tables: Tree, dense: Tree, offsets: list[Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
        objective = self.problem.objective

        def one(own: Tree, offset: list[Tensor], values: Batch) -> tuple[Tensor, Tensor]:
            with Rewrite(list(zip(tables.values(), offset, strict=True)), None, batched=True):
                inputs = (values,) if objective.inputs is None else tuple(values[n] for n in objective.inputs)
                output = functional_call(self._module, tables | own, inputs)
                loss = objective.loss(output, values)
            return loss.expand(values["sample_mask"].shape), output

        return vmap(one)(dense, offsets, batch)

    def _one_by_one(self, tables: Tree, dense: Tree, offsets: list[Tensor], batch: Batch, chunk: _Chunk):
        assert self._filled is not None
        objective, losses, outputs = self.problem.objective, [], []
        edges = {n: [*at.tolist(), len(tables[n])] for n, at in zip(tables, offsets, strict=True)}
        for k in range(len(chunk.clients)):
            own = {n: tables[n][slice(*list(pairwise(edges[n]))[k])] for n in tables}
            self._filled.fill(own | {n: value[k] for n, value in dense.items()})
            data = {n: values[k] for n, values in batch.items()}
            found, output = self._filled.losses(objective, data, data["sample_mask"])
            losses.append(found.expand(data["sample_mask"].shape))
            outputs.append(output)
        return torch.stack(losses), torch.stack(outputs)


@dataclass(frozen=True)
class _Chunk:
    """Clients predicted together: their samples (positions in the chosen ones), filled up by their last one."""

    clients: np.ndarray  # [c], of the split
    samples: np.ndarray  # [c, B]
    real: np.ndarray  # bool [c, B]

    @property
    def flat(self) -> np.ndarray:
        return self.samples[self.real]
