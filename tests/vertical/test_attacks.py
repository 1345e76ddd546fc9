"""Attacks on labels, on gradients whose secret is planted."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedsub.errors import DataError
from fedsub.objective.metrics import auc
from fedsub.vertical.attacks.scores import Known, completion, direction, fit, leak, norm, spectral

DRAW = np.random.default_rng(4)
LABELS = (DRAW.random(4000) < 0.2).astype(float)
KNOWN = Known.draw(LABELS, 20, seed=0)


def normal(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(9).normal(size=shape))


def test_known_samples_are_drawn_from_either_class_by_the_seed() -> None:
    assert (LABELS[KNOWN.positive] == 1).all()
    assert (LABELS[KNOWN.negative] == 0).all()
    assert len(np.unique(KNOWN.all)) == 40
    assert (Known.draw(LABELS, 20, 0).all == KNOWN.all).all()
    assert (Known.draw(LABELS, 20, 1).all != KNOWN.all).any()
    with pytest.raises(DataError, match="samples with the label 1, and the attacker is to know 5000"):
        Known.draw(LABELS, 5000, 0)


@pytest.mark.parametrize("longer", [1, 0])
def test_lengths_tell_what_lengths_tell(longer: int) -> None:
    """Lengths e^{t + N(0,1)} with t apart by 1: AUC Φ(1/√2), whichever class is the longer one."""
    lengths = np.exp((longer == LABELS) + np.random.default_rng(2).normal(size=4000))
    rows = normal(4000, 6)
    gradients = rows / rows.norm(dim=1, keepdim=True) * torch.from_numpy(lengths)[:, None]
    wanted = 0.5 * (1 + math.erf(0.5))
    assert leak(norm(gradients, KNOWN), LABELS, KNOWN) == pytest.approx(wanted, abs=0.03)
    assert leak(direction(gradients, KNOWN), LABELS, KNOWN) == pytest.approx(0.5, abs=0.06)


def test_directions_tell_even_where_all_rows_are_equally_long() -> None:
    side = torch.ones(6, dtype=torch.float64) / 6**0.5
    rows = normal(4000, 6) + torch.from_numpy(1.5 * (2 * LABELS - 1))[:, None] * side
    rows = rows / rows.norm(dim=1, keepdim=True)
    assert leak(norm(rows, KNOWN), LABELS, KNOWN) == pytest.approx(0.5, abs=0.06)
    found = leak(direction(rows, KNOWN), LABELS, KNOWN)
    assert found == pytest.approx(auc((rows @ side).numpy(), LABELS), abs=0.02)
    assert found > 0.95


def test_the_cosine_attack_is_the_mean_cosine() -> None:
    rows = normal(60, 3)
    known = Known(np.array([2, 7]), np.array([1]))
    scores = direction(rows, known)
    for i in range(60):
        cosines = [float(torch.nn.functional.cosine_similarity(rows[i], rows[k], dim=0)) for k in (2, 7)]
        assert scores[i] == pytest.approx(np.mean(cosines), rel=1e-9)


def test_the_cosine_attack_learns_from_known_labels_which_end_is_positive() -> None:
    """Positives that point anywhere, negatives all one way: like a known positive are the negatives."""
    side = torch.ones(6, dtype=torch.float64) / 6**0.5
    rows = normal(4000, 6)
    turned = 0.5 * side + 0.75**0.5 * (off := rows - (rows @ side)[:, None] * side) / off.norm(dim=1, keepdim=True)
    rows = torch.where(torch.from_numpy(LABELS)[:, None] > 0, turned, side)
    assert leak(direction(rows, KNOWN), LABELS, KNOWN) > 0.95
    few = Known(KNOWN.positive[:4], KNOWN.negative[:4])  # of four cosines one is that with itself
    assert leak(direction(rows, few), LABELS, few) > 0.8
    one = Known(KNOWN.positive[:1], KNOWN.negative[:1])  # nothing to compare with: as it is
    assert torch.allclose(torch.from_numpy(direction(rows, one)), rows @ rows[KNOWN.positive[0]])


def test_the_spectral_attack_finds_the_way_in_which_classes_differ() -> None:
    """Means 4 apart along one axis, spread 1: AUC Φ(4/√2) of the best projection, along which rows vary most."""
    rows = normal(4000, 5)
    rows[:, 3] += torch.from_numpy(4 * LABELS)
    assert leak(spectral(rows, KNOWN), LABELS, KNOWN) == pytest.approx(0.5 * (1 + math.erf(2)), abs=0.01)
    assert leak(spectral(-3 * rows + 2, KNOWN), LABELS, KNOWN) == leak(spectral(rows, KNOWN), LABELS, KNOWN)
    centred = (rows - rows.mean(0)).numpy()
    _, _, right = np.linalg.svd(centred, full_matrices=False)
    assert abs(np.corrcoef(spectral(rows, KNOWN), centred @ right[0])[0, 1]) == pytest.approx(1.0, rel=1e-9)


def test_a_head_learns_from_few_labels_what_activations_tell() -> None:
    z = normal(4000, 4)
    z[:, 1] += torch.from_numpy(1.5 * LABELS)
    found = leak(completion(z, KNOWN), LABELS, KNOWN)
    best = auc(z[:, 1].numpy(), LABELS)
    assert best - 0.06 < found <= best + 0.01
    assert leak(completion(normal(4000, 4), KNOWN), LABELS, KNOWN) == pytest.approx(0.5, abs=0.06)
    scaled = completion(z * torch.tensor([1e-3, 5.0, 1.0, 100.0]) + 7, KNOWN)
    assert np.allclose(scaled, completion(z, KNOWN), atol=1e-6)


def test_the_head_is_at_the_minimum_of_its_loss() -> None:
    x, y = normal(50, 3), torch.from_numpy((np.arange(50) % 3 == 0).astype(float))
    w = fit(x, y, ridge=0.02).requires_grad_()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(x @ w, y, reduction="sum") + 0.5 * 0.02 * 50 * (w @ w)
    assert torch.autograd.grad(loss, w)[0].abs().max() < 1e-8


def test_what_is_known_is_not_judged() -> None:
    scores = np.zeros(4000)
    scores[KNOWN.positive] = 1
    assert leak(scores, LABELS, KNOWN) == 0.5
