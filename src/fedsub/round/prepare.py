"""From a method and a problem to rounds that can be played in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from fedsub.errors import MethodError
from fedsub.method.batches import check_work
from fedsub.method.engine import Ray, computed_by
from fedsub.method.part import Part
from fedsub.method.parts import CentralDP, SecureSum
from fedsub.method.slots import Method
from fedsub.method.training import OF_CLIENTS, Algorithm, Options, Prepared
from fedsub.objective.population import Population
from fedsub.objective.problem import Problem
from fedsub.round.client import ClientHalf
from fedsub.round.crew.chosen import crew_of
from fedsub.round.engines.base import Engine, Plan
from fedsub.round.engines.setup import choose
from fedsub.round.here import Here
from fedsub.round.keeper import Keeper
from fedsub.round.kept import OfServer
from fedsub.round.ledger import Ledger, RoundReport
from fedsub.round.memory import ClientState, origin_in
from fedsub.round.predict import PersonalModel
from fedsub.round.secure import secured
from fedsub.round.served import ServedRounds
from fedsub.round.server import ServerHalf
from fedsub.round.shards import fits
from fedsub.round.shards.keeper import ShardedKeeper
from fedsub.round.transport import Transport, play
from fedsub.trees import Model, Tree


class Trainer(ServedRounds):
    """A server and clients in one process. ``scratch`` is a folder for what clients keep, if memory is too small."""

    def __init__(
        self,
        problem: Problem,
        method: Method,
        params: Tree,
        engine: Engine,
        plan: Plan,
        *,
        seed: int = 0,
        lost: float = 0.0,
        workers: int = 1,
        chunk: int | None = None,
        compile: bool = False,
        ray: Ray | None = None,
        on_bad_update: str = "skip",
        scratch: Path | None = None,
        rounds: int | None = None,
        shards: int | None = None,
    ):
        self.problem, self.method, self.params, self.engine = problem, method, params, engine
        population = Population.of(problem, seed)
        self.memory = ClientState.of(method.parts, problem, params, scratch)
        self.memory.fill(method.parts, origin_in(problem, problem.untouched(params), seed))
        keeper = Keeper if shards is None else partial(ShardedKeeper, shards=shards, ray=ray, scratch=scratch)
        self.server = ServerHalf(method, population, params, seed=seed, rounds=rounds, keeper=keeper)
        half = ClientHalf(problem, method, plan, seed, self.server.sampler.reports)
        ledger = Ledger(
            self.server.schema, len(population), population.rows, pooled=method.pooled, spaces=problem.spaces
        )
        crew = crew_of(half, params, workers=workers, chunk=chunk, compile=compile, ray=ray)
        self.here = Here(half, engine, self.memory, ledger, crew, lost=lost, strict=on_bad_update == "raise")
        secure = next((part for part in method.parts if isinstance(part, SecureSum)), None)
        self.secure = secured(self.here, self.server, secure) if secure is not None else None
        self.transport: Transport = self.secure or self.here
        self.state = OfServer(self.server, self.here)

    def settle_engine(self, before: str, tell: Callable[[str], None]) -> None:
        self.engine.recall(before, tell)

    def went_before(self, start: int) -> None:
        """Training begins with a model (``start`` names it): the noise that clients drew for that one must not come
        again, though the seed be the same."""
        if self.server.private is not None and self.server.noised is None:
            self.here.half = replace(self.here.half, start=(start,))

    def round(self, number: int) -> RoundReport:
        return play(self.server, self.transport, number)

    def helped(self) -> tuple[str, ...]:
        return self.here.crew.did()

    def saves(self, number: int, run: Path) -> dict[str, object]:
        return self.server.keeper.save(number, run)

    def close(self) -> None:
        self.here.crew.close()
        self.server.keeper.end()

    def model(self, number: int) -> Model | PersonalModel:
        shared, names = self.server.model(number), self.server.schema.private
        keeper = self.method.keeper
        return PersonalModel(shared, self.memory, keeper.own_slot, names) if keeper is not None and names else shared


def check_own(name: str, keeper: Part | None, problem: Problem) -> None:
    """Refuse a method that says nothing of parameters that are meant to be clients' own."""
    own = problem.objective.own
    if own and keeper is None:
        listed = " and ".join(own)
        raise MethodError(
            f"The objective has parameters that are meant to be every client's own ({listed}), and {name} would "
            f"share them; give it personal={list(own)!r}, or personal=[] if one value for all is meant."
        )


def check_lazy(method: Algorithm, problem: Problem) -> None:
    """Refuse what lazy tables do not go with: all that is about rows which no client of a round holds."""
    if not problem.lazy:
        return
    name, why = next(iter(problem.lazy)), ""
    if method.clocked and method.composition is not None:  # the same halves, played in another order
        method = method.composition
    if not isinstance(method, Method):
        why = f"{method.name} does not know lazy tables"
    elif named := [p for p in method.parts if isinstance(p, CentralDP)]:
        why = f"{type(named[0]).__name__} puts noise into every row"
    elif named := [p for p in method.parts if isinstance(p, SecureSum)]:
        why = f"{type(named[0]).__name__} lays its sums out over all rows there are"
    elif {*method.private(problem.names)} & {*problem.lazy}:
        why = "clients are to have rows of their own in it (personal), and begin with the moments of the whole table"
    if why:
        raise MethodError(f"The table {name!r} is lazy, and {why}; use a table that is in memory: torch.nn.Embedding.")


def prepare(method: Algorithm, problem: Problem, params: Tree, options: Options) -> Prepared:
    """Fit a method to a problem: compositions of slots here, others as they say themselves."""
    check_lazy(method, problem)
    if not isinstance(method, Method):
        return method.prepare(problem, params, options)
    if method.pooled:
        options.refuse(f"{method.name}, whose data is in one place,", *OF_CLIENTS, but={"engine": "serial"})
    else:
        check_own(method.name, method.keeper, problem)
    return fit(method, problem, params, options)


def fit(
    method: Method, problem: Problem, params: Tree, options: Options, trainer: Callable[..., Trainer] = Trainer
) -> Prepared:
    """Fit a composition of slots, whose rounds ``trainer`` plays."""
    ray, name = Ray.of(options.engine), computed_by(options.engine)
    if name == "serial":
        options.refuse('engine="serial", which trains one client after the other,', "chunk", "compile")
    if options.shards is not None:
        fits.check(method, params, problem.tables, problem.lazy, options.shards)
    count = len(problem.clients)
    cohort = min(max(round(method.sampler.share(count) * count), 1), count)
    for part in method.parts:
        for number in range(1, part.turns + 1):
            check_work(problem.clients, part.drawn(method.local, number), cohort)
    check_work(problem.clients, method.local, cohort)
    choice = choose(
        problem, method, params, engine=name, chunk=options.chunk, compile=options.compile, seed=options.seed
    )
    ready = trainer(
        problem, method, params, choice.engine, choice.plan, seed=options.seed, lost=options.lost,
        workers=options.workers, chunk=options.chunk, compile=options.compile, ray=ray,
        on_bad_update=options.on_bad_update, scratch=options.scratch, rounds=options.rounds,
        shards=options.shards,
    )  # fmt: skip
    notes = tuple(getattr(ready.server.average, "notes", ()))
    if ray is not None:
        notes = (ready.here.crew.who(), *notes)
    if ready.secure is not None:
        notes = (ready.secure.note, *notes)
    return Prepared(ready, choice.reason, choice.plan.columns, choice.fallback, notes)
