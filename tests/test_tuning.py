"""`tune`: the same search for every method, chosen on validation data, resumable, parallel."""

from __future__ import annotations

import builtins
import csv
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner
from worlds import bag, composed, item_data

import fedsub as fs
from fedsub.cli import app
from fedsub.errors import CheckpointError, ConfigError, MethodError, MissingExtra, RunError
from fedsub.running.result import Target
from fedsub.study.tuning import space, workers
from fedsub.study.tuning.choose import Criterion, Setting, choose, warnings
from fedsub.study.tuning.trials import Trial
from fedsub.study.tuning.workers import Watch

SIZES = (6, 7, 4, 9, 5, 8)
WHOLE = item_data(SIZES, items=12)
TEST = item_data((5, 5, 5), items=12, seed=1)
FIXED = {"clients_per_round": 3, "local_steps": 2, "batch_size": 2}
METHODS = {"FedAvg": {"method": "fedavg", **FIXED}, "FedSubAvg": {"method": "fedsubavg", **FIXED}}


def objective(seed: int) -> fs.Objective:
    return bag(WHOLE, seed=seed)


def deadly(seed: int) -> fs.Objective:
    """Kills the worker process that asks for seed 1."""
    if seed == 1 and multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return objective(seed)


def tune(methods=METHODS, make=objective, **options) -> fs.Tuning:
    chosen = {"grid": {"lr": [0.1, 1.0]}, "rounds": 4, "validation": 0.3, "evaluate": fs.Evaluate(every=1)}
    return fs.tune(methods, make, options.pop("clients", WHOLE), **{**chosen, **options})


def files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("trials.csv", "winners.csv", "deciles.csv", "winners.txt")}


def rows(folder: Path, name: str = "trials.csv") -> list[dict[str, str]]:
    with open(folder / name, newline="") as file:
        return list(csv.DictReader(file))


class Count(Watch):
    """Counts what is trained; after ``stop`` trials the user presses Ctrl-C."""

    def __init__(self, stop: int = 0):
        self.stop, self.trained = stop, []

    def on_trial(self, job, trial) -> None:
        self.trained.append(job.name)
        if len(self.trained) == self.stop:
            raise KeyboardInterrupt


# Search ---------------------------------------------------------------------------------------------


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


# Resume and workers --------------------------------------------------------------------------------


def test_interrupted_and_resumed_reruns_nothing_finished(tmp_path):
    whole, first, second = Count(), Count(stop=3), Count()
    tune(out=tmp_path / "a", test=TEST, seeds=2, watch=whole)
    with pytest.raises(fs.Interrupted, match="kept in"):
        tune(out=tmp_path / "b", test=TEST, seeds=2, watch=first)
    with pytest.raises(CheckpointError, match="resume"):
        tune(out=tmp_path / "b", test=TEST, seeds=2)
    tune(out=tmp_path / "b", test=TEST, seeds=2, watch=second, resume=True)
    assert sorted(first.trained + second.trained) == sorted(whole.trained)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    third = Count()
    tune(out=tmp_path / "b", test=TEST, seeds=2, watch=third, resume=True)
    assert third.trained == []
    tune(out=tmp_path / "b", grid={"lr": [0.1, 0.3, 1.0]}, seeds=2, watch=third, resume=True)  # wider: only what is new
    assert len(third.trained) == 4


def test_a_damaged_record_is_named(tmp_path):
    tune(out=tmp_path)
    next((tmp_path / "trials").glob("*.json")).write_text("{}\n")
    with pytest.raises(CheckpointError, match="delete it to train that trial again"):
        tune(out=tmp_path, resume=True)


def test_two_workers_make_the_same_table_as_one(tmp_path):
    tune(out=tmp_path / "one", test=TEST)
    tune(out=tmp_path / "two", test=TEST, workers=2)
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_a_killed_worker_is_an_error_and_finished_trials_are_kept(tmp_path):
    with pytest.raises(RunError, match=r"A worker process ended before its trial did.*kept in"):
        tune(make=deadly, out=tmp_path / "a", seeds=2, workers=2)
    kept = {file.stem for file in (tmp_path / "a/trials").glob("*.json")}
    assert kept
    count = Count()
    tune(make=deadly, out=tmp_path / "a", seeds=2, resume=True, watch=count)
    assert kept.isdisjoint(count.trained)
    tune(out=tmp_path / "b", seeds=2)
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_what_cannot_be_sent_to_workers_is_said():
    with pytest.raises(ConfigError, match="objective cannot be sent to worker processes"):
        tune(make=lambda seed: objective(seed), workers=2)


# Choosing ------------------------------------------------------------------------------------------


def trial(*losses: float, seed: int = 0) -> Trial:
    history = [{"round": i, "validation.ce": v, "train.ce": v} for i, v in enumerate(losses)]
    return Trial(seed, len(losses) - 1, history, {"validation": {"ce": losses[-1]}, "train": {"ce": losses[-1]}})


def setting(number: int, *trials: Trial, lr: float | None = None) -> Setting:
    return Setting("A", number, {"lr": float(number) if lr is None else lr}, list(trials))


def test_criteria():
    early, late = setting(1, trial(0.7, 0.3, 0.6)), setting(2, trial(0.7, 0.6, 0.5))
    assert choose([early, late], Criterion("final")) is late
    assert choose([early, late], Criterion("best")) is early
    assert Criterion("best").rounds(early.trials[0]) == 1
    target = Target.parse("train.ce<=0.5")
    assert choose([late, early], Criterion("rounds", target)) is early
    assert choose([early, late], Criterion("rounds", Target.parse("train.ce<=0.1"))) is late  # never: the loss decides
    assert Criterion("best").value(trial(0.1, 0.4)) == 0.4  # the untrained model does not count


def test_ties_go_to_the_first_and_nan_loses():
    same = [setting(n, trial(0.7, 0.5)) for n in (1, 2)]
    assert choose(same, Criterion()) is same[0]
    broken = setting(0, trial(0.7, 0.1), trial(0.7, math.nan, seed=1))
    good = setting(3, trial(0.7, 0.6), trial(0.7, 0.6, seed=1))
    assert choose([broken, good], Criterion()) is good
    assert choose([broken], Criterion()) is broken
    assert choose([setting(0, Trial(0, 2, failure="NaN"))], Criterion()) is None


def test_the_edge_of_the_grid_is_a_warning():
    def said(lr: float, *axes: str, drawn: bool = False) -> list[str]:
        return warnings(setting(1, trial(0.7, 0.5), lr=lr), [space.parse_axis(a) for a in axes], drawn=drawn)

    (warning,) = said(3.0, "lr=1,2,3")
    assert "the best lr, 3, is at the upper end of what was searched (1 to 3); search larger values" in warning
    assert "lower end" in said(0.1, "lr=0.1..10/3")[0]
    assert said(2.0, "lr=1,2,3") == said(1.0, "lr=1") == said(9.0, "lr=0.1..10") == []
    assert "upper end" in said(9.0, "lr=0.1..10", drawn=True)[0]
    assert said(1.0, "lr=0.1..10", drawn=True) == []


def test_a_diverged_trial_loses(tmp_path):
    found = tune(grid={"lr": [0.1, 1e38]}, out=tmp_path)
    assert {label: s.values["lr"] for label, s in found.chosen.items()} == {"FedAvg": 0.1, "FedSubAvg": 0.1}
    bad = [r for r in rows(tmp_path) if r["lr"] == "1e+38"]
    assert {r["status"] for r in bad} <= {"failed", "diverged"}
    assert {r["validation loss"] for r in bad} == {"inf"}
    with pytest.raises(RunError, match="No trial of any method came to a finite validation loss"):
        tune(grid={"lr": [1e38]})


def test_a_refused_setting_loses_too(tmp_path):
    found = tune({"prox": {"method": "fedprox", **FIXED}}, grid={"lr": [0.1, 200.0]}, out=tmp_path)
    assert found.chosen["prox"].values == {"lr": 0.1}
    assert rows(tmp_path)[1]["status"] == "refused"
    with pytest.raises(MethodError, match="every setting is refused"):
        tune({"prox": {"method": "fedprox", **FIXED}}, grid={"lr": [200.0]})


# Arguments -----------------------------------------------------------------------------------------


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


# Command line --------------------------------------------------------------------------------------


@pytest.fixture
def ratings(tmp_path, monkeypatch) -> Path:
    draw = np.random.default_rng(0)
    lines = ["user,item,time,liked"]
    lines += [f"u{u},i{draw.integers(12)},{draw.integers(999)},{draw.integers(2)}" for u in range(8) for _ in range(12)]
    (tmp_path / "ratings.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


TUNE = ["tune", "ratings.csv", "--client", "user", "--label", "liked", "--table", "item", "--grid", "lr=0.1,1",
        "--rounds", "3", "-k", "4", "--out", "found"]  # fmt: skip


def command(*arguments: str, code: int = 0):
    result = CliRunner().invoke(app, [*TUNE, *arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_the_command(ratings):
    both = ("--methods", "fedavg,fedsubavg")
    said = command(*both, "--seeds", "2").output
    assert "All trials: found/trials.csv" in said
    assert len(rows(ratings / "found")) == 8
    before = files(ratings / "found")
    assert "Trials: 8 of 8 were trained before" in command(*both, "--seeds", "2", "--resume", "--workers", "1").output
    assert files(ratings / "found") == before
    assert "resume" in command(*both, "--seeds", "2", code=2).output
    one = json.loads(command("--resume", "--json", "--quiet", "-m", "fedsubavg").stdout)
    assert [w["method"] for w in one["winners"]] == ["FedSubAvg"]
    answer = json.loads(command(*both, "--resume", "--json", "--quiet", "--select", "best").stdout)
    assert [w["method"] for w in answer["winners"]] == ["FedAvg", "FedSubAvg"]
    assert answer["winners"][0]["test"][0]["samples"] == sum(
        int(r["samples"]) for r in rows(ratings / "found", "deciles.csv") if r["method"] == "FedAvg"
    )


OWN_METHOD = """
from dataclasses import dataclass
import fedsub as fs

@dataclass(frozen=True)
class Pull(fs.Part):
    alpha: float

    def grad(self, grads, params, work):
        return {k: g + self.alpha * (params[k] - work.sent[k]) for k, g in grads.items()}

def pull(alpha: float, *, lr: float = 0.3, clients_per_round: int = 4):
    return fs.Method(local=fs.SGD(lr=lr), parts=(Pull(alpha),), average=fs.OverHolders(), server=fs.Add(),
                     sampler=fs.Uniform(clients_per_round))
"""


def test_a_method_of_ones_own_is_tuned_in_workers(ratings):
    """Its class comes from a file that only the command knows; alpha has no default and is searched."""
    (ratings / "my_method.py").write_text(OWN_METHOD)
    own = [
        "-m",
        "my_method.py:pull",
        "-m",
        "fedavg",
        "--grid",
        "pull.alpha=0.1,1",
        "--quiet",
        "--json",
        "--search",
        "grid",
    ]
    found = json.loads(command(*own).stdout)
    assert [w["method"] for w in found["winners"]] == ["pull", "FedAvg"]
    assert set(found["winners"][0]["settings"]) == {"lr", "alpha"}
    assert found["trials"] == {"pull": 4, "FedAvg": 2}
    before = files(ratings / "found")
    command(*own, "--resume", "--workers", "1")
    assert files(ratings / "found") == before
    assert "needs the setting 'alpha'" in command("-m", "my_method.py:pull", code=2).output


def test_settings_beside_a_function():
    candidates = space.make_candidates({"Mine": {"method": own, "batch_size": 3}})
    assert composed(candidates[0].build({"lr": 0.5})).local.batch_size == 3
    with pytest.raises(ConfigError, match="Mine has no setting 'speed'"):
        space.make_candidates({"Mine": {"method": own, "speed": 3}})


def test_validation_is_cut_off_as_test_is(ratings):
    command("--split", "time", "--time-column", "time", "--workers", "1", "--retrain-on-all", "--quiet")
    command("--grid", "speed=1", "--out", "other", code=2)
    assert not Path("other").exists()


def test_ctrl_c_ends_the_workers_and_says_how_to_go_on(ratings):
    started = subprocess.Popen(
        [sys.executable, "-m", "fedsub.cli", *TUNE, "--rounds", "300", "--seeds", "5"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(Path(fs.__file__).parents[1])},
    )
    deadline = time.monotonic() + 120
    while not list((ratings / "found").glob("trials/*.json")) and time.monotonic() < deadline and not started.poll():
        time.sleep(0.05)
    os.killpg(started.pid, signal.SIGINT)  # as a terminal does
    said, _ = started.communicate(timeout=60)
    assert started.returncode == 130, said
    assert "--resume --out found" in said
    assert "Traceback" not in said
    kept = len(list((ratings / "found").glob("trials/*.json")))
    assert 0 < kept < 20
    time.sleep(1)
    assert len(list((ratings / "found").glob("trials/*.json"))) == kept  # nobody goes on
