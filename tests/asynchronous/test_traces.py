"""Devices from tables of settings and from files, and when they can be reached."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from fleets import played, same

import fedsub as fs
from fedsub import Asynchronous
from fedsub.errors import ConfigError
from fedsub.round.clock.devices import LogNormal, named
from fedsub.round.clock.traces import Windows

EVERYBODY = np.arange(12)


def written(path: Path, table: dict[str, Any]) -> Path:
    frame = pl.DataFrame(table)
    frame.write_parquet(path) if path.suffix == ".parquet" else frame.write_csv(path)
    return path


def test_a_table_of_settings_changes_a_preset() -> None:
    found = named({"like": "phones", "speed": [80.0, 0.2], "latency": 0.1, "online": {"period": 100.0, "share": 0.5}})
    assert found is not None
    assert (found.speed, found.latency, found.online) == (LogNormal(80.0, 0.2), 0.1, Windows(100.0, 0.5))
    assert found.download == fs.costs.phones().download
    for wrong, why in (
        ({"sped": 1.0}, "sped"), ({"speed": [1.0]}, "median, sigma"), ({"online": {"hours": 3}}, "hours"),
        ({"like": "none"}, "preset"), ({"like": "moon"}, "phones"), ({"speed": -1.0}, "speed"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=why):
            named(wrong)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_trace_says_speeds_and_when(tmp_path: Path, ending: str) -> None:
    table = {"client": [1, 0, 1], "speed": [20.0, 10.0, 20.0], "begin": [30.0, 0.0, 0.0], "end": [40.0, 50.0, 10.0]}
    devices = named(written(tmp_path / f"measured.{ending}", table))
    assert devices is not None
    assert devices.name == "measured"
    assert devices.of("speed", np.array([1, 0])).tolist() == [20.0, 10.0]
    both = np.array([0, 1])
    for clock, second in ((5, True), (10, False), (35, True), (49, False), (55, True)):  # again after the last end
        assert devices.there(both, clock).tolist() == [True, second], clock
    with pytest.raises(ConfigError, match="2 clients"):
        devices.of("speed", np.array([2]))


def test_devices_of_a_trace_are_given_out_by_chance(tmp_path: Path) -> None:
    rates = [1.0, 2.0, 4.0]
    devices = named(written(tmp_path / "a.csv", {"device": ["a", "b", "c"], "speed": rates, "upload": rates}))
    assert devices is not None
    many = np.arange(3000)
    speed = devices.of("speed", many)
    assert np.array_equal(speed, devices.of("upload", many))  # one device has both
    assert np.array_equal(speed[50:60], devices.of("speed", many[50:60]))
    assert [abs((speed == value).mean() - 1 / 3) < 0.03 for value in rates] == [True] * 3


def test_traces_that_make_no_sense(tmp_path: Path) -> None:
    for name, (table, why) in enumerate((
        ({"client": [0, 2], "speed": [1.0, 1.0]}, "all numbers from 0"),
        ({"client": [0, 0], "speed": [1.0, 2.0]}, "one number for each client"),
        ({"speed": [1.0]}, "one of client and device"),
        ({"client": [0], "speeed": [1.0]}, "speeed"),
        ({"client": [0], "speed": [0.0]}, "above 0"),
        ({"client": [0], "begin": [1.0]}, "together or neither"),
        ({"client": [0, 0], "begin": [0.0, 3.0], "end": [5.0, 9.0]}, "runs into"),
    )):  # fmt: skip
        with pytest.raises(ConfigError, match=why):
            named(written(tmp_path / f"{name}.csv", table))
    with pytest.raises(ConfigError, match="cannot be read"):
        named(tmp_path / "nowhere.csv")


def test_a_client_begins_only_while_it_can_be_reached(tmp_path: Path) -> None:
    """Half can be reached in the first minute of two, the others in the second."""
    early = EVERYBODY < 6
    table = {"client": EVERYBODY, "begin": np.where(early, 0.0, 60.0), "end": np.where(early, 60.0, 120.0)}
    file = written(tmp_path / "a.csv", table)
    devices = named({"trace": file, "latency": 10.0, "speed": 1e9, "download": 1e9, "upload": 1e9})
    method = Asynchronous(fs.methods.fedavg(lr=0.3, clients_per_round=3, local_steps=2), buffer=3, at_once=False)
    out = tmp_path / "run"
    result = played(method, rounds=12, devices=devices, out=out)
    for record, line in zip(result.history[1:], (out / "traffic.jsonl").read_text().splitlines(), strict=True):
        began = record["clock"] - 20.0
        clients = np.array(json.loads(line)["clients"])
        assert ((clients < 6) == (began % 120.0 < 60.0 - 1e-6)).all()
    again = played(method, rounds=12, devices=devices)
    assert same(result, again)


def test_a_server_waits_until_somebody_can_be_reached() -> None:
    devices = named({"latency": 1.0, "speed": 1e9, "online": {"period": 86_400.0, "share": 0.002}})
    method = Asynchronous(fs.methods.fedavg(lr=0.3, clients_per_round=2, local_steps=2), buffer=1)
    result = played(method, rounds=5, devices=devices)
    assert result.clock()[5] > 1000.0
