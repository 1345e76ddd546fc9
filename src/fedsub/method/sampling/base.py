"""What samplers share: the protocol, the pool of clients that may be drawn, and two ways to draw from it."""

from __future__ import annotations

import numpy as np

from fedsub import rng
from fedsub.errors import MethodError
from fedsub.method.groups import Cohort
from fedsub.method.slots import Probe


class Sampler:
    """Who takes part in a round, before it is fitted to a population. Subclasses are frozen dataclasses."""

    @property
    def may_repeat(self) -> bool:
        """Whether a client may be drawn twice in a round."""
        return False

    @property
    def probes(self) -> bool:
        """Whether clients are asked for their loss at the shared model before they are chosen."""
        return False

    def share(self, population: int) -> float:
        """The share of ``population`` clients that is expected in a round, where all of them can be reached."""
        return 1.0

    def bind(self, sizes: np.ndarray) -> BoundSampler:
        """The sampler for clients of these numbers of samples."""
        raise NotImplementedError


class CountedSampler(Sampler):
    """A sampler of ``clients_per_round`` clients, at least on average."""

    clients_per_round: int

    def share(self, population: int) -> float:
        return min(1.0, self.clients_per_round / population)


class BoundSampler:
    """A sampler fitted to a population. Subclasses write `draw`, and `observe` if they learn.

    A client without data is never drawn and does not count in the population. ``select`` is a pure function
    of (seed, round, state), so that a run that is resumed with its state draws the same cohorts.
    """

    may_be_empty: bool = False
    repeats: bool = False  # whether a client may be drawn twice
    reports: tuple[str, ...] = ()  # what those who took part tell of their losses: "loss", "deviation"
    least: int = 1  # the fewest eligible clients that `draw` can do with

    def __init__(self, sizes: np.ndarray, **needed: int) -> None:
        """``needed``: the setting that asks for so many clients with data, by its name."""
        self.sizes = np.asarray(sizes, np.int64)
        self.able = np.flatnonzero(self.sizes > 0)
        self.state: dict[str, np.ndarray] = {}  # in checkpoints; restored by copying into these arrays
        if not len(self.able):
            raise MethodError(f"None of the {len(self.sizes)} clients has data, so that none can be drawn.")
        for setting, count in needed.items():
            if count > len(self.able):
                raise MethodError(
                    f"{setting}={count} but there are only {len(self.able)} clients with data; "
                    "lower it, take everyone, or sample with replacement."
                )

    def meet(self, sizes: np.ndarray) -> None:
        """Clients have come whose size was 0 until now; what is known of the others stays."""
        self.sizes = np.asarray(sizes, np.int64)
        self.able = np.flatnonzero(self.sizes > 0)

    def select(self, round: int, seed: int, probe: Probe, eligible: np.ndarray | None = None) -> Cohort:
        """The cohort of a round; ``eligible``: sorted numbers of the clients that may be drawn (None: all)."""
        pool = self.able if eligible is None else eligible[self.sizes[eligible] > 0]
        if len(pool) < self.least:
            raise MethodError(
                f"Round {round} needs {self.least} clients but only {len(pool)} clients with data may be drawn; "
                "lower clients_per_round, or use Available, which then takes those there are."
            )
        return self.draw(round, seed, probe, pool)

    def draw(self, round: int, seed: int, probe: Probe, pool: np.ndarray) -> Cohort:
        """A cohort from ``pool``, sorted numbers of at least ``least`` clients with data."""
        raise NotImplementedError

    def observe(self, round: int, clients: np.ndarray, losses: np.ndarray, deviations: np.ndarray) -> None:
        """Learn from the clients that delivered: mean and standard deviation of the loss over their local steps."""


def largest(pool: np.ndarray, scores: np.ndarray, count: int, seed: int, round: int) -> np.ndarray:
    """The ``count`` clients with the largest scores, sorted by number; ties are broken at random."""
    if count >= len(pool):
        return pool.copy()
    level = np.partition(scores, len(pool) - count)[len(pool) - count]
    above, tied = pool[scores > level], pool[scores == level]
    chance = np.argsort(rng.key(seed, rng.TIE, round, tied), kind="stable")
    return np.sort(np.concatenate([above, tied[chance[: count - len(above)]]]))


def by_size(pool: np.ndarray, sizes: np.ndarray, count: int, seed: int, round: int) -> np.ndarray:
    """``count`` sequential draws without replacement with probability ∝ size, sorted by number.

    The clients ring after exponential times of rate w_i, and the first ``count`` to ring are taken
    (Efraimidis and Spirakis, 2006).
    """
    times = -np.log1p(-rng.uniform(rng.key(seed, rng.COHORT, round, pool))) / sizes[pool]
    return largest(pool, -times, count, seed, round)
