"""One round on one screen: sample, send, train, sum, average, step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from fedsub import rng
from fedsub.errors import NoUsableClient
from fedsub.method.batches import draw, precision
from fedsub.method.groups import Cohort
from fedsub.method.parts import Personal
from fedsub.method.patterns import check_patterns
from fedsub.method.slots import Method, Options, Prepared
from fedsub.objective.problem import Problem
from fedsub.round.engines.base import Delivery, Job
from fedsub.round.engines.setup import choose
from fedsub.round.predict import PersonalModel
from fedsub.round.probing import Prober
from fedsub.round.state import State
from fedsub.round.sums import CohortRows, SpaceRows, Sum
from fedsub.trees import Tree


@dataclass(frozen=True)
class RoundReport:
    """What a round did. Arrays are by client of the cohort."""

    clients: np.ndarray
    loss: float  # mean training loss over the clients that delivered; NaN if nobody was there
    down: np.ndarray  # bytes
    up: np.ndarray  # bytes; 0 for a client that was lost
    lost: int = 0  # clients that never delivered
    rejected: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # their update held NaN or infinity
    probed: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # asked for their loss by the sampler
    probe_down: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # bytes, by probed client
    probe_up: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def total_down(self) -> int:
        return int(self.down.sum() + self.probe_down.sum())

    @property
    def total_up(self) -> int:
        return int(self.up.sum() + self.probe_up.sum())


class Trainer:
    """The server's side of training: its parameters, and how one round changes them.

    ``scratch`` is a folder for clients' state that is too large for memory.
    """

    def __init__(
        self,
        problem: Problem,
        method: Method,
        params: Tree,
        engine,
        *,
        seed: int = 0,
        lost: float = 0.0,
        on_bad_update: str = "skip",
        scratch: Path | None = None,
        columns: tuple[str, ...] | None = None,
    ):
        self.problem, self.method, self.params, self.engine, self.seed = problem, method, params, engine, seed
        self.lost, self.on_bad_update = lost, on_bad_update
        self.device = next(iter(params.values())).device
        check_patterns(getattr(method.local, "groups", None), problem.names, type(method.local).__name__)
        self.average = method.average.bind(problem, self.device)
        self.sampler = method.sampler.bind(problem.clients.sizes)
        self.server = method.server
        if hasattr(self.server, "fitted"):
            count = getattr(method.sampler, "clients_per_round", len(problem.clients))
            self.server = self.server.fitted(min(1.0, count / len(problem.clients)))  # type: ignore[attr-defined]
        self.state = State(problem, replace(method, server=self.server), params, self.sampler.state, scratch, seed)
        self.bytes = problem.traffic(method)
        self._rows = CohortRows(problem, self.device)
        self._prober = Prober(problem, method, columns)
        self._settled = 0  # the last round after which every row was up to date

    def round(self, number: int) -> RoundReport:
        problem, method, state = self.problem, self.method, self.state
        probes = self._prober.start(number, self.seed, self.params, self._current)
        cohort = self.sampler.select(number, self.seed, probes)
        invited, down, up = cohort.clients, *self.bytes.plain(cohort.clients)
        stays = self._stays(number, cohort)
        if not stays.all():
            up = np.where(stays, up, 0)
            cohort = cohort.take(np.flatnonzero(stays))
        if not len(cohort):
            self._refuse_empty(number, len(invited))
            state.skipped.add_(1)
            return RoundReport(
                invited, float("nan"), down, up, len(invited), probed=probes.clients, probe_down=probes.down,
                probe_up=probes.up,
            )  # fmt: skip
        rows = self._rows(cohort)
        self._current(rows, number)
        batches = draw(
            problem.clients, cohort, method.local, round=number, seed=self.seed, dtype=precision(self.params)
        )
        job = Job(method, self.params, cohort, rows, batches, number, self.seed, state.shared, state.kept)
        names = ("update", *(f"{part.key}.{name}" for part in method.parts for name in part.payloads))
        held, private = method.average.needs_held, self.bytes.private
        sums = {name: Sum(problem, self.params, rows, held=held, private=private) for name in names}
        weights = self.average.weights(cohort.clients)
        losses, deviations = np.zeros(len(cohort)), np.zeros(len(cohort))
        finite, encoded = np.ones(len(cohort), bool), np.full(len(cohort), -1, np.int64)
        numbers: dict[str, float] = {}
        deliveries: list[Delivery] = []
        for delivery in self.engine.map(job):
            at, message = delivery.where, delivery.message
            losses[at], deviations[at], finite[at] = delivery.losses, delivery.deviations, delivery.finite
            share = weights[at]
            if not delivery.finite.all():
                share = np.where(delivery.finite, share, 0.0)
            for name, tree in message.trees.items():
                if not delivery.finite.all():
                    tree = {n: torch.nan_to_num(d, 0.0, 0.0, 0.0) for n, d in tree.items()}
                sums[name].add(tree, at, share, stacked=delivery.stacked)
            for name, values in message.numbers.items():
                for value, a in zip(values.tolist(), share.tolist(), strict=True):  # in order: no matter how grouped
                    numbers[name] = numbers.get(name, 0.0) + value * a
            if message.encoded is not None:
                encoded[at] = message.encoded.cpu().numpy()
            if delivery.kept:
                deliveries.append(delivery)

        rejected = cohort.clients[~finite]
        self._check(number, rejected, sums["update"].count)
        report = getattr(self.sampler, "report_bytes", 0)
        up[stays] = self.bytes.encoded(up[stays], cohort.clients, encoded) + report
        self._combine(number, sums, numbers)
        for delivery in deliveries:  # only now: a client that takes part twice reads the same state both times
            state.keep(delivery, cohort, rows, finite)
        self.sampler.observe(number, cohort.clients[finite], losses[finite], deviations[finite])
        return RoundReport(
            invited, float(losses[finite].mean()), down, up, len(invited) - len(cohort), rejected,
            probes.clients, probes.down, probes.up,
        )  # fmt: skip

    def _combine(self, number: int, sums: dict[str, Sum], numbers: dict[str, float]) -> None:
        """The server's half: means, parts (last one first), and the server's step."""
        weight = sums["update"].weight
        total = sums["update"].total({name: value / weight for name, value in numbers.items()})
        total = replace(total, share=self.average.share(total))
        mean = {name: self.average(one.total() if name != "update" else total) for name, one in sums.items()}
        for part in reversed(self.method.parts):
            part.combine(mean, total, self.state.shared.get(part.key, {}), number)
        if not mean["update"]:  # everything is private
            return
        step = getattr(self.server, "advance", self.server.step)  # the rows are up to date: they have just been sent
        step(self.params, mean["update"], total.rows, self.state.server, self._time(number))
        self.state.note(total.rows)

    def _current(self, rows: dict[str, SpaceRows], number: int) -> None:
        """Bring rows that are about to be read to the end of the round before this one."""
        if self.server.lazy:
            union = {table: rows[space.name].union for table, space in self.problem.tables.items()}
            self.server.catch_up(self.params, union, self.state.server, self._time(number) - 1)
            self.state.note(union)

    def model(self, number: int) -> Tree | PersonalModel:
        """What is evaluated after round ``number``."""
        shared = self._shared(number)
        names = self.bytes.private
        if not names:
            return shared
        assert self.state.kept is not None
        return PersonalModel(shared, self.state.kept, Personal.slot, names)

    def _shared(self, number: int) -> Tree:
        """The server's parameters, for reading: a copy if rows must be brought up to date first."""
        if not self.server.lazy or number == self._settled:
            return self.params
        params, state = self.state.copy_tables(self.params)
        self.server.catch_up(params, None, state, self._time(number))
        return params

    def settle(self, number: int) -> None:
        """Bring every row up to date in place, at the end of training."""
        if self.server.lazy:
            self.server.catch_up(self.params, None, self.state.server, self._time(number))
            self._settled = number

    def _time(self, number: int) -> int:
        """The server's own count of rounds: those in which nobody took part leave everything as it is."""
        return number - int(self.state.skipped)

    def _stays(self, number: int, cohort: Cohort) -> np.ndarray:
        """Which clients of the cohort deliver."""
        if not self.lost:
            return np.ones(len(cohort), bool)
        return rng.uniform(cohort.words(self.seed, rng.LOSS, number)) >= self.lost

    def _refuse_empty(self, number: int, invited: int) -> None:
        if invited:
            raise NoUsableClient(
                f"Round {number}: all {invited} sampled clients were lost (lost={self.lost}); "
                "sample more clients per round or lower lost."
            )
        if not self.sampler.may_be_empty:
            raise NoUsableClient(f"Round {number}: the sampler {self.method.sampler} chose nobody.")

    def _check(self, number: int, rejected: np.ndarray, delivered: int) -> None:
        named = ", ".join(str(self.problem.clients.client_ids[c]) for c in rejected[:5])
        if len(rejected) and self.on_bad_update == "raise":
            raise NoUsableClient(f"Round {number}: the update of client {named} holds NaN or infinity; lower lr.")
        if not delivered:
            raise NoUsableClient(
                f"Round {number}: no client delivered a usable update; {len(rejected)} held NaN or infinity "
                f"(clients {named}). Lower lr, or look at these clients' data."
            )


def prepare(method: Method, problem: Problem, params: Tree, options: Options) -> Prepared:
    """Choose an engine for a composition of slots, and make its trainer."""
    choice = choose(
        problem, method, params, engine=options.engine, chunk=options.chunk, workers=options.workers,
        compile=options.compile, seed=options.seed,
    )  # fmt: skip
    trainer = Trainer(
        problem, method, params, choice.engine, seed=options.seed, lost=options.lost,
        on_bad_update=options.on_bad_update, scratch=options.scratch, columns=choice.columns,
    )  # fmt: skip
    return Prepared(trainer, choice.reason, choice.columns, choice.fallback)
