"""The notebooks of the documentation: their cells run, in order, and what the repository holds was run too."""

from __future__ import annotations

import ast
import json
import tempfile
from pathlib import Path
from typing import Any

import matplotlib
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs/notebooks").glob("*.ipynb"))


def code_cells(file: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(file.read_bytes())["cells"] if cell["cell_type"] == "code"]


def test_there_are_two() -> None:
    assert [file.stem for file in NOTEBOOKS] == ["first_comparison", "own_module"]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_it_was_run_from_the_top(file: Path) -> None:
    """What readers see beneath the cells came of these cells, in this order (make notebooks)."""
    cells = code_cells(file)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_its_cells_run(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one namespace, as a kernel runs them; a last expression is shown there, and must be printable here."""
    monkeypatch.chdir(tmp_path)
    real = tempfile.mkdtemp  # fedsub itself asks for folders of its own, with a prefix
    monkeypatch.setattr("tempfile.mkdtemp", lambda *asked: real(*asked) if asked else str(tmp_path))
    matplotlib.use("agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in code_cells(file):
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, file.name, "exec"), names)
        if isinstance(last, ast.Expr):
            assert repr(eval(compile(ast.Expression(last.value), file.name, "eval"), names))
    {"first_comparison": first_comparison, "own_module": own_module}[file.stem](names)


def first_comparison(names: dict[str, Any]) -> None:
    """What its text says of what came out."""
    assert names["cold"]["FedSubAvg"] < names["cold"]["FedAvg"]
    comparison = names["comparison"]
    assert all(r.first_round("train.ce<=0.66") for r in comparison.results["FedSubAvg"])
    assert names["page"].exists()


def own_module(names: dict[str, Any]) -> None:
    """A taste for each beats one for all, and what is recommended is liked more than what is not."""
    best = {label: result.best("test.auc") for label, (result,) in names["comparison"].results.items()}
    assert best["a taste for each"] > best["one taste for all"] + 0.1
    assert sum(names["truth"]) / len(names["truth"]) > names["blind"] + 0.5
    assert (names["exported"].path / "score.py").exists()
