"""Asynchronous rounds as a method of `fedsub.run`: any composition of slots whose server needs no common model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from fedsub.checks import check_flag, check_positive, check_whole
from fedsub.errors import ConfigError, MethodError
from fedsub.families.asynchronous.staleness import Staleness, staleness_of
from fedsub.families.asynchronous.trainer import AsynchronousTrainer
from fedsub.method.engine import Ray
from fedsub.method.part import Part
from fedsub.method.parts import SecureSum
from fedsub.method.sampling import Uniform
from fedsub.method.slots import Method
from fedsub.method.training import Algorithm, Options, Prepared
from fedsub.objective.problem import Problem
from fedsub.round.clock.devices import phones
from fedsub.round.prepare import check_own, fit
from fedsub.trees import Tree


@dataclass(frozen=True)
class Asynchronous(Algorithm):
    """``concurrency`` clients train at once, and the server makes a step when ``buffer`` of them have answered.

    An update Δ_i that began τ_i steps before it is added counts s(τ_i) of itself: the step is the method's own, from

        mean = (coefficients) · Σ a_i s(τ_i) Δ_i / Σ a_i          over the clients in the buffer

    ``at_once``: whoever is done is followed by another client at the same moment, who is sent the newest model;
    otherwise places are filled after a step. ``most_stale``: a client whose update would be older than so many steps
    is told to stop. ``deadline``: a step is made after so many seconds with what has come, if anything has.

    So buffer = K of ``concurrency`` = K, ``at_once=False``, is the synchronous method, bit by bit, on any devices; and
    ``concurrency`` above K with ``most_stale=0`` is over-selection. ``concurrency`` is ``clients_per_round`` of the
    method unless given, ``buffer`` a fifth of it. J. Nguyen et al., "Federated Learning with Buffered Asynchronous
    Aggregation", AISTATS 2022.
    """

    method: Method
    buffer: int | None = None
    concurrency: int | None = None
    staleness: Staleness | str = "polynomial:0.5"  # or an object
    at_once: bool = True
    most_stale: int | None = None
    deadline: float | None = None
    pooled: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method) or self.method.pooled:
            raise MethodError(f"Asynchronous is around a Method of clients, such as fedsubavg(), got {self.method!r}.")
        sampler = self.method.sampler
        if type(sampler) is not Uniform or sampler.replacement:
            raise MethodError(
                f"An asynchronous server asks clients one by one, each uniformly of those that are free, and {sampler} "
                "draws cohorts; give the method sampler=Uniform(…) without replacement."
            )
        if self.concurrency is None:
            object.__setattr__(self, "concurrency", sampler.clients_per_round)
        check_whole("concurrency of Asynchronous", self.concurrency, 1)
        if self.buffer is None:
            object.__setattr__(self, "buffer", max(1, self.places // FIFTH))
        check_whole("buffer of Asynchronous", self.buffer, 1)
        check_flag("at_once", self.at_once)
        object.__setattr__(self, "staleness", staleness_of(self.staleness))
        if self.most_stale is not None:
            check_whole("most_stale", self.most_stale, 0)
        if self.deadline is not None:
            check_positive("deadline", self.deadline)
        if not self.at_once and self.places < self.size:
            raise MethodError(
                f"buffer={self.buffer} is never full with concurrency={self.places} and at_once=False: places are "
                "filled only after a step. Lower buffer, raise concurrency or leave at_once out."
            )
        for part in self.method.parts:
            if why := _needs_a_round(part):
                raise MethodError(f"{type(part).__name__} cannot be asynchronous: {why}.")

    @property
    def places(self) -> int:
        """How many clients train at once."""
        assert self.concurrency is not None
        return self.concurrency

    @property
    def size(self) -> int:
        """Of the buffer."""
        assert self.buffer is not None
        return self.buffer

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.method.name

    @property
    def composition(self) -> Method:
        return self.method

    @property
    def keeper(self) -> Part | None:
        """The part that says which parameters are clients' own, if there is one."""
        return self.method.keeper

    @property
    def clocked(self) -> bool:
        return True

    def prepare(self, problem: Problem, params: Tree, options: Options) -> Prepared:
        self.check_population(problem.clients.sizes)
        check_own(self.name, self.keeper, problem)
        ray = Ray.of(options.engine)
        if ray is not None and ray.deadline is not None:
            raise ConfigError(
                f"fs.Ray(deadline={ray.deadline:g}) leaves out clients whose work this machine is late with, and an "
                "asynchronous run goes by the clock of clients' devices; leave it out, or give Asynchronous a deadline."
            )
        stepping = replace(self.method, sampler=Uniform(self.size))  # so many clients are in a step
        return fit(stepping, problem, params, options, partial(AsynchronousTrainer, self, options.devices or phones()))

    def check_population(self, sizes: np.ndarray) -> None:
        able = int(np.count_nonzero(np.asarray(sizes) > 0))
        for name, count in (("buffer", self.size), ("concurrency", self.places)):
            if count > able:
                raise MethodError(f"{name}={count} but there are only {able} clients with data; lower it.")

    def describe(self) -> dict[str, Any]:
        """The method's own settings, and how it is played."""
        own: dict[str, Any] = super().describe()
        return own.pop("method") | {"asynchronous": {key: own[key] for key in _PLAYED}}


FIFTH = 5
_PLAYED = "buffer", "concurrency", "staleness", "at_once", "most_stale", "deadline"
_REASONS: tuple[tuple[Callable[[Part], Any], str], ...] = (
    (
        lambda part: isinstance(part, SecureSum),
        "a secure sum is agreed on by clients that begin together, and nobody could weigh single updates by their age",
    ),
    (lambda part: part.turns > 1, "it needs the same clients in several rounds"),
    (
        lambda part: part.noises or part.silent,
        "what differential privacy costs is known for cohorts that are drawn, not for whoever is first to answer",
    ),
    (
        lambda part: part.server_slots or part.sent_numbers,
        "what it keeps at the server is a mean over clients that all began from the same model",
    ),
)


def _needs_a_round(part: Part) -> str:
    """Why a part is bound to rounds in which all begin and end together; "" if it is not."""
    return next((why for needs, why in _REASONS if needs(part)), "")
