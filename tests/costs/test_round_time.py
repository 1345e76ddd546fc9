"""Bytes and seconds of a round, by hand, and arguments that make no sense."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from boxes import PLAIN
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import bag, envelope, item_data

import fedsub as fs
from fedsub.errors import ConfigError
from fedsub.method.batches import draw
from fedsub.method.codecs.wire import encode_rows
from fedsub.method.groups import Cohort
from fedsub.objective.problem import Problem
from fedsub.round.clock.seconds import samples_trained
from fedsub.study import costs

# Submodels -----------------------------------------------------------------------------------------


def test_submodel_round_by_hand():
    clients = item_data()
    problem = Problem.bind(bag(clients, dim=3), clients)
    found = costs.submodel_round(problem)
    ids, ends = clients.column("ids").values, clients.offsets
    rows = np.array([len(np.unique(ids[a:b])) for a, b in pairwise(ends)])
    held = rows * 3 + 4  # rows of 3, and Linear(3, 1)
    total = 20 * 3 + 4
    assert found.parameters == total
    assert found.ratio == pytest.approx(held.mean() / total)
    tree = {"emb.weight": 2, "out.weight": 2, "out.bias": 1}
    down, up = (envelope({f"{name}/{n}": ndim for n, ndim in tree.items()}) for name in ("model", "update"))
    assert found.down == held.sum() * 4 + (envelope({}) + down) * len(clients)
    ids = [len(encode_rows(np.unique(ids[a:b]), 20)) for a, b in pairwise(ends)]
    assert found.ids == sum(ids) + envelope({"rows/ids": 1}) * len(clients)
    sums = sum(4 + len(f"sum/{n}") + 8 for n in ("weight", "count", "loss"))
    assert found.up == found.ids + held.sum() * 4 + (up + sums) * len(clients)
    assert found.full == 2 * total * 4 * len(clients)
    assert found.bytes_ratio == pytest.approx((found.down + found.up) / found.full)
    assert found.sign == (total * 4 + 8 + 3 * 4) * len(clients)
    assert costs.submodel_round(problem, np.array([1, 1])).submodel_parameters == held[1]


def test_signs_and_averagings():
    assert costs.sign_ratio(32) == 1 / 16
    assert costs.sign_ratio(10**9) == pytest.approx(1 / 32)
    assert costs.l2gd_averagings(0.5) == 0.25
    assert costs.l2gd_averagings(0) == costs.l2gd_averagings(1) == 0


# Round time ----------------------------------------------------------------------------------------


def test_round_time_by_hand():
    # client 0: 0.5 + 200/100 + 20/10 + 0.5 + 100/50 = 7; client 1: 0.5 + 1 + 1 + 0.5 + 1 = 4
    work = ([0, 1], [200, 100], [100, 50], [20, 10])
    assert costs.client_seconds(PLAIN, *work).tolist() == [7.0, 4.0]
    assert costs.round_seconds(PLAIN, *work) == 7
    assert costs.round_seconds(PLAIN, *work, quantile=0.5) == 4
    assert costs.round_seconds(PLAIN, *work, deadline=6) == 6
    slow_server = costs.Devices("boxes", 100, 50, 0.5, 10, overhead=1.5)
    assert costs.round_seconds(slow_server, *work) == 8.5
    assert costs.round_seconds(slow_server, [], [], [], []) == 1.5
    by_client = costs.Devices("mixed", [100, 1000], [50, 500], [0.5, 0], [10, 100])
    assert costs.client_seconds(by_client, *work).tolist() == [7.0, 0.1 + 0.1 + 0.1]


def test_nothing_sent_takes_no_latency_and_twice_drawn_is_twice_done():
    assert costs.round_seconds(PLAIN, [3], [0], [0], [20]) == 2
    assert costs.round_seconds(PLAIN, [3], [100], [0], [0]) == 1.5  # dropped out after the download
    assert costs.round_seconds(PLAIN, [3, 3, 4], [0, 0, 0], [0, 0, 0], [20, 10, 20]) == 3


def test_drawn_devices_depend_on_seed_and_client_alone():
    some, more = np.array([7, 3]), np.arange(20_000)
    for name in ("download", "upload", "latency", "speed"):
        every = costs.phones().of(name, more)
        assert np.array_equal(costs.phones().of(name, some), every[some])
        assert not np.array_equal(costs.phones(seed=1).of(name, some), every[some])
    logs = np.log(costs.phones().of("download", more) / 2e6)
    assert abs(logs.mean()) < 0.03
    assert logs.std() == pytest.approx(0.8, rel=0.03)
    up = np.log(costs.phones().of("upload", more))
    assert abs(np.corrcoef(logs, up)[0, 1]) < 0.03
    assert np.all(costs.datacentre().of("download", some) == 1.25e9)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=6),
    st.integers(1, 12),
    st.booleans(),
    st.none() | st.integers(1, 12),
    st.sampled_from(["shuffled", "ordered", "replacement"]),
)
def test_samples_trained_are_those_that_batches_draw(sizes, amount, epochs, batch, batches):
    clients = item_data(sizes)
    how = {"local_steps": None if epochs else amount, "local_epochs": amount if epochs else None}
    how |= {"batch_size": batch, "batches": batches}
    cohort = Cohort.of(np.arange(len(sizes)))
    real = draw(clients, cohort, SimpleNamespace(lr=0.1, **how), round=1, seed=0).weights > 0  # type: ignore[arg-type]
    assert samples_trained(how, cohort.clients, clients.sizes).tolist() == real.sum((1, 2)).tolist()


# Bad arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: costs.ring_all_reduce(0, 5), "workers must be a whole number of at least 1, got 0"),
        (lambda: costs.parameter_server(2, -1), "parameters must be a whole number of at least 0, got -1"),
        (lambda: costs.parameter_server(True, 1), "workers must be a whole number of at least 1, got True"),
        (lambda: costs.parameter_server(2, 1).seconds(0, 0), "bandwidth must be positive, got 0"),
        (
            lambda: costs.parameter_server(2, 1).seconds(1, math.nan),
            "latency must be a finite number",
        ),
        (lambda: costs.simulate_ring([]), "no vectors"),
        (lambda: costs.simulate_ring([np.ones(3)]), "on integers"),
        (lambda: costs.simulate_ring([np.arange(3), np.arange(4)]), "Vector 1 has shape"),
        (lambda: costs.simulate_ring([np.array([2**62])] * 2), "below 2\\^63"),
        (lambda: costs.sign_ratio(0), "parameters must be a whole number of at least 1, got 0"),
        (lambda: costs.l2gd_averagings(1.5), "chance of an averaging"),
        (lambda: costs.LogNormal(-1), "median must be positive, got -1"),
        (lambda: costs.Devices("", 1, 1, 1, 1), "name is ''"),
        (lambda: costs.Devices("a", [1, 0], 1, 0, 1), "download holds 0, expected finite numbers above 0"),
        (
            lambda: costs.Devices("a", 1, "fast", 0, 1),  # pyright: ignore[reportArgumentType]
            "upload is 'fast'",
        ),
        (lambda: costs.Devices("a", 1, 1, -1, 1), "latency must be a finite number of at least 0, got -1"),
        (lambda: costs.Devices("a", 1, 1, 0, 1, seed=-1), "seed must be a whole number of at least 0, got -1"),
        (lambda: costs.round_seconds(PLAIN, [0], [1, 2], [1], [1]), "down has the shape"),
        (lambda: costs.round_seconds(PLAIN, [-1], [1], [1], [1]), "numbers of clients"),
        (
            lambda: costs.round_seconds(PLAIN, [0], [1], [1], [1], quantile=2),
            "quantile must be above 0",
        ),
        (lambda: costs.round_seconds(PLAIN, [0], [1], [1], [1], deadline=0), "deadline must be positive, got 0"),
        (
            lambda: costs.round_seconds(costs.Devices("a", [1], 1, 0, 1), [3], [1], [1], [1]),
            "of 1 clients, but client 3",
        ),
        (lambda: costs.named("phone"), "did you mean 'phones'"),
        (lambda: fs.compare({}, None, None, rounds=1, devices="moon"), "devices is 'moon'"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments(call, says):
    with pytest.raises(ConfigError, match=says):
        call()


def test_a_cohort_of_strangers_is_refused():
    clients = item_data()
    with pytest.raises(ConfigError, match="from 0 to 8"):
        costs.submodel_round(Problem.bind(bag(clients), clients), np.array([9]))
