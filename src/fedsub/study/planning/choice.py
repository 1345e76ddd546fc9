"""`plan`: from a task, a population and a cluster to memory, bytes, time, cost, and what to choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedsub.checks import check_whole
from fedsub.data.clients import Clients
from fedsub.errors import ConfigError, MethodError
from fedsub.method.sampling import Uniform
from fedsub.method.slots import Method
from fedsub.method.training import Algorithm
from fedsub.objective.objective import Objective
from fedsub.objective.problem import Problem
from fedsub.round.clock.devices import phones
from fedsub.round.clock.seconds import round_seconds
from fedsub.round.prepare import Trainer
from fedsub.study.planning import memory
from fedsub.study.planning.cluster import Cluster
from fedsub.study.planning.constants import Constants
from fedsub.study.planning.counted import Counts, count
from fedsub.study.planning.scaled import Scaled
from fedsub.study.report.words import duration, size

USABLE = 0.8  # of a machine's memory
WORTH = 0.9  # workers are taken if a round then takes at most this share of the time
MOST_DEVICES = 100_000
FEW = 10  # clients whose work is counted one by one: what the serial engine does is in proportion


@dataclass(frozen=True)
class Plan:
    """What a run will need. Bytes are exact means where the ledger counts them, all else is an estimate."""

    method: str
    rounds: int
    scaled: Scaled
    counts: Counts  # of a round of the population
    cluster: Cluster
    constants: Constants
    engine: str  # "serial", "batched" or "ray"
    workers: int
    tables: str  # "dense", "lazy" or "sharded"
    shards: int
    memory: Mapping[str, Mapping[str, float]]  # process -> what for -> bytes
    seconds: float  # of a round, here
    device_seconds: float  # of a round on assumed phones; NaN of cohorts that are too large
    why: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether every process fits on its machine."""
        return bool(self.engine)

    def peak(self, process: str) -> float:
        """Bytes that a process holds."""
        return sum(self.memory[process].values())

    @property
    def down(self) -> float:
        """Bytes to all clients in a round."""
        return self.scaled.cohort * self.scaled.wire.down

    @property
    def up(self) -> float:
        return self.scaled.cohort * (self.scaled.wire.asked + self.scaled.wire.up)

    @property
    def cost(self) -> float:
        hours = self.rounds * self.seconds / 3600
        wire = self.rounds * (self.down + self.up) / 1e9
        return self.cluster.machines * hours * self.cluster.price_hour + wire * self.cluster.price_gb

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "method": self.method, "rounds": self.rounds, "clients": self.scaled.clients,
            "rows": dict(self.scaled.rows), "samples": self.scaled.samples, "clients_per_round": self.scaled.cohort,
            "engine": self.engine, "workers": self.workers, "tables": self.tables, "shards": self.shards,
            "memory": {name: dict(parts) for name, parts in self.memory.items()},
            "peak": {name: self.peak(name) for name in self.memory},
            "bytes": {"asked": self.scaled.wire.asked, "down": self.scaled.wire.down, "up": self.scaled.wire.up},
            "round": {"down": self.down, "up": self.up, "seconds": self.seconds, "phones": self.device_seconds},
            "counted": {n: getattr(self.counts, n) for n in ("engine", "calls", "bytes", "flops", "rows", "samples")},
            "seconds": self.rounds * self.seconds, "cost": self.cost, "fits": self.fits, "why": list(self.why),
        }  # fmt: skip

    def __str__(self) -> str:
        many, wire = self.scaled, self.scaled.wire
        tables = ", ".join(f"{name} {rows:,}" for name, rows in many.rows.items())
        lines = [
            f"{self.method}: {many.clients:,} clients, {many.samples:,} samples; rows of tables: {tables or 'none'}",
            f"{self.cluster.machines} × {self.cluster.cores} cores, {size(self.cluster.bytes)}; "
            f"{self.rounds:,} rounds of {many.cohort:,.0f} clients",
            "",
        ]
        for name, parts in self.memory.items():
            split = ", ".join(f"{what} {size(held)}" for what, held in parts.items() if held >= 0.005 * self.peak(name))
            lines.append(f"memory of {name + ':':<12}{size(self.peak(name)):>10}  ({split})")
        total = self.rounds * (self.down + self.up)
        lines += [
            f"bytes of a client:   {wire.down:,.0f} down, {wire.asked + wire.up:,.0f} up "
            f"({wire.asked:,.0f} of them name rows)",
            f"bytes of a round:    {size(self.down)} down, {size(self.up)} up; {size(total)} in all",
            f"time of a round:     {_span(self.seconds)} in a simulation; {_span(self.rounds * self.seconds)} in all, "
            "evaluation left out",
        ]
        if np.isfinite(self.device_seconds):
            lines.append(f"on assumed phones:   {_span(self.device_seconds)} a round, the slowest awaited")
        if self.cluster.price_hour or self.cluster.price_gb:
            lines.append(f"cost:                {self.cost:,.2f}")
        return "\n".join([*lines, "", *self.why])


def plan(
    method: Algorithm,
    objective: Objective,
    clients: Clients,
    *,
    rounds: int = 100,
    population: int | None = None,
    rows: Mapping[str, int] | None = None,
    samples: int | None = None,
    cluster: Cluster | None = None,
    constants: Constants | None = None,
    seed: int = 0,
) -> Plan:
    """Estimate memory, bytes, time and cost of a run, and say which engine, tables and workers to choose.

    ``clients`` are some of the population's, enough for a cohort; two rounds are played on them. The population has
    ``population`` clients like them with ``samples`` together, and tables of ``rows`` {space: rows}. ``cluster`` is
    this computer unless told otherwise, and ``constants`` are the defaults or those that `calibrate` measured.
    """
    if not isinstance(method, Method):
        raise ConfigError(f"{method.name} has rounds of its own; plans are made for compositions of slots.")
    many = check_whole("rounds", rounds, 1, error=ConfigError)
    cluster, constants = cluster or Cluster(), constants or Constants()
    problem = Problem.bind(objective, clients.pooled() if method.pooled else clients)
    counts, trainer = count(problem, method, "serial" if method.pooled else "batched", seed=seed)
    scaled = Scaled.of(problem, trainer, counts, population, rows, samples)
    if not method.pooled:
        alone, _ = count(problem, _of_few(method, counts), "serial", seed=seed)
        each = [one.of(counts.clients) for one in (counts, alone)]
        counts = min(each, key=lambda one: sum(one.seconds(constants)))
    counts = counts.of(scaled.cohort)
    return _chosen(trainer, scaled, counts, many, cluster, constants)


def _of_few(method: Method, counts: Counts) -> Method:
    """The method with a small cohort, if it can do with one."""
    try:
        return replace(method, sampler=Uniform(min(FEW, round(counts.clients))))
    except MethodError:  # some need everybody
        return method


def _chosen(
    trainer: Trainer, scaled: Scaled, counts: Counts, rounds: int, cluster: Cluster, constants: Constants
) -> Plan:
    """Tables first, as they must fit; then workers, if they are worth it."""
    room, why = USABLE * cluster.bytes, []
    around = memory.driver(trainer, scaled, counts, rounds, constants)
    dense, lazy = memory.tables(trainer, scaled), memory.lazy_tables(trainer, scaled, rounds)
    need, small = (sum(around.values()) + sum(one.values()) for one in (dense, lazy))
    kind, shards, own = "dense", 0, dense
    if need <= room and not trainer.problem.lazy:
        why.append(f"Tables: dense, in one process; {size(need)} of the {size(room)} that a machine may fill.")
    elif small <= room:
        kind, own = "lazy", lazy
        beyond = f", of which a machine may fill {size(room)}" if need > room else ""
        why.append(
            f"Tables: lazy; what {rounds:,} rounds touch needs {size(small)}. Dense they would need "
            f"{size(need)}{beyond}."
        )
    else:
        kind, own = "sharded", {}
        shards = _shards(trainer, scaled, cluster, constants)
        found = shards or int(np.ceil(sum(memory.shard(trainer, scaled, 1, constants).values()) / room))
        why.append(
            f"Tables: in {found} shards. Dense they need {size(need)}, even what {rounds:,} rounds touch needs "
            f"{size(small)}, and a machine may fill {size(room)}."
        )
        if not shards:
            why.append(f"It does not fit on {cluster.machines} machines; take at least {found}, or larger ones.")
    processes: dict[str, Mapping[str, float]] = {"the driver": {**around, **own}}
    fits = kind != "sharded" or bool(shards)
    if sum(processes["the driver"].values()) > room:
        fits = False
        why.append(f"The driver alone needs more than {size(room)}; take larger machines or a smaller cohort.")
    if shards:
        processes["a shard"] = memory.shard(trainer, scaled, shards, constants)
    engine, workers, seconds = _workers(trainer, scaled, counts, cluster, constants, shards, why)
    if workers > 1:
        processes["a worker"] = memory.worker(trainer, scaled, counts, workers, constants)
        beside = workers // cluster.machines * sum(processes["a worker"].values())
        if beside > room:
            why.append(f"The workers of a machine need {size(beside)} together; take fewer.")
    return Plan(
        trainer.method.name, rounds, scaled, counts, cluster, constants, engine if fits else "", workers, kind, shards,
        processes, seconds, _on_phones(scaled, counts), tuple(why),
    )  # fmt: skip


def _shards(trainer: Trainer, scaled: Scaled, cluster: Cluster, constants: Constants) -> int:
    """The fewest shards, at most one a machine, that fit; 0 if none do."""
    for shards in range(2, cluster.machines + 1):
        if sum(memory.shard(trainer, scaled, shards, constants).values()) <= USABLE * cluster.bytes:
            return shards
    return 0


def _workers(
    trainer: Trainer, scaled: Scaled, counts: Counts, cluster: Cluster, constants: Constants, shards: int,
    why: list[str],
) -> tuple[str, int, float]:  # fmt: skip
    """(engine, workers, seconds of a round): the number of workers with the shortest round, if it is worth it."""
    moved = 2 * memory.arena(trainer, scaled)  # there and back
    rows = moved / cluster.speed + 2 * (cluster.latency + shards * constants.remote) if shards else 0.0
    alone, shared = counts.seconds(constants)

    def seconds(workers: int) -> float:
        if workers == 1:
            return alone + shared + rows
        away = moved * (1 - 1 / cluster.machines) / cluster.speed + moved * constants.byte
        calls = workers * constants.remote + 2 * cluster.latency
        return alone + shared / (workers * constants.share) + away + calls + rows

    most = min(cluster.machines * cluster.cores, max(1, int(scaled.cohort)))
    best = min(range(1, most + 1), key=seconds)
    one = seconds(1)
    if best > 1 and seconds(best) <= WORTH * one:
        engine = "ray" if cluster.machines > 1 else counts.engine
        why.append(
            f"Engine: {engine} with {best} workers, {_span(seconds(best))} a round; one alone takes {_span(one)}."
        )
        return engine, best, seconds(best)
    beside = f" {most} workers would take {_span(seconds(most))}." if most > 1 else ""
    why.append(f"Engine: {counts.engine}, in one process, {_span(one)} a round.{beside}")
    return counts.engine, 1, one


def _on_phones(scaled: Scaled, counts: Counts) -> float:
    """Of a round on `phones`, whose speeds and links are assumed."""
    many = round(scaled.cohort)
    if not 1 <= many <= MOST_DEVICES:
        return float("nan")
    up = scaled.wire.asked + scaled.wire.up
    columns = (np.full(many, value) for value in (scaled.wire.down, up, counts.samples / many))
    return round_seconds(phones(), np.arange(many), *columns)


def _span(seconds: float) -> str:
    """A time in words, milliseconds too."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else duration(seconds)
