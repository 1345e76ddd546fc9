"""What `tune` is asked: axes, methods of one's own, and mistakes that show before training."""

from __future__ import annotations

import pytest
from searches import tune
from worlds import composed, item_data

import fedsub as fs
from fedsub.errors import ConfigError
from fedsub.study.tuning import space, workers


def test_axes():
    assert space.parse_axis("lr=0.01..10/4").points == (0.01, 0.1, 1.0, 10.0)
    assert space.parse_axis("local_steps=5,10").points == (5, 10)
    axis = space.parse_axis("fedprox.mu=0,0.1")
    assert (axis.method, axis.name, axis.at(0.5)) == ("fedprox", "mu", 0.05)


def own(*, lr: float = 0.1, **common) -> fs.Method:
    return fs.methods.fedavg(lr=lr, **common)


def test_methods_of_ones_own():
    found = tune({"mine": own}, grid={"lr": [0.1, 0.2], "local_steps": [1], "clients_per_round": [3]}, rounds=1)
    assert found.chosen["mine"].values["local_steps"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": {}}, "The grid is empty"),
        ({"grid": {"lr": []}}, "The axis lr has no values"),
        ({"grid": ["lr="]}, "The axis lr has no values"),
        ({"grid": ["lr"]}, "expected NAME=VALUES"),
        ({"grid": "lr=1"}, "expected a dict"),
        ({"grid": {"lr": ["a"]}}, "The axis lr has the value 'a', expected a finite number"),
        ({"grid": ["lr=0.1,fast"]}, "The axis lr has the value 'fast', expected a finite number"),
        ({"grid": ["lr=nan"]}, "expected a finite number"),
        ({"grid": ["lr=1..0.1/3"]}, "must rise and be positive"),
        ({"grid": ["lr=0.1..1/1"]}, "whole number from 2 to 1000"),
        ({"grid": ["lr=1", "lr=2"]}, "given twice"),
        ({"grid": {"learning_rate": [1]}}, "No method has the setting 'learning_rate' of the grid"),
        ({"grid": {"fedprox.mu": [1]}}, "not among the methods"),
        ({"grid": {"FedSubAvg.temper": [1]}}, "FedAvg has none of the axes"),
        ({"grid": {"weighting": [1]}}, "is no number"),
        ({"grid": {"local_steps": [1.5]}}, "is a whole number"),
        ({"grid": ["lr=0.1..1"], "search": "grid"}, "a grid needs points|A grid needs points"),
        ({"grid": ["lr=0.1..1"]}, "needs the number of trials"),
        ({"search": "grid", "trials": 3}, "A grid has as many trials as it has points"),
        ({"search": "gird"}, "did you mean 'grid'"),
        ({"select": "test"}, "select is 'test'"),
        ({"select": "rounds"}, "needs a target"),
        ({"select": "rounds:auc", "target": "train.ce<=0.6"}, "best:auc"),
        ({"select": "best:auk"}, "did you mean 'auc'"),
        ({"select": "rounds", "target": "test.ce<=0.6"}, "The test split is looked at once"),
        ({"select": "rounds", "target": "train.loss<=0.6"}, "not measured"),
        ({"validation": 0}, "validation is 0, expected the share"),
        ({"validation": 1.5}, "validation is 1.5, expected the share"),
        ({"workers": 0}, "workers must be a whole number"),
        ({"rounds": 0}, "rounds must be a whole number"),
        ({"seeds": 0}, "seeds is 0"),
        ({"methods": {}}, "nothing to tune"),
        ({"methods": ["fedagv"]}, "did you mean 'fedavg'"),
        ({"methods": {"A": {"method": "fedavg", "speed": 1}}}, "has no setting 'speed'"),
        ({"test": [1]}, "test must be Clients, got a list"),
        ({"test": item_data((5, 5), items=13)}, "The split 'test' numbers the rows"),
        ({"stop_at_target": True}, "tune does not take stop_at_target"),
    ],
)
def test_mistakes_show_before_training(monkeypatch, options, message):
    monkeypatch.setattr(workers, "perform", lambda *_: pytest.fail("trained"))
    with pytest.raises(ConfigError, match=message):
        tune(**options)


def test_a_foreign_directory_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty and holds no search"):
        tune(out=tmp_path)


def test_settings_beside_a_function():
    candidates = space.make_candidates({"Mine": {"method": own, "batch_size": 3}})
    assert composed(candidates[0].build({"lr": 0.5})).local.batch_size == 3
    with pytest.raises(ConfigError, match="Mine has no setting 'speed'"):
        space.make_candidates({"Mine": {"method": own, "speed": 3}})
