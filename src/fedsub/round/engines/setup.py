"""Choosing an engine: look at the module first, check batched against serial, fall back with a reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedsub.errors import ConfigError, ObjectiveError
from fedsub.method.batches import Batches, draw, precision
from fedsub.method.groups import Cohort
from fedsub.method.local import Adam
from fedsub.method.slots import Method
from fedsub.objective.problem import Problem
from fedsub.round.engines.base import Delivery, Filled, Job, Plan, columns_to, template
from fedsub.round.engines.batched import Batched
from fedsub.round.engines.compiled import impure
from fedsub.round.engines.probe import Usage, probe
from fedsub.round.engines.recurrent import NotBatchable
from fedsub.round.engines.serial import Serial, submodel
from fedsub.round.sums import CohortRows
from fedsub.trees import Tree

ENGINES = ("auto", "batched", "serial")
_SMALL = 20_000_000  # values of a table that may be copied for a check
TOLERANCE = 1e-3  # of the largest update; rounding stays far below, a wrong mapping far above


@dataclass
class Choice:
    """The engine in use, and the sentence that says why."""

    engine: Serial | Batched | Auto
    reason: str
    columns: tuple[str, ...]  # the columns that module and loss read
    fallback: bool = False  # whether batching was tried in vain


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


def choose(
    problem: Problem,
    method: Method,
    params: Tree,
    *,
    engine: str = "auto",
    chunk: int | None = None,
    workers: int = 1,
    compile: bool = False,
    seed: int = 0,
) -> Choice:
    """An engine that is right for this module, or the reason why it must be the serial one."""
    if engine not in ENGINES:
        raise ConfigError(f"engine must be one of {', '.join(ENGINES)}; got {engine!r}.")
    if compile and (slot := impure(method)):
        raise ConfigError(f"compile=True cannot be used with {slot}, whose steps depend on the round; leave it out.")
    job = _two_clients(problem, method, params, seed)
    plan, usage = inspect(problem, job)
    serial = Serial(problem, plan, workers=workers)
    if method.pooled:
        return Choice(serial, "engine serial: all data is in one place, there is nothing to batch", plan.columns)
    if engine == "serial":
        return Choice(serial, "engine serial, as asked", plan.columns)
    try:
        _refuse(usage)
        batched = Batched(problem, plan, chunk=chunk, workers=workers)
        _agree(list(serial.map(job)), list(batched.map(job)), problem)
        batched.compile = compile  # only now: two clients are not worth a compilation
    except NotBatchable as why:
        return Choice(serial, f"engine serial, because clients cannot be batched: {why}", plan.columns, True)
    if engine == "batched":
        return Choice(batched, "engine batched: agrees with serial on two clients", plan.columns)
    return Choice(Auto(serial, batched), "batched agrees with serial on two clients; timing both", plan.columns)


def inspect(problem: Problem, job: Job) -> tuple[Plan, Usage]:
    """Run the module on one client's submodel, watching what it reads, and compare with the full tables."""
    device = next(iter(job.params.values())).device
    filled = Filled(template(problem, device))
    real = job.batches.weights[0, 0] > 0
    samples = job.batches.samples[0, 0][real]
    batch = _batch(problem, samples, device, local=True)
    with torch.random.fork_rng():
        filled.fill({name: value.clone() for name, value in submodel(problem, job, 0).items()})
        usage = probe(problem, filled.module, batch)
        if not usage.whole:
            _same_on_full_tables(problem, job, filled, batch, _batch(problem, samples, device, local=False))
    columns = tuple(name for name in problem.clients.columns if name in batch.read)
    plan = Plan(
        columns,
        dropout=usage.dropout,
        sample_mask="sample_mask" in batch.read,
        random=usage.random is not None,
    )
    return plan, usage


def _batch(problem: Problem, samples: np.ndarray, device: torch.device, *, local: bool) -> Columns:
    batch = Columns(columns_to(problem.clients.gather(samples, local=local), device))
    batch["sample_mask"] = torch.ones(len(samples), device=device)
    return batch


def _same_on_full_tables(problem: Problem, job: Job, filled: Filled, local: Columns, full: Columns) -> None:
    """Looking ids up must be all a module does with them: then a submodel gives the losses of the full model."""
    torch.manual_seed(0)
    own = submodel(problem, job, 0)
    params = dict(job.params)
    for name in problem.tables:
        if params[name].numel() <= _SMALL:  # untrained tables are often zero, where every row looks alike
            own[name] = own[name] + torch.rand_like(own[name])
            params[name] = params[name].clone()
            rows = job.rows[problem.tables[name].name]
            params[name][rows.rows[: int(rows.counts[0])].long()] = own[name]
    filled.module.eval()
    losses = []
    for values, batch in ((own, local), (own, local), (params, full)):
        filled.fill(values)
        torch.manual_seed(1)
        try:
            with torch.no_grad():
                losses.append(problem.objective.loss(problem.objective.output(filled.module, batch), batch))
        except Exception as err:
            raise ObjectiveError(f"In eval mode the module or loss failed, with {type(err).__name__}: {err}.") from err
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


class Auto:
    """Times serial and batched on the first cohort and keeps the faster; ``chosen`` records which."""

    def __init__(self, serial: Serial, batched: Batched):
        self.serial, self.batched = serial, batched
        self.chosen: Serial | Batched | None = None
        self.on_choice: Callable[[str], None] = lambda sentence: None

    @property
    def name(self) -> str:
        return "auto" if self.chosen is None else self.chosen.name

    def keep(self, name: str) -> None:
        """Use the engine that was chosen before (by an earlier session of the same run)."""
        self.chosen = self.serial if name == "serial" else self.batched

    def map(self, job: Job) -> Iterator[Delivery]:
        if self.chosen is None:
            few = _first(job, min(len(job.cohort), 8))
            cost = {"batched": _seconds(self.batched, job), "serial": _seconds(self.serial, few)}
            best = min(cost, key=lambda name: cost[name])
            self.keep(best)
            listed = ", ".join(f"{name} {1e3 * seconds:.3g} ms" for name, seconds in cost.items())
            self.on_choice(f"engine {best} is the faster one (a client's round: {listed})")
        assert self.chosen is not None
        return self.chosen.map(job)


def _seconds(engine: Serial | Batched, job: Job) -> float:
    """CPU seconds per client, after a first use that traces and warms up."""
    for _ in range(2):
        start = time.process_time()
        for _delivery in engine.map(job):
            pass
        spent = time.process_time() - start
    return spent / len(job.cohort)


def _first(job: Job, count: int) -> Job:
    """The same job for the first clients of the cohort only."""
    which = np.arange(count)
    return replace(job, cohort=job.cohort.take(which), batches=_cut(job.batches, slice(count), slice(None)))


def _cut(batches: Batches, who: slice, steps: slice) -> Batches:
    samples = batches.samples[who, steps]
    return Batches(samples, batches.weights[who, steps], np.minimum(batches.steps[who], samples.shape[1]))


def _two_clients(problem: Problem, method: Method, params: Tree, seed: int) -> Job:
    """A small job that covers the awkward case: the client with least data beside a typical one.

    Parts that keep state are left out, for there is none yet, and so are codecs and solvers such as Adam, which turn
    a rounding error into another sign.
    """
    plain = tuple(p for p in method.parts if not (p.client_slots or p.server_slots or p.codec))
    if plain != method.parts:
        method = replace(method, parts=plain)
    if isinstance(method.local, Adam):
        method = replace(method, local=method.local.as_sgd())
    sizes = problem.clients.sizes
    least, other = int(np.argmin(sizes)), int(np.argpartition(sizes, len(sizes) // 2)[len(sizes) // 2])
    if other == least or sizes[other] == 1:  # a lone sample shows nothing of how samples are mixed
        other = int(np.argmax(sizes))
    pair = [least, other] if other != least else [0, 1][: len(sizes)]
    cohort = Cohort.of(np.sort(pair))
    rows = CohortRows(problem, next(iter(params.values())).device)(cohort)
    batches = draw(problem.clients, cohort, method.local, round=0, seed=seed, dtype=precision(params))
    batches = _cut(batches, slice(None), slice(2))
    size = method.local.batch_size or int(sizes.max())
    if (sizes % size).any():
        _shorten(batches)
    return Job(method, params, cohort, rows, batches, 0, seed)


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
            f"the table {table!r} is used whole (by {how}), not only looked up; a client sees just its own rows of it. "
            "If the model needs all rows, leave the table out of tables"
        )
    if usage.random:
        raise NotBatchable(f"it draws random numbers with {usage.random}; only dropout can be drawn per client")
    if usage.scalar_loss:
        raise NotBatchable("the loss returns one number for the batch; return one value per sample")


def _agree(serial: list[Delivery], batched: list[Delivery], problem: Problem) -> None:
    """Both engines must give the same updates on the same work."""
    for name in problem.names:
        axis = [d.deltas[name] for d in serial]
        expected = torch.cat(axis) if name in problem.tables else torch.stack(axis)
        got = torch.cat([d.deltas[name] for d in batched])
        if not expected.numel() or not torch.isfinite(expected).all():
            continue
        worst, largest = float((got - expected).abs().max()), float(expected.abs().max())
        if not worst <= TOLERANCE * largest + 1e-7:
            raise NotBatchable(
                f"batched and serial updates of {name!r} differ by {worst:.2g} (largest update {largest:.2g}); "
                "does the module mix the samples of a batch?"
            )
