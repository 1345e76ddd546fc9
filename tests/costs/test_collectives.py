"""Rings and servers: the sum is exact, and what is sent is the formula."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedsub.study import costs


@given(st.integers(1, 9), st.integers(0, 60), st.integers(0, 2**32))
def test_the_ring_gives_the_exact_sum_and_sends_what_the_formula_says(k, n, seed):
    vectors = list(np.random.default_rng(seed).integers(-(2**40), 2**40, (k, n)))
    before = [v.copy() for v in vectors]
    results, sent, steps = costs.simulate_ring(vectors)
    for result in results:
        assert np.array_equal(result, np.sum(before, axis=0))
    assert all(np.array_equal(a, b) for a, b in zip(vectors, before, strict=True))  # inputs are left alone
    formula = costs.ring_all_reduce(k, n)
    assert np.array_equal(sent, formula.sent)
    assert steps == formula.steps == 2 * (k - 1)
    assert sent.sum() == formula.total == formula.received.sum() == 2 * (k - 1) * n
    exact = 2 * (k - 1) * n / k
    assert np.all(np.abs(sent - exact) < 2)  # two roundings of a chunk
    if n % k == 0:
        assert np.all(sent == exact)


def test_received_around_the_ring_is_sent_by_the_one_before():
    ring = costs.ring_all_reduce(4, 10)  # chunks 3, 3, 2, 2
    assert ring.sent.tolist() == [15, 16, 15, 14]
    assert ring.received.tolist() == [14, 15, 16, 15]


def test_one_worker_has_nobody_to_send_to():
    alone = costs.ring_all_reduce(1, 1000)
    assert (alone.total, alone.steps, alone.seconds(1e6, 1.0)) == (0, 0, 0.0)
    results, sent, steps = costs.simulate_ring([np.array([3, 4])])
    assert (results[0].tolist(), sent.tolist(), steps) == ([3, 4], [0], 0)


def test_a_ring_worker_sends_no_more_the_more_there_are_but_a_server_gets_more():
    assert [int(costs.ring_all_reduce(k, 1 << 20).sent.max()) >> 10 for k in (2, 4, 1024)] == [1024, 1536, 2046]
    server = costs.parameter_server(8, 100)
    assert (server.server, server.total, server.sent.tolist()) == (1600, 1600, [100] * 8)


def test_latency_and_bandwidth():
    assert costs.parameter_server(8, 0).seconds(1e6, 0.25) == 0.5  # 2 α
    assert costs.ring_all_reduce(8, 0).seconds(1e6, 0.25) == 3.5  # 2 (K − 1) α
    assert costs.parameter_server(8, 1000).seconds(4e3, 0) == 16  # 2 K N values of 4 bytes through one link
    assert costs.ring_all_reduce(8, 1000).seconds(4e3, 0) == 1.75  # 14 chunks of 125
