"""Private heat by simulation: unbiased, as exact as it says, in every way it can be computed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedsub.data.clients import Space
from fedsub.privacy.heat import (
    CentralHistogram,
    Hadamard,
    Holdings,
    LocalHeat,
    PermanentResponse,
    PrivateHeat,
    RandomizedResponse,
    bits,
)
from fedsub.privacy.heat.words import FRESH, PERMANENT, secret, simulated

CLIENTS, ROWS, MOST = 300, 40, 12
TIMES = 60


def space(padding: bool = False) -> Space:
    draw = np.random.default_rng(1)
    sets = [np.sort(draw.choice(np.arange(1, ROWS), draw.integers(0, MOST), replace=False)) for _ in range(CLIENTS)]
    sets = [np.concatenate([[0], rows]) if padding else rows for rows in sets]
    offsets = np.cumsum([0, *map(len, sets)])
    return Space("item", ROWS, ("item",), offsets, np.concatenate(sets).astype(np.int32), padding)


SIZES = np.random.default_rng(2).integers(1, 6, CLIENTS)
MECHANISMS: dict[str, PrivateHeat] = {
    "symmetric": RandomizedResponse(2.0),
    "optimal": RandomizedResponse(2.0, "optimal"),
    "given p and q": RandomizedResponse(p=0.8, q=0.3),
    "permanent": PermanentResponse(preset=2),
    "permanent, own": PermanentResponse(p1=0.9, p2=0.2, p3=0.7, p4=0.1),
    "hadamard": Hadamard(3.0, rows=MOST),
    "hadamard, all rows": Hadamard(3.0, rows=MOST, reports=MOST),
    "hashed": Hadamard(4.0, rows=MOST, reports=6, width=32, hashes=16),
    "geometric": CentralHistogram(1.0, rows=MOST, most_samples=5),
    "normal": CentralHistogram(1.0, rows=MOST, delta=1e-4, most_samples=5),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", MECHANISMS)
def test_unbiased_and_as_exact_as_it_says(name: str, weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over seeds and rows: the mean error is 0 within 4 of its deviations, the spread is the claimed one within 8 %,
    and an interval of 90 % holds the truth in 87 to 93 %."""
    held = Holdings.of(space(), SIZES if weighted else None)
    truth = held.heat
    mechanism = MECHANISMS[name]
    for limit in (0, 2**24) if isinstance(mechanism, bits.Bits) else (0,):
        monkeypatch.setattr(bits, "BIT_BY_BIT", limit)
        found = [mechanism.estimate(held, seed) for seed in range(TIMES)]
        errors = np.array([one.heat - truth for one in found])
        spread = math.sqrt(np.mean([(one.deviation**2).mean() for one in found]))
        assert abs(errors.mean(1).mean()) < 4 * errors.mean(1).std() / math.sqrt(TIMES)
        assert np.sqrt((errors**2).mean()) == pytest.approx(spread, rel=0.08)
        inside = [(low <= truth) & (truth <= high) for low, high in (one.interval(0.9) for one in found)]
        assert 0.87 < np.mean(inside) < 0.93


@pytest.mark.parametrize("name", ["symmetric", "permanent, own", "hadamard", "geometric"])
def test_variance_by_its_formula(name: str) -> None:
    """Of a single row over many seeds, by `variance`."""
    held = Holdings.of(space())
    mechanism = MECHANISMS[name]
    errors = np.array([mechanism.estimate(held, seed).heat - held.heat for seed in range(4 * TIMES)])
    predicted = np.mean(mechanism.variance(held.heat, CLIENTS))
    assert (errors**2).mean() == pytest.approx(predicted, rel=0.06)


def test_a_sum_of_bits_is_as_the_clients_would_give_it() -> None:
    """What every client says, one after the other, and the binomials: the same mean and covariance of two questions."""
    held, mechanism = Holdings.of(space()), PermanentResponse(p1=0.9, p2=0.2, p3=0.8, p4=0.1)
    row, seeds = int(held.heat.argmax()), range(600)
    found: dict[int, np.ndarray] = {}
    for limit in (0, 2**24):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bits, "BIT_BY_BIT", limit)
            found[limit] = np.array([[mechanism.estimate(held, s, q).heat[row] for q in (0, 1)] for s in seeds])
    n, slope = held.heat[row], 0.8 - 0.1
    lasting = n * 0.9 * 0.1 + (CLIENTS - n) * 0.2 * 0.8  # the variance of the lasting ones, which both questions share
    covariance = lasting * slope**2 / (mechanism.once.p - mechanism.once.q) ** 2
    for values in found.values():
        measured = np.cov(values.T)
        assert measured[0, 1] == pytest.approx(covariance, rel=0.25)
        assert measured[0, 0] == pytest.approx(mechanism.variance(n, CLIENTS), rel=0.2)
        assert values.mean() == pytest.approx(n, abs=4 * math.sqrt(measured[0, 0] / len(values)))


def test_answers_depend_on_seed_client_and_row_alone() -> None:
    """Blocks of clients change nothing, and neither do rows that are added to the table."""
    held, mechanism = Holdings.of(space()), RandomizedResponse(1.0, rows=4)
    together = np.concatenate([some for some, _ in mechanism.ask(held, 7)])
    for client in (0, 17, 299):
        alone = held.take(client, client + 1)
        words = simulated(7, "item", np.array([client]))
        assert np.array_equal(mechanism.answers(mechanism.decide(alone, words), words, 0)[0], together[client])
    words = simulated(7, "item", np.array([3]))
    assert np.array_equal(words(PERMANENT, 0, 50)[:, :40], words(PERMANENT, 0, 40))
    assert not np.array_equal(words(FRESH, 0, 40), words(FRESH, 1, 40))
    own = secret(b"s" * 32, "item", "rr")
    assert np.array_equal(own(PERMANENT, 0, 50)[:, :40], own(PERMANENT, 0, 40))
    uniform = (own(PERMANENT, 0, 100_000) >> np.uint64(11)) * 2.0**-53
    assert uniform.mean() == pytest.approx(0.5, abs=0.004)
    assert not np.array_equal(own(PERMANENT, 0, 40), secret(b"s" * 32, "item", "other")(PERMANENT, 0, 40))


@pytest.mark.parametrize("name", [n for n, m in MECHANISMS.items() if isinstance(m, LocalHeat)])
def test_an_answer_as_bytes(name: str) -> None:
    mechanism = MECHANISMS[name]
    assert isinstance(mechanism, LocalHeat)
    held = Holdings.of(space()).take(5, 6)
    answer = mechanism.decide(held, simulated(0, "item", np.array([5])))
    data = mechanism.pack(answer, ROWS)
    assert len(data) == mechanism.upload(ROWS)
    assert np.array_equal(mechanism.unpack(data, ROWS), answer)
    with pytest.raises(ValueError):
        mechanism.unpack(data + b"x", ROWS)


def test_a_client_with_too_many_rows_draws_some() -> None:
    """The bias is as `lost` says, in the mean over seeds; and no client tells of more."""
    held = Holdings.of(space())
    some = held.bounded(4, simulated(0, "item", np.arange(CLIENTS)))
    assert some.space.counts.tolist() == np.minimum(held.space.counts, 4).tolist()
    for client in range(0, CLIENTS, 29):
        assert set(some.space.rows_of(client)) <= set(held.space.rows_of(client))
    found = [CentralHistogram(50.0, rows=4).estimate(held, seed).heat for seed in range(TIMES)]
    assert np.mean(found, 0) == pytest.approx(held.heat - held.lost(4), abs=1.5)


def test_everybody_holds_the_padding_row() -> None:
    padded, plain = Holdings.of(space(padding=True)), Holdings.of(space())
    assert np.array_equal(padded.heat[1:], plain.heat[1:])
    for mechanism in (RandomizedResponse(1.0), Hadamard(1.0, rows=MOST), CentralHistogram(1.0, rows=MOST)):
        found = mechanism.estimate(padded, 0)
        assert (found.heat[0], found.deviation[0]) == (CLIENTS, 0.0)
        assert found.clipped[1] <= ROWS - 1


def test_reports_of_a_client_are_its_perturbed_rows() -> None:
    """As it serves the rows that a client downloads: shares p5 and p6 over many rows, and one lasting answer."""
    rows, every = np.arange(0, 20_000, 2), np.arange(20_000)
    words = simulated(3, "item", np.array([0]))

    def told(mechanism: PermanentResponse, question: int, asked: np.ndarray = every) -> np.ndarray:
        return mechanism.report(mechanism.settle(rows, asked, words), asked, words, question)

    mechanism = PermanentResponse(preset=2)
    first, second = told(mechanism, 1), told(mechanism, 2)
    assert first[::2].mean() == pytest.approx(0.8828125, abs=0.015)
    assert first[1::2].mean() == pytest.approx(0.1171875, abs=0.015)
    assert (first & second)[::2].mean() == pytest.approx(15 / 16 * (15 / 16) ** 2 + 1 / 16 / 256, abs=0.015)
    assert told(PermanentResponse(preset=5), 1).all()
    assert told(PermanentResponse(preset=1), 1).nonzero()[0].tolist() == rows.tolist()
    some = np.array([3, 17, 4000, 19_998])  # what is said of a row does not hang on which others are asked about
    assert told(mechanism, 1, some).tolist() == first[some].tolist()


def test_words_at_some_places_are_those_of_all() -> None:
    at = np.array([0, 5, 6, 900])
    for words in (simulated(1, "item", np.array([2])), secret(b"k" * 32, "item", "m")):
        assert words(2, 3, at).tolist() == words(2, 3, 1000)[:, at].tolist()
        assert words(2, 3, at[:0]).shape == (1, 0)
