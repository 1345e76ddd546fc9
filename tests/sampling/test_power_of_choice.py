"""Power-of-choice: closed forms, ties, and its variants."""

from __future__ import annotations

import math

import numpy as np
import pytest
from drawing import EVEN, ROUNDS, UNEVEN, close, cohorts, fixed, no_probe

from fedsub.errors import MethodError
from fedsub.method.sampling import (
    BySize,
    PowerOfChoice,
)


def test_worst_of_candidates_has_its_closed_form() -> None:
    k, d = 8, 3
    losses = np.array([3.0, 9, 1, 4, 8, 2, 7, 5])
    counts = cohorts(PowerOfChoice(1, d).bind(EVEN), probe=fixed(losses))
    rank = np.argsort(np.argsort(-losses)) + 1
    close(counts, np.array([math.comb(k - j, d - 1) / math.comb(k, d) for j in rank]))


@pytest.mark.parametrize("variant", ["pow", "cpow"])
def test_all_candidates_give_the_worst(variant: str) -> None:
    losses = np.array([3.0, 9, 1, 4, 8, 2])
    asked = []

    def probe(clients: np.ndarray, batch: bool) -> np.ndarray:
        asked.append((clients.tolist(), batch))
        return losses[clients]

    bound = PowerOfChoice(2, 6, variant).bind(UNEVEN)
    for number in range(20):
        assert bound.select(number, number, probe).clients.tolist() == [1, 4]
    assert asked == [(list(range(6)), variant == "cpow")] * 20
    assert bound.state == {}


def test_as_many_candidates_as_clients_is_by_size() -> None:
    power, plain = PowerOfChoice(3, 3).bind(UNEVEN), BySize(3).bind(UNEVEN)
    for number in range(200):
        chosen = power.select(number, 9, fixed(np.arange(6.0))).clients
        assert np.array_equal(chosen, plain.select(number, 9, no_probe).clients)


def test_candidates_are_drawn_by_size_and_never_without_data() -> None:
    sizes = np.array([0, 1, 3, 0, 6])
    seen = np.zeros(5, int)

    def probe(clients: np.ndarray, batch: bool) -> np.ndarray:
        np.add.at(seen, clients, 1)
        return np.array([99.0, 1, 1, 99, 1])[clients]

    bound = PowerOfChoice(1, 1).bind(sizes)
    cohorts(bound, probe=probe)
    assert seen[[0, 3]].sum() == 0
    close(seen, sizes / 10)
    with pytest.raises(MethodError, match="candidates=4 but there are only 3 clients"):
        PowerOfChoice(1, 4).bind(sizes)


def test_ties_and_losses_that_are_no_number() -> None:
    bound = PowerOfChoice(2, 8).bind(EVEN)
    close(cohorts(bound, probe=fixed(np.zeros(8))), np.full(8, 2 / 8))
    partly = fixed(np.array([5.0, 1, 1, 1, 1, 1, 1, 0]))
    counts = cohorts(bound, probe=partly)
    assert counts[0] == ROUNDS
    assert counts[7] == 0
    close(counts[1:7], np.full(6, 1 / 6))
    assert bound.select(1, 0, fixed(np.array([1, np.nan, 1, 1, 1, 1, 9, 1]))).clients.tolist() == [1, 6]


def test_rpow_asks_nobody_and_prefers_who_was_never_seen() -> None:
    bound = PowerOfChoice(2, 6, "rpow").bind(UNEVEN)
    first = []
    for number in (1, 2, 3):
        clients = bound.select(number, 0, no_probe).clients
        assert np.isinf(bound.state["loss"][clients]).all()
        bound.observe(number, clients, clients + 10.0, np.zeros(2))
        first += clients.tolist()
    assert sorted(first) == list(range(6))
    assert bound.select(4, 0, no_probe).clients.tolist() == [4, 5]  # then the largest last loss
    bound.observe(4, np.array([4, 5]), np.array([1.0, np.nan]), np.zeros(2))
    assert bound.state["loss"].tolist() == [10, 11, 12, 13, 1, 15]
    assert bound.select(5, 0, no_probe).clients.tolist() == [3, 5]


def test_fewer_candidates_than_asked_for() -> None:
    bound = PowerOfChoice(2, 5).bind(UNEVEN)
    losses = fixed(np.arange(6.0))
    assert bound.select(1, 0, losses, np.array([0, 2, 3])).clients.tolist() == [2, 3]
    with pytest.raises(MethodError, match="needs 2 clients but only 1 clients"):
        bound.select(1, 0, losses, np.array([3]))
