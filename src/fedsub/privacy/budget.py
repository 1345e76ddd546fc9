"""One budget for all that learns from clients: heat, perturbed row sets, and the rounds of training."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fedsub.checks import check_positive
from fedsub.privacy.accounting import check_accountant, check_delta, epsilon
from fedsub.privacy.spending import Spend

LONGEST = 1 << 40  # rounds; nobody plays more


@dataclass(frozen=True)
class Budget:
    """(ε, δ) that a run may spend; ``epsilon`` infinity only counts.

    A round that would go past its end is never played.
    """

    epsilon: float = math.inf
    delta: float = 1e-5
    accountant: str = "rdp"

    def __post_init__(self) -> None:
        if self.epsilon != math.inf:
            check_positive("epsilon of Budget", self.epsilon)
        check_delta(self.delta)
        check_accountant(self.accountant)

    def spent(self, spends: Iterable[Spend]) -> float:
        """ε of what was spent."""
        return epsilon(spends, self.delta, self.accountant)

    def admits(self, spends: Iterable[Spend]) -> bool:
        return self.epsilon == math.inf or self.spent(spends) <= self.epsilon

    def times(self, once: Spend, before: Iterable[Spend] = (), most: int = LONGEST) -> int:
        """How many times ``once`` fits behind what was spent before; nobody asks beyond ``most``."""
        before = tuple(before)
        if self.epsilon == math.inf:
            return most

        def fits(count: int) -> bool:
            return self.admits((*before, once * count))

        if most < LONGEST and fits(most):  # a run whose noise was found for its rounds: one look at the accountant
            return most
        low, high = 0, 1
        while high < most and fits(high):
            low, high = high, 2 * high
        if high >= most:
            if most == LONGEST:
                return most
            high = most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low
