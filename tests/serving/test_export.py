"""A folder that scores without fedsub: the same numbers, in a process in which fedsub cannot be imported."""

from __future__ import annotations

import csv
import json
import runpy
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file
from shop import CLIENTS, FRAME, train
from torch import nn
from typer.testing import CliRunner

import fedsub as fs
from fedsub.cli import app
from fedsub.errors import ConfigError, MissingExtra
from fedsub.serving import graph

ALONE = """
import runpy, sys
for name in ("fedsub", "polars", "pandas", "numpy", "pydantic", "typer"):
    sys.modules[name] = None  # importing it fails
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def alone(*arguments: object, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    code = ALONE if python == sys.executable else ALONE.replace("sys.modules[name] = None", "pass")
    words = [str(a) for a in arguments]
    return subprocess.run([python, "-I", "-c", code, *words], capture_output=True, text=True, check=False)


def numbers(path: Path, name: str, separator: str = ",") -> np.ndarray:
    with path.open(encoding="utf-8-sig", newline="") as file:
        cells = [row[name] for row in csv.DictReader(file, delimiter=separator)]
    return np.array([float(cell) if cell else np.nan for cell in cells])


def scored(folder: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """By its command, in this process, which has imported torch already."""
    out = folder / "scored.csv"
    monkeypatch.setattr(sys, "argv", ["score.py", str(data), "--out", str(out)])
    runpy.run_path(str(folder / "score.py"), run_name="__main__")
    return numbers(out, "score")


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.allclose(a, b, atol=1e-6, rtol=0, equal_nan=True) and not np.isnan(a).all()


def raw_csv(path: Path) -> Path:
    """Semicolons, a mark of the encoding, ratings from 1 to 5, decimal commas, gaps, rows that come twice, times."""
    draw = np.random.default_rng(0)
    rows = ["user;item;rating;when;age"]
    for k in range(600):
        when = f"2024-0{draw.integers(1, 9)}-1{draw.integers(0, 9)} 12:00:0{draw.integers(0, 9)}"
        row = [f"u{draw.integers(0, 30)}", f"sku-{min(int(draw.zipf(1.4)), 90)}", str(draw.integers(1, 6)), when,
               f"{draw.normal():.3f}".replace(".", ",")]  # fmt: skip
        if k % 41 == 0:
            row[k % 3] = ""
        rows += [";".join(row)] * (2 if k % 50 == 0 else 1)
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(rows).encode() + b"\r\n")
    return path


def by_commands(folder: Path) -> tuple[Path, Path]:
    """(exported folder, predicted scores) of a raw CSV, as the tutorial has it."""
    data = raw_csv(folder / "ratings.csv")
    columns = ["--client", "user", "--label", "rating>=4", "--table", "item", "--value", "age", "--nulls", "drop"]
    split = ["--split", "time", "--time-column", "when"]
    out = str(folder / "runs")
    for command in (
        ["run", str(data), *columns, *split, "-m", "fedsubavg", "--rounds", "5", "--out", out, "-q"],
        ["predict", out, str(data), "--out", str(folder / "predicted.csv")],
        ["export", out, str(folder / "exported"), "--no-onnx"],
    ):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    return folder / "exported", folder / "predicted.csv"


def test_from_a_raw_csv_to_scores_without_fedsub(tmp_path: Path):
    exported, predicted = by_commands(tmp_path)
    done = alone(exported / "score.py", tmp_path / "ratings.csv", "--out", tmp_path / "scored.csv")
    assert done.returncode == 0, done.stderr
    for name in ("score", "probability"):
        assert same(numbers(tmp_path / "scored.csv", name, ";"), numbers(predicted, name, ";"))
    before, after = (tmp_path / n for n in ("ratings.csv", "scored.csv"))
    rows = [r.removeprefix("\ufeff") for r in before.read_text().splitlines()]
    assert [r.rsplit(";", 2)[0] for r in after.read_text().splitlines()] == rows
    assert "rows have no 'item'" in done.stderr
    listed = recommended(tmp_path / "runs", "u3")
    raw = pl.read_csv(tmp_path / "ratings.csv", separator=";").filter(pl.col("rating").is_not_null())
    assert len(listed) == 4
    assert not set(listed) & set(raw.filter(pl.col("user") == "u3")["item"])
    assert listed == fs.recommend(tmp_path / "runs", "u3", top=4, data=raw)["item"].to_list()


def recommended(run: Path, client: str) -> list[str]:
    done = CliRunner().invoke(app, ["recommend", str(run), "--client", client, "--top", "4", "--json"])
    assert done.exit_code == 0, done.output
    return [row["item"] for row in json.loads(done.stdout)["recommended"]]


@pytest.mark.slow
def test_the_same_in_a_fresh_environment(tmp_path: Path):
    """With torch and safetensors alone."""
    venv.create(tmp_path / "fresh", with_pip=True)
    python = str(tmp_path / "fresh/bin/python")
    wanted = [f"torch=={torch.__version__}", "safetensors"]
    got = subprocess.run([python, "-m", "pip", "install", "-q", *wanted], capture_output=True, text=True, check=False)
    if got.returncode:
        pytest.skip(f"pip cannot install torch here: {got.stderr[-200:]}")
    exported, predicted = by_commands(tmp_path)
    done = alone(exported / "score.py", tmp_path / "ratings.csv", "--out", tmp_path / "scored.csv", python=python)
    assert done.returncode == 0, done.stderr
    assert same(numbers(tmp_path / "scored.csv", "score", ";"), numbers(predicted, "score", ";"))


def test_what_the_folder_holds(tmp_path: Path):
    result = train(tmp_path / "run")
    made = fs.export(tmp_path / "run", tmp_path / "out", onnx=False)
    assert set(made.files) == {
        "model.safetensors", "config.json", "score.py", "vocabulary/item.parquet", "vocabulary/item.json",
        "vocabulary/genre.parquet", "vocabulary/genre.json",
    }  # fmt: skip
    assert {str(p.relative_to(made.path)) for p in made.path.rglob("*") if p.is_file()} == set(made.files)
    state = load_file(made.path / "model.safetensors")
    expected = result.module().state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[n], expected[n]) for n in state)
    ids = CLIENTS.spaces["genre"].vocabulary
    assert ids is not None
    frame = pl.read_parquet(made.path / "vocabulary/genre.parquet")
    assert frame["row"].to_list() == list(range(len(ids)))
    assert frame["id"].to_list() == ids.tolist() == json.loads((made.path / "vocabulary/genre.json").read_text())
    config = json.loads((made.path / "config.json").read_text())
    assert config["run"] == fs.load(tmp_path / "run").config
    assert config["columns"]["age"] == {"space": None, "kind": "one", "width": 1, "dtype": "float32"}
    source = (made.path / "score.py").read_text()
    imports = {line.split()[1].split(".")[0] for line in source.splitlines() if line.startswith(("import ", "from "))}
    assert imports - set(sys.stdlib_module_names) == {"torch", "safetensors"}
    with pytest.raises(ConfigError, match="is there already"):
        fs.export(tmp_path / "run", tmp_path / "out")


def test_personal_models_and_that_of_one_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    result = train(tmp_path / "run", personal=["own.*", "weights.t_item.weight"], own_bias=True)
    rows = pl.concat(
        [FRAME.drop("liked"), FRAME.drop("liked").head(2).with_columns(user=pl.lit("new"), item=pl.lit("x"))]
    )
    rows.write_csv(tmp_path / "rows.csv")
    expected = fs.predict(tmp_path / "run", rows).frame["score"].to_numpy()
    made = fs.export(result, tmp_path / "all", onnx=False)
    assert "12 clients have of their own" in made.notes[0]
    assert same(scored(made.path, tmp_path / "rows.csv", monkeypatch), expected)
    one = fs.export(tmp_path / "run", tmp_path / "one", client="u4", onnx=False)
    assert not {"personal.safetensors", "clients.json"} & set(one.files)
    mine = rows.filter(pl.col("user") == "u4").drop("user")
    mine.write_csv(tmp_path / "mine.csv")
    found = scored(one.path, tmp_path / "mine.csv", monkeypatch)
    assert same(found, expected[(rows["user"] == "u4").to_numpy()])


class Pair(nn.Module):
    """A constant in its forward, a buffer that is not saved, several inputs, a table that two names share."""

    def __init__(self, items: int):
        super().__init__()
        self.items = nn.Embedding(items, 2)
        self.again = nn.Embedding(items, 2)
        self.again.weight = self.items.weight
        self.register_buffer("shift", torch.tensor([0.25, -0.5]), persistent=False)
        self.norm = nn.BatchNorm1d(2, track_running_stats=False)

    def forward(self, item, age):
        both = (self.items(item) + self.again(item) * age.unsqueeze(-1) + self.shift) * torch.tensor([1.0, 3.0])
        return both.tanh().sum(-1)


class Branching(nn.Module):
    """Which way it goes depends on values."""

    def __init__(self, items: int):
        super().__init__()
        self.items = nn.Embedding(items, 1)

    def forward(self, batch):
        said = self.items(batch["item"]).squeeze(-1)
        return said if float(said.detach().sum()) > 0 else said * 2


def own(module: nn.Module, **options) -> fs.Result:
    objective = fs.Objective(module, fs.losses.binary("liked"), {"items.weight": "item"}, unused=("genre",), **options)
    return fs.run(fs.methods.fedsubavg(lr=0.5, clients_per_round=6), objective, CLIENTS, rounds=2, engine="serial")


def test_a_module_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    result = own(Pair(CLIENTS.size("item")), inputs=("item", "age"))
    made = fs.export(result, tmp_path / "out", onnx=False)
    assert "constants.safetensors" in made.files
    rows = pl.concat([FRAME, FRAME.head(1).with_columns(item=pl.lit("unseen"))])
    expected = fs.predict(result, rows).frame["score"].to_numpy()
    model = standalone(made.path, monkeypatch).Model()
    assert same(np.array(model.score(rows.select("item", "age").to_dict(as_series=False))["score"]), expected)
    assert model.counts["unknown"] == {"item": 1}


def standalone(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "score", raising=False)
    import score  # type: ignore[import-not-found]

    return score


def test_a_module_that_cannot_be_traced_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    result = own(Branching(CLIENTS.size("item")))
    made = fs.export(result, tmp_path / "out")
    assert "torch.export cannot write the module down" in made.notes[0]
    assert "Model(module=…)" in made.notes[0]
    assert "model.onnx" not in made.files
    score = standalone(made.path, monkeypatch)
    rows = FRAME.head(9)
    found = score.Model(module=Branching(CLIENTS.size("item"))).score({"item": rows["item"].to_list()})
    assert same(np.array(found["score"]), fs.predict(result, rows).frame["score"].to_numpy())
    with pytest.raises(RuntimeError, match="give its module"):
        score.Model().score({"item": rows["item"].to_list()})
    with pytest.raises(graph.NotTraced, match=r"torch\.export cannot"):
        fs.export(result, tmp_path / "again", onnx=True)


@pytest.mark.slow
def test_onnx_says_the_same(tmp_path: Path):
    onnx = pytest.importorskip("onnx", reason="an extra: pip install -e '.[onnx]'")
    pytest.importorskip("onnxscript", reason="an extra: pip install -e '.[onnx]'")
    from onnx.reference import ReferenceEvaluator  # pyright: ignore[reportMissingImports]

    result = train(kind="embedding")
    made = fs.export(result, tmp_path / "out", onnx=True)
    model = onnx.load(str(made.path / "model.onnx"))
    batch = CLIENTS.gather(np.arange(50), ["item", "genre", "age"], local=False)
    (said,) = ReferenceEvaluator(model).run(None, batch)
    with torch.no_grad():
        expected = result.module()({name: torch.from_numpy(a) for name, a in batch.items()})
    assert np.allclose(said, expected.numpy(), atol=1e-5)


def test_onnx_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    result = train()
    made = fs.export(result, tmp_path / "out")
    assert "model.onnx needs the packages onnx and onnxscript" in made.notes[-1]
    with pytest.raises(MissingExtra, match=r"model\.onnx needs the packages"):
        fs.export(result, tmp_path / "again", onnx=True)


def test_score_refuses_bad_data_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = fs.export(train(), tmp_path / "out", onnx=False)
    score = standalone(made.path, monkeypatch)
    rows = FRAME.head(2).to_dict(as_series=False)
    with pytest.raises(score.BadData, match="no column 'genre'"):
        score.Model().score({"item": rows["item"]})
    with pytest.raises(score.BadData, match="is not a number"):
        score.Model().score(rows | {"age": ["old", 1.0]})
    with pytest.raises(score.BadData, match="1 ids of 'item' were not in training"):
        score.Model().score(rows | {"item": ["x", "sku-1"]}, unknown="refuse")
    (tmp_path / "wrong.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SystemExit, match=r"Error: .*wrong.csv has not all columns that the model reads"):
        scored(made.path, tmp_path / "wrong.csv", monkeypatch)


def test_cells_are_read_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whole numbers written in several ways, points in time, ids with a row for those that have none, strange texts."""
    draw = np.random.default_rng(2)
    rows = ["who,item,shop,when,count,y"]
    for k in range(90):
        item = draw.choice(["", "007", "12", "NA", "ä b", '"a, b"'])
        moment = f"2024-0{k % 9 + 1}-11 0{k % 8}:30:00"
        rows.append(f"{k % 7},{item},{draw.integers(1, 6):03d},{moment},{draw.integers(0, 4)},{k % 2}")
    (tmp_path / "train.csv").write_text("\n".join(rows) + "\n")
    clients = fs.Clients.from_file(
        tmp_path / "train.csv", "who", ids=["item", "shop"], label="y", values=["when", "count"], nulls="own"
    )
    objective = fs.models.make_objective(clients, "lr")
    result = fs.run(fs.methods.fedsubavg(lr=1e-33, clients_per_round=7), objective, clients, rounds=2)
    for name, value in result.params.items():  # sizes that show a wrong row, and times that do not drown it
        draw_from = torch.Generator().manual_seed(len(name))
        value.copy_(torch.randn(value.shape, generator=draw_from))
    result.params["slope"].copy_(torch.tensor([1e-15, 0.5]))
    new = ["who,item,shop,when,count,y", *rows[1:40], "1,007,3,2024-01-01 00:00:00,2,", "1,7,9,2024-01-01 00:00:00,,0"]
    (tmp_path / "new.csv").write_text("\n".join(new) + "\n")
    made = fs.export(result, tmp_path / "out", onnx=False)
    predicted = fs.predict(result, tmp_path / "new.csv")
    assert same(scored(made.path, tmp_path / "new.csv", monkeypatch), predicted.frame["score"].to_numpy())
    assert predicted.unknown == {"item": 1, "shop": 1}
    assert predicted.incomplete == {"count": 1}
    missing = predicted.frame.filter(pl.col("item").is_null())
    assert len(missing) > 2
    assert missing["score"].null_count() == 0
