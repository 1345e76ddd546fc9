"""What a table may claim: divergence, the rounds that count, spread over seeds."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from worlds import Bag, bag, item_data, there

import fedsub as fs
from fedsub.errors import ConfigError, ObjectiveError
from fedsub.methods import fedavg
from fedsub.running.result import Result, Target, divergence
from fedsub.study.comparing import Comparison
from fedsub.study.report import csv_rows, markdown_table, render, text_table

FAST: dict[str, Any] = {"rounds": 2, "engine": "serial", "evaluate": fs.Evaluate(every=1)}


def curve(*values: float, seed: int = 0, metric: str = "train.ce", **others: tuple[float, ...]) -> Result:
    """A run evaluated in every round; further metrics by name, "__" for a dot."""
    history = [{"round": i, "clients": 1, "down": 10, "up": 10, metric: v} for i, v in enumerate(values)]
    for name, found in others.items():
        for record, value in zip(history, found, strict=True):
            record[name.replace("__", ".")] = value
    return Result("x", seed, history, {}, 1.0, "serial")


# Round 0 and divergence ----------------------------------------------------------------------------


def test_the_untrained_model_is_neither_best_nor_a_target_reached():
    worse = curve(0.6931, 3.0, 6e27)
    assert worse.best("train.ce") == 3.0
    assert worse.first_round("train.ce<=0.7") is None
    assert not Target.parse("train.ce<=0.7").reached({"round": 0, "train.ce": 0.5})
    assert math.isnan(curve(0.5).best("train.ce"))  # nothing was trained
    assert curve(0.5, 0.6, 0.7, metric="test.auc").best("test.auc") == 0.7


@pytest.mark.parametrize(
    ("values", "gone"),
    [((0.69, 0.6), False), ((0.69, 5.0, 0.6), False), ((0.69, 0.6, 6e27), True), ((0.69, math.nan), True),
     ((0.69, math.inf), True), ((0.69, 0.6905), False), ((-5.0, -5.0), False), ((-5.0, -4.0), True),
     ((math.nan, 0.6), False), ((0.69,), False)],
)  # fmt: skip
def test_what_counts_as_diverged(values, gone):
    assert bool(curve(*values).diverged) is gone


def test_overfitting_is_no_divergence_but_a_test_loss_without_a_number_is():
    assert not divergence(curve(0.7, 0.2, test__ce=(0.7, 2.0)).history)
    said = divergence(curve(0.7, 0.2, test__ce=(0.7, math.nan)).history)
    assert said.startswith("diverged: test.ce ended at a value that is no number, above 0.7")


def test_a_diverged_run_is_marked_wherever_the_table_is_shown():
    runs = {"Wild": [curve(0.6931, 6e27), curve(0.6931, 0.6, seed=1)], "Calm": [curve(0.6931, 0.65), curve(0.69, 0.6)]}
    found = Comparison(runs)
    assert found.diverged == {"Wild": [0]}
    assert found.notes == [
        "Wild, seed 0, diverged: train.ce ended at 6e+27, above 0.6931 before training; lower lr, or scale plain value "
        "columns"
    ]
    for text in (text_table(found), markdown_table(found), render(found)):
        assert "Wild (1 of 2 diverged)" in text
        assert "ended at 6e+27" in text
    head, wild, calm = csv_rows(found)
    assert wild[0] == "Wild"  # a name that programs know
    assert (wild[head.index("diverged seeds")], calm[head.index("diverged seeds")]) == ("1", "0")
    assert [row["diverged"] for row in found.rows()] == [[0], []]


def test_divergence_is_known_after_training_and_when_read_back(tmp_path):
    clients = item_data()
    methods = {"Wild": fedavg(lr=5.0, clients_per_round=5), "Calm": fedavg(lr=0.01, clients_per_round=5)}
    found = fs.compare(methods, bag(clients), clients, out=tmp_path, **FAST)
    assert list(found.diverged) == ["Wild"]
    (wild,) = found.results["Wild"]
    assert wild.summary()["diverged"] == wild.diverged == next(e for e in wild.events if e.startswith("diverged"))
    assert wild.best("train.ce") > 10
    again = fs.compare(methods, bag(clients), clients, out=tmp_path, resume=True, **FAST)
    assert again.notes == found.notes


# Seeds ---------------------------------------------------------------------------------------------


def starts(found: Comparison) -> list[float]:
    """The loss of every seed's untrained model."""
    (results,) = found.results.values()
    return [r.history[0]["train.ce"] for r in results]


def test_seeds_vary_the_initial_values_if_the_objective_is_a_function():
    clients, method = item_data(), {"A": fedavg(clients_per_round=3)}

    def objective(seed: int) -> fs.Objective:  # draws from torch's generator, without a word about seeds
        return fs.Objective(Bag(clients.size("ids")), fs.losses.binary("label"), {"emb.weight": "ids"})

    torch.manual_seed(99)
    here = torch.random.get_rng_state()
    found = fs.compare(method, objective, clients, seeds=3, **FAST)
    assert torch.equal(torch.random.get_rng_state(), here)
    assert len(set(starts(found))) == 3
    torch.manual_seed(100)
    assert starts(fs.compare(method, objective, clients, seeds=3, **FAST)) == starts(found)
    assert starts(fs.compare(method, objective, clients, seeds=[2], **FAST)) == starts(found)[2:]
    assert not found.notes

    same = fs.compare(method, objective(0), clients, seeds=2, **FAST)
    assert len(set(starts(same))) == 1
    assert "All seeds start from the same initial values" in text_table(same)
    assert not fs.compare(method, objective(0), clients, **FAST).notes


def test_an_objective_that_is_none_is_refused():
    clients = item_data()
    with pytest.raises(ObjectiveError, match=r"objective\(0\) returned int 3, expected fedsub.Objective"):
        fs.compare({"A": fedavg(clients_per_round=3)}, lambda seed: 3, clients, seeds=2, **FAST)  # type: ignore[arg-type]


def test_a_split_of_its_own_for_every_seed(tmp_path):
    clients, methods = item_data((9,) * 6), {"A": fedavg(clients_per_round=3), "B": fedavg(clients_per_round=2)}
    asked: list[int] = []

    def parts(seed: int) -> dict[str, fs.Clients]:
        asked.append(seed)
        return dict(zip(("train", "test"), clients.split(0.7, seed=seed), strict=True))

    found = fs.compare(methods, lambda seed: bag(clients, seed=seed), parts, seeds=[0, 4], out=tmp_path, **FAST)
    for results in found.results.values():
        for seed, result in zip((0, 4), results, strict=True):
            train, test = clients.split(0.7, seed=seed)
            config = json.loads((there(result.path) / "config.json").read_text())
            assert config["data"] == config["splits"]["train"] == train.fingerprint
            assert config["splits"]["test"] == test.fingerprint
    assert "Every seed has a split of its own" in text_table(found)
    assert sorted(set(asked)) == [0, 4]
    again = fs.compare(
        methods, lambda seed: bag(clients, seed=seed), parts, seeds=[0, 4], out=tmp_path, resume=True, **FAST
    )
    assert [r.history for r in again.results["A"]] == [r.history for r in found.results["A"]]

    with pytest.raises(ConfigError, match="leave test= out"):
        fs.compare(methods, bag(clients), parts, test=clients, **FAST)
    with pytest.raises(ConfigError, match="expected the parts of the data by name"):
        fs.compare(methods, bag(clients), lambda seed: {"training": clients}, **FAST)
