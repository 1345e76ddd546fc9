"""What mechanisms spend together: ε at a given δ, by Rényi differential privacy or privacy loss distributions.

Gaussian ones are composed by dp-accounting (Google's differential-privacy library): "rdp" takes the moments of the
privacy loss (I. Mironov, "Rényi Differential Privacy", CSF 2017; the sampled Gaussian: I. Mironov, K. Talwar and
L. Zhang, 2019), "pld" its whole distribution (Koskela, Jälkö and Honkela, AISTATS 2020), which is tighter and slower.
Mechanisms that are (ε, δ)-private by themselves are added to that: Σ ε and Σ δ, the basic composition. Where noise is
below a fifth of the sensitivity, which promises next to nothing, "pld" takes the moments, too.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from fedsub.checks import check_number, check_positive
from fedsub.errors import MethodError, lacking
from fedsub.privacy.spending import Spend

ACCOUNTANTS = ("rdp", "pld")
LOUD = 0.2  # a noise below it tells ε in the tens at once, and its loss distribution takes gigabytes
PRECISE = 1e-3  # how far a calibrated noise may lie above the least one, as a share


def epsilon(spends: Iterable[Spend], delta: float, accountant: str = "rdp") -> float:
    """The ε of all of them together, for neighbours that differ in one client; infinity if there is no bound."""
    check_accountant(accountant)
    check_delta(delta)
    known = [spend for spend in spends if spend.times]
    pure = [spend for spend in known if spend.kind == "pure"]
    left = delta - sum(spend.delta * spend.times for spend in pure)
    added = sum(spend.epsilon * spend.times for spend in pure)
    gaussian = tuple((s.noise, s.rate, s.times) for s in known if s.kind == "gaussian" and s.rate > 0)
    if left < 0 or (gaussian and left <= 0) or not math.isfinite(added) or any(noise == 0 for noise, _, _ in gaussian):
        return math.inf
    return added + (_gaussian(gaussian, left, accountant) if gaussian else 0.0)


def calibrate(
    epsilon_: float, delta: float, rounds: int, rate: float, before: Iterable[Spend] = (), accountant: str = "rdp"
) -> float:
    """The least noise, as a multiple of the sensitivity, with which ``rounds`` rounds stay within ε."""
    check_positive("epsilon", epsilon_)
    before = tuple(before)
    if epsilon(before, delta, accountant) >= epsilon_:
        raise MethodError(
            f"epsilon={epsilon_:g} is spent before the first round: by {', '.join(s.what for s in before) or 'nothing'}"
            f", {epsilon(before, delta, accountant):.4g} at delta={delta:g}. Raise epsilon, or estimate heat at less."
        )

    def fits(noise: float) -> bool:
        return epsilon((*before, Spend.gaussian("training", noise, rate=rate, times=rounds)), delta, accountant) <= (
            epsilon_
        )

    low, high = 0.0, 1.0
    if accountant == "pld":  # never needs more than the moments do, and is slow
        high = calibrate(epsilon_, delta, rounds, rate, before)
        low = high / 2
        while fits(low):
            low, high = low / 2, low
    while not fits(high):
        low, high = high, 2 * high
        if high > 2**40:
            raise MethodError(
                f"No noise makes {rounds} rounds at rate {rate:g} fit epsilon={epsilon_:g}, delta={delta:g}; "
                "raise epsilon or delta, or play fewer rounds."
            )
    while high - low > PRECISE * high:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def check_accountant(accountant: object) -> None:
    if accountant not in ACCOUNTANTS:
        raise MethodError(f"accountant must be one of {', '.join(ACCOUNTANTS)}; got {accountant!r}.")


def check_delta(delta: object) -> None:
    if not 0 < check_number("delta", delta) < 1:
        raise MethodError(f"delta must lie between 0 and 1, far below one over the number of clients; got {delta!r}.")


@lru_cache(maxsize=4096)
def _gaussian(composed: tuple[tuple[float, float, int], ...], delta: float, accountant: str) -> float:
    dp = library()
    by_moments = accountant == "rdp" or any(noise < LOUD for noise, _, _ in composed)
    made = (dp.rdp.RdpAccountant if by_moments else dp.pld.PLDAccountant)()
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.ERROR)  # it warns of every order of the moments that it leaves out: the bound holds without
    try:
        for noise, rate, times in composed:
            event = dp.GaussianDpEvent(noise)
            made.compose(event if rate == 1 else dp.PoissonSampledDpEvent(rate, event), times)
    finally:
        log.setLevel(before)
    return float(made.get_epsilon(delta))


def library() -> Any:
    """dp-accounting, or how to install it."""
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError as err:
        raise lacking("dp-accounting (for differential privacy)", "privacy") from err
    return dp_accounting
