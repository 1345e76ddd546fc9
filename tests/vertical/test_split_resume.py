"""Interrupted and resumed, a party lost and back, processes killed: the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from certificates import Authority
from safetensors.torch import load_file
from sides import BATCH, ROUNDS, STEPS, label, world
from split_trained import played

import fedsub as fs
from fedsub import vertical
from fedsub.errors import CheckpointError, RunError
from fedsub.vertical import link
from fedsub.vertical.link import Direct

HERE = Path(__file__).parent


class Stop(fs.Callback):
    def __init__(self, after: int):
        self.after = after

    def on_round(self, record: dict[str, Any]) -> None:
        if record["round"] == self.after:
            raise KeyboardInterrupt


def momentum(lr: float) -> fs.servers.Add:
    return fs.servers.Add(lr=lr, momentum=0.6)


def same(found: vertical.Outcome, expected: vertical.Outcome) -> None:
    assert all(torch.equal(v, expected.result.params[n]) for n, v in found.result.params.items())
    for name, bottom in expected.bottoms.items():
        own = dict(found.bottoms[name].named_parameters())
        assert all(torch.equal(v, own[n]) for n, v in bottom.named_parameters())
    assert found.result.history == expected.result.history


def momentous() -> tuple[vertical.LabelParty, list[vertical.Party]]:
    from sides import paper, shop

    return label(5, ("shop", "paper"), momentum(0.2)), [shop(momentum(0.5)), paper(momentum(0.3))]


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_simulation_goes_on_from_its_checkpoint(after: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"rounds": ROUNDS, "steps": STEPS, "batch_size": BATCH, "checkpoint_every": 2}
    expected = vertical.run(*momentous(), **options)
    with pytest.raises(KeyboardInterrupt):
        vertical.run(*momentous(), **options, out=tmp_path / "run", callbacks=[Stop(after)])
    found = vertical.run(*momentous(), **options, out=tmp_path / "run", resume=True)
    same(found, expected)
    kept = load_file(tmp_path / "run" / "bottom-shop.safetensors")
    assert all(torch.equal(v, kept[n]) for n, v in expected.bottoms["shop"].named_parameters())
    side, _ = momentous()
    loaded = fs.load(tmp_path / "run").module(side.module)
    assert all(torch.equal(v, expected.result.params[n]) for n, v in loaded.named_parameters())


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    side, others = world(1)
    vertical.run(side, others, rounds=1, steps=2, batch_size=BATCH, out=tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"holds a run already"):
        vertical.run(side, others, rounds=1, steps=2, batch_size=BATCH, out=tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"method\.steps"):
        vertical.run(side, others, rounds=1, steps=3, batch_size=BATCH, out=tmp_path / "run", resume=True)
    other = vertical.Party("shop", others[0].bottom, others[0].data, others[0].parts, others[0].tables, optimiser=0.7)
    with pytest.raises(CheckpointError, match=r"method\.parties\.shop"):
        vertical.run(side, [other], rounds=1, steps=2, batch_size=BATCH, out=tmp_path / "run", resume=True)


def away(monkeypatch: pytest.MonkeyPatch, folder: Path, at: tuple[int, ...]) -> Any:
    """A party behind a line that breaks when it is used for the ``at``-th time; a new life has only its disk."""
    count = [0]

    class Breaks:
        def __init__(self) -> None:
            _, (party,) = world(1)
            if folder.exists():
                old[-1].store.close()
            old.append(vertical.FeatureHalf(party, folder, resume=folder.exists()))
            self.direct = Direct(old[-1])

        def send(self, data: bytes) -> None:
            self.direct.send(data)

        def receive(self) -> bytes | None:
            count[0] += 1
            return None if count[0] in at else self.direct.receive()

    old: list[Any] = []
    monkeypatch.setattr(link.Remote, "dial", lambda self: Breaks())
    return old


@pytest.mark.parametrize("at", [(9,), (14,), (20, 21), (26, 38)])
def test_a_party_that_is_lost_comes_back_with_its_disk(
    at: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = played(1)
    lives = away(monkeypatch, tmp_path / "shop", at)
    side, _ = world(1)
    options: dict[str, Any] = {"rounds": ROUNDS, "steps": STEPS, "batch_size": BATCH, "out": tmp_path / "run"}
    found = vertical.run(side, [link.Remote("shop", "127.0.0.1", 9)], **options)
    assert len(lives) == 1 + len(at)
    assert all(torch.equal(v, expected.result.params[n]) for n, v in found.result.params.items())
    own = dict(expected.bottoms["shop"].named_parameters())
    assert all(torch.equal(v, own[n]) for n, v in lives[-1].params.items())
    assert found.result.history == expected.result.history
    events = [json.loads(line)["event"] for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert sum("shop is lost: it does not answer. It is waited for" in said for said in events) == len(at)
    trained = fs.load(tmp_path / "shop").module(world(1)[1][0].bottom)
    assert all(torch.equal(v, own[n]) for n, v in trained.named_parameters())


def test_without_a_directory_a_lost_party_ends_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    away(monkeypatch, tmp_path / "shop", (9,))
    with pytest.raises(RunError, match=r"shop is lost.*give both a directory"):
        vertical.run(world(1)[0], [link.Remote("shop", "127.0.0.1", 9)], rounds=2, steps=3, batch_size=BATCH)


def test_one_that_is_always_lost_is_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lives = away(monkeypatch, tmp_path / "shop", tuple(range(9, 99)))
    with pytest.raises(RunError, match=r"see what became of it"):
        vertical.run(
            world(1)[0], [link.Remote("shop", "127.0.0.1", 9)], rounds=2, steps=3, batch_size=BATCH, returns=3,
            out=tmp_path / "run",
        )  # fmt: skip
    assert len(lives) == 4


def test_a_party_that_lost_its_disk_is_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    away(monkeypatch, tmp_path / "shop", ())
    side, _ = world(1)
    options: dict[str, Any] = {"steps": 3, "batch_size": BATCH, "out": tmp_path / "run"}
    vertical.run(side, [link.Remote("shop", "127.0.0.1", 9)], rounds=2, **options)
    away(monkeypatch, tmp_path / "elsewhere", ())
    with pytest.raises(RunError.__mro__[1], match=r"has checkpoints of the rounds 0, and none of 2"):
        vertical.run(side, [link.Remote("shop", "127.0.0.1", 9)], rounds=3, resume=True, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keys = Authority(tmp_path / "keys")
    for name in ("label", "shop", "paper"):
        keys.issue(name)
    return tmp_path


def start(name: str, folder: Path, *more: str) -> subprocess.Popen[bytes]:
    with open(folder / f"{name}.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, str(HERE / "split_process.py"), name, str(folder), *more], stdout=log, stderr=log,
            env={**os.environ, "PYTHONPATH": _paths(), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip


def _paths() -> str:
    return os.pathsep.join([str(HERE), str(HERE.parent), str(Path(fs.__file__).parent.parent)])


def wait_for(condition: Any, folder: Path, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, logs(folder)
        time.sleep(0.01)


def logs(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text()[-2000:] for path in folder.glob("*.log")}


def rounds_done(folder: Path) -> int:
    path = folder / "label" / "metrics.jsonl"
    return len(path.read_bytes().splitlines()) - 1 if path.exists() else -1


KILLED = [
    (("shop",), [(5, ("shop",)), (21, ("label",))]),
    pytest.param(
        ("shop", "paper"), [(3, ("paper",)), (11, ("label", "shop")), (22, ("shop", "paper")), (31, ("label",))],
        marks=pytest.mark.slow,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("names", "kills"), KILLED)
def test_processes_that_are_killed(names: tuple[str, ...], kills: list, folder: Path) -> None:
    """Feature parties, the label party and several at once, by SIGKILL wherever they are; 40 rounds in all."""
    processes = {name: start(name, folder) for name in names}
    try:
        wait_for(lambda: all((folder / f"{n}.port").exists() for n in names), folder)
        processes["label"] = start("label", folder, *names)
        for at, killed in kills:
            wait_for(lambda at=at: rounds_done(folder) >= at, folder)
            for name in killed:
                processes[name].send_signal(signal.SIGKILL)
                processes[name].wait(20)
            for name in killed:
                processes[name] = start(name, folder, *(names if name == "label" else ()))
        for process in processes.values():
            assert process.wait(120) == 0, logs(folder)
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.kill()
                process.wait(20)
    side, others = world(len(names))
    here = vertical.run(side, others, rounds=ROUNDS * 10, steps=STEPS, batch_size=BATCH)
    trees = {"label": here.result.params, **{n: dict(m.named_parameters()) for n, m in here.bottoms.items()}}
    for name, expected in trees.items():
        kept = load_file(folder / name / "model.safetensors")
        assert all(torch.equal(v, kept[n]) for n, v in expected.items()), name
    lines = (folder / "label" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == here.result.history
    assert "goes on after round" in (folder / "shop" / "events.jsonl").read_text()


def test_who_gets_further_between_its_losses_is_waited_for_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """``returns`` counts losses since the last checkpoint, not all of them."""
    lives = away(monkeypatch, tmp_path / "shop", (26, 38))
    options: dict[str, Any] = {"rounds": ROUNDS, "steps": STEPS, "batch_size": BATCH, "out": tmp_path / "run"}
    found = vertical.run(world(1)[0], [link.Remote("shop", "127.0.0.1", 9)], **options, returns=1)
    assert len(lives) == 3
    assert found.result.history == played(1).result.history
