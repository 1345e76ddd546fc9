"""Does a round cost more when there are more clients, or a larger table? Submodels stay the same.

K=100 clients a round, I=10 steps of B=32; every client holds 300 rows of 16 numbers and 64 samples of five
ids, which it visits five times in a round (passes restart), so that a million clients fit in memory:
320 places name each of the 300 rows. Row j of a client is drawn from the j-th of 300 strata that widen to
the cold end, so that rows are distinct and sorted by construction and low rows are hot.

Every configuration lives in a process of its own, which tells its peak memory; the parent lets them do
rounds in turn. The table is resident before the clock starts (as after a first epoch), trained in place.
"""

from __future__ import annotations

import multiprocessing as mp
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsub import methods
from fedsub.data.clients import Clients, Column, Space
from fedsub.errors import RunError
from fedsub.objective.losses import Batch, Binary
from fedsub.objective.objective import Objective
from fedsub.objective.problem import Problem
from fedsub.round.engines.setup import choose
from fedsub.round.prepare import Trainer
from fedsub.round.quiet import one_thread
from fedsub.running.run import peak_memory

HELD, SAMPLES, WIDTH, DIM = 300, 64, 5, 16
COHORT, BATCH, STEPS = 100, 32, 10
HEAT_POWER = 3  # the j-th stratum ends at rows · (j / 300)³
CLIENTS_AT_ONCE = 20_000
WARM_UP = 6
# Groups fit in memory together; the first of each is what the others are compared with.
GROUPS = (
    ((10_000, 1_000_000), (1_000_000, 1_000_000), (1_000_000, 10_000_000)),
    ((10_000, 1_000_000), (1_000_000, 100_000_000)),
)


@dataclass
class Measured:
    """One configuration. Bytes are means per client and round."""

    clients: int
    rows: int
    rounds: list[float] = field(default_factory=list)  # CPU seconds
    down: float = 0.0
    up: float = 0.0
    peak: int = 0  # resident bytes of the process
    set_up: float = 0.0  # wall seconds, not counted
    ratio: float = 1.0  # to the first of its group
    settings: dict[str, Any] = field(default_factory=dict)  # of FedSubAvg

    @property
    def best(self) -> float:
        return min(self.rounds)

    @property
    def median(self) -> float:
        return float(np.median(self.rounds))

    @property
    def table_bytes(self) -> int:
        return self.rows * DIM * 4

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"best": self.best, "median": self.median, "table_bytes": self.table_bytes}


class Scorer(nn.Module):
    """A linear score of the sum of five rows."""

    def __init__(self, rows: int):
        super().__init__()
        # numpy's zeros (unlike torch's) come from the system untouched: no memory is used until rows are.
        zeros = torch.from_numpy(np.zeros((rows, DIM), np.float32))
        self.table = nn.EmbeddingBag(rows, DIM, mode="sum", _weight=zeros)
        self.out = nn.Linear(DIM, 1)

    def forward(self, batch: Batch) -> Tensor:
        return self.out(self.table(batch["ids"])).squeeze(-1)


def make_clients(clients: int, rows: int, seed: int = 0) -> Clients:
    """Clients written straight into the arrays of `Clients`: about 2 kB each."""
    rng = np.random.default_rng(seed)
    edges = np.maximum(np.arange(HELD + 1), rows * (np.arange(HELD + 1) / HELD) ** HEAT_POWER).astype(np.int64)
    low, width = edges[:-1].astype(np.int32), np.diff(edges).astype(np.float32)
    held = np.empty((clients, HELD), np.int32)
    ids = np.empty((clients, SAMPLES * WIDTH), np.int16)
    walk = 7 * np.arange(SAMPLES * WIDTH, dtype=np.int32)  # 7 and 300 share no factor: all rows are named
    for begin in range(0, clients, CLIENTS_AT_ONCE):
        part = slice(begin, min(begin + CLIENTS_AT_ONCE, clients))
        count = part.stop - part.start
        held[part] = low + np.minimum(rng.random((count, HELD), np.float32) * width, width - 1).astype(np.int32)
        ids[part] = (walk + rng.integers(0, HELD, (count, 1), np.int32)) % HELD
    labels = rng.integers(0, 2, clients * SAMPLES, np.int8).astype(np.float32)
    space = Space("ids", rows, ("ids",), np.arange(clients + 1) * HELD, held.reshape(-1))
    columns = {
        "ids": Column("ids", ids.reshape(-1, WIDTH), space="ids", width=WIDTH),
        "label": Column("label", labels),
    }
    return Clients(np.arange(clients), np.arange(clients + 1) * SAMPLES, columns, {"ids": space}, label="label")


def make_trainer(clients: int, rows: int, **settings: Any) -> Trainer:
    """FedSubAvg, with ``settings`` of its own if given."""
    objective = Objective(Scorer(rows), Binary("label"), tables={"table.weight": "ids"})
    problem = Problem.bind(objective, make_clients(clients, rows))
    params = problem.params(copy=False)
    cohort = min(COHORT, clients)
    method = methods.fedsubavg(lr=0.01, local_steps=STEPS, batch_size=BATCH, clients_per_round=cohort, **settings)
    choice = choose(problem, method, params, engine="batched")
    # Counting heat needs memory that is free again before the table fills up.
    trainer = Trainer(problem, method, params, choice.engine, choice.plan)
    params["table.weight"].fill_(0.01)
    for value in trainer.server.keeper.state.values():
        value.add_(0)  # resident, like the table
    return trainer


def measure(
    groups: Sequence[Sequence[tuple[Any, ...]]] = GROUPS,
    rounds: int = 15,
    *,
    warm_up: int = WARM_UP,
    first: int = 1,
    progress: Callable[[str], None] = lambda what: None,
) -> list[Measured]:
    """Time ``rounds`` rounds (of different cohorts) of every configuration, taking turns within a group.

    A configuration is (clients, rows), and settings of FedSubAvg if there are any. The rounds count from ``first``.
    """
    out: list[Measured] = []
    for group in groups:
        workers = []
        try:
            for clients, rows, *settings in group:
                progress(f"growth: setting up {clients:,} clients, {rows:,} rows")
                workers.append(_Remote(clients, rows, *settings))
            for number in range(1, warm_up + rounds + 1):
                progress(f"growth: round {number} of {warm_up + rounds}")
                for worker in workers:
                    worker.round(first - 1 + number, counted=number > warm_up)
            found = [worker.close() for worker in workers]
        finally:
            for worker in workers:
                worker.stop()
        for one in found:
            one.ratio = one.best / found[0].best
        out += found
    return out


class _Remote:
    """A configuration in a process of its own."""

    def __init__(self, clients: int, rows: int, settings: dict[str, Any] | None = None):
        settings = settings or {}
        self.measured = Measured(clients, rows, settings=settings)
        context = mp.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, clients, rows, settings), daemon=True)
        start = time.perf_counter()
        self.process.start()
        other.close()
        self._receive()
        self.measured.set_up = time.perf_counter() - start

    def round(self, number: int, *, counted: bool) -> None:
        self.pipe.send(number)
        cpu, down, up = self._receive()
        if counted:
            self.measured.rounds.append(cpu)
            self.measured.down, self.measured.up = down, up

    def close(self) -> Measured:
        self.pipe.send(0)
        self.measured.peak = self._receive()
        self.process.join()
        return self.measured

    def stop(self) -> None:
        if self.process.is_alive():
            self.process.terminate()

    def _receive(self) -> Any:
        try:
            return self.pipe.recv()
        except EOFError:
            self.process.join()
            raise RunError(
                f"The process with {self.measured.clients:,} clients and {self.measured.rows:,} rows ended with code "
                f"{self.process.exitcode}; is there enough memory?"
            ) from None


def _serve(pipe: Connection, clients: int, rows: int, settings: dict[str, Any]) -> None:
    with one_thread():
        trainer = make_trainer(clients, rows, **settings)
        pipe.send("ready")
        while number := pipe.recv():
            start = time.process_time()
            report = trainer.round(number)
            cpu = time.process_time() - start
            pipe.send((cpu, float(report.down.mean()), float(report.up.mean())))
        pipe.send(peak_memory())
