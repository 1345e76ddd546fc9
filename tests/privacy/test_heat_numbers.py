"""Private heat: closed forms of the specification, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fedsub as fs
from fedsub.data.clients import Space
from fedsub.errors import MethodError
from fedsub.method.spelling import heat
from fedsub.privacy.heat import CentralHistogram, Hadamard, Holdings, PermanentResponse, RandomizedResponse, SecureCount
from fedsub.privacy.heat.central import gaussian_noise
from fedsub.privacy.heat.hadamard import transform
from fedsub.privacy.heat.response import Response
from fedsub.privacy.spending import Spend

INF = math.inf
PRESETS = {  # p5, p6, ε of all answers, ε of one
    1: (1, 0, INF, INF),
    2: (0.8828125, 0.1171875, 2.70805, 2.01934),
    3: (0.78125, 0.21875, 1.94591, 1.27297),
    4: (0.625, 0.375, 1.09861, 0.51083),
    5: (1, 1, 0, 0),
}


@pytest.mark.parametrize("preset", PRESETS)
def test_the_preset_table(preset: int) -> None:
    response = PermanentResponse(preset=preset)
    found = (response.once.p, response.once.q, response.epsilon_row, response.epsilon_once)
    assert found == pytest.approx(PRESETS[preset], abs=5e-6)


def test_a_thousand_clients() -> None:
    response = Response(15 / 16, 1 / 16)
    expected = 100 * 15 / 16 + 900 / 16
    assert response.estimate(expected, 1000) == pytest.approx(100, abs=1e-12)
    assert response.variance(100, 1000) == pytest.approx(76.5306, abs=5e-5)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0, 4.0])
def test_symmetric_response_by_its_closed_form(epsilon: float) -> None:
    response = RandomizedResponse(epsilon)
    variance = 1000 * math.exp(epsilon) / (math.exp(epsilon) - 1) ** 2
    assert response.epsilon_row == pytest.approx(epsilon)
    for n in (0, 1, 700):
        assert response.variance(n, 1000) == pytest.approx(variance)
    assert response.resolvable(1000) == pytest.approx(math.sqrt(variance))
    assert response.resolvable(1000, 2.0) == pytest.approx(2 * math.sqrt(variance))
    assert response.epsilon_set(30) == pytest.approx(30 * epsilon)


def best(epsilon: float, of: str) -> tuple[float, float]:
    """p and q of the least variance of a row that nobody holds, among all on a grid that keep the bound."""
    p, q = np.meshgrid(np.linspace(0.001, 0.999, 999), np.linspace(0.001, 0.999, 999))
    with np.errstate(all="ignore"):
        bound = np.maximum(np.log(p / q), np.log((1 - q) / (1 - p))) if of == "epsilon" else np.log(
            p * (1 - q) / (q * (1 - p))
        )  # fmt: skip
        variance = np.where((p > q) & (bound <= epsilon), q * (1 - q) / (p - q) ** 2, np.inf)
    k = np.unravel_index(variance.argmin(), p.shape)
    return float(p[k]), float(q[k])


def test_which_response_is_best() -> None:
    """For a row more or less the symmetric one, for a row in place of another that with p = 1/2."""
    optimal = Response.optimal(1.5)
    assert best(1.5, "epsilon_swap") == pytest.approx((optimal.p, optimal.q), abs=0.02)
    symmetric = Response.symmetric(1.5)
    assert best(1.5, "epsilon") == pytest.approx((symmetric.p, symmetric.q), abs=0.01)
    assert optimal.epsilon_swap == pytest.approx(1.5)
    assert optimal.epsilon == pytest.approx(math.log((math.exp(1.5) + 1) / 2))
    assert optimal.variance(0, 100) == pytest.approx(400 * math.exp(1.5) / (math.exp(1.5) - 1) ** 2)


def test_resolvable_heat_is_as_large_as_its_deviation() -> None:
    for mechanism in (RandomizedResponse(1.0, "optimal"), PermanentResponse(preset=3), CentralHistogram(1.0, rows=20)):
        found = mechanism.resolvable(5000)
        assert found == pytest.approx(math.sqrt(mechanism.variance(found, 5000)))
    assert SecureCount().resolvable(5000) == 0


def test_normal_noise_for_a_budget() -> None:
    """The least σ by a search over δ(σ) written out; and the classical bound of Dwork and Roth is above it."""
    for epsilon, delta in ((0.5, 1e-5), (1.0, 1e-6), (8.0, 1e-5)):
        sigma = gaussian_noise(epsilon, delta)
        x = np.linspace(-40, 80, 2_000_001)
        density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)  # of noise/σ; the other world is shifted by 1/σ
        other = np.exp(-((x + 1 / sigma) ** 2) / 2) / math.sqrt(2 * math.pi)
        measured = float(np.clip(density - math.exp(epsilon) * other, 0, None).sum() * (x[1] - x[0]))
        assert measured == pytest.approx(delta, rel=1e-3)
        assert epsilon > 1 or sigma < math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def test_settings_at_the_end_of_what_is_possible() -> None:
    """An ε beyond all use is as good as none, and not an error of arithmetic."""
    held = Holdings.of(Space("t", 4, ("t",), np.array([0, 2, 3]), np.array([0, 3, 1])))
    assert 0 < gaussian_noise(720.0, 1e-9) < gaussian_noise(700.0, 1e-9)
    assert np.isfinite(Hadamard(750.0, rows=4).estimate(held, 3).heat).all()
    assert CentralHistogram(750.0, rows=4).estimate(held, 3).heat.tolist() == held.heat.tolist()
    with pytest.raises(MethodError, match="drown any count"):
        CentralHistogram(1e-18, rows=4)


def test_the_transform_is_a_product_with_the_matrix() -> None:
    values = np.random.default_rng(0).normal(size=(3, 8))
    matrix = np.ones((1, 1))
    while len(matrix) < 8:
        matrix = np.kron(np.array([[1, 1], [1, -1]]), matrix)
    assert transform(values) == pytest.approx(values @ matrix)


def test_what_is_spent() -> None:
    assert RandomizedResponse(2.0, rows=10).spends(3) == (
        Spend.pure("heat by randomised response, ε 2 a row", 20.0, times=3),
    )
    assert PermanentResponse(preset=4, rows=5).spends()[0].epsilon == pytest.approx(5 * math.log(3))
    assert Hadamard(1.5, rows=100, reports=4).spends()[0].epsilon == 6.0
    assert CentralHistogram(0.5, rows=100).spends()[0].epsilon == 0.5
    gaussian = CentralHistogram(noise=3.0, rows=100).spends(2)[0]
    assert (gaussian.kind, gaussian.noise, gaussian.times) == ("gaussian", 3.0, 2)
    for unbounded in (RandomizedResponse(1.0), SecureCount()):
        assert unbounded.spends()[0].epsilon == INF


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RandomizedResponse(0.0), "ε = 0"),
        (lambda: RandomizedResponse(p=0.5, q=0.5), "p > q"),
        (lambda: RandomizedResponse(p=0.1, q=0.9), "p > q"),
        (lambda: RandomizedResponse(-1.0), "at least 0"),
        (lambda: RandomizedResponse(p=0.5), "both p and q"),
        (lambda: RandomizedResponse(1.0, p=0.5, q=0.1), "epsilon, or both"),
        (lambda: RandomizedResponse(), "epsilon, or both"),
        (lambda: RandomizedResponse(1.0, "best"), "symmetric"),
        (lambda: RandomizedResponse(1.0, rows=0), "at least 1"),
        (lambda: RandomizedResponse(p=1.5, q=0.1), "chance"),
        (lambda: PermanentResponse(preset=6), "1 to 5"),
        (lambda: PermanentResponse(preset=2, p1=0.5), "all of p1"),
        (lambda: PermanentResponse(p1=0.5, p2=0.1), "all of p1"),
        (lambda: fs.OverHolders(heat=PermanentResponse(preset=5)), "p > q"),
        (lambda: CentralHistogram(1.0), "rows=k"),
        (lambda: CentralHistogram(rows=3), "one of them"),
        (lambda: CentralHistogram(1.0, rows=3, noise=2.0), "one of them"),
        (lambda: CentralHistogram(rows=3, noise=2.0, delta=1e-5), "goes with epsilon"),
        (lambda: fs.OverHolders("samples", heat=CentralHistogram(1.0, rows=3)), "most_samples"),
        (lambda: fs.OverHolders("samples", heat=RandomizedResponse(1.0, public_sizes=False)), "w_i"),
        (lambda: Hadamard(1.0), "rows=k"),
        (lambda: Hadamard(1.0, rows=3, reports=4), "take fewer"),
        (lambda: Hadamard(1.0, rows=3, width=12), "power of two"),
        (
            lambda: fs.OverHolders(heat=3),  # type: ignore[arg-type]
            "mechanism",
        ),
        (lambda: heat("rr:0"), "ε = 0"),
        (lambda: heat("warner:1"), "exact, rr"),
        (lambda: heat("rr:1,row=3"), "rows"),
        (lambda: heat("rr:one"), "rr:1"),
        (lambda: heat("secure:1"), "no setting"),
        (lambda: heat("prr:2.5"), "preset"),
    ],
)
def test_nonsense_is_refused(make, said: str) -> None:
    with pytest.raises(MethodError, match=said):
        make()


def test_words() -> None:
    assert heat("exact") is None
    assert heat("rr:1") == RandomizedResponse(epsilon=1.0)
    assert heat("rr:1,rows=50") == RandomizedResponse(epsilon=1.0, rows=50)
    assert heat("rr:p=0.9,q=0.1") == RandomizedResponse(p=0.9, q=0.1)
    assert heat("oue:2") == RandomizedResponse(epsilon=2.0, kind="optimal")
    assert heat("prr:2") == PermanentResponse(preset=2)
    assert heat("hadamard:1,rows=100,reports=3") == Hadamard(epsilon=1.0, rows=100, reports=3)
    assert heat("histogram:noise=2,rows=9") == CentralHistogram(noise=2.0, rows=9)
    assert heat("secure") == SecureCount()
    assert fs.privacy.RandomizedResponse is RandomizedResponse


def test_a_client_that_says_less_loses_what_the_page_says() -> None:
    """Σ over holders of 1 − min(1, k/k_i), by hand: clients with 4, 2 and 1 rows, at most 2 of each."""
    from fedsub.data.clients import Space

    space = Space("item", 5, ("item",), np.array([0, 4, 6, 7]), np.array([0, 1, 2, 3, 0, 1, 0]))
    assert Holdings.of(space).lost(2).tolist() == [0.5, 0.5, 0.5, 0.5, 0.0]
    assert Holdings.of(space, np.array([3, 1, 1])).lost(2).tolist() == [1.5, 1.5, 1.5, 1.5, 0.0]
