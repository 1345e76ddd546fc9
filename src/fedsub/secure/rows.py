"""No row is revealed that fewer than t clients contributed to.

A sum over one contributor is that contributor's value, whatever hides the rest. So a round with rows has two secure
sums. The first counts, over the union of the cohort's rows, who holds what. The rows whose count reaches t are then
written down; the second sum is laid out over them and nothing else, so that a value of another row is never sent,
masked or not.

Clients may drop out in between, and a count of the first sum is only a bound for the second:

    contributors of a row in the second sum  ≥  count − (participants that are missing from it)

so the second sum is held with the first one's survivors, rows are kept from a count of t + ``spare`` on, and its
setting has least = participants − spare: no client opens it when more than ``spare`` are missing. With spare = 0 one
drop-out ends the round without a sum, and it is played again with those who are left.

What a client checks: that the rows are those of its union, ascending, and that the setting's context is their digest.
The context enters every key, so clients that were sent different rows share no keys: their shares do not open, and
they leave before any value was sent. What a client cannot check is the counts themselves. A server that deviates from
the protocol can name a row that one client holds; with an honest-but-curious one, as in all of this room, it is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np

from fedsub.errors import MethodError, SecureSumError
from fedsub.secure.ring import Array, Segment
from fedsub.secure.setting import Setting


@dataclass(frozen=True)
class RowRule:
    """``rows`` are summed, ascending; each was counted at least ``threshold + spare`` times."""

    rows: Array
    threshold: int
    spare: int

    @staticmethod
    def of(counts: Array, union: Array, *, threshold: int = 2, spare: int = 0) -> RowRule:
        """From the counts of a secure sum over the rows of ``union``."""
        if threshold < 2:
            raise MethodError(
                f"threshold must be at least 2, got {threshold}: the sum over one contributor is its value."
            )
        if spare < 0:
            raise MethodError(f"spare must not be negative, got {spare}.")
        if len(counts) != len(union):
            raise MethodError(f"There are {len(counts)} counts for {len(union)} rows; count over the union.")
        return RowRule(np.asarray(union, np.int64)[np.asarray(counts) >= threshold + spare], threshold, spare)

    @cached_property
    def context(self) -> bytes:
        """What `Setting.context` must be."""
        head = np.array([self.threshold, self.spare, len(self.rows)], "<i8").tobytes()
        return blake2b(head + self.rows.astype("<i8").tobytes(), digest_size=32, person=b"fedsub rows").digest()

    def plan(
        self, run: int, round: int, participants: Sequence[int], segments: Sequence[Segment], **plan: Any
    ) -> Setting:
        """The setting of the second sum; ``participants`` are the survivors of the first."""
        least = len(participants) - self.spare
        return Setting.plan(run, round, participants, segments, least=least, context=self.context, **plan)

    def check(
        self, setting: Setting, union: Array, participants: Sequence[int], *, least_threshold: int = 2,
        context: bytes | None = None,
    ) -> None:  # fmt: skip
        """What a client makes sure of before it takes part in the second sum; SecureSumError if it had better not.

        ``union`` and ``participants`` are what it learnt in the first sum, ``least_threshold`` is its own demand.
        ``context``: where the rules of several tables share a sum, `context_of` them.
        """
        rows = self.rows
        if self.threshold < least_threshold:
            raise SecureSumError(
                f"Rows of {self.threshold} contributors are asked for, at least {least_threshold} must be."
            )
        if (np.diff(rows) <= 0).any() or not np.isin(rows, union).all():
            raise SecureSumError("Rows are asked for that are not in the union, or more than once; nothing was sent.")
        if setting.context != (self.context if context is None else context):
            raise SecureSumError("The rows are not those that the setting was made for; nothing was sent.")
        if not set(setting.participants) <= set(participants):
            raise SecureSumError("Clients take part that were not counted; nothing was sent.")
        if setting.least < len(participants) - self.spare:
            raise SecureSumError(
                f"{len(participants)} clients were counted and {self.spare} may be missing, the setting opens a sum of "
                f"{setting.least}: a row could be left with fewer than {self.threshold} contributors. Nothing was sent."
            )


def context_of(rules: Mapping[str, RowRule]) -> bytes:
    """`Setting.context` of a sum over the rows of several spaces, by their names."""
    digest = blake2b(digest_size=32, person=b"fedsub spaces")
    for name, rule in sorted(rules.items()):
        digest.update(len(name.encode()).to_bytes(8, "little") + name.encode() + rule.context)
    return digest.digest()
