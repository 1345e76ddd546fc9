"""The examples run, and say what their texts promise."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, *args: str) -> str:
    done = subprocess.run([sys.executable, EXAMPLES / name, *args], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_example1(tmp_path) -> None:
    text = run("example1.py", str(tmp_path / "picture.png"))
    assert text.count("training agrees to 1e-12") == 2
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_own_data() -> None:
    assert "FedSubAvg" in run("own_data.py")


def test_fedper() -> None:
    text = run("fedper.py")
    rows = [line for line in text.splitlines() if line.startswith("Fed")]
    means = {row.split("  ")[0]: float(row.split()[-4].rstrip("*")) for row in rows}  # AUC, mean over clients
    assert means["FedPer, heat"] > max(means["FedAvg"], means["FedSubAvg"]) + 0.1, text
    before, after = (float(a) for a in re.findall(r"(0\.\d+) with", text))
    assert after > before + 0.1, text


def test_clusters(tmp_path) -> None:
    text = run("clusters.py", str(tmp_path / "picture.png"))
    assert all(float(a) >= 0.9 for a in re.findall(r"accuracy (\S+)", text)), text
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_fedmavg_on_generated_ratings(tmp_path) -> None:
    text = run("fedmavg.py", "-", str(tmp_path), "6")
    assert text.count("submodel, ") == 12  # two tables of six
    assert (tmp_path / "submodels.png").stat().st_size > 10_000


def test_mixture(tmp_path, monkeypatch) -> None:
    """Small forms of the commands: near the lower bound, MAML's second order, a picture."""
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example, bounds = (importlib.import_module(name) for name in ("mixture", "mixture_bounds"))
    functions = example.Logistic(example.breast_cancer("sorted"), kappa=1e2, batch_size=5)
    shares = (1e-3, 1.0, 10.0)
    found = bounds.multiples(functions, shares, bounds.EXACT)
    for epsilon in bounds.EPSILONS:
        assert max(bounds.better(found, epsilon, "distances", share)[0] for share in shares) < 3
    L = functions.constants.L
    near, far = (example.mixture.maml_gap(functions, functions.optima([lam])[0], lam) for lam in (32 * L, 64 * L))
    assert near / far == pytest.approx(4, rel=0.03)
    example.methods(tmp_path, most=40)
    assert (tmp_path / "methods.png").stat().st_size > 10_000


def test_node() -> None:
    text = run("node.py")
    assert text.endswith("the same model as a simulation, bit for bit\n")
    assert text in (EXAMPLES.parent / "docs/nodes.md").read_text()  # the page shows what comes out


@pytest.mark.slow
def test_din_of_two_parties() -> None:
    text = run("din_two_parties.py", "--scale", "0.02")
    split, central, alone = (float(line.split()[-1]) for line in text.splitlines()[-3:])
    assert abs(split - central) < 1e-4
    assert split > alone + 0.02


@pytest.mark.slow
def test_samples_that_one_party_has_alone() -> None:
    lines = run("unaligned.py", "--impressions", "200000", "--aligned", "0.05", "--steps", "200").splitlines()
    assert re.fullmatch(r"5% of \d\d,\d{3} clicks are shared: \d{3}", lines[0])
    found = {line[:14].strip(): line[14:].split() for line in lines[1:]}
    assert list(found) == ["at best", "alone", "alone, all", "shared only", "own head", "students"]
    assert float(found["shared only"][1]) > float(found["alone"][1])
    assert found["shared only"][3] == "–"
    assert float(found["own head"][3]) > float(found["alone"][3]) + 0.02


def test_new_part() -> None:
    assert "leashed" in run("new_part.py")


def test_convex() -> None:
    text = run("convex.py", "15")
    far = [float(m[1]) for m in re.finditer(r"ends ([\d.]+)% from the optimum", text)]
    uniform, sorted_ = far[:3], far[3:]
    assert sorted_[0] > 4 * uniform[0]  # FedAvg
    assert sorted_[0] > sorted_[1] > 5 * sorted_[2]  # FedProx, Scaffold


@pytest.mark.skipif("FEDSUB_DATA" not in os.environ, reason="FEDSUB_DATA names no folder with data sets")
def test_movielens_reaches_the_published_loss() -> None:
    lines = len((EXAMPLES / "movielens.py").read_text().splitlines())
    assert lines <= 30
    text = run("movielens.py", os.path.join(os.environ["FEDSUB_DATA"], "movielens-1m"))
    assert "dispersion: 4,331" in text
    first = {m[1]: eval(m[2]) for m in re.finditer(r"(\w+) reaches 0.650 first in round (\[.*\])", text)}
    assert first["FedAvg"] == [None, None, None]
    assert all(85 <= r <= 130 for r in first["FedSubAvg"]), first


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("sentiment.py", marks=pytest.mark.slow),
        "amazon.py",
        pytest.param("taobao.py", marks=pytest.mark.slow),
    ],
)
def test_tasks_run_on_their_twins(name: str) -> None:
    lines = run(name, "2").splitlines()
    assert {"FedAvg", "FedSubAvg"} <= {line.split("  ")[0].split(",")[0] for line in lines}
