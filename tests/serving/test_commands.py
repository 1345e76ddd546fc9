"""The commands refuse before any work what would be lost or cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
from shop import FRAME, train
from typer.testing import CliRunner

from fedsub.cli import app


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("shop")
    train(made / "run")
    train(made / "two/a", rounds=1)
    train(made / "two/b", rounds=1)
    FRAME.write_csv(made / "rows.csv")
    return made


def said(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(w) for w in words])
    return done.exit_code, " ".join(done.output.split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("predict", "run", "rows.csv", "--out", "rows.csv"), "is the data itself; name another --out"),
        (("predict", "run", "rows.csv", "--out", "x.txt"), "ends in '.txt', expected .csv, .tsv, .parquet"),
        (("predict", "run", "rows.csv", "--out", "no/x.csv"), "There is no folder"),
        (("predict", "run", "missing.csv"), "There is no file missing.csv"),
        (("predict", "two", "rows.csv"), "holds 2 runs; name one of them: two/a, two/b"),
        (("predict", "run", "rows.csv", "--unknown", "mean"), "unknown is 'mean'"),
        (("recommend", "run", "--client", "u1"), "give samples of the client"),
        (("recommend", "run", "--client", "u99", "--data", "rows.csv"), "no sample of the client 'u99'"),
        (("export", "run", "run"), "is there already; name a folder that is new or empty"),
        (("export", "run", "out", "--client", "u1"), "have no parameters of their own; leave client out"),
    ],
)
def test_refusals(folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], sentence: str):
    monkeypatch.chdir(folder)
    code, text = said(*words)
    assert code == 2
    assert sentence in text
    assert not (folder / "out").exists()


def test_a_table_beside_the_data_and_a_list_in_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    assert said("predict", "run", "rows.csv")[0] == 0
    assert (folder / "rows.scored.csv").read_text().startswith("user,item,genre,age,liked,score,probability\n")
    assert "is there already" in said("predict", "run", "rows.csv")[1]
    words = [
        "recommend",
        "run",
        "--client",
        "u1",
        "--client",
        "u2",
        "--data",
        "rows.csv",
        "--top",
        "3",
        "--out",
        "l.csv",
    ]
    assert said(*words)[0] == 0
    assert len((folder / "l.csv").read_text().splitlines()) == 7
