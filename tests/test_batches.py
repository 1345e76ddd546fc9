"""Which samples a client trains on: the laws of draw()."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import bag, item_data, there

import fedsub as fs
from fedsub.method.batches import draw
from fedsub.method.groups import Cohort
from fedsub.objective.problem import Problem


def owners(sizes) -> fs.Clients:
    """Clients with the given numbers of samples and nothing else of interest."""
    return fs.Clients.from_arrays(
        {"x": np.arange(sum(sizes))},
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        ids=[],
        values=["x"],
    )


def batches_of(clients: fs.Clients, got, k: int, client: int) -> list[list[int]]:
    """The real samples of every step of the cohort's k-th client, counted from the client's first."""
    base = clients.offsets[client]
    steps = int(got.steps[k])
    return [(got.samples[k, t][got.weights[k, t] > 0] - base).tolist() for t in range(steps)]


def passes(batches: list[list[int]], size: int) -> list[list[int]]:
    """Steps regrouped into passes over the client's samples; the last one may be cut short."""
    flat = [s for batch in batches for s in batch]
    return [flat[i : i + size] for i in range(0, len(flat), size)]


SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=6)
LOCAL = st.builds(
    lambda steps, size, order: fs.SGD(0.1, steps, None, size, order),
    st.integers(1, 12),
    st.one_of(st.none(), st.integers(1, 17)),
    st.sampled_from(["shuffled", "ordered", "replacement"]),
)


@settings(max_examples=150, deadline=None)
@given(SIZES, LOCAL, st.integers(0, 2**31), st.integers(1, 1000))
def test_the_laws_of_drawing(sizes, local: fs.SGD, seed: int, number: int) -> None:
    clients = owners(sizes)
    everyone = Cohort.of(np.arange(len(sizes)))
    got = draw(clients, everyone, local, round=number, seed=seed)
    size = max(sizes) if local.batch_size is None else local.batch_size
    if local.batches != "replacement":  # no wider than the largest client can fill
        size = min(size, max(sizes))
    assert got.samples.shape == got.weights.shape == (len(sizes), local.local_steps, size)
    assert (got.steps == local.local_steps).all()
    # Padding, too, names samples of the client itself.
    own = clients.clients_of(got.samples.reshape(-1)).reshape(got.samples.shape)
    assert (own == np.arange(len(sizes))[:, None, None]).all()
    np.testing.assert_allclose(got.weights.sum(2), 1, rtol=1e-6)
    for k, n in enumerate(sizes):
        steps = batches_of(clients, got, k, k)
        full, rest = divmod(n, size)
        lengths = [size] * full + [rest] * (rest > 0)
        if local.batches == "replacement" and local.batch_size is not None:
            lengths = [size]
        assert [len(b) for b in steps] == [lengths[t % len(lengths)] for t in range(there(local.local_steps))]
        for t, batch in enumerate(steps):
            equal_weight = got.weights[k, t][got.weights[k, t] > 0]
            np.testing.assert_allclose(equal_weight, 1 / len(batch), rtol=1e-6)
        if local.batches == "replacement":
            continue
        for one in passes(steps, n):
            assert len(set(one)) == len(one)  # no sample twice within a pass
            if local.batches == "ordered":
                assert one == list(range(len(one)))
            elif len(one) == n:
                assert sorted(one) == list(range(n))


@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(1, 3), st.integers(1, 9), st.integers(0, 2**31))
def test_epochs(sizes, epochs: int, size: int, seed: int) -> None:
    clients = owners(sizes)
    local = fs.SGD(0.1, None, epochs, size)
    got = draw(clients, Cohort.of(np.arange(len(sizes))), local, round=1, seed=seed)
    assert got.steps.tolist() == [epochs * -(-n // size) for n in sizes]
    for k, n in enumerate(sizes):
        visits = [s for batch in batches_of(clients, got, k, k) for s in batch]
        assert np.bincount(visits, minlength=n).tolist() == [epochs] * n  # everything, epochs times
        assert (got.weights[k, int(got.steps[k]) :] == 0).all()


@settings(max_examples=100, deadline=None)
@given(SIZES, LOCAL, st.integers(0, 2**31), st.data())
def test_a_clients_batches_do_not_depend_on_the_others(sizes, local: fs.SGD, seed: int, data) -> None:
    clients = owners(sizes)
    if local.batch_size is None:  # then the width follows the largest client, which the cohort decides
        local = fs.SGD(0.1, local.local_steps, None, 7, local.batches)
    who = data.draw(st.permutations(range(len(sizes))).map(lambda p: p[: max(1, len(p) // 2)]))
    everyone = draw(clients, Cohort.of(np.arange(len(sizes))), local, round=3, seed=seed)
    some = draw(clients, Cohort.of(np.array(who)), local, round=3, seed=seed)
    for k, client in enumerate(who):
        assert batches_of(clients, some, k, client) == batches_of(clients, everyone, client, client)


def test_the_number_of_steps_does_not_change_the_first_ones() -> None:
    clients, cohort = owners([9, 30]), Cohort.of(np.arange(2))
    short = draw(clients, cohort, fs.SGD(0.1, 3, None, 4), round=2, seed=1)
    long = draw(clients, cohort, fs.SGD(0.1, 20, None, 4), round=2, seed=1)
    for k in (0, 1):
        assert batches_of(clients, long, k, k)[:3] == batches_of(clients, short, k, k)


@pytest.mark.parametrize("order", ["shuffled", "replacement"])
def test_round_seed_client_and_repeat_all_matter(order: str) -> None:
    clients = owners([30, 30])
    local = fs.SGD(0.1, 5, None, 6, order)

    def first(client: int = 0, **options) -> list[list[int]]:
        cohort = Cohort.of(np.array([client]))
        return batches_of(clients, draw(clients, cohort, local, **options), 0, client)

    here = first(round=1, seed=0)
    assert first(round=1, seed=0) == here
    assert first(round=2, seed=0) != here
    assert first(round=1, seed=1) != here
    assert first(1, round=1, seed=0) != here
    twice = draw(clients, Cohort.of(np.array([0, 0]), may_repeat=True), local, round=1, seed=0)
    assert batches_of(clients, twice, 0, 0) == here
    assert batches_of(clients, twice, 1, 0) != here


def test_passes_differ_from_each_other() -> None:
    clients = owners([40])
    got = draw(clients, Cohort.of(np.array([0])), fs.SGD(0.1, 20, None, 10), round=1, seed=0)
    seen = {tuple(p) for p in passes(batches_of(clients, got, 0, 0), 40)}
    assert len(seen) == 5


@pytest.mark.parametrize("size", [8191, 8192, 8193, 20_000])
@pytest.mark.parametrize("batch", [None, 3000, 5])
def test_long_clients(size: int, batch: int | None) -> None:
    """Around the size at which the way of shuffling changes, the laws stay the same."""
    clients = owners([3, size, 10])
    steps = 7
    got = draw(clients, Cohort.of(np.arange(3)), fs.SGD(0.1, steps, None, batch), round=1, seed=0)
    batches = batches_of(clients, got, 1, 1)
    for one in passes(batches, size):
        assert len(set(one)) == len(one)
        assert min(one) >= 0
        assert max(one) < size
        assert one != sorted(one)
        if len(one) == size:
            assert sorted(one) == list(range(size))
    assert {len(set(p)) for p in passes(batches_of(clients, got, 0, 0), 3)} == {3}
    alone = draw(clients, Cohort.of(np.array([1])), fs.SGD(0.1, steps, None, batch), round=1, seed=0)
    assert batches_of(clients, alone, 0, 1) == batches


def test_epochs_of_a_long_client_do_not_depend_on_the_others() -> None:
    clients = owners([9000, 8100, 40_000])
    local = fs.SGD(0.1, None, 1, 64)
    together = draw(clients, Cohort.of(np.arange(3)), local, round=1, seed=0)
    for client in range(3):
        alone = draw(clients, Cohort.of(np.array([client])), local, round=1, seed=0)
        batches = batches_of(clients, alone, 0, client)
        assert batches == batches_of(clients, together, client, client)
        assert sorted(s for b in batches for s in b) == list(range(clients.sizes[client]))


def chi_square(counts: np.ndarray) -> float:
    """(χ² − degrees) / √(2·degrees): about standard normal if all cells are equally likely."""
    expected = counts.sum() / counts.size
    degrees = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees))


def test_shuffles_are_uniform() -> None:
    """All 24 orders of four samples, over many rounds and clients, come up equally often."""
    clients = owners([4] * 500)
    local = fs.SGD(0.1, 4, None, 1)
    orders = []
    for number in range(1, 25):
        got = draw(clients, Cohort.of(np.arange(500)), local, round=number, seed=7)
        orders.append(got.samples[:, :, 0] - clients.offsets[:-1, None])
    code = np.concatenate(orders) @ np.array([64, 16, 4, 1])
    _, counts = np.unique(code, return_counts=True)
    assert len(counts) == 24
    assert abs(chi_square(counts)) < 4


@pytest.mark.parametrize(("order", "size"), [("shuffled", 50), ("replacement", 50), ("shuffled", 9000)])
def test_every_sample_is_as_likely_as_any_other(order: str, size: int) -> None:
    clients = owners([size])
    local = fs.SGD(0.1, 1, None, 10, order)
    rounds = 2000
    first = np.concatenate(
        [
            draw(clients, Cohort.of(np.array([0])), local, round=r, seed=3).samples.reshape(-1)
            for r in range(1, rounds + 1)
        ]
    )
    counts = np.bincount(first * 50 // size, minlength=50)
    assert abs(chi_square(counts)) < 4


def test_replacement_draws_a_sample_more_than_once() -> None:
    clients = owners([10])
    got = draw(clients, Cohort.of(np.array([0])), fs.SGD(0.1, 50, None, 10, "replacement"), round=1, seed=0)
    batches = batches_of(clients, got, 0, 0)
    assert any(len(set(b)) < len(b) for b in batches)
    assert {s for b in batches for s in b} == set(range(10))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_are_as_exact_as_the_model(dtype: type[np.floating]) -> None:
    clients = owners([7])
    local = fs.SGD(lr=0.1, local_steps=None, local_epochs=1, batch_size=3)
    weights = draw(clients, Cohort.of(np.array([0])), local, round=1, seed=0, dtype=dtype).weights
    assert weights.dtype == dtype
    assert (weights[0] == [[dtype(1 / 3)] * 3, [dtype(1 / 3)] * 3, [1, 0, 0]]).all()
    for other, expected in ((torch.float16, np.float32), (torch.float64, np.float64)):
        goal = bag(clients := item_data())  # a table in single precision, and a layer in another
        goal.module.get_submodule("out").to(other)
        assert Problem.bind(goal, clients).weight_dtype is expected
