"""The benchmark on tiny workloads: every contender runs, and those that do the same work agree."""

import io
import json
import sys
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rich.console import Console

from fedsub import methods
from fedsub.data.twins import TWINS
from fedsub.errors import ConfigError
from fedsub.method.batches import draw
from fedsub.method.groups import Cohort
from fedsub.study import bench
from fedsub.study.bench import gossip, growth, mixture, secure, zoo
from fedsub.study.bench.contenders import CentralSGD, DeepcopyLoop, Federated, auto_choice, federated_method
from fedsub.study.bench.timing import interleave
from fedsub.study.bench.workloads import WORKLOADS, Workload, sentences

SMALL = {
    "w1": WORKLOADS["w1"].scaled(30, 1009, cohort=4, steps=3),
    "w2": WORKLOADS["w2"].scaled(8, 200, cohort=2, steps=2, make_data=partial(sentences, words=4)),
    "w3": WORKLOADS["w3"].scaled(12, 501, cohort=3, steps=2, batch=8),
}


@pytest.fixture(params=SMALL)
def small(request) -> Workload:
    return SMALL[request.param]


def test_ids_are_rows_and_padding_is_only_where_declared(small):
    data = small.data
    assert data.ids.min() >= 0
    assert data.ids.max() < small.rows
    if small.padding:
        assert (data.ids[:, 0] > 0).all()
        assert (data.ids[:, 1:6] > 0).all()
        assert 0.3 < (data.ids[:, 6:] == 0).mean() < 0.7
    again = data.clients.gather(np.arange(50), ["ids", "label"], local=False)
    np.testing.assert_array_equal(again["ids"], data.ids[:50])
    np.testing.assert_array_equal(again["label"], data.labels[:50])


def test_centralsgd_lowers_the_loss():
    central = CentralSGD(SMALL["w1"])
    batch = {"ids": torch.from_numpy(central.data.ids.astype(np.int64))}
    labels = torch.from_numpy(central.data.labels)
    loss = lambda: F.binary_cross_entropy_with_logits(central.module(batch), labels).item()  # noqa: E731
    before = loss()
    for number in range(20):
        central.round(number)
    assert loss() < before


class SameBatches(DeepcopyLoop):
    """The deepcopy loop on the cohort and batches that fedsub draws."""

    def __init__(self, workload, method):
        super().__init__(workload)
        self.method = method

    def cohort(self, number):
        sizes = self.data.clients.sizes
        return self.method.sampler.bind(sizes).select(number, 0, lambda clients, batch: clients).clients.tolist()

    def samples(self, number, client):
        cohort = Cohort.of(np.array([client]))
        batches = draw(self.data.clients, cohort, self.method.local, round=number, seed=0)
        assert (batches.weights > 0).all()  # no padding
        return batches.samples[0]


def test_serial_batched_and_the_deepcopy_loop_reach_the_same_parameters(small):
    method = federated_method(small, methods.fedavg, weighting="clients")
    loop = SameBatches(small, method)
    serial, batched = (Federated(small, engine, method=method) for engine in ("serial", "batched"))
    assert batched.trainer.engine.name == "batched"
    start = {name: p.clone() for name, p in loop.params.items()}
    for number in (1, 2):
        for contender in (loop, serial, batched):
            contender.round(number)
    for name, expected in loop.params.items():
        # On the moved distance, not on the values: a small update must not hide behind large weights.
        moved = float((expected - start[name]).abs().max())
        # A constant added to all attention scores changes nothing, so their bias has no gradient.
        assert moved > 0 or name == "attention.4.bias"
        for got in (serial.params[name], batched.params[name]):
            assert float((got - expected).abs().max()) <= 1e-4 * moved + 1e-6, name


def test_fedsubavg_is_the_same_in_both_engines():
    serial, batched = (Federated(SMALL["w1"], engine) for engine in ("serial", "batched"))
    for number in (1, 2):
        serial.round(number)
        batched.round(number)
    for name, expected in serial.params.items():
        torch.testing.assert_close(batched.params[name], expected, rtol=1e-4, atol=1e-5)


def test_contenders_take_turns():
    seen = []

    class Fake:
        def __init__(self, name):
            self.name = name

        def round(self, number):
            seen.append((self.name, number))

    timed = interleave([Fake("a"), Fake("b")], 2, burst=2, warm_up=1, sparing={"b": 1})
    assert seen == [
        ("a", 1), ("b", 1),
        ("a", 2), ("a", 3), ("b", 2),
        ("a", 4), ("a", 5),
    ]  # fmt: skip
    assert [len(t.rounds) for t in timed.values()] == [4, 1]


def test_auto_says_which_engine_and_why():
    name, reason = auto_choice(SMALL["w1"])
    assert name in ("serial", "batched")
    assert name in reason


def test_main_prints_one_json_object(monkeypatch, capsys):
    monkeypatch.setattr(bench, "WORKLOADS", SMALL)
    monkeypatch.setattr(bench, "TURNS", {})
    bench.main(["w1"], rounds=1, compiled=False, growth=False, json=True)
    found = json.loads(capsys.readouterr().out)["workloads"]["w1"]
    assert set(found["contenders"]) == {"central", "deepcopy", "serial", "batched"}
    assert found["contenders"]["central"]["x_central"] == 1
    bench.main(["w1"], rounds=1, compiled=False, growth=False)
    assert "fedsub batched" in capsys.readouterr().out


def test_growth_clients_hold_exactly_their_rows():
    clients = growth.make_clients(7, 5000)
    space = clients.spaces["ids"]
    for client in range(7):
        rows = space.rows_of(client)
        assert len(rows) == growth.HELD
        assert (np.diff(rows) > 0).all()
        own = slice(client * growth.SAMPLES, (client + 1) * growth.SAMPLES)
        assert set(clients.columns["ids"].values[own].reshape(-1)) == set(range(growth.HELD))
    assert space.rows.max() < 5000


def test_bytes_do_not_change_with_the_table():
    reports = [growth.make_trainer(40, rows).round(1) for rows in (3000, 30_000)]
    np.testing.assert_array_equal(reports[0].down, reports[1].down)
    # But for the ids: the differences between rows of a larger table may take a byte more each.
    more = reports[1].up - reports[0].up
    assert (more >= 0).all()
    assert (more <= growth.HELD).all()


def test_growth_is_measured_in_a_process_of_its_own():
    (found,) = growth.measure([[(40, 3000)]], rounds=2, warm_up=1)
    assert len(found.rounds) == 2
    assert found.ratio == 1
    assert found.down < found.up  # ids cross once, upwards
    assert found.peak > found.table_bytes


def test_the_zoo_runs_every_method_beside_plain_fedsubavg(monkeypatch, capsys):
    monkeypatch.setattr(bench, "WORKLOADS", SMALL)
    monkeypatch.setattr(zoo, "TURNS", {})
    bench.main(["w1"], rounds=1, growth=False, zoo=True, json=True)
    found = json.loads(capsys.readouterr().out)["workloads"]["w1"]["methods"]
    assert set(found) == set(zoo.ZOO)
    plain = found["FedSubAvg"]
    assert (plain["x_plain"], plain["bar"], plain["held"]) == (1, None, None)
    assert found["Scaffold II"]["bar"] == 1.6
    assert all(one["held"] == (one["judged"] <= one["bar"]) for one in found.values() if one["bar"] is not None)
    assert {name for name, one in found.items() if one["bar"] is None} == {"FedSubAvg", "pow-d", "cpow-d"}


@pytest.mark.slow
def test_the_zoo_prints_tables(capsys):
    from rich.console import Console

    found = zoo.run(SMALL["w1"], rounds=1, names=["server Adam", "ucb"])
    Console(width=120).print(zoo.table(SMALL["w1"], found))
    large = zoo.run_large(clients=40, rows=3000, rounds=1, warm_up=1)
    Console(width=120).print(zoo.large_table(large))
    printed = capsys.readouterr().out
    assert "server Adam" in printed
    assert "3,000 rows" in printed
    assert [one["settings"].get("server") for one in large] == [None, "adam", "yogi", "adagrad"]


def test_the_mixture_is_measured_beside_a_central_step(monkeypatch, capsys):
    real = mixture.run
    monkeypatch.setattr(mixture, "run", lambda **options: real(scale=0.02, **options))
    bench.main(rounds=1, mixture=True, json=True)
    found = json.loads(capsys.readouterr().out)["mixture"]
    assert set(found["contenders"]) == {"central", "local", "averaging", "iteration"}
    assert found["samples"] == 5 * found["clients"]
    local, averaging = (found["contenders"][k]["cpu"] for k in ("local", "averaging"))
    expected = (1 - found["p"]) * local + found["p"] * averaging
    assert found["contenders"]["iteration"]["cpu"] == pytest.approx(expected)
    assert found["held"] == (found["contenders"]["iteration"]["x_central"] <= found["bar"])
    bench.main(rounds=1, mixture=True)
    assert "averaging iteration" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="data of its own"):
        bench.main(["w1"], mixture=True)


def test_gossip_is_measured_beside_fedavg(monkeypatch, capsys):
    real = gossip.run
    monkeypatch.setattr(gossip, "run", lambda **options: real(scale=0.02, **options))
    bench.main(rounds=1, gossip=True, json=True)
    found = json.loads(capsys.readouterr().out)["gossip"]
    assert found["clients"] == 121
    assert found["contenders"]["FedAvg"]["x_fedavg"] == 1
    assert found["held"] == all(one["x_fedavg"] <= 2 for one in found["contenders"].values())
    for words in ({"mixture": True}, {"zoo": True}, {"names": ["w1"]}):
        with pytest.raises(ConfigError, match="has data of its own"):
            bench.main(**{"gossip": True, **words})


def test_the_mixture_averages_when_the_coin_says_so():
    trainer = mixture.make_trainer(TWINS["movielens-like"].make(scale=0.02))
    local, averaging = (mixture.Iteration("", trainer, averaging=a) for a in (False, True))
    for number in (1, 2):
        local.round(number)
    assert int(trainer.solved.numbers["gradients"]) == 2 * len(trainer.problem.clients)
    averaging.round(1)
    assert int(trainer.solved.numbers["communications"]) == 1
    assert int(trainer.solved.numbers["gradients"]) == 2 * len(trainer.problem.clients)


@pytest.mark.parametrize("name", WORKLOADS)
def test_reference_workloads_are_batched(name):
    """Also where small updates stand beside large weights of clients, whose rounding is as large."""
    assert Federated(WORKLOADS[name], "batched").reason == "engine batched: agrees with serial on two clients"


def test_a_secure_sum_is_measured(capsys):
    """Every stage takes time, the ratios are those of the least turns, and the table says them."""
    found = secure.run(rounds=2, clients=4, values=2000)
    assert [len(found[name]) for name in (*secure.MEASURED, "flower")] == [2, 2, 2, 2, 2, 2, 0]
    assert all(turn[stage] > 0 for turn in found["client"] for stage in secure.STAGES)
    figures = secure.figures(found)
    assert figures["client_per_masks"] == min(sum(t.values()) for t in found["client"]) / min(found["masks"])
    assert figures["masks_speed"] == min(found["chacha"]) / min(found["masks"])
    assert found["bytes"]["up"] > found["bytes"]["plain"] == 8000
    out = Console(width=200, file=io.StringIO())
    out.print(secure.table(found))
    assert "a client / its masks" in out.file.getvalue()  # type: ignore[attr-defined]


def test_a_secure_sum_is_measured_beside_flower_only_where_there_is_one(tmp_path):
    bare = tmp_path / "python"  # one that sees no packages
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(ConfigError, match="takes a Python that has flwr"):
        secure.run(rounds=1, clients=3, values=100, flower=str(bare))
    with pytest.raises(ConfigError, match="add --secure"):
        bench.main(flower=sys.executable)
    with pytest.raises(ConfigError, match="data of its own"):
        bench.main(["w1"], secure=True)


def test_ingest_beside_polars_in_little():
    from fedsub.study.bench import ingest

    found = ingest.run(rounds=1, rows=20_000, memory="600MB", workers=2)
    assert found["clients"] == 500
    assert found["fedsub"][0]["fingerprint"] == found["memory_path"][0]["fingerprint"]
    assert ingest.figures(found)["peak"] < 600e6
    assert "20,000 rows" in str(ingest.table(found).title)
