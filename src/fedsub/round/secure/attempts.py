"""The sum of values of one round, played until it opens: which rows, with whom, and what it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedsub import rng
from fedsub.errors import SecureSumError
from fedsub.method.parts import SecureSum
from fedsub.round.secure.adding import Added
from fedsub.round.secure.vector import Ranges
from fedsub.secure import RowRule, Segment, Setting, context_of
from fedsub.secure.setting import SESSION

Array = np.ndarray


@dataclass
class Counted:
    """What is known of the rows of some clients: by space the sorted union, and how many hold each row."""

    clients: Array
    unions: dict[str, Array]
    counts: dict[str, Array]
    down: Array  # bytes that this took, by client of the cohort
    up: Array


@dataclass(frozen=True)
class Planned:
    """One attempt: the rows that are summed, and the setting of the sum."""

    setting: Setting
    rules: dict[str, RowRule]

    @property
    def rows(self) -> dict[str, Array]:
        return {space: rule.rows for space, rule in self.rules.items()}


@dataclass(frozen=True)
class Settings:
    """Settings of secure sums of a run."""

    secure: SecureSum
    run: int
    fresh: bool = True  # False: no secret hangs on the session, and a run that is repeated has the same graph
    signed: bool = False  # by registered identities: then no two groups may be enough to open a sum

    def plan(
        self, number: int, people: Array, segments: tuple[Segment, ...], attempt: int = 0, context: bytes = b"",
        least: int | None = None,
    ) -> Setting:  # fmt: skip
        s = self.secure
        if self.signed and least is None:
            least = self._majority(len(people))
        setting = Setting.plan(
            self.run, number, people.tolist(), segments, adversarial=s.adversarial, dropping=s.dropping,
            threshold=s.threshold, least=least, context=context,
        )  # fmt: skip
        if self.fresh:
            return setting
        words = rng.key(self.run, rng.QUANTISED, number, -1, attempt, np.arange(SESSION // 8))
        return replace(setting, session=words.tobytes())

    def fewest(self, count: int) -> int:
        """The fewest clients of so many that may open a sum; more than there are if none may."""
        s = self.secure
        if count < max(2, s.rows_threshold, s.threshold or 0):
            return count + 1
        least = self.plan(0, np.arange(count), (Segment("any", 1, 8),)).threshold
        return max(least, 2, s.rows_threshold, self._majority(count) if self.signed else 0)

    def _majority(self, count: int) -> int:
        """So many that two groups of them share a client that does not collude: more than (1 + adversarial)/2."""
        return min(int(count * (1 + self.secure.adversarial) / 2) + 1, count)

    def check(self, told: Setting) -> None:
        """What a client makes sure of before it takes part: that it is its own method that says how many can open the
        sum, and not the server."""
        own = self.plan(told.round, np.array(told.participants), told.segments)
        least = max(own.threshold, self._majority(len(told.participants)) if self.signed else 0)
        if (own.degree, own.threshold) != (told.degree, told.threshold) or told.least < least:
            raise SecureSumError(
                f"A secure sum of {len(told.participants)} clients is to have {told.degree} neighbours for each, "
                f"threshold {told.threshold} and at least {told.least} survivors; by this client's method it has "
                f"{own.degree}, {own.threshold} and at least {least}. Nothing was sent."
            )


@dataclass
class Attempts:
    """``recount`` gives the counts of some of the counted clients, where rows are named; otherwise nobody is counted
    twice, and those who are missing are taken off every count."""

    settings: Settings
    number: int
    counted: Counted
    ranges: Ranges
    add: Callable[[Planned, frozenset[int]], Added]  # one sum; where it is given up, those who are left
    recount: Callable[[Array], Counted] | None
    chosen: Callable[[Counted, Mapping[str, RowRule]], int]  # bytes that tell which rows are summed
    given_up: int = 0
    withheld: int = 0
    why: str = ""

    def play(
        self, people: Array, lost: frozenset[int], took: Callable[[Setting, Added, int], None]
    ) -> tuple[Planned, Added] | None:
        """The first sum that opens, or None; ``took`` is told of the bytes of each attempt."""
        for attempt in range(self.settings.secure.attempts):
            planned = self._plan(people, attempt)
            if planned is None:
                break
            added = self.add(planned, lost)
            took(planned.setting, added, self.chosen(self.counted, planned.rules))
            if added.sums is not None:
                self.withheld = sum(
                    len(union) - len(planned.rows[space]) for space, union in self.counted.unions.items()
                )
                return planned, added
            self.given_up, self.why = self.given_up + 1, added.why
            people, lost = people[np.isin(people, added.clients)], frozenset()
        return None

    def _plan(self, people: Array, attempt: int) -> Planned | None:
        s, count = self.settings.secure, len(people)
        fewest = self.settings.fewest(count)
        if count < fewest:
            self.why = f"{count} clients were left, too few for a secure sum"
            return None
        if self.recount is not None:
            self.counted = self.recount(people)
        spare = min(s.spare, count - fewest)
        missing = len(self.counted.clients) - count
        unions, counts = self.counted.unions, self.counted.counts
        rules = {
            space: RowRule.of(counts[space], union, threshold=s.rows_threshold, spare=missing + spare)
            for space, union in unions.items()
        }
        segments = self.ranges.segments({space: len(rule.rows) for space, rule in rules.items()})
        setting = self.settings.plan(self.number, people, segments, 1 + attempt, context_of(rules), count - spare)
        return Planned(setting, rules)

    def check(self, planned: Planned, told: Setting) -> None:
        """What every client makes sure of before it takes part."""
        checked(told, planned.rules, self.counted, self.settings.secure.rows_threshold)

    def measured(self) -> dict[str, float]:
        """For the record of the round."""
        return {"withheld": self.withheld, "clipped": 0, "given_up": self.given_up}


def checked(told: Setting, rules: Mapping[str, RowRule], counted: Counted, threshold: int) -> None:
    """What a client makes sure of before it gives values to a sum; SecureSumError if it had better not."""
    context = context_of(rules)
    for space, rule in rules.items():
        people = counted.clients.tolist()
        rule.check(told, counted.unions[space], people, least_threshold=threshold, context=context)
