"""The clients at hand, as a population of another size: what a client holds and what it sends and receives.

A client of the population that is meant is like one of those at hand. A table of f times as many rows has its ids
stretched: row r becomes ⌊f·r⌋, so that the bytes of row ids are those of the codec on such ids.

Of K·T clients that take part in T rounds, a row that a share p of the clients holds is touched with a chance of
1 − (1 − p)^(K·T). Stretched, it stands for f rows of p/f each, of which f (1 − (1 − p/f)^(K·T)) are touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedsub.checks import check_whole
from fedsub.data.held import held_heat
from fedsub.errors import ConfigError, nearest
from fedsub.method.groups import Cohort
from fedsub.objective.problem import Problem
from fedsub.round.layout import Asked, asked_of
from fedsub.round.ledger import Ledger
from fedsub.round.prepare import Trainer
from fedsub.study.planning.counted import Counts

MOST = 20_000  # clients whose messages are measured


@dataclass(frozen=True)
class Wire:
    """Bytes of a client in a round, on average."""

    asked: float  # up: which rows
    down: float
    up: float  # what it computed

    @property
    def total(self) -> float:
        return self.asked + self.down + self.up


@dataclass(frozen=True)
class Scaled:
    """A population of clients like those at hand."""

    problem: Problem
    clients: int
    rows: Mapping[str, int]  # by space
    samples: int
    cohort: float  # clients of a round, on average
    wire: Wire

    @classmethod
    def of(
        cls, problem: Problem, trainer: Trainer, counts: Counts, population: int | None, rows: Mapping[str, int] | None,
        samples: int | None,
    ) -> Scaled:  # fmt: skip
        here = len(problem.clients)
        many = here if population is None else check_whole("population", population, 1, error=ConfigError)
        every = round(problem.clients.samples * many / here)
        every = every if samples is None else check_whole("samples", samples, 1, error=ConfigError)
        wide = {name: space.size for name, space in problem.spaces.items()}
        for name, size in (rows or {}).items():
            if name not in wide:
                raise ConfigError(f"rows names the space {name!r}, which no table uses; {nearest(str(name), wide)}")
            if check_whole(f"rows[{name!r}]", size, 1, error=ConfigError) < wide[name]:
                raise ConfigError(
                    f"rows[{name!r}] is {size:,}, but the clients at hand name rows of a table of {wide[name]:,}; "
                    "give as many or more."
                )
            wide[name] = int(size)
        cohort = trainer.method.sampler.share(many) * many
        return cls(problem, many, wide, every, cohort, _wire(problem, trainer, counts, wide))

    def held(self, space: str) -> float:
        """|S(i)| of a client, on average."""
        return float(self.problem.spaces[space].counts.mean())

    def reached(self, space: str, draws: float) -> float:
        """Rows that at least one of so many clients holds, expected."""
        one, size = self.problem.spaces[space], self.rows[space]
        share = held_heat(one).values / len(self.problem.clients)
        stretch = size / one.size
        each = stretch * -np.expm1(draws * np.log1p(-np.minimum(share / stretch, 1 - 1e-12)))
        return float(min(each.sum() + one.padding, size))

    def touched(self, space: str, rounds: int) -> float:
        """Rows that somebody's training reaches in so many rounds, expected."""
        return self.reached(space, self.cohort * rounds)

    def took_part(self, rounds: int) -> float:
        """Clients that were drawn at least once, expected."""
        share = min(self.cohort / self.clients, 1 - 1e-12)
        return float(self.clients * -np.expm1(rounds * np.log1p(-share)))


def _wire(problem: Problem, trainer: Trainer, counts: Counts, rows: Mapping[str, int]) -> Wire:
    """By the ledger; what codecs and secure sums make of it is taken from the round that was played."""
    schema, report = trainer.server.schema, counts.report
    able = np.flatnonzero(problem.clients.sizes > 0)
    some = able[np.unique(np.linspace(0, len(able) - 1, min(len(able), MOST)).astype(np.int64))]
    named = asked_of(problem.spaces, some)
    held = {space: one.counts for space, one in named.items()}
    stretched = {
        space: Asked((one.rows * (rows[space] / problem.spaces[space].size)).astype(np.int64), one.counts)
        for space, one in named.items()
    }
    ledger, who = Ledger(schema, len(some), rows, pooled=trainer.method.pooled), Cohort.of(np.arange(len(some)))
    asked = float(ledger.asked(who, stretched).mean())
    if trainer.secure is not None:
        return Wire(0.0, float(report.down.mean()), float(report.up.mean()))
    down = float(ledger.down(held, len(some)).mean())
    up = float(ledger.up(who, np.zeros(len(some), bool), held).mean())
    if schema.codec is not None:
        played = asked_of(problem.spaces, report.clients)
        plain = Ledger(schema, len(report.clients), {n: s.size for n, s in problem.spaces.items()})
        up = float((report.up - plain.asked(Cohort.of(np.arange(len(report.clients))), played)).mean())
    return Wire(asked, down, up)
