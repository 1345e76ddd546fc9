"""Pipelines and tensor splits: the network trains as on one worker, and what is sent is the formula."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsub.errors import ConfigError
from fedsub.study import costs
from fedsub.study.costs.simulated import Trained, alone, simulate_pipeline, simulate_tensor_split

WIDTHS = st.lists(st.integers(4, 9), min_size=3, max_size=8)


def network(widths, batch: int, seed: int):
    rng = np.random.default_rng(seed)
    weights = [rng.integers(-3, 4, shape) for shape in itertools.pairwise(widths)]
    return weights, rng.integers(-3, 4, (batch, widths[0])), rng.integers(-3, 4, (batch, widths[-1]))


def same(found: Trained, one: Trained) -> None:
    assert np.array_equal(found.output, one.output)
    for mine, theirs in zip(found.gradients, one.gradients, strict=True):
        assert np.array_equal(mine, theirs)


def test_one_worker_s_gradients_are_autograd_s():
    import torch

    weights, x, slopes = network([5, 6, 4, 3], 7, 0)
    leaves = [torch.tensor(w, dtype=torch.float64, requires_grad=True) for w in weights]
    y = torch.tensor(x, dtype=torch.float64)
    for leaf in leaves:
        y = (y @ leaf).relu()
    (y * torch.tensor(slopes)).sum().backward()
    for leaf, gradient in zip(leaves, alone(weights, x, slopes).gradients, strict=True):
        assert leaf.grad is not None
        assert np.array_equal(leaf.grad.numpy(), gradient)


@given(WIDTHS, st.integers(1, 12), st.integers(1, 7), st.integers(1, 12), st.integers(0, 99))
@settings(deadline=None)
def test_a_pipeline_sends_and_waits_as_the_formulas_say(widths, batch, workers, pieces, seed):
    workers, pieces = min(workers, len(widths) - 1), min(pieces, batch)
    weights, x, slopes = network(widths, batch, seed)
    found = simulate_pipeline(weights, x, slopes, workers, pieces)
    same(found, alone(weights, x, slopes))
    formula = costs.pipeline(widths, batch, workers, pieces)
    assert np.array_equal(found.sent, formula.sent)
    assert formula.parameters.sum() == sum(w.size for w in weights)
    sending = {stage + piece for stage in range(workers - 1) for piece in range(pieces)}  # slots that end in a message
    assert formula.steps == 2 * len(sending)
    assert found.slots == 2 * (pieces + workers - 1)
    assert found.busy is not None
    assert (found.busy == 2 * pieces).all()
    assert formula.idle == pytest.approx(1 - 2 * pieces / found.slots)
    assert formula.idle == pytest.approx((workers - 1) / (pieces + workers - 1))
    assert found.slots == costs.pipeline_seconds([1.0] * workers, pieces, backward=[1.0] * workers)


@given(WIDTHS, st.integers(1, 6), st.integers(1, 4), st.booleans(), st.integers(0, 99))
@settings(deadline=None)
def test_a_tensor_split_sends_what_the_formula_says(widths, batch, workers, paired, seed):
    widths = widths if not paired or len(widths) % 2 else widths[:-1]
    weights, x, slopes = network(widths, batch, seed)
    found = simulate_tensor_split(weights, x, slopes, workers, paired=paired)
    same(found, alone(weights, x, slopes))
    formula = costs.tensor_split(widths, batch, workers, paired=paired)
    assert np.array_equal(found.sent, formula.sent)
    assert formula.parameters.sum() == sum(w.size for w in weights)
    if all(w % workers == 0 for w in widths):  # then all workers send alike
        share = (workers - 1) / workers * batch
        pairs = [
            2 * share * (b + (a if i else 0)) for i, (a, b) in enumerate(zip(widths[:-2:2], widths[2::2], strict=True))
        ]
        each = [share * (2 * b + (a if i else 0)) for i, (a, b) in enumerate(itertools.pairwise(widths))]
        assert formula.sent.tolist() == pytest.approx([sum(pairs if paired else each)] * workers)


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 999))
def test_seconds_of_unequal_stages_and_links(stages: int, pieces: int, seed: int):
    """Event by event: a stage begins when its piece has come and the one before is done; links carry one at a time."""
    rng = np.random.default_rng(seed)
    f, b, links = rng.integers(1, 9, stages), rng.integers(1, 9, stages), rng.integers(0, 12, stages - 1)
    total = 0
    for work, wires in ((f, links), (b[::-1], links[::-1])):
        free, wire_free, ends = [0] * stages, [0] * (stages - 1), []
        for _ in range(pieces):
            at = 0
            for s in range(stages):
                at = free[s] = max(at, free[s]) + int(work[s])
                if s < stages - 1:
                    at = wire_free[s] = max(at, wire_free[s]) + int(wires[s])
            ends.append(at)
        total += ends[-1]
    assert costs.pipeline_seconds(f.tolist(), pieces, backward=b.tolist(), transfer=links.tolist()) == total


def test_by_hand():
    """Two layers of 4 × 4, batch 8, two workers: 2 · 8 · 4 over the border; all-reduces of 32 values."""
    assert costs.pipeline([4, 4, 4], 8, 2, 4).sent.tolist() == [32, 32]
    assert costs.pipeline([4, 4, 4], 8, 2, 4).idle == 0.2
    assert costs.tensor_split([4, 4, 4], 8, 2).sent.tolist() == [80, 80]  # 32 + 32, and back half of 32
    assert costs.tensor_split([4, 4, 4], 8, 2, paired=True).sent.tolist() == [32, 32]
    assert costs.data_parallel([4, 4, 4], 2).sent.tolist() == [32, 32]  # 2 (K − 1) N / K of 32 parameters
    assert costs.data_parallel([4, 4, 4], 2).parameters.tolist() == [32, 32]
    assert costs.tensor_split([4, 4, 4], 8, 2).seconds(64, 0.5, 4) == (2 + 2 + 1) * 0.5 + 80 * 4 / 64
    assert costs.bubble(4, 1) == 0.75


def test_more_micro_batches_shrink_the_bubble_and_move_the_same():
    few, many = (costs.pipeline([64] * 9, 32, 4, m) for m in (1, 32))
    assert (few.idle, round(many.idle, 3)) == (0.75, 0.086)
    assert few.total == many.total


def test_refusals():
    with pytest.raises(ConfigError, match="3 workers cannot each have one of 2 layers"):
        costs.pipeline([4, 4, 4], 8, 3)
    with pytest.raises(ConfigError, match="cannot be cut into 9 micro-batches"):
        costs.pipeline([4, 4, 4], 8, 2, 9)
    with pytest.raises(ConfigError, match="part of a layer of width 4"):
        costs.tensor_split([8, 8, 4, 8], 8, 5)
    with pytest.raises(ConfigError, match="3 layers are no pairs"):
        costs.tensor_split([8, 8, 8, 8], 8, 2, paired=True)
    with pytest.raises(ConfigError, match="at least two whole numbers"):
        costs.data_parallel([4], 2)
    with pytest.raises(ConfigError, match="one time per stage"):
        costs.pipeline_seconds([1.0, 1.0], 2, backward=[1.0])
