"""`tune`: the same search for every method, chosen on validation data alone."""

from __future__ import annotations

import builtins

import numpy as np
import pytest
from searches import FIXED, METHODS, TEST, WHOLE, Count, files, rows, tune

import fedsub as fs
from fedsub.errors import MissingExtra
from fedsub.study.tuning import workers


def test_every_method_gets_the_same_trials_and_the_table_has_all(tmp_path):
    found = tune(seeds=2, test=TEST, out=tmp_path)
    for label in METHODS:
        assert [s.values for s in found.settings if s.label == label] == [{"lr": 0.1}, {"lr": 1.0}]
    assert found.counts == {"FedAvg": 2, "FedSubAvg": 2}
    table = rows(tmp_path)
    assert [(r["method"], r["trial"], r["lr"], r["seed"]) for r in table] == [
        (label, number, lr, seed) for label in METHODS for number, lr in (("1", "0.1"), ("2", "1.0")) for seed in "01"
    ]
    for row in table:
        assert row["status"] == "finished"
        assert row["rounds"] == "4"
        assert row["validation loss"] == row["final validation.ce"]
        assert float(row["best validation loss"]) <= float(row["final validation.ce"])
    # The chosen one has the smallest mean over the seeds.
    for label in METHODS:
        means = {
            lr: np.mean([float(r["validation loss"]) for r in table if (r["method"], r["lr"]) == (label, lr)])
            for lr in ("0.1", "1.0")
        }
        chosen = {r["lr"] for r in table if r["method"] == label and r["chosen"] == "yes"}
        assert chosen == {min(means, key=means.__getitem__)}
    (first, _) = rows(tmp_path, "winners.csv")
    seeds = [t.metric("test", "ce") for t in found.tested["FedAvg"]]
    assert float(first["test ce: mean"]) == pytest.approx(np.mean(seeds))
    assert float(first["test ce: std"]) == pytest.approx(np.std(seeds, ddof=1))
    assert all(t.final["test"]["samples"] == TEST.samples for t in found.tested["FedAvg"])
    deciles = rows(tmp_path, "deciles.csv")
    assert sum(int(r["samples"]) for r in deciles if r["method"] == "FedAvg" and r["seed"] == "0") == TEST.samples
    assert "±" in found.table()
    assert "FedSubAvg" in found.trials_table()


def test_the_winners_are_the_runs_of_the_search_again():
    found = tune(test=TEST, seeds=2)
    for label, setting in found.chosen.items():
        for before, after in zip(setting.trials, found.tested[label], strict=True):
            assert after.loss("validation") == before.loss("validation")


def test_the_best_round_is_chosen_on_validation_and_trained_again_to_there():
    found = tune(test=TEST, select="best", grid={"lr": [3.0, 8.0]}, rounds=6)
    for label, setting in found.chosen.items():
        number, loss = setting.trials[0].best("validation")
        assert found.tested[label][0].rounds == number
        assert found.tested[label][0].loss("validation") == loss


def test_another_metric_than_the_loss_may_choose():
    """The largest AUC of any evaluated round wins, though another setting has the smaller loss."""
    found = tune(test=TEST, select="best:auc", grid={"lr": [0.01, 3.0, 30.0]}, rounds=6)
    by_loss = tune(select="best", grid={"lr": [0.01, 3.0, 30.0]}, rounds=6)
    assert found.criterion.title == "best validation auc"
    differ = False
    for label, setting in found.chosen.items():
        own = [s for s in found.settings if s.label == label]
        tops = {s.number: max(r["validation.auc"] for r in s.trials[0].history if r["round"] > 0) for s in own}
        assert found.criterion.value(setting.trials[0]) == tops[setting.number] == max(tops.values())
        number, auc = setting.trials[0].best("validation", "auc")
        assert found.tested[label][0].rounds == number
        assert found.tested[label][0].metric("validation", "auc") == auc
        differ |= by_loss.chosen[label].number != setting.number
    assert differ


def test_training_sees_neither_validation_nor_test(monkeypatch):
    seen = []
    real = workers.perform
    monkeypatch.setattr(workers, "perform", lambda bench, job: seen.append(bench) or real(bench, job))
    tune(test=TEST)
    search, final = seen[:4], seen[4:]
    assert all(set(b.splits) == {"train", "validation"} for b in search)
    assert all(b.splits["test"] is TEST for b in final)
    for bench in seen:
        held_out = bench.splits["validation"].samples
        assert 0 < held_out < WHOLE.samples / 2
        assert bench.clients.samples == WHOLE.samples - held_out
    seen.clear()
    tune(test=TEST, retrain=True)
    assert [b.clients.samples for b in seen[4:]] == [WHOLE.samples] * 2


def test_a_poisoned_test_split_changes_no_choice(tmp_path):
    held = TEST.gather(np.arange(TEST.samples), ("ids", "label"), local=False)
    poisoned = fs.Clients.from_arrays(
        {"ids": 11 - held["ids"], "label": 1 - held["label"]},
        offsets=TEST.offsets,
        ids=["ids"],
        label="label",
        sizes={"ids": TEST.size("ids")},
    )
    one = tune(test=TEST, out=tmp_path / "a")
    other = tune(test=poisoned, out=tmp_path / "b")
    assert (tmp_path / "a/trials.csv").read_bytes() == (tmp_path / "b/trials.csv").read_bytes()
    assert {k: s.values for k, s in one.chosen.items()} == {k: s.values for k, s in other.chosen.items()}
    assert one.tested["FedAvg"][0].loss("test") != other.tested["FedAvg"][0].loss("test")


def test_unequal_axes_random_by_default_with_the_same_draws(tmp_path):
    found = tune({**METHODS, "central": {"method": "centralsgd", **FIXED}},
                 grid=["lr=0.1,1", "server_lr=0.5,1,2"])  # fmt: skip
    assert found.search == "random"
    assert found.counts == {"FedAvg": 6, "FedSubAvg": 6, "central": 6}
    drawn = {label: [s.values["lr"] for s in found.settings if s.label == label] for label in found.counts}
    assert drawn["FedAvg"] == drawn["FedSubAvg"] == drawn["central"]
    assert len(set(drawn["FedAvg"])) == 6
    assert all(0.1 <= lr <= 1 for lr in drawn["FedAvg"])
    assert "central has no setting server_lr; that axis is left out for it." in found.notes


def test_an_unequal_grid_is_said_plainly():
    found = tune(grid={"lr": [0.1, 1.0], "FedSubAvg.temper": [0.5, 1.0]}, search="grid", rounds=1)
    assert found.counts == {"FedAvg": 2, "FedSubAvg": 4}
    assert any("Not the same number of trials: FedAvg 2, FedSubAvg 4" in note for note in found.notes)


def test_optuna_is_deterministic_and_resumes(tmp_path):
    pytest.importorskip("optuna")
    options = {"search": "optuna", "trials": 3, "grid": {"lr": "0.01..10", "local_steps": [1, 4]}, "rounds": 2}
    one = tune(out=tmp_path / "a", **options)
    with pytest.raises(fs.Interrupted):
        tune(out=tmp_path / "b", watch=Count(stop=3), **options)
    tune(out=tmp_path / "b", resume=True, **options)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert one.counts == {"FedAvg": 3, "FedSubAvg": 3}
    assert all(isinstance(s.values["local_steps"], int) for s in one.settings)


def test_optuna_missing_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "optuna":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"pip install -e '\.\[tune\]'"):
        tune(search="optuna", trials=2)
