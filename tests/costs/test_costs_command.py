"""`fedsub costs`, and devices on other commands."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from fedsub.cli import app


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


def test_a_model_on_several_workers():
    said = fedsub_(
        "costs", "-k", "4", "--layers", "8", "--width", "256", "--batch", "16", "--micro-batches", "4"
    ).stdout
    for expected in ("data parallel", "pipeline", "tensor split", "in pairs", "42.9%", "524 kB"):
        assert expected in said, expected
    found = json.loads(fedsub_("costs", "-k", "4", "--layers", "3", "--width", "256", "--json").stdout)
    assert [s["name"] for s in found["schemes"]] == ["data parallel", "tensor split"]
    assert "4 workers cannot each have one of 3 layers" in found["left_out"][0]
    assert "no pairs" in found["left_out"][1]


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
