"""`fedsub privacy`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from noisy import method, train
from typer.testing import CliRunner

import fedsub as fs
from fedsub.cli import app
from fedsub.privacy.accounting import calibrate, epsilon
from fedsub.privacy.heat import RandomizedResponse
from fedsub.privacy.spending import Spend


def call(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["privacy", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def values(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["privacy", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_plan_from_noise_and_from_epsilon(tmp_path: Path) -> None:
    once = values("plan", "--noise", "1.1", "--rounds", "100", "-k", "50", "--clients", "1000")
    at = {row["rounds"]: row for row in once["table"]}
    for accountant in ("rdp", "pld"):
        spent = epsilon([Spend.gaussian("", 1.1, rate=0.05, times=100)], 1e-5, accountant)
        assert at[100][accountant] == pytest.approx(spent)
    assert [row["rdp"] for row in once["table"]] == sorted(row["rdp"] for row in once["table"])
    picture = tmp_path / "plan.png"
    back = values("plan", "--epsilon", "4", "--rounds", "100", "--rate", "0.05", "--heat", "1", "--out", str(picture))
    assert back["noise"] == pytest.approx(calibrate(4.0, 1e-5, 100, 0.05, (Spend.pure("heat", 1.0),)))
    both = values("plan", "--noise", "9", "--rounds", "9", "--rate", "1", "--heat", "1", "--row-sets", "54")
    alone = values("plan", "--noise", "9", "--rounds", "9", "--rate", "1")
    assert [row["rdp"] - 55 for row in both["table"]] == pytest.approx([row["rdp"] for row in alone["table"]])
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rounds", "9", "--rate", "0.1"), "--noise or --epsilon"),
        (("--rounds", "9", "--noise", "1"), "Give --rate"),
        (("--rounds", "9", "--noise", "1", "--rate", "0.1", "-k", "5"), "leave -k"),
        (("--rounds", "9", "--noise", "1", "--rate", "1.5"), "between 0 and 1"),
        (("--rounds", "9", "--epsilon", "1", "--rate", "0.1", "--heat", "2"), "spent before the first round"),
    ],
)
def test_a_plan_that_makes_no_sense(arguments: tuple[str, ...], said: str) -> None:
    assert said in " ".join(call("plan", *arguments, code=2).split())


def test_what_a_run_has_spent(tmp_path: Path) -> None:
    result = train(method(fs.CentralDP(clip=0.3, noise=1.0, epsilon=9.0)), rounds=4, out=tmp_path / "runs" / "one")
    found = values("spent", str(tmp_path / "runs"))
    (one,) = found.values()
    assert one["epsilon"] == pytest.approx(result.privacy["epsilon"])
    assert one["spends"] == result.privacy["spends"]
    assert "4 × noise 1 at rate 0.3333" in " ".join(call("spent", str(tmp_path / "runs" / "one")).split())
    open_ended = fs.OverHolders("clients", heat=RandomizedResponse(1.0))
    train(method(fs.CentralDP(clip=0.3, noise=1.0), average=open_ended), rounds=1, out=tmp_path / "bits")
    assert "inf" in call("spent", str(tmp_path / "bits"))  # no bound on a client's answers
    train(method(fs.SecureSum(0.5, rows="perturbed:2")), rounds=1, out=tmp_path / "names")
    said = " ".join(call("spent", str(tmp_path / "names")).split())
    assert "row sets by permanent response" in said
    assert "are not private" in said
    assert "holds no privacy.json" in " ".join(call("spent", str(tmp_path / "none"), code=2).split())
    (tmp_path / "runs" / "one" / "privacy.json").write_text("{")
    assert "is damaged" in " ".join(call("spent", str(tmp_path / "runs"), code=2).split())


def test_the_audit_is_one_call() -> None:
    found = values("audit", "--noise", "0", "--canaries", "200", "--rounds", "2", "--rate", "1")
    assert found["upper"] is None
    assert found["correct"] == found["guesses"] == 40
    assert found["lower"] > 1
