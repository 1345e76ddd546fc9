"""Estimated seconds of a run, from its directory, and in reports."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from boxes import PLAIN
from worlds import bag, item_data

import fedsub as fs
from fedsub.errors import CheckpointError, ConfigError
from fedsub.running.run import finished_result
from fedsub.study import costs
from fedsub.study.comparing import Comparison
from fedsub.study.report import csv_rows, png, text_table, time_plot, write_report
from fedsub.study.report import words as w
from fedsub.study.report.table import columns

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
