"""Runs that were killed, interrupted or damaged, and then resumed to the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from short_runs import METHOD, interrupted
from worlds import bag, equal, item_data

import fedsub as fs
from fedsub.disk.files import JsonLines
from fedsub.errors import CheckpointError

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
    here = Path(__file__).parents[1]
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
