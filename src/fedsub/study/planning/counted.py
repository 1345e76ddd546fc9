"""What a round does, counted on the clients at hand: two rounds are played, and the second one is watched.

Counts do not depend on the machine, nor on how many other clients and rows there are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from fedsub.errors import ConfigError
from fedsub.method.groups import Cohort
from fedsub.method.slots import Method
from fedsub.method.training import Options
from fedsub.objective.problem import Problem
from fedsub.round.engines.base import columns_to
from fedsub.round.engines.batched import CACHE_BYTES
from fedsub.round.ledger import RoundReport
from fedsub.round.prepare import Trainer, prepare
from fedsub.round.quiet import one_thread
from fedsub.study.planning.constants import Constants
from fedsub.torch_private import Counted

FIRST, WATCHED = 1, 2


@dataclass(frozen=True)
class Counts:
    """What one round does on one engine."""

    engine: str
    calls: int  # of operations on tensors
    bytes: int  # that they write
    flops: int
    rows: int  # Σ|S(i)| over the cohort and all spaces
    steps: int  # local steps of all clients together
    samples: int  # trained on, those drawn twice twice
    clients: float
    report: RoundReport

    def seconds(self, constants: Constants) -> tuple[float, float]:
        """(what one process does alone, what workers share among them) of a round's CPU time."""
        call = constants.serial_call if self.engine == "serial" else constants.call
        shared = self.calls * call + self.bytes * constants.byte + self.flops * constants.flop
        return constants.start + self.rows * constants.row, shared

    def of(self, clients: float) -> Counts:
        """Of a round of so many clients, in proportion."""
        factor = clients / self.clients
        names = ("calls", "bytes", "flops", "rows", "steps", "samples")
        return replace(self, clients=clients, **{name: round(getattr(self, name) * factor) for name in names})

    @property
    def step_bytes(self) -> float:
        """What one local step of the clients that are computed together writes at most."""
        if self.engine == "serial":
            return self.bytes / max(self.steps, 1)
        at_once = self.bytes * self.clients / max(self.steps, 1)
        return min(at_once, max(CACHE_BYTES, 2 * at_once / max(self.clients, 1)))


def count(problem: Problem, method: Method, engine: str, *, seed: int = 0) -> tuple[Counts, Trainer]:
    """What a round of a method does on an engine ("batched" may come out as "serial"), and who played it."""
    with one_thread():
        made = prepare(method, problem, problem.params(lazy=True), Options(engine=engine, seed=seed)).trainer
        if not isinstance(made, Trainer):
            raise ConfigError(f"{method.name} has rounds of its own; plans are made for compositions of slots.")
        made.round(FIRST)  # what is traced and laid out once is no part of a round
        with Counted() as seen:
            report = made.round(WATCHED)
    cohort = Cohort.of(report.clients, may_repeat=True)
    batches = made.here.half.draw(cohort, WATCHED)
    samples = int(np.count_nonzero(batches.weights))
    held = sum(int(space.counts[report.clients].sum()) for space in problem.spaces.values())
    layers = samples * layer_flops(problem, batches.samples[0, 0]) if len(cohort) else 0
    return Counts(
        made.engine.name, seen.calls, seen.bytes, seen.flops + layers, held, int(batches.steps.sum()), samples,
        len(cohort), report,
    ), made  # fmt: skip


def layer_flops(problem: Problem, samples: np.ndarray) -> int:
    """Of a sample, forward and backward, in recurrent layers, which torch computes in one call.

    A token costs two flops for each weight forward and four backward.
    """
    module, total = problem.objective.module, 0
    layers = [layer for layer in module.modules() if isinstance(layer, nn.RNNBase)]
    if not layers:
        return 0

    def seen(layer: nn.Module, inputs: tuple[Tensor, ...], _: object) -> None:
        nonlocal total
        tokens = inputs[0].numel() // inputs[0].shape[-1]
        total += 6 * tokens * sum(p.numel() for p in layer.parameters() if p.ndim > 1)

    handles = [layer.register_forward_hook(seen) for layer in layers]
    try:
        found = problem.clients.gather(samples[:1], local=False)
        with torch.no_grad():
            problem.objective.output(module, columns_to(found, next(module.parameters()).device))
    finally:
        for handle in handles:
            handle.remove()
    return total
