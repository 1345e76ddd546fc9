"""Arguments that make no sense are refused by name, before anything is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from worlds import bag, equal, item_data

import fedsub as fs
from fedsub.disk.files import JsonLines
from fedsub.errors import CheckpointError, ConfigError, MethodError
from fedsub.method.average import OverClients, OverHolders
from fedsub.method.parts import Prox
from fedsub.method.sampling import Everyone, Uniform
from fedsub.method.servers import Add
from fedsub.round.engines.setup import Auto
from fedsub.running.run import finished_result, run_config

NAN = float("nan")


def wrong(*values: Any) -> tuple[Any, ...]:
    """Values that no type would let through."""
    return values


METHOD = fs.methods.fedsubavg(lr=0.3, local_steps=2, batch_size=4, clients_per_round=5)


def options(**changed) -> dict:
    clients = item_data()
    base = {"method": METHOD, "objective": bag(clients), "clients": clients, "rounds": 2, "engine": "serial"}
    return base | changed


# ---------------------------------------------------------------------- run


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        *[({name: value}, name) for name in ("rounds", "checkpoint_every", "workers") for value in (0, 2.0, NAN, True)],
        ({"chunk": 0}, "chunk"),
        ({"chunk": 2.5}, "chunk"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 1.0}, "seed"),
        ({"lost": "0.1"}, "lost"),
        ({"lost": NAN}, "lost"),
        ({"method": "fedavg"}, "method must be"),
        ({"objective": nn.Linear(1, 1)}, "objective must be"),
        ({"clients": [1, 2]}, "clients must be"),
        ({"test": 3}, "test must be"),
        ({"splits": {"dev": 3}}, "splits.*dev"),
        ({"splits": [item_data()]}, "splits must be"),
        ({"evaluate": 5}, "evaluate must be"),
        ({"callbacks": fs.Callback()}, "callbacks must be"),
        ({"callbacks": [print]}, "callbacks must be"),
        ({"settings": {3: 1}}, "settings has the key 3"),
        ({"settings": {"a": [{"b": object()}]}}, "settings.a.b"),
        ({"settings": 3}, "settings must be"),
        ({"device": 2.5}, "device"),
        ({"engine": "fast"}, "engine must be"),
        ({"target": 3}, "target"),
        ({"target": "train.cee<=0.5"}, "did you mean 'train.ce'"),
        ({"target": "test.ce<=0.5"}, "train.ce"),
        ({"stop_at_target": True}, "needs a target"),
        ({"splits": {"other": item_data(items=30)}}, "split 'other'"),
    ],
)
def test_a_refused_run_leaves_its_directory_free(tmp_path: Path, changed: dict, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        fs.run(out=tmp_path / "r", **options(**changed))
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "method",
    [
        fs.methods.fedavg(clients_per_round=500),
        fs.Method(local=fs.SGD(), average=OverHolders(heat={"id": np.ones(20)}), server=Add(), sampler=Everyone()),
        fs.Method(local=fs.SGD(), average=OverHolders(heat={"ids": "x"}), server=Add(), sampler=Everyone()),  # type: ignore[dict-item]
    ],
)
def test_a_method_that_does_not_fit_leaves_the_directory_free(tmp_path: Path, method: fs.Method) -> None:
    with pytest.raises(MethodError, match=r"500|did you mean 'ids'|one number per row"):
        fs.run(out=tmp_path / "r", **options(method=method))
    assert not (tmp_path / "r").exists()
    fs.run(out=tmp_path / "r", **options())
    events = [e["event"] for e in JsonLines.read(tmp_path / "r" / "events.jsonl")]
    assert events[0] == "engine serial, as asked"  # said before the directory was taken, logged after


def test_the_configuration_is_what_run_writes(tmp_path: Path) -> None:
    fs.run(out=tmp_path / "r", **options(), target="train.ce<=0.1", settings={"note": [1, None]})
    written = json.loads((tmp_path / "r" / "config.json").read_text())
    asked = run_config(**options(), target="train.ce<=0.1", settings={"note": [1, None]}, workers=2, out="x")
    assert written == asked


class Frozen(nn.Module):
    """Two tables' worth of shapes and a constant."""

    def __init__(self, scale: float):
        super().__init__()
        self.emb = nn.Embedding(20, 1)
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, batch):
        return self.emb(batch["ids"]).sum((1, 2)) * self.scale


def test_another_objective_is_refused_by_name(tmp_path: Path) -> None:
    def goal(loss=None, scale=1.0):
        torch.manual_seed(0)
        return fs.Objective(Frozen(scale), loss or fs.losses.binary("label"), {"emb.weight": "ids"})

    fs.run(out=tmp_path / "r", **options(objective=goal()))
    for other, key in ((goal(fs.losses.squared("label")), "loss.type"), (goal(scale=2.0), "constants")):
        with pytest.raises(CheckpointError, match=f"{key}:"):
            fs.run(out=tmp_path / "r", resume=True, **options(objective=other))
    tables = {"emb.weight": "ids", "out.weight": "ids"}
    module = nn.ModuleDict({"emb": nn.Embedding(20, 1), "out": nn.Embedding(20, 1)})
    both = fs.Objective(module, fs.losses.binary("label"), tables)
    one = fs.Objective(module, fs.losses.binary("label"), {"emb.weight": "ids"})
    assert run_config(**options(objective=both))["tables"] != run_config(**options(objective=one))["tables"]
    fs.run(out=tmp_path / "r", resume=True, **options(objective=goal()))


@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl"])
@pytest.mark.parametrize("content", [None, b"", b"{}\n", b"[1]\n", b'{"a'])
def test_a_damaged_result_is_named(tmp_path: Path, name: str, content: bytes | None) -> None:
    fs.run(out=tmp_path / "r", **options())
    assert finished_result(tmp_path / "r").history[-1]["round"] == 2
    file = tmp_path / "r" / name
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{name} is missing or damaged .*delete"):
        finished_result(tmp_path / "r")


def test_the_chosen_engine_outlives_a_kill_before_the_first_checkpoint(tmp_path: Path, monkeypatch) -> None:
    class Stop(fs.Callback):
        def on_round(self, record):
            if record["round"] == 1:
                raise KeyError("stop")

    auto = options(engine="auto", rounds=3)
    with pytest.raises(KeyError, match="stop"):
        fs.run(out=tmp_path / "r", callbacks=[Stop()], **auto)
    file = tmp_path / "r" / "engine.json"
    assert json.loads(file.read_text())["engine"] in ("serial", "batched")
    for name in ("serial", "batched"):
        file.write_text(json.dumps({"engine": name}))
        kept: list[str] = []
        monkeypatch.setattr(Auto, "keep", lambda self, n, keep=Auto.keep, kept=kept: (kept.append(n), keep(self, n)))
        with pytest.raises(KeyError, match="stop"):
            fs.run(out=tmp_path / "r", resume=True, callbacks=[Stop()], **auto)
        monkeypatch.undo()
        assert kept == [name]
    file.write_text("{")
    with pytest.raises(CheckpointError, match=r"engine\.json is damaged"):
        fs.run(out=tmp_path / "r", resume=True, **auto)


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_a_run_leaves_the_random_state_alone(engine: str) -> None:
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.drop = nn.Embedding(20, 1), nn.Dropout(0.5)

        def forward(self, batch):
            return self.drop(self.emb(batch["ids"])).sum((1, 2))

    goal = fs.Objective(Dropping(), fs.losses.binary("label"), {"emb.weight": "ids"})
    asked = options(objective=goal, engine=engine)
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    first = fs.run(**asked)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(8)
    assert equal(first.params, fs.run(**asked).params)


# ---------------------------------------------------------------------- methods


@pytest.mark.parametrize(
    "make",
    [
        *[lambda v=v: fs.SGD(lr=v) for v in wrong(NAN, float("inf"), "0.1", True, None, 0)],
        *[lambda v=v: fs.SGD(local_steps=v) for v in wrong(2.5, NAN, "3", True, 0)],
        *[lambda v=v: fs.SGD(local_steps=None, local_epochs=v) for v in wrong(2.5, NAN, "3", 0)],
        *[lambda v=v: fs.SGD(batch_size=v) for v in wrong(2.5, NAN, "3", True, 0)],
        *[lambda v=v: fs.methods.fedprox(mu=v) for v in wrong(NAN, "1", True, None, -1)],
        *[lambda v=v: Add(v) for v in wrong(NAN, float("inf"), "1", True, 0)],
        *[lambda v=v: OverHolders(temper=v) for v in wrong(NAN, "1", True, None)],
        *[lambda v=v: OverHolders(max_coef=v) for v in wrong(NAN, "1", True, 0.5)],
        *[lambda v=v: OverHolders(heat=v) for v in wrong([1, 2], np.ones(3))],
        *[lambda v=v: Uniform(v) for v in wrong(2.5, "3", NAN, True, None, 0)],
        *[lambda v=v: fs.methods.centralsgd(batch_size=v) for v in wrong(None, NAN, 2.5, "3", 0)],
        *[lambda v=v: fs.methods.centralsgd(clients_per_round=v) for v in wrong(None, 2.5)],
        lambda: fs.methods.fedavg(local_steps=3, local_epochs=2),
    ],
)
def test_settings_that_are_no_numbers(make) -> None:
    with pytest.raises(MethodError):
        make()


def test_numbers_of_numpy_are_numbers() -> None:
    method = fs.methods.fedavg(lr=np.float32(0.5), local_steps=np.int64(3))  # type: ignore[arg-type]
    assert method.describe() == fs.methods.fedavg(lr=0.5, local_steps=3).describe()


@pytest.mark.parametrize(
    "slot", [{"local": 5}, {"average": "mean"}, {"server": None}, {"sampler": 50}, {"local": fs.SGD}, {"server": Add}]
)
def test_a_wrong_slot_is_named(slot: dict) -> None:
    slots = {"local": fs.SGD(), "average": OverClients(), "server": Add(), "sampler": Everyone(), "parts": (Prox(),)}
    fs.Method(**slots)
    with pytest.raises(MethodError, match=f"{next(iter(slot))} of a Method"):
        fs.Method(**(slots | slot))


@pytest.mark.parametrize(
    "option", [{"engine": "batched"}, {"chunk": 3}, {"workers": 2}, {"compile": True}, {"lost": 0.2}]
)
def test_options_that_pooled_data_has_no_use_for_are_refused(option: dict[str, Any], tmp_path: Path) -> None:
    pooled = fs.methods.centralsgd(batch_size=4, clients_per_round=2, lr=0.1)
    with pytest.raises(ConfigError, match=f"one place, does not use {next(iter(option))}="):
        fs.run(out=tmp_path / "run", **{**options(method=pooled), **option})
    assert not (tmp_path / "run").exists()


def test_a_baseline_beside_other_methods_goes_without(tmp_path: Path) -> None:
    """Also where it goes on from a directory; its numbers are those of a run by itself."""
    pooled = fs.methods.centralsgd(batch_size=4, clients_per_round=2, lr=0.1)
    goal, clients = options()["objective"], options()["clients"]
    alone = fs.run(pooled, goal, clients, rounds=2)
    shared = {"engine": "batched", "chunk": 3, "workers": 2, "lost": 0.2}
    methods = {"central": pooled, "fedavg": fs.methods.fedavg(clients_per_round=3)}
    for resume in (False, True):
        found = fs.compare(methods, goal, clients, rounds=2, out=tmp_path, resume=resume, **shared)
        assert [r["loss"] for r in found.results["central"][0].history] == [r["loss"] for r in alone.history]
    with pytest.raises(ConfigError, match="one place, does not use"):
        fs.compare({"central": pooled}, goal, clients, rounds=2, **shared)


@pytest.mark.parametrize("option", [{"chunk": 3}, {"compile": True}])
def test_options_that_the_serial_engine_has_no_use_for_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match='engine="serial", which trains one client after the other, does not use'):
        fs.run(**{**options(engine="serial"), **option})
