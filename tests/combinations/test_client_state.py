"""What clients keep from round to round: in files as in memory, rejected, drawn twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from slot_choices import DATA, ENGINES, Halt, goal_of, saved
from torch import nn
from worlds import equal, trainer_for

import fedsub as fs
from fedsub.method.part import Part


def mapped_files() -> list[str]:
    """The nameless files that this process has mapped into memory."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "(deleted)" in line]


@ENGINES
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_state_in_files_is_state_in_memory(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = fs.methods.scaffold(codec="topk:0.3", lr=0.3, local_steps=2, batch_size=4, clients_per_round=4)
    options = {"rounds": 4, "engine": engine, "checkpoint_every": 2}
    plain = fs.run(method, goal_of(), DATA, out=tmp_path / "memory", **options)
    monkeypatch.setattr("fedsub.round.memory.MAPPED_FROM", 1)
    trainer = trainer_for(method, goal_of(), DATA, engine)
    stored = trainer.memory.tensors["scaffold.variate/emb.weight"]
    assert stored.abs().sum() == 0
    assert len(mapped_files()) >= len(trainer.memory.tensors)
    out = tmp_path / "not" / "there" / "yet"
    with pytest.raises(InterruptedError):
        fs.run(method, goal_of(), DATA, out=out, callbacks=[Halt()], **options)
    mapped = fs.run(method, goal_of(), DATA, out=out, resume=True, **options)
    assert equal(mapped.params, plain.params)
    assert equal(saved(out), saved(tmp_path / "memory"))
    assert not [f for f in (tmp_path / "not" / "there").iterdir() if f != out]  # the files have no names


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.5], dtype=torch.float64))
        self.emb = nn.Embedding(4, 1, dtype=torch.float64)
        nn.init.ones_(self.emb.weight)

    def forward(self, batch):
        return (self.emb(batch["ids"]).sum((-1, -2)) + self.x) / batch["v"].double()


def lines(v) -> tuple[fs.Objective, fs.Clients]:
    """Client i has the loss (row i mod 4 + x)/v_i: a gradient of infinity where v is 0."""
    n = len(v)
    clients = fs.Clients.from_arrays(
        {"ids": np.arange(n)[:, None] % 4, "v": np.array(v, np.float32)},
        offsets=np.arange(n + 1), ids=["ids"], values=["v"], sizes={"ids": 4},
    )  # fmt: skip
    return fs.Objective(Line(), lambda z, batch: z, {"emb.weight": "ids"}), clients


@ENGINES
@pytest.mark.parametrize("chunk", [None, 2])
def test_a_rejected_client_keeps_its_state(engine: str, chunk) -> None:
    goal, clients = lines([1.0, 0.0, 2.0, 4.0, 0.5])
    method = fs.methods.scaffold(codec="ef-sign", lr=0.1, local_steps=2, batch_size=1, clients_per_round=None)
    trainer = trainer_for(method, goal, clients, engine, chunk=chunk)
    kept = trainer.memory.tensors
    for value in kept.values():
        value.fill_(0.3)
    report = trainer.round(1)
    assert report.rejected.tolist() == [1]
    for key, value in kept.items():
        changed = (value != 0.3).reshape(5, -1).any(1).tolist()
        assert changed[1] is False, key
        assert torch.isfinite(value).all(), key
    assert (kept["scaffold.variate/x"][[0, 2, 3, 4]] != 0.3).all()
    assert all(torch.isfinite(v).all() for v in trainer.params.values())
    # c is still the mean of what the others changed.
    others = (kept["scaffold.variate/x"] - 0.3).sum() / 5
    torch.testing.assert_close(trainer.server.keeper.slots["scaffold"]["variate"]["x"].sum(), others)


class Count(Part):
    """Each client keeps how often it took part."""

    client_slots = ("rounds",)

    def finish(self, message, params, work) -> None:
        kept = work.client[self.key]["rounds"]
        work.client[self.key]["rounds"] = {name: value + 1 for name, value in kept.items()}


@ENGINES
@pytest.mark.parametrize("chunk", [None, 2])
def test_a_client_drawn_twice_reads_the_same_state_both_times(engine: str, chunk) -> None:
    method = fs.methods.fedavg(lr=0.1, local_steps=1, batch_size=4, clients_per_round=12, replacement=True)
    method = fs.Method(
        local=method.local, average=method.average, server=method.server, sampler=method.sampler, parts=(Count(),)
    )
    trainer = trainer_for(method, goal_of(), DATA, engine, chunk=chunk)
    times, twice = np.zeros(8), 0
    for number in range(1, 5):
        drawn = trainer.round(number).clients
        twice += len(drawn) - len(np.unique(drawn))
        times[np.unique(drawn)] += 1
    assert twice > 10
    kept = trainer.memory.tensors
    np.testing.assert_array_equal(kept["count.rounds/out.bias"].numpy()[:, 0], times)
    owner = np.repeat(np.arange(8), DATA.spaces["ids"].counts)
    np.testing.assert_array_equal(kept["count.rounds/emb.weight"].numpy()[:, 0], times[owner])


def test_what_moved_takes_bounded_memory() -> None:
    """Without a directory nobody asks which rows moved."""
    method = fs.methods.scaffold(lr=0.3, local_steps=1, batch_size=2, clients_per_round=4)
    trainer = trainer_for(method, goal_of(), DATA, "serial")
    for number in range(1, 31):
        trainer.round(number)
    for moved in (*trainer.server.keeper.moved.values(), *trainer.memory.moved.values()):
        assert sum(map(len, moved._listed)) <= moved.size
    rows = trainer.state.take_moved()
    assert rows["emb.weight"].tolist() == np.unique(DATA.spaces["ids"].rows).tolist()
    assert not len(trainer.state.take_moved()["emb.weight"])
