"""Plans beside what really happens: bytes of the ledger, tensors of a server, rows that rounds touch."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fedsub as fs
from fedsub.cli import app
from fedsub.errors import ConfigError
from fedsub.method.training import Options
from fedsub.objective.models import make_objective
from fedsub.objective.problem import Problem
from fedsub.round.prepare import Trainer, prepare
from fedsub.study.planning import counted, memory
from fedsub.study.planning.calibrate import UNITS, features, fit
from fedsub.study.planning.counted import Counts, count
from fedsub.study.planning.scaled import Scaled

DATA = fs.twins.Zipf(60, 500, 900, seed=1).make()
STEPS = {"lr": 0.1, "local_steps": 2, "batch_size": 4}


def objective(dim: int = 3) -> fs.Objective:
    return make_objective(DATA, "embedding", seed=0, dim=dim)


def played(method: fs.Method) -> Trainer:
    return count(Problem.bind(objective(), DATA), method, "batched")[1]


@pytest.mark.parametrize("name", ["fedsubavg", "scaffold", "ef-signsgd", "fedadam"])
def test_bytes_are_those_of_the_rounds(name, tmp_path):
    method = getattr(fs.methods, name.replace("ef-signsgd", "signsgd"))(clients_per_round=60, **STEPS)
    found = fs.plan(method, objective(), DATA, rounds=3)
    fs.run(method, objective(), DATA, rounds=3, out=tmp_path / "run", engine="batched")
    lines = [json.loads(line) for line in (tmp_path / "run/traffic.jsonl").read_text().splitlines()]
    assert [sum(line["down"]) for line in lines] == [round(found.down)] * 3
    assert [sum(line["up"]) for line in lines] == [round(found.up)] * 3


def test_ids_of_a_larger_table_take_the_bytes_of_the_codec():
    method = fs.methods.fedsubavg(clients_per_round=10, **STEPS)
    wide = fs.plan(method, objective(), DATA, population=10**8, rows={"item": 500_000_000})
    expected = []
    for client in range(len(DATA)):  # LEB128 of the gaps, seven bits a byte, one byte of flag
        rows = DATA.spaces["item"].rows_of(client).astype(np.int64) * 1_000_000
        gaps = np.diff(rows, prepend=-1) - 1
        expected.append(1 + sum(max(1, -(-int(gap).bit_length() // 7)) for gap in gaps))
    narrow = fs.plan(method, objective(), DATA).scaled.wire.asked
    here = [1 + sum(1 + (g > 127) for g in np.diff(DATA.spaces["item"].rows_of(c), prepend=-1) - 1) for c in range(60)]
    bitmap = 1 + 500 // 8 + 1
    assert wide.scaled.wire.asked - narrow == pytest.approx(np.mean(expected) - np.mean(np.minimum(here, bitmap)))
    assert wide.scaled.wire.down == fs.plan(method, objective(), DATA).scaled.wire.down


@pytest.mark.parametrize(
    "method", [fs.methods.fedadam(**STEPS), fs.methods.scaffold(**STEPS), fs.methods.fedsubavg(**STEPS)],
    ids=lambda m: m.name,
)  # fmt: skip
def test_what_a_row_costs_is_what_the_server_keeps(method):
    trainer = played(method)
    one, size = memory.per_row(trainer, "item"), 500
    tables = set(trainer.problem.tables)
    by_row = [v for name, v in trainer.server.keeper.state.items() if name.partition("/")[2] in tables and v.ndim]
    slots = [tree[n] for slots in trainer.server.keeper.slots.values() for tree in slots.values() for n in tables]
    assert one.values * size == sum(trainer.params[n].nbytes for n in tables)
    assert one.server * size == sum(v.nbytes for v in by_row)
    assert one.parts * size == sum(v.nbytes for v in slots)
    kept = getattr(trainer.server.average, "coefficients", {})
    assert one.heat * size == sum({id(v): v.nbytes for v in kept.values()}.values())


def test_rows_that_rounds_touch_are_those_expected():
    method = fs.methods.fedsubavg(clients_per_round=5, **STEPS)
    trainer = played(method)
    problem = trainer.problem
    counts, _ = count(problem, method, "batched")
    scaled = Scaled.of(problem, trainer, counts, None, None, None)
    for rounds in (1, 6, 40):
        unions, clients = [], []
        for seed in range(20):
            drawn = [trainer.server.sampler.select(r, seed, lambda *_: None).clients for r in range(rounds)]  # type: ignore[arg-type]
            some = np.unique(np.concatenate(drawn))
            clients.append(len(some))
            unions.append(len(np.unique(np.concatenate([problem.spaces["item"].rows_of(c) for c in some]))))
        assert scaled.touched("item", rounds) == pytest.approx(np.mean(unions), rel=0.08)
        assert scaled.took_part(rounds) == pytest.approx(np.mean(clients), rel=0.08)


def test_constants_are_found_again_in_times_that_they_made():
    true = dict(zip(UNITS, (5e-4, 6e-6, 1.2e-5, 2e-10, 0.0, 4e-8), strict=True))
    draw = np.random.default_rng(0)
    some = []
    for number in range(12):
        engine = ("serial", "batched")[number % 2]
        calls, size, flops, rows = (int(10 ** draw.uniform(low, low + 3)) for low in (1, 4, 5, 2))
        counts = Counts(engine, calls, size, flops, rows, 1, 1, 1, None)  # type: ignore[arg-type]
        some.append((counts, float(np.dot(list(true.values()), features(counts)))))
    found = fit(some)
    assert found == pytest.approx(true, rel=1e-6, abs=1e-18)
    alone, shared = some[0][0].seconds(fs.Constants(**found))
    assert alone + shared == pytest.approx(some[0][1])


def test_work_in_layers_is_counted():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.items, self.layer, self.out = nn.Embedding(500, 3), nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 1)

        def forward(self, batch):
            return self.out(self.layer(self.items(batch["item"])[:, None])[0][:, -1]).squeeze(-1)

    problem = Problem.bind(fs.Objective(Reads(), fs.losses.binary("label"), {"items.weight": "item"}), DATA)
    assert counted.layer_flops(problem, np.zeros(1, np.int64)) == 6 * (4 * 5 * 3 + 4 * 5 * 5)


@pytest.mark.parametrize(
    ("memory", "machines", "rounds", "kind", "fits"),
    [
        ("64GB", 1, 10, "dense", True),
        ("16GB", 1, 10, "lazy", True),
        ("16GB", 8, 10**9, "sharded", True),
        ("10GB", 2, 10**9, "sharded", False),
    ],
)
def test_tables_are_where_they_fit(memory, machines, rounds, kind, fits):
    method = fs.methods.fedsubavg(clients_per_round=10, **STEPS)
    cluster = fs.Cluster(machines, 4, memory, price_hour=2)
    # Of a billion rows of three values: 24 GB in two copies, 25 with heat and places.
    found = fs.plan(
        method, objective(), DATA, rounds=rounds, population=10**6, rows={"item": 10**9}, cluster=cluster
    )  # fmt: skip
    assert (found.tables, found.fits) == (kind, fits)
    assert found.cost == pytest.approx(machines * rounds * found.seconds / 3600 * 2)
    if kind == "sharded" and fits:
        assert 2 <= found.shards <= machines
        assert found.peak("a shard") <= 0.8 * 16e9
    if not fits:
        assert "does not fit on 2 machines" in str(found)


def test_a_lazy_table_is_planned_as_one():
    class Reads(nn.Module):
        def __init__(self, table):
            super().__init__()
            self.items, self.out = table, nn.Linear(3, 1)

        def forward(self, batch):
            return self.out(self.items(batch["item"])).squeeze(-1)

    method, found = fs.methods.fedsubavg(clients_per_round=10, **STEPS), []
    for table in (fs.Lazy(500, 3, init=fs.inits.Zeros()), nn.Embedding(500, 3)):
        made = fs.Objective(Reads(table), fs.losses.binary("label"), {"items.weight": "item"})
        found.append(fs.plan(method, made, DATA, rounds=2, rows={"item": 10**8}))
    assert found[0].tables == "lazy"
    assert found[0].down == found[1].down
    assert found[0].up == found[1].up
    assert found[0].peak("the driver") < 1e9
    rows = found[0].scaled.reached("item", 60)  # all of them, stretched: hardly two clients name the same
    assert rows == pytest.approx(len(DATA.spaces["item"].rows), rel=0.01)


def test_workers_are_taken_where_they_are_worth_it():
    method = fs.methods.fedsubavg(clients_per_round=60, **STEPS)
    slow = fs.Constants(call=1e-2, serial_call=1e-1)
    alone, several = (fs.plan(method, objective(), DATA, cluster=fs.Cluster(1, c), constants=slow) for c in (1, 8))
    assert (alone.engine, alone.workers) == ("batched", 1)
    assert several.engine == "batched"
    assert fs.plan(method, objective(), DATA, cluster=fs.Cluster(2, 4), constants=slow).engine == "ray"
    assert several.workers == 8
    assert several.seconds < alone.seconds / 4
    assert fs.plan(method, objective(), DATA, cluster=fs.Cluster(1, 8)).workers == 1  # milliseconds


def test_the_command_says_the_same(tmp_path):
    path = tmp_path / "constants.json"
    fs.Constants(start=1.0).save(path)
    assert fs.Constants.open(path) == fs.Constants(start=1.0)
    DATA.save(tmp_path / "data")
    told = [
        "plan", str(tmp_path / "data"), "-m", "fedsubavg", "--rounds", "7", "-k", "5", "--population", "6000",
        "--constants", str(path), "--machines", "2", "--memory", "8GB", "--price-gb", "3",
        "--set", "model.kind=embedding",
    ]  # fmt: skip
    done = CliRunner().invoke(app, [*told, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["clients"] == 6000
    assert found["clients_per_round"] == 5
    assert found["round"]["seconds"] > 1
    wire = 7 * 5 * sum(found["bytes"].values())
    assert found["cost"] == pytest.approx(3 * wire / 1e9)
    shown = CliRunner().invoke(app, told).output
    assert "7 rounds of 5 clients" in shown
    assert "memory of the driver" in shown
    assert "Tables: dense" in shown


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: fs.Cluster(0), "machines"),
        (lambda: fs.Cluster(bandwidth="fast"), "10Gbit/s"),
        (lambda: fs.Constants(share=0), "one worker alone has 1"),
        (lambda: fs.plan(fs.methods.fedsubavg(**STEPS), objective(), DATA, rows={"items": 900}), "item"),
        (lambda: fs.plan(fs.methods.fedsubavg(**STEPS), objective(), DATA, rows={"item": 9}), "as many or more"),
        (lambda: fs.plan(fs.methods.fedmavg(), objective(), DATA), "rounds of its own"),
    ],
)
def test_nonsense_is_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_a_damaged_file_of_constants_is_refused(tmp_path):
    for text in ("[]", '{"fedsub": "constants"}', "{", '{"fedsub": "constants", "start": "x"}'):
        (tmp_path / "c.json").write_text(text)
        with pytest.raises(ConfigError, match="calibrate"):
            fs.Constants.open(tmp_path / "c.json")
    for arguments in (["plan"], ["plan", "movielens-like", "--calibrate", "x"]):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 2
        assert "Name what to plan" in done.output


def test_a_watched_round_is_the_round():
    """Watching changes no number."""
    trainer = played(fs.methods.fedsubavg(clients_per_round=5, **STEPS))
    problem = Problem.bind(objective(), DATA)
    params = problem.params()
    ready = prepare(fs.methods.fedsubavg(clients_per_round=5, **STEPS), problem, params, Options(engine="batched"))
    for number in (1, 2):
        ready.trainer.round(number)
    assert all(torch.equal(params[name], value) for name, value in trainer.params.items())
