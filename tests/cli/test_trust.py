"""Code that a configuration names, and names that are more than text."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedsub.cli import app
from fedsub.cli.show import View
from fedsub.disk.text import cell, csv_bytes, visible
from fedsub.study.experiment.experiment import code_of


def fedsub_(*arguments: str, code: int = 0):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, (result.output, result.exception)
    return result


OBJECTIVE = """
from pathlib import Path
import fedsub

def make(clients):
    Path({mark!r}).touch()
    return fedsub.models.make_objective(clients)
"""
TOML = """
[data]
path = "{data}"
client = "user"
label = "liked"
tables = ["item"]
[model]
objective = "{spec}"
[train]
rounds = 2
[methods]
fedavg = {{}}
"""


@pytest.fixture
def study(folder) -> Path:
    """A configuration in a folder of its own, and code beside it and elsewhere."""
    (folder / "study").mkdir()
    (folder / "elsewhere").mkdir()
    for where in ("study", "elsewhere"):
        (folder / where / "mine.py").write_text(OBJECTIVE.format(mark=str(folder / "executed")))
    return folder / "study"


def configure(study: Path, spec: str) -> None:
    (study / "study.toml").write_text(TOML.format(data=study.parent / "ratings.csv", spec=spec))


def test_code_beside_the_configuration_is_executed_and_told(study):
    configure(study, "mine.py:make")
    said = fedsub_("run", "study/study.toml", "--out", "o", "-q").stderr
    assert f"Executes code: {study / 'mine.py'} (model.objective)" in said
    assert (study.parent / "executed").exists()
    again = fedsub_("resume", "o", "--rounds", "3", "-q")
    assert "Executes code" in again.stderr


@pytest.mark.parametrize("how", ["relative", "absolute", "link", "module", "working directory"])
def test_code_elsewhere_is_refused_without_a_terminal_unless_trusted(study, how):
    other = study.parent / "elsewhere/mine.py"
    spec = {"relative": "../elsewhere/mine.py", "absolute": str(other), "link": "link.py", "module": "shutil",
            "working directory": "here.py"}[how]  # fmt: skip
    if how == "link":
        (study / "link.py").symlink_to(other)
    if how == "working directory":
        (study.parent / "here.py").write_text(other.read_text())
    configure(study, f"{spec}:make")
    refused = fedsub_("run", "study/study.toml", "--out", "o", code=2).stderr
    assert "outside its folder" in refused
    assert "--trust" in refused
    assert not (study.parent / "executed").exists()
    assert not (study.parent / "o").exists()
    if how != "module":
        trusted = fedsub_("run", "study/study.toml", "--out", "o", "-q", "--trust").stderr
        assert "as --trust allows" in trusted
        assert (study.parent / "executed").exists()


def test_metrics_and_methods_are_code_too():
    methods = {"a": {"method": "m.py:f"}, "n.py:g": {}, "fedavg": {}, "b": 3}
    raw = {"methods": methods, "evaluate": {"metrics": ["k.py:h", 3]}, "model": {"objective": "o:p"}}
    assert set(code_of(raw).values()) == {"m.py:f", "n.py:g", "k.py:h", "o:p"}
    assert code_of({"methods": 3, "evaluate": {"metrics": 3}, "model": []}) == {}


def test_what_was_typed_is_the_callers_own(study):
    configure(study, "mine.py:make")
    named = f'model.objective="{study.parent}/elsewhere/mine.py:make"'
    fedsub_("run", "study/study.toml", "-q", "--out", "o", "--set", named)
    assert (study.parent / "executed").exists()


def test_results_from_elsewhere_do_not_say_where_code_may_lie(study, monkeypatch):
    configure(study, "mine.py:make")
    fedsub_("run", "study/study.toml", "--out", "study/o", "-q")
    (study.parent / "executed").unlink()
    (study.parent / "home").mkdir()
    monkeypatch.chdir(study.parent / "home")
    (study / "o").rename("got")
    scoring = ("got/fedavg-seed0", str(study.parent / "ratings.csv"))
    for words in (("resume", "got", "--rounds", "3"), ("predict", *scoring), ("export", "got/fedavg-seed0", "x")):
        assert "--trust" in fedsub_(*words, code=2).stderr
    assert not (study.parent / "executed").exists()
    assert "as --trust allows" in fedsub_("predict", *scoring, "--trust").stderr
    fedsub_("resume", "got", "--rounds", "3", "--trust", "-q")
    assert (study.parent / "executed").exists()


NAMES = ["=1+1", "+a", "-b", "@x\u001b[31mred\u202eabc"]


def test_names_are_text_in_files_and_in_the_terminal(folder, real_report):
    labels = "\n".join(f'{json.dumps(name)} = {{ method = "fedavg" }}' for name in NAMES)
    text = TOML.format(data=folder / "ratings.csv", spec="-").replace('objective = "-"', "").partition("[methods]")[0]
    (folder / "study.toml").write_text(f"{text}[methods]\n{labels}\n")
    made = fedsub_("compare", "study.toml", "--out", "o")
    written = [(folder / "o" / f"table.{kind}").read_text() for kind in ("md", "csv")]
    for printed in (made.stdout, made.stderr, *written):
        assert "\u001b" not in printed
        assert "\u202e" not in printed
    assert "@x\\u001b[31mred\\u202eabc" in made.stdout
    with open(folder / "o/table.csv", newline="") as file:
        assert [row[0] for row in csv.reader(file)][1:] == [f"'{visible(name)}" for name in NAMES]


def test_numbers_are_no_formulas():
    assert [cell(v) for v in ("-0.5", "+inf", -0.5, "nan", "", "-")] == ["-0.5", "+inf", -0.5, "nan", "", "'-"]
    assert csv_bytes([["a,b", "=x"]]) == b'"a,b",\'=x\n'


def test_lines_show_what_they_hold(capsys):
    View().line("a\u001b[2Jb\rc\u200fd\ne")
    assert capsys.readouterr().out == "a\\u001b[2Jb\\u000dc\\u200fd\ne\n"
    assert visible(os.fsdecode(b"\xff")) == "\\udcff"
