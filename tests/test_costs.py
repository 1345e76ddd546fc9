"""Cost models: what is counted equals what is sent, and estimated times equal those by hand."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner
from worlds import bag, envelope, item_data

import fedsub as fs
from fedsub.cli import app
from fedsub.errors import CheckpointError, ConfigError
from fedsub.method.batches import draw
from fedsub.method.codecs.wire import encode_rows
from fedsub.method.groups import Cohort
from fedsub.objective.problem import Problem
from fedsub.running.run import finished_result
from fedsub.study import costs
from fedsub.study.comparing import Comparison
from fedsub.study.costs.estimate import samples_trained
from fedsub.study.report import csv_rows, png, text_table, time_plot, write_report
from fedsub.study.report import words as w
from fedsub.study.report.table import columns

PLAIN = costs.Devices("boxes", download=100.0, upload=50.0, latency=0.5, speed=10.0)


# Collectives ---------------------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(0, 60), st.integers(0, 2**32))
def test_the_ring_gives_the_exact_sum_and_sends_what_the_formula_says(k, n, seed):
    vectors = list(np.random.default_rng(seed).integers(-(2**40), 2**40, (k, n)))
    before = [v.copy() for v in vectors]
    results, sent, steps = costs.simulate_ring(vectors)
    for result in results:
        assert np.array_equal(result, np.sum(before, axis=0))
    assert all(np.array_equal(a, b) for a, b in zip(vectors, before, strict=True))  # inputs are left alone
    formula = costs.ring_all_reduce(k, n)
    assert np.array_equal(sent, formula.sent)
    assert steps == formula.steps == 2 * (k - 1)
    assert sent.sum() == formula.total == formula.received.sum() == 2 * (k - 1) * n
    exact = 2 * (k - 1) * n / k
    assert np.all(np.abs(sent - exact) < 2)  # two roundings of a chunk
    if n % k == 0:
        assert np.all(sent == exact)


def test_received_around_the_ring_is_sent_by_the_one_before():
    ring = costs.ring_all_reduce(4, 10)  # chunks 3, 3, 2, 2
    assert ring.sent.tolist() == [15, 16, 15, 14]
    assert ring.received.tolist() == [14, 15, 16, 15]


def test_one_worker_has_nobody_to_send_to():
    alone = costs.ring_all_reduce(1, 1000)
    assert (alone.total, alone.steps, alone.seconds(1e6, 1.0)) == (0, 0, 0.0)
    results, sent, steps = costs.simulate_ring([np.array([3, 4])])
    assert (results[0].tolist(), sent.tolist(), steps) == ([3, 4], [0], 0)


def test_a_ring_worker_sends_no_more_the_more_there_are_but_a_server_gets_more():
    assert [int(costs.ring_all_reduce(k, 1 << 20).sent.max()) >> 10 for k in (2, 4, 1024)] == [1024, 1536, 2046]
    server = costs.parameter_server(8, 100)
    assert (server.server, server.total, server.sent.tolist()) == (1600, 1600, [100] * 8)


def test_latency_and_bandwidth():
    assert costs.parameter_server(8, 0).seconds(1e6, 0.25) == 0.5  # 2 α
    assert costs.ring_all_reduce(8, 0).seconds(1e6, 0.25) == 3.5  # 2 (K − 1) α
    assert costs.parameter_server(8, 1000).seconds(4e3, 0) == 16  # 2 K N values of 4 bytes through one link
    assert costs.ring_all_reduce(8, 1000).seconds(4e3, 0) == 1.75  # 14 chunks of 125


# Submodels -----------------------------------------------------------------------------------------


def test_submodel_round_by_hand():
    clients = item_data()
    problem = Problem.bind(bag(clients, dim=3), clients)
    found = costs.submodel_round(problem)
    ids, ends = clients.column("ids").values, clients.offsets
    rows = np.array([len(np.unique(ids[a:b])) for a, b in pairwise(ends)])
    held = rows * 3 + 4  # rows of 3, and Linear(3, 1)
    total = 20 * 3 + 4
    assert found.parameters == total
    assert found.ratio == pytest.approx(held.mean() / total)
    tree = {"emb.weight": 2, "out.weight": 2, "out.bias": 1}
    down, up = (envelope({f"{name}/{n}": ndim for n, ndim in tree.items()}) for name in ("model", "update"))
    assert found.down == held.sum() * 4 + (envelope({}) + down) * len(clients)
    ids = [len(encode_rows(np.unique(ids[a:b]), 20)) for a, b in pairwise(ends)]
    assert found.ids == sum(ids) + envelope({"rows/ids": 1}) * len(clients)
    sums = sum(4 + len(f"sum/{n}") + 8 for n in ("weight", "count", "loss"))
    assert found.up == found.ids + held.sum() * 4 + (up + sums) * len(clients)
    assert found.full == 2 * total * 4 * len(clients)
    assert found.bytes_ratio == pytest.approx((found.down + found.up) / found.full)
    assert found.sign == (total * 4 + 8 + 3 * 4) * len(clients)
    assert costs.submodel_round(problem, np.array([1, 1])).submodel_parameters == held[1]


def test_signs_and_averagings():
    assert costs.sign_ratio(32) == 1 / 16
    assert costs.sign_ratio(10**9) == pytest.approx(1 / 32)
    assert costs.l2gd_averagings(0.5) == 0.25
    assert costs.l2gd_averagings(0) == costs.l2gd_averagings(1) == 0


# Round time ----------------------------------------------------------------------------------------


def test_round_time_by_hand():
    # client 0: 0.5 + 200/100 + 20/10 + 0.5 + 100/50 = 7; client 1: 0.5 + 1 + 1 + 0.5 + 1 = 4
    work = ([0, 1], [200, 100], [100, 50], [20, 10])
    assert costs.client_seconds(PLAIN, *work).tolist() == [7.0, 4.0]
    assert costs.round_seconds(PLAIN, *work) == 7
    assert costs.round_seconds(PLAIN, *work, quantile=0.5) == 4
    assert costs.round_seconds(PLAIN, *work, deadline=6) == 6
    slow_server = costs.Devices("boxes", 100, 50, 0.5, 10, overhead=1.5)
    assert costs.round_seconds(slow_server, *work) == 8.5
    assert costs.round_seconds(slow_server, [], [], [], []) == 1.5
    by_client = costs.Devices("mixed", [100, 1000], [50, 500], [0.5, 0], [10, 100])
    assert costs.client_seconds(by_client, *work).tolist() == [7.0, 0.1 + 0.1 + 0.1]


def test_nothing_sent_takes_no_latency_and_twice_drawn_is_twice_done():
    assert costs.round_seconds(PLAIN, [3], [0], [0], [20]) == 2
    assert costs.round_seconds(PLAIN, [3], [100], [0], [0]) == 1.5  # dropped out after the download
    assert costs.round_seconds(PLAIN, [3, 3, 4], [0, 0, 0], [0, 0, 0], [20, 10, 20]) == 3


def test_drawn_devices_depend_on_seed_and_client_alone():
    some, more = np.array([7, 3]), np.arange(20_000)
    for name in ("download", "upload", "latency", "speed"):
        every = costs.phones().of(name, more)
        assert np.array_equal(costs.phones().of(name, some), every[some])
        assert not np.array_equal(costs.phones(seed=1).of(name, some), every[some])
    logs = np.log(costs.phones().of("download", more) / 2e6)
    assert abs(logs.mean()) < 0.03
    assert logs.std() == pytest.approx(0.8, rel=0.03)
    up = np.log(costs.phones().of("upload", more))
    assert abs(np.corrcoef(logs, up)[0, 1]) < 0.03
    assert np.all(costs.datacentre().of("download", some) == 1.25e9)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=6),
    st.integers(1, 12),
    st.booleans(),
    st.none() | st.integers(1, 12),
    st.sampled_from(["shuffled", "ordered", "replacement"]),
)
def test_samples_trained_are_those_that_batches_draw(sizes, amount, epochs, batch, batches):
    clients = item_data(sizes)
    how = {"local_steps": None if epochs else amount, "local_epochs": amount if epochs else None}
    how |= {"batch_size": batch, "batches": batches}
    cohort = Cohort.of(np.arange(len(sizes)))
    real = draw(clients, cohort, SimpleNamespace(lr=0.1, **how), round=1, seed=0).weights > 0  # type: ignore[arg-type]
    assert samples_trained(how, cohort.clients, clients.sizes).tolist() == real.sum((1, 2)).tolist()


# From a run's directory ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A comparison of three rounds in a directory, with a method that sends nothing."""
    out = tmp_path_factory.mktemp("kept")
    clients = item_data()
    methods = {
        "FedAvg": fs.methods.fedavg(clients_per_round=4, local_steps=3, batch_size=4),
        "Passes": fs.methods.fedsubavg(clients_per_round=3, local_epochs=2),
        "CentralSGD": fs.methods.centralsgd(clients_per_round=2),
    }
    plan = fs.Evaluate(every=1)
    made = fs.compare(
        methods, bag(clients), clients, rounds=3, seeds=2, out=out, engine="serial", evaluate=plan,
        target="train.ce<=10", devices=PLAIN,
    )  # fmt: skip
    return made, clients, out


def test_estimated_seconds_of_a_run(kept):
    made, clients, out = kept
    lines = [json.loads(line) for line in (out / "fedavg-seed0/traffic.jsonl").read_text().splitlines()]
    clock, expected = 0.0, {0: 0.0}
    for line in lines:
        each = []
        for client, down, up in zip(line["clients"], line["down"], line["up"], strict=True):
            n = int(clients.sizes[client])
            batches = [min(4, n - start) for start in range(0, n, 4)]
            trained = sum((batches * 3)[:3])
            each.append(0.5 + down / 100 + trained / 10 + 0.5 + up / 50)
        clock += max(each)
        expected[line["round"]] = clock
    found = costs.estimated_seconds(out / "fedavg-seed0", PLAIN)
    assert found == pytest.approx(expected)
    assert list(found) == [0, 1, 2, 3]
    result = made.results["FedAvg"][0]
    assert costs.estimated_seconds(result, PLAIN) == found == made.clock(result)
    assert costs.estimated_seconds(out / "passes-seed1", PLAIN)[3] > 0


def _copied(folder, to, *, config=None, edit=None, samples=True):
    to.mkdir()
    lines = [json.loads(line) for line in (folder / "traffic.jsonl").read_text().splitlines()]
    (to / "traffic.jsonl").write_text("".join(json.dumps((edit or (lambda x: x))(x)) + "\n" for x in lines))
    raw = json.loads((folder / "config.json").read_text())
    raw["method"]["local"] |= config or {}
    (to / "config.json").write_text(json.dumps(raw))
    if samples:
        (to / "samples.npy").write_bytes((folder / "samples.npy").read_bytes())
    return to


def test_probed_candidates_are_an_exchange_before_the_round(kept, tmp_path):
    _, clients, out = kept
    probe = {"probed": [1, 5], "probe_down": [100, 300], "probe_up": [50, 50]}
    run = _copied(out / "fedavg-seed0", tmp_path / "a", edit=lambda line: line | probe)
    plain = costs.estimated_seconds(out / "fedavg-seed0", PLAIN)
    asked = max(0.5 + d / 100 + int(clients.sizes[c]) / 30 + 0.5 + 1 for c, d in ((1, 100), (5, 300)))
    assert costs.estimated_seconds(run, PLAIN) == pytest.approx({n: t + n * asked for n, t in plain.items()})
    free = costs.estimated_seconds(run, PLAIN, forward=0)[1] - plain[1]
    assert free == pytest.approx(0.5 + 3 + 0.5 + 1)
    sampler = {"type": "Available", "sampler": {"type": "PowerOfChoice", "variant": "cpow"}}
    raw = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(raw | {"method": raw["method"] | {"sampler": sampler}}))
    one = costs.estimated_seconds(run, PLAIN)[1] - plain[1]
    assert one == pytest.approx(free + 4 / 30)  # client 5 has five samples, a batch is four


def test_without_sizes_steps_times_batch_is_the_most(kept, tmp_path):
    _, _, out = kept
    old = _copied(out / "fedavg-seed0", tmp_path / "old", samples=False)
    exact, most = (costs.estimated_seconds(run, PLAIN)[3] for run in (out / "fedavg-seed0", old))
    assert most >= exact
    with pytest.raises(CheckpointError, match="how many samples each client has"):
        costs.estimated_seconds(_copied(out / "passes-seed0", tmp_path / "e", samples=False), PLAIN)


def test_damaged_directories_are_refused_in_words(kept, tmp_path):
    _, _, out = kept
    run = out / "fedavg-seed0"
    with pytest.raises(CheckpointError, match="names no local_steps"):
        costs.estimated_seconds(_copied(run, tmp_path / "a", config={"local_steps": None}), PLAIN)
    with pytest.raises(CheckpointError, match="lacks 'up'"):
        costs.estimated_seconds(
            _copied(run, tmp_path / "b", edit=lambda x: {k: v for k, v in x.items() if k != "up"}), PLAIN
        )
    with pytest.raises(CheckpointError, match="names client 9999"):
        costs.estimated_seconds(_copied(run, tmp_path / "c", edit=lambda x: x | {"clients": [9999] * 4}), PLAIN)
    with pytest.raises(ConfigError, match=r"no traffic\.jsonl"):
        costs.estimated_seconds(tmp_path, PLAIN)
    with pytest.raises(ConfigError, match="not kept in a directory"):
        costs.estimated_seconds(fs.Result("a", 0, [], {}, 0.0, ""), PLAIN)


# Reports -------------------------------------------------------------------------------------------


def test_table_and_plot(kept, tmp_path):
    made, _, _ = kept
    (column,) = [c for c in columns(made) if c.heading.startswith("estimated")]
    assert column.heading == "estimated time to the target on boxes"
    runs = list(made.results.values())[:2]  # the target holds from the first evaluated round; the third sends nothing
    times = [float(np.mean([made.clock(r)[r.first_round(made.target)] for r in results])) for results in runs]
    assert column.cells == [*map(w.duration, times), "–"]
    assert "estimated" in text_table(made)
    head, *rows = csv_rows(made)
    place = head.index("estimated seconds on boxes: mean")
    assert float(rows[0][place]) == pytest.approx(np.mean([made.clock(r)[3] for r in made.results["FedAvg"]]))
    assert rows[2][place] == ""
    assert [row.get("device_seconds") is None for row in made.rows()] == [False, False, True]
    figure = time_plot(made)
    (axes,) = figure.axes
    assert axes.get_xlabel().startswith("estimated ")
    assert axes.get_xlabel().endswith(" on boxes, summed over the rounds")
    drawn = [line for line in axes.get_lines() if np.size(line.get_xdata()) == 4]
    assert len(drawn) == 2
    page = write_report(made, tmp_path)
    assert (tmp_path / "time-train.ce.png").exists()
    assert "an estimate from assumed bandwidths" in page.read_text()


def test_no_devices_no_estimate(kept, tmp_path):
    made, _, out = kept
    without = Comparison(made.results, made.target, made.metric, devices=None)
    assert not without.timed
    assert not any(c.heading.startswith("estimated") for c in columns(without))
    elsewhere = [finished_result(out / "fedavg-seed0")]
    elsewhere[0].path = None
    lost = Comparison({"a": elsewhere})
    assert not lost.timed
    assert lost.notes == []
    assert png(time_plot(lost, "train.ce")).startswith(b"\x89PNG")
    elsewhere[0].path = tmp_path
    gone = Comparison({"a": elsewhere})
    assert not gone.timed
    assert "without estimated time" in gone.notes[0]
    assert len(gone.notes) == 1
    assert "without estimated time" in text_table(gone)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (1.234, "1.23 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (1e6, "11.6 d"), (math.nan, "–")],
)
def test_durations(seconds, text):
    assert w.duration(seconds) == text


# Bad arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: costs.ring_all_reduce(0, 5), "workers must be a whole number of at least 1, got 0"),
        (lambda: costs.parameter_server(2, -1), "parameters must be a whole number of at least 0, got -1"),
        (lambda: costs.parameter_server(True, 1), "workers must be a whole number of at least 1, got True"),
        (lambda: costs.parameter_server(2, 1).seconds(0, 0), "bandwidth must be positive, got 0"),
        (
            lambda: costs.parameter_server(2, 1).seconds(1, math.nan),
            "latency must be a finite number",
        ),
        (lambda: costs.simulate_ring([]), "no vectors"),
        (lambda: costs.simulate_ring([np.ones(3)]), "on integers"),
        (lambda: costs.simulate_ring([np.arange(3), np.arange(4)]), "Vector 1 has shape"),
        (lambda: costs.simulate_ring([np.array([2**62])] * 2), "below 2\\^63"),
        (lambda: costs.sign_ratio(0), "parameters must be a whole number of at least 1, got 0"),
        (lambda: costs.l2gd_averagings(1.5), "chance of an averaging"),
        (lambda: costs.LogNormal(-1), "median must be positive, got -1"),
        (lambda: costs.Devices("", 1, 1, 1, 1), "name is ''"),
        (lambda: costs.Devices("a", [1, 0], 1, 0, 1), "download holds 0, expected finite numbers above 0"),
        (
            lambda: costs.Devices("a", 1, "fast", 0, 1),  # pyright: ignore[reportArgumentType]
            "upload is 'fast'",
        ),
        (lambda: costs.Devices("a", 1, 1, -1, 1), "latency must be a finite number of at least 0, got -1"),
        (lambda: costs.Devices("a", 1, 1, 0, 1, seed=-1), "seed must be a whole number of at least 0, got -1"),
        (lambda: costs.round_seconds(PLAIN, [0], [1, 2], [1], [1]), "down has the shape"),
        (lambda: costs.round_seconds(PLAIN, [-1], [1], [1], [1]), "numbers of clients"),
        (
            lambda: costs.round_seconds(PLAIN, [0], [1], [1], [1], quantile=2),
            "quantile must be above 0",
        ),
        (lambda: costs.round_seconds(PLAIN, [0], [1], [1], [1], deadline=0), "deadline must be positive, got 0"),
        (
            lambda: costs.round_seconds(costs.Devices("a", [1], 1, 0, 1), [3], [1], [1], [1]),
            "of 1 clients, but client 3",
        ),
        (lambda: costs.named("phone"), "did you mean 'phones'"),
        (lambda: fs.compare({}, None, None, rounds=1, devices="moon"), "devices is 'moon'"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments(call, says):
    with pytest.raises(ConfigError, match=says):
        call()


def test_a_cohort_of_strangers_is_refused():
    clients = item_data()
    with pytest.raises(ConfigError, match="from 0 to 8"):
        costs.submodel_round(Problem.bind(bag(clients), clients), np.array([9]))


# Command line --------------------------------------------------------------------------------------


def fedsub_(*arguments: str, code: int = 0):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result


def test_costs_command():
    said = fedsub_("costs", "-k", "4", "-n", "1000", "--bandwidth", "4000", "--latency", "0.5").stdout
    for expected in ("parameter server", "ring all-reduce", "6 kB", "24 kB", "32 kB", "4.5 s", "9 s"):
        assert expected in said, expected
    found = json.loads(fedsub_("costs", "-k", "4", "-n", "1000", "--json").stdout)["schemes"]
    assert [s["total"] for s in found] == [8000, 6000]
    assert [s["latency_steps"] for s in found] == [2, 6]
    assert "workers must be a whole number of at least 1, got 0" in fedsub_("costs", "-k", "0", code=2).stderr
    assert "--bandwidth" in fedsub_("costs", "--help").stdout


def test_compare_and_resume_take_devices(tmp_path, monkeypatch):
    lines = [f"u{i % 6},i{i % 5},{i % 2}" for i in range(40)]
    (tmp_path / "r.csv").write_text("\n".join(["user,item,liked", *lines]) + "\n")
    monkeypatch.chdir(tmp_path)
    data = ("r.csv", "--client", "user", "--label", "liked", "--table", "item", "--rounds", "3", "-k", "2")
    common = (*data, "--every", "1", "--engine", "serial", "--out", "o", "-m", "fedavg", "--json")
    made = json.loads(fedsub_("run", *common, "--devices", "datacentre").stdout)["methods"][0]
    assert 0 < made["device_seconds"][0] < 0.1
    again = json.loads(fedsub_("resume", "o", "--json").stdout)["methods"][0]
    assert again["device_seconds"] == made["device_seconds"]
    phones = json.loads(fedsub_("resume", "o", "--json", "--devices", "phones").stdout)["methods"][0]
    assert phones["device_seconds"][0] > 0.1
    assert (
        "device_seconds" not in json.loads(fedsub_("resume", "o", "--json", "--devices", "none").stdout)["methods"][0]
    )
    assert '"phones", "datacentre", "none"' in fedsub_("resume", "o", "--devices", "moon", code=2).stderr
