"""`Spend`: what a private mechanism costs, in the terms that an accountant composes.

Neighbours are two populations that differ in one client (all of its data). Everything that learns from clients in
private (heat, perturbed row sets, the rounds of training) says what it spends, and a budget adds it up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedsub.checks import check_number, check_share, check_whole
from fedsub.errors import MethodError

KINDS = ("pure", "gaussian")


@dataclass(frozen=True)
class Spend:
    """One mechanism, ``times`` times.

    ``pure`` is (ε, δ)-private by itself: randomised response, Laplace noise. ``gaussian`` adds noise of ``noise``
    times the sensitivity to a sum over clients, each of which takes part with the chance ``rate`` (Poisson).
    """

    what: str  # for people: "heat by randomised response", "training"
    kind: str
    epsilon: float = math.nan
    delta: float = 0.0
    noise: float = math.nan
    rate: float = 1.0
    times: int = 1

    def __str__(self) -> str:
        often = f"{self.times} × " if self.times != 1 else ""
        if self.kind == "gaussian":
            return f"{often}normal noise of {self.noise:.4g} sensitivities"
        delta = f", δ = {self.delta:g}" if self.delta else ""
        return f"{often}ε = {self.epsilon:.4g}{delta}" if math.isfinite(self.epsilon) else "an ε without bound"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise MethodError(f"A Spend is of kind {' or '.join(KINDS)}; got {self.kind!r}.")
        if self.kind == "pure":
            if not self.epsilon >= 0:  # infinite: nothing is promised, and no budget has room for it
                raise MethodError(
                    f"epsilon of a Spend must be a number of at least 0, or infinite; got {self.epsilon!r}."
                )
        else:
            check_number("noise", self.noise, least=0)
        check_number("delta", self.delta, least=0)
        check_share("rate", self.rate)
        check_whole("times", self.times, 0)

    @classmethod
    def pure(cls, what: str, epsilon: float, delta: float = 0.0, *, times: int = 1) -> Spend:
        return cls(what, "pure", epsilon=epsilon, delta=delta, times=times)

    @classmethod
    def gaussian(cls, what: str, noise: float, *, rate: float = 1.0, times: int = 1) -> Spend:
        return cls(what, "gaussian", noise=noise, rate=rate, times=times)

    def __mul__(self, count: int) -> Spend:
        """The same mechanism, that many times as often."""
        return replace(self, times=self.times * count)


def spends_of(described: Mapping[str, Any]) -> tuple[Spend, ...]:
    """What a run's result or its privacy.json says was spent."""
    numbers = ("epsilon", "delta", "noise", "rate")  # infinity is text in JSON
    out = []
    for spend in described.get("spends", ()):
        read: dict[str, Any] = {name: float(value) if name in numbers else value for name, value in spend.items()}
        out.append(Spend(**read))
    return tuple(out)
