"""Runs as a whole: interruption, damage, bad and lost clients, bytes, targets and callbacks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from worlds import bag, envelope, equal, item_data

import fedsub as fs
from fedsub.disk.files import JsonLines
from fedsub.errors import CheckpointError, ConfigError, NoUsableClient

METHOD = fs.methods.fedsubavg(lr=0.3, local_steps=4, batch_size=4, clients_per_round=5)

# ---------------------------------------------------------------------- killed and resumed

SCRIPT = """
import os, random, signal, sys, time
from pathlib import Path
from safetensors.torch import save_file
import fedsub as fs
from worlds import bag, item_data

def train(out):
    clients = item_data(tuple(range(3, 43)), items=200)
    method = fs.methods.fedprox(lr=0.3, local_steps=4, batch_size=4, clients_per_round=20)
    result = fs.run(
        method, bag(clients, dim=3), clients, rounds=30, seed=5, engine=sys.argv[2], lost=0.2,
        chunk=7 if sys.argv[2] == "batched" else None,
        evaluate=fs.Evaluate(every=4), out=out, resume=True, checkpoint_every=3,
    )
    save_file({k: v.contiguous() for k, v in result.params.items()}, out + ".safetensors")

def start(out):
    # A fork has torch loaded already; nothing in the parent has trained or started a thread.
    child = os.fork()
    if child:
        return child
    try:
        train(out)
    except BaseException as error:
        print(repr(error), flush=True)
        os._exit(1)
    os._exit(0)

def lines(path):
    return path.read_bytes().count(b"\\n") if path.exists() else 0

whole, broken = sys.argv[1] + "/whole", sys.argv[1] + "/broken"
assert os.waitpid(start(whole), 0)[1] == 0
moments, kills = random.Random(1), 0
metrics, events = Path(broken, "metrics.jsonl"), Path(broken, "events.jsonl")
for _ in range(int(sys.argv[3])):
    said, child, ended = lines(events), start(broken), False
    # Wait for the session to begin, for up to six rounds of it, and then a moment more.
    steps, begun, deadline = moments.randrange(7), None, time.monotonic() + 60
    while not ended and (begun is None or lines(metrics) < begun + steps) and time.monotonic() < deadline:
        if begun is None and lines(events) > said:
            begun = lines(metrics)
        ended = os.waitpid(child, os.WNOHANG)[0] == child
        time.sleep(0.0005)
    if ended:
        break
    time.sleep(moments.uniform(0, 0.03))
    os.kill(child, signal.SIGKILL)
    kills += os.waitpid(child, 0)[1] == signal.SIGKILL
assert os.waitpid(start(broken), 0)[1] == 0
print("kills", kills)
"""


@pytest.mark.parametrize(("engine", "kills"), [("serial", 10), ("batched", 3)])
def test_killed_at_random_moments_a_run_ends_with_the_same_bytes(tmp_path: Path, engine: str, kills: int) -> None:
    """SIGKILL in the middle of rounds, of log lines and of checkpoints; then on to the end."""
    here = Path(__file__).parent
    paths = [str(here), str(here.parent / "src"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), engine, str(kills)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split("kills")[1]) >= min(kills, 5), done.stdout
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for name in ("metrics.jsonl", "traffic.jsonl"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes(), name
    assert [r["round"] for r in JsonLines.read(broken / "metrics.jsonl")] == list(range(31))
    assert equal(load_file(f"{broken}.safetensors"), load_file(f"{whole}.safetensors"))
    events = [e["event"] for e in JsonLines.read(broken / "events.jsonl")]
    assert any(e.startswith("resumed after round") for e in events)


class Stop(Exception):
    """What a test raises to end a run."""


class StopAfter(fs.Callback):
    def __init__(self, number: int):
        self.number = number

    def on_round(self, record) -> None:
        if record["round"] == self.number:
            raise Stop


def interrupted(out: Path, number: int, **options):
    with pytest.raises(Stop):
        fs.run(out=out, callbacks=[StopAfter(number)], **options)


@pytest.mark.parametrize("engine", ["serial", "batched"])
@pytest.mark.parametrize("number", [1, 4, 7, 11])
def test_resume_is_bit_identical(tmp_path: Path, engine: str, number: int) -> None:
    clients = item_data((9, 5, 12, 7, 3, 8, 4, 6))
    train, test = clients.split(0.75)
    options = {
        "method": METHOD, "objective": bag(clients, dim=2), "clients": train, "test": test, "rounds": 12,
        "engine": engine, "checkpoint_every": 3, "evaluate": fs.Evaluate(every=5), "seed": 2,
    }  # fmt: skip
    whole = fs.run(out=tmp_path / "a", **options)
    interrupted(tmp_path / "b", number, **options)
    resumed = fs.run(out=tmp_path / "b", resume=True, **options)
    assert equal(whole.params, resumed.params)
    assert whole.history == resumed.history
    assert json.dumps(whole.final) == json.dumps(resumed.final)  # text, because nan differs from itself
    for name in ("metrics.jsonl", "traffic.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    plain = fs.run(**options)  # and without a directory
    assert equal(whole.params, plain.params)
    assert whole.history == plain.history


def test_resume_keeps_the_engine_that_was_chosen(tmp_path: Path) -> None:
    clients = item_data()
    options = {"method": METHOD, "objective": bag(clients), "clients": clients, "rounds": 4, "checkpoint_every": 1}
    interrupted(tmp_path / "r", 2, **options)
    chosen = [e["event"] for e in JsonLines.read(tmp_path / "r" / "events.jsonl") if "faster one" in e["event"]]
    result = fs.run(out=tmp_path / "r", resume=True, **options)
    assert len(chosen) == 1
    assert result.engine in chosen[0].split(" is the faster")[0]
    assert not any("faster one" in e for e in result.events)


def test_resuming_a_finished_run_gives_the_same_result(tmp_path: Path) -> None:
    clients = item_data()
    options = {"method": METHOD, "objective": bag(clients), "clients": clients, "rounds": 3, "engine": "serial"}
    first = fs.run(out=tmp_path, **options)
    metrics = (tmp_path / "metrics.jsonl").read_bytes()
    again = fs.run(out=tmp_path, resume=True, **options)
    assert equal(first.params, again.params)
    assert json.dumps(first.final) == json.dumps(again.final)
    assert (tmp_path / "metrics.jsonl").read_bytes() == metrics


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    clients = item_data()
    options = {
        "method": METHOD, "objective": bag(clients, dim=3), "clients": clients, "rounds": 10, "engine": "serial",
        "checkpoint_every": 2,
    }  # fmt: skip
    whole = fs.run(out=tmp_path / "a", **options)
    interrupted(tmp_path / "b", 7, **options)
    tensors = sorted((tmp_path / "b" / "checkpoints").glob("*0006*.safetensors"))
    assert tensors, sorted(p.name for p in (tmp_path / "b" / "checkpoints").iterdir())
    for file in tensors:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    resumed = fs.run(out=tmp_path / "b", resume=True, **options)
    assert equal(whole.params, resumed.params)
    assert (tmp_path / "a" / "metrics.jsonl").read_bytes() == (tmp_path / "b" / "metrics.jsonl").read_bytes()
    assert any("resumed after round 4" in e for e in resumed.events), resumed.events
    assert any("6" in e and "resumed" not in e for e in resumed.events), resumed.events
    logged = [e["event"] for e in JsonLines.read(tmp_path / "b" / "events.jsonl")]
    assert set(resumed.events) <= set(logged)


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"seed": 1}, "seed"),
        ({"rounds": 3}, "rounds"),
        ({"engine": "batched"}, "engine"),
        ({"lost": 0.1}, "lost"),
        ({"method": fs.methods.fedsubavg(lr=0.4, clients_per_round=5)}, "method.local.lr"),
        ({"method": fs.methods.fedavg(lr=0.3, clients_per_round=5)}, "method.average.type"),
        ({"clients": item_data(seed=9)}, "data"),
        ({"evaluate": fs.Evaluate(every=3)}, "evaluate.every"),
        ({"objective": bag(item_data(), dim=2)}, "parameters.emb.weight"),
        ({"settings": {"note": "other"}}, "settings.note"),
    ],
)
def test_another_configuration_is_refused_by_name(tmp_path: Path, changed: dict, key: str) -> None:
    clients = item_data()
    options = {"method": METHOD, "objective": bag(clients), "clients": clients, "rounds": 4, "engine": "serial"}
    interrupted(tmp_path / "r", 2, **options)
    with pytest.raises(CheckpointError) as caught:
        fs.run(out=tmp_path / "r", resume=True, **(options | changed))
    assert f"{key}:" in str(caught.value)
    fs.run(out=tmp_path / "r", resume=True, **options)  # the refusal broke nothing


def test_a_directory_that_holds_a_run_needs_resume(tmp_path: Path) -> None:
    clients = item_data()
    options = {"method": METHOD, "objective": bag(clients), "clients": clients, "rounds": 2, "engine": "serial"}
    fs.run(out=tmp_path / "r", **options)
    before = {p: p.read_bytes() for p in (tmp_path / "r").rglob("*") if p.is_file()}
    with pytest.raises(CheckpointError, match="resume=True"):
        fs.run(out=tmp_path / "r", **options)
    assert {p: p.read_bytes() for p in (tmp_path / "r").rglob("*") if p.is_file()} == before


def test_ctrl_c_saves_and_can_be_resumed(tmp_path: Path) -> None:
    class Press(fs.Callback):
        def on_round(self, record) -> None:
            if record["round"] == 2:
                os.kill(os.getpid(), signal.SIGINT)

    clients = item_data()
    options = {"method": METHOD, "objective": bag(clients), "clients": clients, "rounds": 5, "engine": "serial"}
    whole = fs.run(**options)
    with pytest.raises(fs.Interrupted, match="after round"):
        fs.run(out=tmp_path / "r", callbacks=[Press()], **options)
    resumed = fs.run(out=tmp_path / "r", resume=True, **options)
    assert equal(whole.params, resumed.params)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# ---------------------------------------------------------------------- clients that fail


class Scaled(nn.Module):
    """A logit that multiplies by the root of a value: a negative value makes NaN."""

    def __init__(self, rows: int):
        super().__init__()
        self.emb, self.w = nn.Embedding(rows, 2), nn.Parameter(torch.ones(2))

    def forward(self, batch):
        return (self.emb(batch["ids"]).sum(1) * self.w).sum(1) * batch["value"].sqrt()


def poisoned(bad=(2,)) -> tuple[fs.Objective, fs.Clients]:
    """Six clients of four samples; those in ``bad`` have values whose root is NaN. Client c alone holds row c."""
    draw = np.random.default_rng(0)
    owner = np.repeat(np.arange(6), 4)
    ids = np.stack([owner, draw.integers(6, 12, 24)], 1)
    value = np.where(np.isin(owner, bad), -1.0, 1.0)
    clients = fs.Clients.from_arrays(
        {"ids": ids, "value": value, "label": draw.integers(0, 2, 24)},
        client=np.array([f"user {c}" for c in owner]),
        ids=["ids"],
        label="label",
        values=["value"],
        sizes={"ids": 12},
    )
    torch.manual_seed(0)
    return fs.Objective(Scaled(12), fs.losses.binary("label"), {"emb.weight": "ids"}), clients


@pytest.mark.parametrize("engine", ["serial", "batched"])
@pytest.mark.parametrize("name", ["fedavg", "fedsubavg", "fedprox", "sampled_heat"])
def test_a_bad_update_is_left_out_and_reported(name: str, engine: str) -> None:
    goal, clients = poisoned()
    make = fs.methods.CATALOGUE[name].make
    method = make(lr=0.1, local_steps=3, batch_size=2, clients_per_round=None, weighting="clients")
    result = fs.run(method, goal, clients, rounds=3, engine=engine, evaluate=fs.Evaluate(every=99))
    assert result.engine == engine
    assert [r["rejected"] for r in result.history[1:]] == [1, 1, 1]
    assert all(np.isfinite(r["loss"]) for r in result.history[1:])
    assert all(torch.isfinite(p).all() for p in result.params.values())
    start = goal.module.get_parameter("emb.weight").detach()
    assert torch.equal(result.params["emb.weight"][2], start[2])  # the row that only client 2 holds
    assert not torch.equal(result.params["emb.weight"][1], start[1])
    assert sum("left out 1 update(s)" in e and "user 2" in e for e in result.events) == 3


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_leaving_out_is_as_if_the_client_had_not_come(engine: str) -> None:
    goal, clients = poisoned()
    method = fs.methods.fedavg(lr=0.1, local_steps=3, batch_size=2, clients_per_round=None, batches="ordered")
    with_bad = fs.run(method, goal, clients, rounds=1, engine=engine).params
    from fedsub.data.split import select

    without = fs.run(method, goal, select(clients, [0, 1, 3, 4, 5]), rounds=1, engine=engine).params
    for name, p in without.items():
        torch.testing.assert_close(with_bad[name], p, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_bad_updates_may_stop_the_run(engine: str) -> None:
    goal, clients = poisoned()
    method = fs.methods.fedavg(lr=0.1, local_steps=2, batch_size=2, clients_per_round=None)
    with pytest.raises(NoUsableClient, match="user 2 found NaN or infinity"):
        fs.run(method, goal, clients, rounds=2, engine=engine, on_bad_update="raise")


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_nobody_usable(engine: str) -> None:
    goal, clients = poisoned(bad=range(6))
    method = fs.methods.fedavg(lr=0.1, local_steps=2, batch_size=2, clients_per_round=3)
    with pytest.raises(NoUsableClient) as caught:
        fs.run(method, goal, clients, rounds=2, engine=engine)
    text = str(caught.value)
    assert "Round 1" in text
    assert "0 were lost, 3 found NaN or infinity" in text
    assert "lower lr" in text


def test_clients_that_drop_out(tmp_path: Path) -> None:
    clients = item_data((4,) * 40)
    method = fs.methods.fedsubavg(lr=0.1, local_steps=2, clients_per_round=30)
    result = fs.run(method, bag(clients), clients, rounds=20, lost=0.3, engine="serial", out=tmp_path / "r")
    lost = [r["lost"] for r in result.history[1:]]
    assert abs(sum(lost) - 0.3 * 600) < 4 * (600 * 0.21) ** 0.5
    assert len(set(lost)) > 1
    traffic = JsonLines.read(tmp_path / "r" / "traffic.jsonl")
    for record, row in zip(result.history[1:], traffic, strict=True):
        assert record["clients"] == len(row["clients"]) == 30
        assert len(row.get("lost", [])) == record["lost"]
        gone = [up for k, up in enumerate(row["up"]) if k in row.get("lost", [])]
        assert all(0 < up < min(set(row["up"]) - set(gone)) for up in gone)  # it asked for its rows, and no more
        assert all(down > 0 for down in row["down"])  # it was sent the submodel all the same
        assert (sum(row["down"]), sum(row["up"])) == (record["down"], record["up"])


def test_everybody_drops_out() -> None:
    clients = item_data()
    method = fs.methods.fedavg(clients_per_round=1)
    with pytest.raises(NoUsableClient, match="of 1 clients none delivered; 1 were lost"):
        fs.run(method, bag(clients), clients, rounds=50, lost=0.9, engine="serial")


# ---------------------------------------------------------------------- bytes


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_bytes_by_hand(tmp_path: Path, engine: str) -> None:
    """Ids travel up once, compactly; rows and dense parameters both ways, in messages with a head and names."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Embedding(9, 3), nn.Embedding(9, 1, dtype=torch.float64)  # one space
            self.c = nn.Embedding(5, 2)
            self.out = nn.Linear(5, 1)

        def forward(self, batch):
            x = torch.cat([self.a(batch["x"]), self.c(batch["y"])], -1)
            return self.out(x).squeeze(-1) + self.b(batch["x"]).squeeze(-1).float()

    clients = fs.Clients.from_arrays(
        {"x": [1, 2, 1, 8, 8], "y": [0, 0, 3, 4, 4], "label": [0, 1, 0, 1, 0]},
        offsets=[0, 3, 5],
        ids=["x", "y"],
        label="label",
        sizes={"x": 9, "y": 5},
    )
    goal = fs.Objective(Two(), fs.losses.binary("label"), {"a.weight": "x", "b.weight": "x", "c.weight": "y"})
    method = fs.methods.fedsubavg(clients_per_round=None, local_steps=2)
    result = fs.run(method, goal, clients, rounds=1, engine=engine, out=tmp_path / "r")
    dense = 4 * 6
    # client 0 holds x {1, 2} and y {0, 3}; client 1 holds x {8} and y {4}
    first = 2 * (3 * 4 + 8) + 2 * 2 * 4 + dense
    second = (3 * 4 + 8) + 2 * 4 + dense
    (row,) = JsonLines.read(tmp_path / "r" / "traffic.jsonl")

    def tree(name: str) -> dict[str, int]:
        shapes = {"a.weight": 2, "b.weight": 2, "c.weight": 2, "out.weight": 2, "out.bias": 1}
        return {f"{name}/{parameter}": ndim for parameter, ndim in shapes.items()}

    asked = envelope({"rows/x": 1, "rows/y": 1}) + 2  # and how the ids of each space are written
    back = envelope(tree("update") | {"sum/weight": 0, "sum/count": 0, "sum/loss": 0}) + 3 * 8
    assert row == {
        "round": 1,
        "clients": [0, 1],
        "down": [envelope({}) + envelope(tree("model")) + first, envelope({}) + envelope(tree("model")) + second],
        "up": [asked + 2 + 1 + back + first, asked + 1 + 1 + back + second],
    }
    assert result.history[1]["down"] == sum(row["down"])
    assert result.history[1]["up"] == sum(row["up"])
    assert result.bytes_per_client() == (sum(row["down"]) + sum(row["up"])) / 2
    summary = json.loads((tmp_path / "r" / "result.json").read_text())
    assert summary["down"] == sum(row["down"])


def test_central_training_sends_nothing_and_uses_large_batches() -> None:
    seen: list[int] = []
    clients = item_data((20, 30, 10))
    goal = bag(clients)

    def loss(z, batch):
        seen.append(len(z))
        return fs.losses.binary("label")(z, batch)

    method = fs.methods.centralsgd(batch_size=4, clients_per_round=3, local_steps=5, lr=0.5)
    goal = fs.Objective(goal.module, loss, goal.tables)
    result = fs.run(method, goal, clients, rounds=2, evaluate=fs.Evaluate(every=99))
    assert all(r["down"] == r["up"] == 0 for r in result.history)
    assert [r["clients"] for r in result.history[1:]] == [1, 1]
    # setup: the probe, twice on the submodel, once on the full tables; then evaluation 60, two rounds of 5 steps
    # of K·B = 12, evaluation 60 twice
    assert seen == [*[12] * 4, 60, *[12] * 10, 60, 60]
    assert result.history[-1]["train.loss"] < result.history[0]["train.loss"]


# ---------------------------------------------------------------------- targets and callbacks


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
