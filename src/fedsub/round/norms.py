"""The gradient of what is minimised, on all training data, and its two norms.

    f = Σ_i p_i f_i,  f_i the mean loss of client i's samples (+ its l2),  p_i = w_i / W, or 1/N
    ‖∇f‖²             what falls where a method descends along ∇f
    ∇fᵀ D ∇f          D = diag(W / W_m), or diag(N / n_m): what FedSubAvg's rate is about

The second weighs a parameter by how few clients hold it. FedAvg may bring the first near 0 and leave the second
large: cold rows are far from where they should be, and ∇f hardly shows it. Ding et al., "Federated Submodel
Optimization for Hot and Cold Data Features", NeurIPS 2022, Theorem 3; the element-wise gradient norm of the earlier
manuscript "Federated Submodel Averaging", Definition 1, is the same number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedsub.checks import check_whole, is_whole
from fedsub.data.clients import Clients
from fedsub.data.heat import row_heat, weighted_heat
from fedsub.errors import ConfigError
from fedsub.objective.metrics import ELEMENTWISE, SQUARED
from fedsub.objective.problem import Problem
from fedsub.round.engines.base import Filled, columns_to, template
from fedsub.round.predict import PersonalModel
from fedsub.trees import Tree, take_rows

BLOCK = 1 << 13  # samples of which the gradient is taken at once
WEIGHTINGS = ("samples", "clients")


@dataclass(frozen=True)
class Norms:
    """When ‖∇f‖² and ∇fᵀ D ∇f are measured: every ``at`` rounds, at the start and at the end, or in these rounds.

    ``weighting``: "samples" (f is the mean over samples, as ``train.ce``) or "clients" (each client counts once).
    """

    at: int | Sequence[int] = 10
    weighting: str = "samples"

    def __post_init__(self) -> None:
        if self.weighting not in WEIGHTINGS:
            raise ConfigError(f'weighting of Norms is {self.weighting!r}, expected "samples" or "clients".')
        if isinstance(self.at, Sequence) and not isinstance(self.at, str):
            if not self.at or not all(is_whole(n) and n >= 0 for n in self.at):
                raise ConfigError(f"at of Norms is {self.at!r}, expected a number of rounds, or rounds from 0 on.")
            object.__setattr__(self, "at", tuple(sorted({int(n) for n in self.at})))
        else:
            check_whole("at of Norms", self.at, 1, error=ConfigError)

    def due(self, number: int, last: bool = False) -> bool:
        """Whether they are measured after round ``number``; ``last``: it is the last one."""
        return number in self.at if isinstance(self.at, Sequence) else last or number % self.at == 0

    def describe(self) -> dict[str, Any]:
        return {"at": list(self.at) if isinstance(self.at, Sequence) else self.at, "weighting": self.weighting}


class GradientNorms:
    """Measures both norms. ``clients`` are the training data, by whose heat rows are weighed.

    The gradient is summed in double precision, over blocks of samples whose rows are cut out of the tables as a
    client's submodel is, so that a block costs what it touches. Modules are asked in evaluation mode. One whose answer
    for a sample depends on the others of its batch is seen in these blocks.
    """

    def __init__(self, problem: Problem, clients: Clients, columns: tuple[str, ...], weighting: str = "samples"):
        self.problem, self.clients, self.columns, self.weighting = problem, clients, columns, weighting
        self._module: Filled | None = None
        sizes = clients.sizes
        whole = float(sizes.sum()) if weighting == "samples" else float(np.count_nonzero(sizes))
        per_client = np.full(len(sizes), 1.0) if weighting == "samples" else 1.0 / np.maximum(sizes, 1)
        self._weights = per_client / whole  # of a sample, by its client
        self.shares: dict[str, torch.Tensor] = {}  # of the clients, or samples, that hold a row, by space
        for name in problem.spaces:
            space = clients.spaces[name]
            heat = weighted_heat(space, sizes) if weighting == "samples" else row_heat(space, sizes)
            self.shares[name] = torch.from_numpy(heat / whole)

    def __call__(self, model: Tree | PersonalModel) -> dict[str, float]:
        """{"squared_norm": ‖∇f‖², "elementwise_norm": ∇fᵀ D ∇f}."""
        check_shared(model)
        assert not isinstance(model, PersonalModel)
        squared = elementwise = 0.0
        for name, slope in self.gradient(model).items():
            by_row = slope.square().reshape(len(slope), -1).sum(1) if slope.ndim else slope.square()
            squared += float(by_row.sum())
            space = self.problem.tables.get(name)
            if space is None:
                elementwise += float(by_row.sum())
                continue
            share = self.shares[space.name].to(by_row.device)
            held = by_row[: len(share)]
            elementwise += float((held / share.masked_fill(share == 0, 1.0)).sum())
        return {SQUARED: squared, ELEMENTWISE: elementwise}

    def gradient(self, model: Tree) -> Tree:
        """∇f by parameter, float64."""
        problem, out = self.problem, {n: torch.zeros_like(model[n], dtype=torch.float64) for n in self.problem.names}
        device = next(iter(model.values())).device
        if self._module is None:
            self._module = Filled(template(problem, device))
            self._module.module.eval()
        for samples, rows in self._blocks():
            at = {space: torch.from_numpy(held).to(device) for space, held in rows.items()}
            values = {
                n: take_rows(model[n], at[problem.tables[n].name]) if n in problem.tables else model[n].detach()
                for n in problem.names
            }
            params = self._module.fill(values)
            owners = self.clients.clients_of(samples)
            batch = columns_to(self._local(samples, owners, rows), device)
            real = torch.ones(len(samples), device=device)
            with torch.enable_grad():
                losses, _ = self._module.losses(problem.objective, batch, real)
                weights = torch.from_numpy(self._weights[owners]).to(losses)
                total = (losses.expand(len(samples)) * weights).sum()
                slopes = torch.autograd.grad(total, list(params.values()), allow_unused=True)
            for name, slope in zip(params, slopes, strict=True):
                if slope is not None and name in problem.tables:
                    out[name].index_add_(0, at[problem.tables[name].name].long(), slope.double())
                elif slope is not None:
                    out[name] += slope
        for name, slope in out.items():
            if pull := problem.objective.l2_of(name):
                slope += pull * self._shared_by(name, slope) * model[name]
        return out

    def _shared_by(self, name: str, slope: torch.Tensor) -> torch.Tensor | float:
        """How much of the population holds each row; 1 for dense parameters."""
        if name not in self.problem.tables:
            return 1.0
        share = torch.zeros(len(slope), dtype=torch.float64, device=slope.device)
        known = self.shares[self.problem.tables[name].name]
        share[: len(known)] = known.to(slope.device)
        return share.reshape(-1, *[1] * (slope.ndim - 1))

    def _blocks(self) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """(samples, the rows of each space that go with them, sorted).

        Of modules that use a client's rows as a whole each block is of one client, with all its rows.
        """
        clients, spaces = self.clients, self.problem.spaces
        if self.problem.objective.whole:
            for i in np.flatnonzero(clients.sizes).tolist():
                rows = {name: clients.spaces[name].rows_of(i).astype(np.int64) for name in spaces}
                yield np.arange(int(clients.offsets[i]), int(clients.offsets[i + 1])), rows
            return
        for low in range(0, clients.samples, BLOCK):
            samples = np.arange(low, min(low + BLOCK, clients.samples))
            found: dict[str, list[np.ndarray]] = {
                name: [np.zeros(1, np.int64)] if clients.spaces[name].padding else [] for name in spaces
            }
            for name, ids in clients.gather(samples, self._ids(), local=False).items():
                found[self._space(name)].append(ids.reshape(-1))
            yield (
                samples,
                {name: np.unique(np.concatenate([np.zeros(0, np.int64), *ids])) for name, ids in found.items()},
            )

    def _ids(self) -> tuple[str, ...]:
        return tuple(c for c in self.columns if self._space(c) in self.problem.spaces)

    def _space(self, column: str) -> str:
        return self.clients.columns[column].space or ""

    def _local(self, samples: np.ndarray, owners: np.ndarray, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The columns of a block, ids as places among its rows."""
        arrays = self.clients.gather(samples, self.columns, local=False, owners=owners)
        for name in self._ids():
            arrays[name] = np.searchsorted(rows[self._space(name)], arrays[name])
        return arrays


def check_shared(model: Tree | PersonalModel) -> None:
    """Refuse models of which every client has its own: there is no one gradient."""
    if isinstance(model, PersonalModel):
        raise ConfigError(
            "The gradient's norms are those of one shared model, and clients of this method have parameters of their "
            "own; leave norms out for it."
        )
