"""Looking at a module before anything is trained: what it reads, and whether a submodel is enough for it."""

from __future__ import annotations

import numpy as np
import torch

from fedsub.errors import ObjectiveError
from fedsub.method.batches import Batches
from fedsub.objective.problem import Problem
from fedsub.round.cut import cut
from fedsub.round.engines.base import Filled, Plan, columns_to, template
from fedsub.round.engines.explain import failed
from fedsub.round.engines.probe import Usage, probe
from fedsub.trees import Model, Tree, rows_of

FIRST = 7  # rows of a lazy table that stand before a client's, so that its ids are others
_SMALL = 20_000_000  # values of a table that may be copied for a check


class Columns(dict):
    """A batch that remembers which columns were read."""

    def __init__(self, *args):
        super().__init__(*args)
        self.read: set[str] = set()

    def __getitem__(self, name):
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name, default=None):
        self.read.add(name)
        return super().get(name, default)

    def pop(self, name, *default):
        self.read.add(name)
        return super().pop(name, *default)

    def setdefault(self, name, default=None):
        self.read.add(name)
        return super().setdefault(name, default)

    def __iter__(self):
        self.read.update(dict.keys(self))
        return super().__iter__()

    def items(self):
        self.read.update(dict.keys(self))
        return super().items()

    def values(self):
        self.read.update(dict.keys(self))
        return super().values()


def inspect(problem: Problem, params: Tree, client: int, batches: Batches) -> tuple[Plan, Usage]:
    """Run the module on one client's submodel, watching what it reads, and compare with the full tables."""
    device = next(iter(params.values())).device
    filled = Filled(template(problem, device))
    samples = batches.samples[0, 0][batches.weights[0, 0] > 0]
    batch = _batch(problem, samples, device, local=True)
    rows = {s.name: torch.from_numpy(s.rows_of(client).astype(np.int64)).to(device) for s in problem.spaces.values()}
    model = problem.untouched(params)
    own = {n: params[n] for n in problem.dense}
    own = {n: rows_of(model[n], rows[s.name]) for n, s in problem.tables.items()} | own
    with torch.random.fork_rng():
        filled.fill({name: value.clone() for name, value in own.items()})
        usage = probe(problem, filled.module, batch)
        if not usage.whole:
            full = _batch(problem, samples, device, local=False)
            _same_on_full_tables(problem, *_with_others(problem, model, rows, full), own, filled, batch)
    columns = tuple(name for name in problem.clients.columns if name in batch.read)
    plan = Plan(
        columns, dropout=usage.dropout, sample_mask="sample_mask" in batch.read, random=usage.random is not None
    )
    return plan, usage


def _batch(problem: Problem, samples: np.ndarray, device: torch.device, *, local: bool) -> Columns:
    batch = Columns(columns_to(problem.clients.gather(samples, local=local), device))
    batch["sample_mask"] = torch.ones(len(samples), device=device)
    return batch


def _with_others(
    problem: Problem, model: Model, rows: dict[str, torch.Tensor], batch: Columns
) -> tuple[Tree, dict[str, torch.Tensor], Columns]:
    """(the full tables, the client's rows in them, the batch for them); of a lazy one its first rows and the client's.

    There, too, ids are other numbers than on the submodel.
    """
    ids = {name: held.cpu().numpy() for name, held in rows.items()}
    also = {name: np.union1d(held, np.arange(min(FIRST, problem.spaces[name].size))) for name, held in ids.items()}
    columns = [c for space in problem.spaces.values() for c in space.columns if c in batch]
    arrays = {c: dict.__getitem__(batch, c).cpu().numpy() for c in columns}
    params, arrays, cuts = cut(problem.tables, model, arrays, also)
    for column, values in arrays.items():
        if problem.clients.columns[column].space in cuts:
            dict.__setitem__(batch, column, torch.from_numpy(values))
    at = {name: torch.from_numpy(np.searchsorted(cuts[name], held)) for name, held in ids.items() if name in cuts}
    return params, rows | at, batch


def _same_on_full_tables(
    problem: Problem, full_params: Tree, rows: dict[str, torch.Tensor], full: Columns, own: Tree, filled: Filled,
    local: Columns,
) -> None:  # fmt: skip
    """Looking ids up must be all a module does with them: then a submodel gives the losses of the full model."""
    torch.manual_seed(0)
    own, params = dict(own), dict(full_params)
    for name in problem.tables:
        if params[name].numel() <= _SMALL:  # untrained tables are often zero, where every row looks alike
            own[name] = own[name] + torch.rand_like(own[name])
            params[name] = params[name].clone()
            params[name][rows[problem.tables[name].name]] = own[name]
    filled.module.eval()
    losses = []
    for values, batch in ((own, local), (own, local), (params, full)):
        filled.fill(values)
        torch.manual_seed(1)
        try:
            with torch.no_grad():
                losses.append(problem.objective.loss(problem.objective.output(filled.module, batch), batch))
        except Exception as err:
            raise failed(problem, filled.module, batch, err, "in eval mode") from err
    filled.module.train()
    if not torch.equal(losses[0], losses[1]) and not losses[0].isnan().any():
        raise ObjectiveError(
            "In eval mode the module gives different losses for the same batch: it draws random numbers or changes "
            "itself in forward, so results would depend on the order of clients."
        )
    if not torch.allclose(losses[0], losses[2], rtol=1e-3, atol=1e-5, equal_nan=True):
        raise ObjectiveError(
            "The module gives other losses on a client's submodel than on the full tables: it uses the numbers of an "
            "id column for more than looking rows up (arithmetic, one_hot, features). Read such a column also under "
            "values=, which are left as they are."
        )
