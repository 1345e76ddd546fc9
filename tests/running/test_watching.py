"""What a run tells, and whom: targets, callbacks, TensorBoard; arguments that make no sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from short_runs import METHOD
from worlds import bag, item_data

import fedsub as fs
from fedsub.errors import ConfigError


def test_targets(tmp_path: Path) -> None:
    clients = item_data((40, 30, 20), items=6)
    options = {"method": fs.methods.fedsubavg(lr=0.2, clients_per_round=3), "engine": "serial", "rounds": 30}
    options |= {"objective": bag(clients), "clients": clients, "evaluate": fs.Evaluate(every=2)}
    whole = fs.run(**options)
    rounds, values = whole.series("train.ce")
    goal = (values[3] + values[4]) / 2
    assert values[4] < goal < min(values[:4])
    assert whole.first_round(f"train.ce<={goal}") == rounds[4] == 8
    assert whole.first_round("train.ce<=0.0001") is None
    assert whole.first_round("train.auc >= 0") == 2  # what holds before training was not reached by it
    stopped = fs.run(**options, target=f"train.ce<={goal}", stop_at_target=True, out=tmp_path / "r")
    assert stopped.history == whole.history[:9]
    kept = fs.run(**options, target=f"train.ce<={goal}")
    assert len(kept.history) == 31
    again = fs.run(**options, target=f"train.ce<={goal}", stop_at_target=True, out=tmp_path / "r", resume=True)
    assert again.history == stopped.history  # a reached target stays reached
    assert whole.best("train.ce") == min(values)
    assert whole.best("train.auc") == max(whole.series("train.auc")[1])
    for nonsense in ("train.ce", "train.ce=1", "<=1", "train.ce<=x", "train.ce<=1e"):
        with pytest.raises(ConfigError, match="Cannot read the target"):
            fs.Target.parse(nonsense)


@pytest.mark.parametrize(
    "options",
    [
        {"rounds": 0},
        {"lost": 1.0},
        {"lost": -0.1},
        {"on_bad_update": "ignore"},
        {"checkpoint_every": 0},
    ],
)
def test_arguments_that_make_no_sense(options: dict) -> None:
    clients = item_data()
    asked: dict[str, Any] = {"rounds": 1} | options
    with pytest.raises(ConfigError):
        fs.run(METHOD, bag(clients), clients, **asked)


def test_callbacks_follow_the_run(tmp_path: Path) -> None:
    class Log(fs.Callback):
        def __init__(self):
            self.calls = []

        def on_start(self, info):
            self.calls.append(("start", info["method"], info["seed"], info["rounds"], info["first"]))

        def on_round(self, record):
            self.calls.append(("round", record["round"]))

        def on_event(self, sentence):
            self.calls.append(("event", sentence))

        def on_end(self, summary):
            self.calls.append(("end", summary["rounds"]))

    log, clients = Log(), item_data()
    fs.run(METHOD, bag(clients), clients, rounds=2, engine="serial", seed=3, callbacks=[log])
    assert log.calls == [
        ("event", "engine serial, as asked"),
        ("start", "fedsubavg", 3, 2, 1),
        ("round", 0),
        ("round", 1),
        ("round", 2),
        ("end", 2),
    ]


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    clients = item_data()
    board = fs.TensorBoard(str(tmp_path))
    result = fs.run(METHOD, bag(clients), clients, rounds=3, engine="serial", callbacks=[board])
    (folder,) = [p for p in tmp_path.iterdir() if p.is_dir()]
    assert folder.name == "fedsubavg-seed0"
    events = EventAccumulator(str(folder))
    events.Reload()
    assert {"loss", "down", "up", "train/ce", "train/auc"} <= set(events.Tags()["scalars"])
    losses = events.Scalars("loss")
    assert [e.step for e in losses] == [1, 2, 3]
    assert losses[-1].value == pytest.approx(result.history[-1]["loss"], rel=1e-6)


def test_training_leaves_the_number_of_threads_alone() -> None:
    before = torch.get_num_threads()
    clients = item_data()
    fs.run(METHOD, bag(clients), clients, rounds=1, engine="serial")
    assert torch.get_num_threads() == before
