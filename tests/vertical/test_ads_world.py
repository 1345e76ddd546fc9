"""The made world of ads: its shape, and that labels follow the probability which is said to be theirs."""

from __future__ import annotations

import numpy as np
import pytest

from fedsub.errors import DataError
from fedsub.objective.metrics import auc
from fedsub.vertical import AdsWorld, expected_auc
from fedsub.vertical.data.sides import labels


@pytest.fixture(scope="module")
def world() -> AdsWorld:
    return AdsWorld(seed=3)


def test_impressions_clicks_conversions(world: AdsWorld) -> None:
    sides = world.sides()
    ads, publisher = sides.labelled, sides.parties["publisher"]
    clicks = len(ads)
    assert abs(clicks / world.impressions - 0.1) < 4 * (0.09 / world.impressions) ** 0.5 + 1e-4
    assert abs(labels(ads).mean() - 0.1) < 4 * (0.09 / clicks) ** 0.5 + 1e-3
    known = np.isin(ads.client_ids, publisher.client_ids)
    assert abs(known.mean() - 0.3) < 4 * (0.21 / clicks) ** 0.5
    assert len(publisher) == world.impressions - (~known).sum()
    # What the publisher shares with the platform was clicked, and nothing else.
    assert (np.isin(publisher.client_ids, ads.client_ids) == (publisher.columns["clicked"].values == 1)).all()
    assert set(ads.columns) & set(publisher.columns) == set()
    assert len(sides.aligned().labelled) + len(sides.unaligned()) == clicks


def test_labels_follow_the_probability_given_all_columns(world: AdsWorld) -> None:
    both = AdsWorld(seed=3, aligned=1.0).sides().aligned()
    p, y = world.conversion(both), labels(both.labelled)
    order = np.argsort(p)
    for part in np.array_split(order, 10):
        assert abs(y[part].mean() - p[part].mean()) < 4 * (p[part] * (1 - p[part])).sum() ** 0.5 / len(part)
    assert abs(auc(p, y) - expected_auc(p, p)) < 0.02  # about three standard deviations of 2,000 positives


def test_the_platform_alone_knows_less_and_its_probability_is_right_too() -> None:
    world = AdsWorld(seed=5, aligned=1.0)
    both = world.sides().aligned()
    p, alone, y = world.conversion(both), world.conversion_alone(both.labelled), labels(both.labelled)
    for part in np.array_split(np.argsort(alone), 10):  # 10 %: the mean over 2,048 impressions has an error of its own
        deviation = (p[part] * (1 - p[part])).sum() ** 0.5 / len(part)
        assert abs(y[part].mean() - alone[part].mean()) < 4 * deviation + 0.1 * alone[part].mean()
    assert 0.62 < expected_auc(alone, p) < expected_auc(p, p) - 0.05
    # No function of the platform's columns has a higher AUC; here is one that is off by a little.
    assert expected_auc(alone, p) > expected_auc(alone * (1 + 0.1 * np.sin(both.labelled.client_ids)), p)


def test_expected_auc_by_all_pairs() -> None:
    draw = np.random.default_rng(0)
    p, s = draw.random(60), draw.integers(0, 9, 60).astype(float)
    top = bottom = 0.0
    for i in range(60):
        for j in range(60):
            if i != j:
                weight = p[i] * (1 - p[j])
                top += weight * (float(s[i] > s[j]) + 0.5 * float(s[i] == s[j]))
                bottom += weight
    assert expected_auc(s, p) == pytest.approx(top / bottom, rel=1e-12)
    hard = (draw.random(60) < 0.4).astype(float)
    assert expected_auc(s, hard) == pytest.approx(auc(s, hard), rel=1e-12)


def test_a_world_is_its_seed() -> None:
    a, b, c = (AdsWorld(impressions=5000, seed=s).sides() for s in (1, 1, 2))
    for name in a.parties:
        assert a.parties[name].fingerprint == b.parties[name].fingerprint
    assert len(np.intersect1d(a.labelled.client_ids, c.labelled.client_ids)) == 0


def test_worlds_that_make_no_sense_are_refused() -> None:
    with pytest.raises(DataError, match="impressions must be a whole number of at least 100"):
        AdsWorld(impressions=10)
    with pytest.raises(DataError, match="aligned must be above 0 and at most 1"):
        AdsWorld(aligned=0)
    with pytest.raises(DataError, match="converted is 0"):
        AdsWorld(converted=0)
