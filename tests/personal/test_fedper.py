"""FedPer against closed forms, FedAvg and purely local training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from worlds import bag, click_data, envelope, equal, item_data, trainer_for

import fedsub as fs
from fedsub.data.split import select
from fedsub.disk.checkpoint import Checkpoints
from fedsub.errors import MethodError
from fedsub.method import sampling, servers
from fedsub.method.codecs.wire import encode_rows
from fedsub.method.parts import Personal
from fedsub.round.predict import PersonalModel

ENGINES = pytest.mark.parametrize("engine", ["serial", "batched"])
DOUBLE = torch.float64
DATA = item_data((1, 7, 4, 9, 2, 5, 8, 3), items=12, width=3)
SETTINGS = {"lr": 0.3, "local_epochs": 1, "batch_size": 4, "clients_per_round": 4}


def goal_of(seed: int = 3) -> fs.Objective:
    return bag(DATA, seed=seed, dim=2, dtype=DOUBLE)


def start_of(objective: fs.Objective) -> dict:
    return {n: p.detach().clone() for n, p in objective.module.named_parameters()}


def kept(trainer) -> dict:
    return {k: v.clone() for k, v in trainer.memory.tensors.items()}


# ---------------------------------------------------------------------- two clients that disagree


class BaseAndHead(nn.Module):
    """A linear base of two inputs and a scalar head: head · (base · x)."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(2, 1, bias=False, dtype=DOUBLE)
        self.head = nn.Linear(1, 1, bias=False, dtype=DOUBLE)

    def forward(self, batch):
        return self.head(self.base(batch["x"].double())).squeeze(-1)


def opposites(labels: str) -> fs.Clients:
    """Two clients with the same eight inputs and opposite labels: classes 0 and 1, or values."""
    x = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
    side = np.where(x @ [1.0, -2.0] > 0, 1.0, -1.0)
    if labels == "classes":
        y = (np.concatenate([side, -side]) + 1) / 2
    else:
        y = np.concatenate([x @ [1.0, -2.0], -(x @ [1.0, -2.0])]).astype(np.float32)
    return fs.Clients.from_arrays(
        {"x": np.concatenate([x, x]), "y": y}, offsets=[0, 8, 16], ids=[], values=["x"], label="y",
        binary_label=labels == "classes",
    )  # fmt: skip


def disagree(method, clients: fs.Clients, loss, rounds: int = 400) -> dict[str, Any]:
    torch.manual_seed(1)
    goal = fs.Objective(BaseAndHead(), loss)
    return fs.run(method, goal, clients, rounds=rounds, evaluate=fs.Evaluate(every=rounds)).final["train"]


def test_fedper_fits_opposite_labels_where_fedavg_cannot() -> None:
    settings = {"lr": 0.5, "local_steps": 5, "batch_size": None, "clients_per_round": None}
    clients, loss = opposites("classes"), fs.losses.binary("y")
    shared = disagree(fs.methods.fedavg(**settings), clients, loss)
    own = disagree(fs.methods.fedper(personal="head.*", **settings), clients, loss)
    assert shared["ce"] >= math.log(2) - 1e-12
    assert own["ce"] < 0.02
    assert own["accuracy"] == 1.0
    assert own["by_client"]["auc"] == 1.0
    # Squared error: the floor is the variance of a label given its input, here the mean of y².
    clients, loss = opposites("values"), fs.losses.squared("y")
    settings |= {"lr": 0.05}
    floor = float((clients.columns["y"].values.astype(float) ** 2).mean())
    shared = disagree(fs.methods.fedavg(**settings), clients, loss)
    own = disagree(fs.methods.fedper(personal="head.*", **settings), clients, loss)
    scale = float(loss(torch.zeros(1, dtype=DOUBLE), {"y": torch.ones(1)})[0])  # of the squared error, 1 or ½
    assert shared["loss"] >= scale * floor * (1 - 1e-12)
    assert own["loss"] < 1e-12
    assert own["gain"]["better_off"] == 1.0


# ---------------------------------------------------------------------- the two ends


@ENGINES
def test_without_personal_parameters_it_is_fedavg(engine: str, tmp_path: Path) -> None:
    options = {"objective": goal_of(), "clients": DATA, "rounds": 4, "engine": engine, "seed": 2}
    plain = fs.run(fs.methods.fedavg(**SETTINGS), out=tmp_path / "a", **options)
    none = fs.run(fs.methods.fedavg(personal=[], **SETTINGS), out=tmp_path / "b", **options)
    assert equal(plain.params, none.params)
    for file in ("metrics.jsonl", "traffic.jsonl"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert "gain" not in none.final["train"]


@ENGINES
@pytest.mark.parametrize("server", ["add", "adam", "torch"])
def test_with_nothing_shared_it_is_local_training(engine: str, server: str) -> None:
    goal = goal_of()
    settings = {"lr": 0.3, "local_steps": 3, "batch_size": None, "clients_per_round": None}
    method = fs.methods.fedavg(personal="*", personal_init="shared", **settings)
    made = {"add": fs.Add(), "adam": servers.Adam(), "torch": servers.TorchOptimiser(torch.optim.AdamW)}[server]
    method = fs.Method(
        local=method.local, parts=method.parts, average=method.average, server=made, sampler=method.sampler
    )
    trainer = trainer_for(method, goal, DATA, engine)
    for number in (1, 2, 3):
        report = trainer.round(number)
        nothing = envelope({})  # heads and digests, and three sums
        sums = {"sum/weight": 0, "sum/count": 0, "sum/loss": 0}
        assert report.total_down == 8 * (nothing + nothing)
        assert report.total_up == 8 * (nothing + envelope(sums) + 3 * 8)
    assert equal(trainer.params, start_of(goal))
    # A client alone, with FedAvg on its own data, which has no other clients to agree with.
    alone = fs.methods.fedavg(**settings)
    for client in (1, 5):
        own = select(DATA, [client])
        lonely = trainer_for(alone, goal, own, engine)
        for number in (1, 2, 3):
            lonely.round(number)
        rows = torch.from_numpy(DATA.spaces["ids"].rows_of(client).astype(np.int64))
        mine = trainer.memory.read(Personal().own_slot, np.array([client]))
        torch.testing.assert_close(mine["emb.weight"], lonely.params["emb.weight"][rows], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(mine["out.weight"][0], lonely.params["out.weight"], rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------------- what stays where


@ENGINES
@pytest.mark.parametrize("server", ["add", "momentum", "adam", "decay"])
@pytest.mark.parametrize("names", [("out.*",), ("emb.weight", "out.bias")])
def test_what_is_personal_never_reaches_the_server(engine: str, server: str, names: tuple[str, ...]) -> None:
    goal = goal_of()
    before = start_of(goal)
    base = fs.methods.fedsubavg(**SETTINGS)
    made = {
        "add": fs.Add(), "momentum": fs.Add(momentum=0.7), "adam": servers.Adam(lr=0.05),
        "decay": servers.TorchOptimiser(lambda tensors: torch.optim.AdamW(tensors, weight_decay=0.1)),
    }[server]  # fmt: skip
    method = fs.Method(
        local=base.local, parts=(Personal(names),), average=base.average, server=made, sampler=base.sampler
    )
    trainer = trainer_for(method, goal, DATA, engine)
    first = kept(trainer)
    took_part = set()
    for number in (1, 2):
        took_part |= set(trainer.round(number).clients.tolist())
    trainer.settle(2)
    private = method.private(trainer.problem.names)
    assert set(private) == ({"out.weight", "out.bias"} if len(names) == 1 else {"emb.weight", "out.bias"})
    for name, value in trainer.params.items():
        assert torch.equal(value, before[name]) == (name in private), name
    # Those who took part have moved theirs; the others have not.
    last = kept(trainer)
    moved = (last["personal.own/out.bias"] != first["personal.own/out.bias"]).view(-1)
    assert set(torch.nonzero(moved).view(-1).tolist()) == took_part
    assert len(took_part) < len(DATA)
    assert set(last) == {f"personal.own/{name}" for name in private}


def test_what_they_begin_with() -> None:
    goal, params = goal_of(), start_of(goal_of())
    rows = torch.from_numpy(DATA.spaces["ids"].rows.astype(np.int64))

    def own(init: str, seed: int = 0, names=("emb.weight", "out.*")) -> dict:
        parts = (Personal(names, init=init),)
        base = fs.methods.fedavg(**SETTINGS)
        method = fs.Method(
            local=base.local, parts=parts, average=base.average, server=base.server, sampler=base.sampler
        )
        return kept(trainer_for(method, goal, DATA, "serial", seed=seed))

    shared, random = own("shared"), own("random")
    assert torch.equal(shared["personal.own/emb.weight"], params["emb.weight"][rows])
    assert torch.equal(shared["personal.own/out.weight"], params["out.weight"].expand(len(DATA), 1, 2))
    drawn, like = random["personal.own/emb.weight"], params["emb.weight"]
    assert float(drawn.std()) == pytest.approx(float(like.std()), rel=0.25)
    assert float(drawn.mean()) == pytest.approx(float(like.mean()), abs=0.4)
    assert len(drawn.unique()) == drawn.numel()
    assert equal(random, own("random"))
    assert not equal(random, own("random", seed=1))
    # Neither what else is personal nor who is drawn before changes what is drawn.
    assert torch.equal(own("random", names=("emb.*",))["personal.own/emb.weight"], drawn)


def test_the_padding_row_stays_what_it_is() -> None:
    clients = click_data()
    goal = fs.models.make_objective(clients, "embedding", dim=3, hidden=4, seed=1)
    method = fs.methods.fedavg(personal="*item*", **SETTINGS)
    trainer = trainer_for(method, goal, clients, "serial")
    (name,) = method.private(trainer.problem.names)
    space = trainer.problem.tables[name]
    assert space.padding
    stored = trainer.memory.tensors[f"personal.own/{name}"]
    nothing = trainer.params[name][0]
    assert torch.equal(stored[space.row_offsets[:-1]], nothing.expand(len(clients), -1))
    assert not (stored[space.row_offsets[:-1] + 1] == trainer.params[name][1]).all()


# ---------------------------------------------------------------------- engines, checkpoints, other parts

MIXES = {
    "head": fs.methods.fedper(**SETTINGS),
    "table and head, heat": fs.methods.fedsubavg(personal=["emb.weight", "out.bias"], **SETTINGS),
    "heat, proximal": fs.methods.fedsubavg(personal="out.weight", mu=0.5, **SETTINGS),
    "Adam": fs.methods.fedsubadam(personal="out.*", **SETTINGS),
    "FedNova, shared start": fs.methods.fednova(personal="out.*", personal_init="shared", **SETTINGS),
    "topk": fs.methods.fedsubavg(personal="out.*", codec="topk:0.3", **SETTINGS),
    "int8": fs.methods.fedavg(personal="emb.weight", codec="int8", **SETTINGS),
    "sign": fs.methods.signsgd(personal="out.*", **SETTINGS),
    "error feedback": fs.methods.ef_signsgd(personal="out.*", **SETTINGS),
    "replacement": fs.methods.fedavg(personal="out.*", replacement=True, **SETTINGS),
}


class Halt(fs.Callback):
    def on_round(self, record) -> None:
        if record["round"] == 3:
            raise InterruptedError


def saved(folder: Path) -> dict:
    snapshot, _ = Checkpoints(folder / "checkpoints").load()
    return {**snapshot.tensors, **snapshot.tables}


@pytest.mark.parametrize("name", MIXES)
def test_engines_agree_and_a_killed_run_goes_on(name: str, tmp_path: Path) -> None:
    method, goal = MIXES[name], goal_of()
    options = {"method": method, "objective": goal, "clients": DATA, "rounds": 4, "checkpoint_every": 2, "seed": 5}
    runs = {}
    for label, engine, chunk in (("serial", "serial", None), ("eight", "batched", 8), ("two", "batched", 2)):
        runs[label] = fs.run(out=tmp_path / label, engine=engine, chunk=chunk, **options)
    one, eight = saved(tmp_path / "serial"), saved(tmp_path / "eight")
    assert equal(eight, saved(tmp_path / "two"))
    assert str(runs["eight"].history) == str(runs["two"].history)
    assert any(key.startswith("client/personal.own/") for key in one)
    for key, value in one.items():
        torch.testing.assert_close(eight[key], value, rtol=1e-9, atol=1e-9, msg=key)
    assert runs["serial"].final["train"]["ce"] == pytest.approx(runs["eight"].final["train"]["ce"], rel=1e-9)
    with pytest.raises(InterruptedError):
        fs.run(out=tmp_path / "again", engine="batched", callbacks=[Halt()], **options)
    again = fs.run(out=tmp_path / "again", engine="batched", resume=True, **options)
    assert equal(saved(tmp_path / "again"), eight)
    assert again.final == runs["eight"].final


@ENGINES
def test_the_proximal_term_pulls_to_the_clients_own_last_value(engine: str) -> None:
    """With a pull so strong that it undoes each step, own values stay where they were, not where the server's are."""
    method = fs.methods.fedavg(personal="out.*", mu=1.0, lr=1.0, local_steps=3, batch_size=4, clients_per_round=None)
    free = fs.methods.fedavg(personal="out.*", lr=1.0, local_steps=1, batch_size=4, clients_per_round=None)
    trainer, other = (trainer_for(m, goal_of(), DATA, engine) for m in (method, free))
    first = kept(trainer)["personal.own/out.weight"]
    trainer.round(1)
    other.round(1)
    # x ← x − (g + x − x₀): the pull undoes the step before, so that one gradient away from x₀ is all there is.
    moved = (kept(trainer)["personal.own/out.weight"] - first).abs().max()
    assert float(moved) < 1.5
    assert float((first - trainer.params["out.weight"]).abs().max()) > 0.1
    quiet = fs.methods.fedavg(personal="out.*", mu=1e4, lr=1e-4, local_steps=3, batch_size=4, clients_per_round=None)
    still = trainer_for(quiet, goal_of(), DATA, engine)
    still.round(1)
    torch.testing.assert_close(kept(still)["personal.own/out.weight"], first, rtol=0, atol=1e-3)


@pytest.mark.parametrize("codec", ["topk:0.3", "int8", "ef-sign"])
def test_bytes_and_residuals_are_of_shared_parameters_only(codec: str) -> None:
    method = fs.methods.fedavg(personal="emb.weight", codec=codec, **SETTINGS)
    trainer = trainer_for(method, goal_of(), DATA, "batched")
    report = trainer.round(1)
    shared = {"model/out.weight": 2, "model/out.bias": 1}
    assert report.down.tolist() == [envelope({}) + envelope(shared) + 8 * 3] * 4  # no row
    fixed = envelope({}) + envelope({"coded": 1, "sum/weight": 0, "sum/count": 0, "sum/loss": 0}) + 3 * 8
    expected = {"topk:0.3": (8 * 2 + 2, 8 * 2 + 2 + 2), "int8": (3 + 2 * 8,) * 2, "ef-sign": (2 + 2 * 8,) * 2}[codec]
    assert all(expected[0] <= up - fixed <= expected[1] for up in report.up.tolist()), report.up
    for key, value in trainer.memory.tensors.items():
        if "residual" in key and "emb.weight" in key:
            assert not value.any(), key
    # And with personal dense parameters, what remains is the rows: their ids, and one number each way.
    plain = trainer_for(fs.methods.fedavg(personal="out.*", **SETTINGS), goal_of(), DATA, "serial")
    report = plain.round(1)
    counts = DATA.spaces["ids"].counts[report.clients]
    assert report.down.tolist() == (16 * counts + envelope({}) + envelope({"model/emb.weight": 2})).tolist()
    ids = [len(encode_rows(DATA.spaces["ids"].rows_of(c), 12)) for c in report.clients]
    sums = {"sum/weight": 0, "sum/count": 0, "sum/loss": 0}
    fixed = envelope({"rows/ids": 1}) + envelope({"update/emb.weight": 2} | sums) + 3 * 8
    assert report.up.tolist() == [16 * int(n) + i + fixed for n, i in zip(counts, ids, strict=True)]
    coded = trainer_for(fs.methods.fedavg(personal="out.*", codec="int8", **SETTINGS), goal_of(), DATA, "serial")
    report = coded.round(1)
    ids = [len(encode_rows(DATA.spaces["ids"].rows_of(c), 12)) for c in report.clients]
    fixed = envelope({"rows/ids": 1}) + envelope({"coded": 1} | sums) + 3 * 8
    assert report.up.tolist() == [2 * int(n) + 8 + i + fixed for n, i in zip(counts, ids, strict=True)]


def test_a_client_whose_own_values_diverge_keeps_the_last_good_ones() -> None:
    class Quotient(nn.Module):
        def __init__(self):
            super().__init__()
            self.x = nn.Parameter(torch.ones(1, dtype=DOUBLE))
            self.own = nn.Parameter(torch.ones(1, dtype=DOUBLE))

        def forward(self, batch):
            return (self.x + self.own) / batch["v"].double()

    clients = fs.Clients.from_arrays(
        {"v": np.array([1.0, 0.0, 2.0], np.float32)}, offsets=[0, 1, 2, 3], ids=[], values=["v"]
    )
    goal = fs.Objective(Quotient(), lambda z, batch: z)
    method = fs.methods.fedavg(personal="own", lr=0.1, local_steps=1, batch_size=1, clients_per_round=None)
    for engine in ("serial", "batched"):
        trainer = trainer_for(method, goal, clients, engine)
        assert trainer.round(1).rejected.tolist() == [1]
        own = trainer.memory.tensors["personal.own/own"].view(-1).tolist()
        assert own == pytest.approx([0.9, 1.0, 0.95])


# ---------------------------------------------------------------------- what is refused


def test_nonsense_is_refused_with_the_reason() -> None:
    with pytest.raises(MethodError, match="mean gradient"):
        fs.methods.scaffold(personal="last")
    with pytest.raises(MethodError, match="loss of the shared model"):
        fs.methods.power_of_choice(personal="last")
    base = fs.methods.fedper()
    slots = {"local": base.local, "parts": base.parts, "average": base.average, "server": base.server}
    asked = sampling.Available(sampling.PowerOfChoice(3, 6), sampling.Daily(4, 0.5))
    with pytest.raises(MethodError, match="loss of the shared model"):
        fs.Method(sampler=asked, **slots)
    fs.Method(sampler=sampling.PowerOfChoice(3, 6, "rpow"), **slots)
    with pytest.raises(MethodError, match="pooled data has none"):
        fs.Method(sampler=base.sampler, pooled=True, **slots)
    with pytest.raises(MethodError, match="without personal parameters"):
        fs.methods.fedavg(personal_init="shared")
    with pytest.raises(MethodError, match='"random" or "shared"'):
        fs.methods.fedper(personal_init="zero")
    with pytest.raises(MethodError, match=r"parameters or patterns"):
        fs.methods.fedper(personal=["out.*", ""])
    for pattern in ("head.*", "emb"):
        with pytest.raises(MethodError, match=rf"{pattern[:3]}.*fits no trained parameter; they are emb.weight, out"):
            fs.run(fs.methods.fedper(personal=pattern, **SETTINGS), goal_of(), DATA, rounds=1)


def test_patterns_and_the_last_layer() -> None:
    names = ("emb.weight", "net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias")
    assert Personal().private(names) == ("net.2.weight", "net.2.bias")
    assert Personal(("net.*.bias", "emb.*")).private(names) == ("emb.weight", "net.0.bias", "net.2.bias")
    assert Personal(("net.2.*", "last")).private(names) == ("net.2.weight", "net.2.bias")
    assert Personal(("x",)).private(("w", "x")) == ("x",)
    assert Personal().private(("w", "x")) == ("w", "x")  # parameters of the module itself: one layer
    assert Personal(()).private(names) == ()


def test_a_personal_model_is_what_is_evaluated() -> None:
    method = fs.methods.fedper(**SETTINGS)
    trainer = trainer_for(method, goal_of(), DATA, "serial")
    model = trainer.model(0)
    assert isinstance(model, PersonalModel)
    assert model.names == ("out.weight", "out.bias")
    result = fs.run(method, goal_of(), DATA, rounds=3)
    found = result.final["train"]
    assert {"by_client", "shared", "gain", "spread"} <= set(found)
    assert found["gain"]["mean"] == pytest.approx(
        found["shared"]["by_client"]["loss"] - found["by_client"]["loss"], abs=1e-12
    )
