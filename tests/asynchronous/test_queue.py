"""Who trains when: shares of clients and rows over many steps, without any training."""

from __future__ import annotations

import numpy as np
import pytest

from fedsub.families.asynchronous.queue import Costs, Queue
from fedsub.method.sampling import Uniform

N = 400
SECONDS = np.exp(np.random.default_rng(0).normal(0, 1, N))  # the slowest take a hundred times as long as the fastest


def costs(number: int, clients: np.ndarray) -> Costs:
    nothing = np.zeros(len(clients), np.int64)
    return Costs(SECONDS[clients], nothing, nothing, np.zeros(len(clients), bool))


def arrivals(queue: Queue, steps: int) -> np.ndarray:
    """How often each client was in a buffer."""
    found = np.zeros(N, np.int64)
    for number in range(1, steps + 1):
        due = queue.step(number)
        assert len({flight.client for flight in due.arrived}) == len(due.arrived) == queue.buffer
        assert len(queue.flights) <= queue.concurrency
        found[[flight.client for flight in due.arrived]] += 1
    return found


def queue(**settings) -> Queue:
    return Queue(np.arange(N), costs, **{"buffer": 5, "concurrency": 20, "seed": 1, **settings})


def test_the_first_to_begin_are_a_uniform_cohort() -> None:
    made = queue(buffer=20, at_once=False)
    due = made.step(1)
    cohort = Uniform(20).bind(np.ones(N, np.int64)).select(1, 1, lambda clients, batch: np.zeros(0))
    assert [flight.client for flight in due.arrived] == cohort.clients.tolist()


def test_time_is_that_of_the_slowest_or_of_whoever_is_next() -> None:
    whole = queue(buffer=20, at_once=False, overhead=0.5)
    due = whole.step(1)
    slowest = max(SECONDS[flight.client] for flight in due.arrived)
    assert whole.clock == pytest.approx(slowest + 0.5)
    first = queue()
    ends = sorted(SECONDS[[flight.client for flight in due.arrived]])  # the same twenty begin
    first.step(1)
    assert first.clock <= ends[4] < slowest


def test_slow_devices_are_heard_nearly_as_often_as_fast_ones() -> None:
    """A row that n_m of N clients hold is in n_m / N of the places of buffers: what heat correction reckons with."""
    steps = 8000
    found = arrivals(queue(), steps)
    slow = np.argsort(SECONDS)[N // 2 :]
    expected = steps * 5 / 2
    # Whoever trains is not asked meanwhile, which costs the slowest a little: they train a share of the time.
    assert found[slow].sum() == pytest.approx(expected, rel=0.04)
    held = np.random.default_rng(2).random(N) < 0.1  # by no matter which devices
    assert found[held].sum() == pytest.approx(steps * 5 * held.mean(), rel=0.05)
    hurried = arrivals(queue(most_stale=2), steps)
    assert hurried[slow].sum() < 0.8 * expected  # those who are told to stop are the slow ones


def test_a_queue_goes_on_from_what_it_was() -> None:
    one, other = queue(), queue()
    arrivals(one, 10)
    other.put(one.clock, list(one.flights.values()))
    for number in range(11, 20):
        assert one.step(number) == other.step(number)
        assert one.clock == other.clock
