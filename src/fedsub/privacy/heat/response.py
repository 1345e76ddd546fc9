"""`Response`: one bit answered at random (Warner, "Randomized Response", JASA 1965).

A client with the bit b says 1 with probability p if b = 1 and q if b = 0, independently for every row. Of N clients Y
say 1, and n have the bit:

    n̂ = (Y − N q) / (p − q)                                          unbiased
    Var n̂ = (n p(1 − p) + (N − n) q(1 − q)) / (p − q)²
    ε = ln max(p/q, (1 − q)/(1 − p))                                 for one bit more or less
    ε = ln p(1 − q)/(q(1 − p))                                       for one bit in place of another

Symmetric, q = 1 − p = 1/(e^ε + 1): Var = N e^ε/(e^ε − 1)², whatever n. With w_i public, Σ w_i (answer_i − q)/(p − q)
estimates W_m, and every term of the variance gets w_i².

Which p and q are best depends on what ε is for. For one bit *more or less* the symmetric ones have the least variance
at every n. For one bit *in place of another* the best for cold rows is p = 1/2, q = 1/(e^ε + 1), at n = 0 with
Var = 4 N e^ε/(e^ε − 1)² (Wang, Blocki, Li, Jha, "Locally Differentially Private Protocols for Frequency Estimation",
USENIX Security 2017).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fedsub.checks import check_mix
from fedsub.errors import MethodError


@dataclass(frozen=True)
class Response:
    """p is the chance of a 1 for those who have the bit, q for the others."""

    p: float
    q: float

    def __post_init__(self) -> None:
        check_mix("p", self.p, hint="it is the chance to say 1 of a client that holds the row")
        check_mix("q", self.q, hint="it is the chance to say 1 of a client that does not hold the row")

    @classmethod
    def symmetric(cls, epsilon: float) -> Response:
        q = 1 / (math.exp(epsilon) + 1) if epsilon < 700 else 0.0
        return cls(1 - q, q)

    @classmethod
    def optimal(cls, epsilon: float) -> Response:
        """For a row in place of another."""
        return cls(0.5, cls.symmetric(epsilon).q)

    def then(self, later: Response) -> Response:
        """What comes of answering an answer again: p5 = p1 (p3 − p4) + p4, p6 = p2 (p3 − p4) + p4."""
        slope = later.p - later.q
        return Response(self.p * slope + later.q, self.q * slope + later.q)

    @property
    def epsilon(self) -> float:
        """For one bit more or less."""
        return math.log(max(_ratio(self.p, self.q), _ratio(1 - self.q, 1 - self.p)))

    @property
    def epsilon_swap(self) -> float:
        """For one bit in place of another."""
        return math.log(_ratio(self.p, self.q)) + math.log(_ratio(1 - self.q, 1 - self.p))

    def check_tells(self, what: str) -> None:
        """Refuse an answer from which nothing can be learned."""
        if not self.p > self.q:
            raise MethodError(
                f"{what} says 1 with probability p = {self.p:g} of clients that hold a row and q = {self.q:g} of the "
                "others; heat can be estimated only where p > q. Take a larger ε (ε = 0 tells nothing)."
            )

    def estimate(self, ones: Any, whole: float) -> Any:
        return (ones - whole * self.q) / (self.p - self.q)

    def variance(self, heat: Any, whole: float) -> Any:
        p, q = self.p, self.q
        return (heat * (p * (1 - p)) + (whole - heat) * (q * (1 - q))) / (p - q) ** 2


def _ratio(above: float, below: float) -> float:
    """With 0/0 = 1: what never happens tells nothing apart."""
    if below == 0:
        return math.inf if above > 0 else 1.0
    return above / below
