"""Where a run comes from: command line, data, commits and versions, in versions.json and on the page."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from worlds import bag, item_data, there

import fedsub as fs
from fedsub.disk import provenance
from fedsub.disk.files import digest
from fedsub.disk.functions import function_of
from fedsub.disk.seal import write_sealed
from fedsub.study.report import render

MINE = """
import fedsub as fs
from torch import nn

class Mine(nn.Module):
    def __init__(self, items):
        super().__init__()
        self.emb = nn.Embedding(items, 1)

    def forward(self, batch):
        return self.emb(batch["ids"]).sum((-1, -2))

def objective(clients):
    return fs.Objective(Mine(clients.size("ids")), fs.losses.binary("label"), {"emb.weight": "ids"})
"""
METHOD = fs.methods.fedavg(clients_per_round=3)


def read(folder: Path) -> dict:
    return json.loads((folder / "versions.json").read_bytes())


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit, of mine.py."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "mine.py").write_text(MINE)
    git(folder, "init", "-q")
    git(folder, "add", "mine.py")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    return folder


def git(folder: Path, *words: str) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    return subprocess.run(["git", *words], cwd=folder, env=env, check=True, capture_output=True, text=True).stdout


def test_a_file_is_known_by_its_commit_and_whether_it_was_changed(repository: Path) -> None:
    file, head = repository / "mine.py", git(repository, "rev-parse", "HEAD").strip()
    assert provenance.commit_of(file) == head
    (repository / "other.py").write_text("x = 1\n")
    assert provenance.commit_of(repository / "other.py") == ""  # in the folder, but not in git
    assert provenance.commit_of(file) == head
    file.write_text(MINE + "# more\n")
    os.utime(file, ns=(1, 1))
    assert provenance.commit_of(file) == f"{head} and changes"
    assert provenance.commit_of(repository.parent) == ""


def test_a_run_says_what_it_was_made_of(repository: Path, tmp_path: Path) -> None:
    made = item_data((9,) * 5)
    made.save(tmp_path / "data")
    train, test = fs.Clients.open(tmp_path / "data").split(0.7)
    objective = function_of("mine.py:objective", repository, "here", "")(train)
    found = fs.compare({"A": METHOD}, objective, train, test=test, rounds=1, engine="serial", out=tmp_path / "out")
    known = read(there(found.results["A"][0].path))
    assert known["data"] == {
        name: {"path": str(tmp_path / "data"), "fingerprint": part.fingerprint}
        for name, part in (("train", train), ("test", test))
    }
    file = str(repository / "mine.py")
    head = git(repository, "rev-parse", "HEAD").strip()
    assert known["files"][file] == {"commit": head, "digest": digest(file)[:16]}
    assert not any("site-packages" in name or "/fedsub/" in name for name in known["files"])
    for name in ("torch", "polars", "safetensors"):
        assert known["packages"][name] == importlib.metadata.version(name)
    assert known["folder"] == str(Path.cwd())
    if (Path(fs.__file__).parents[2] / ".git").exists():
        assert known["commit"].startswith(git(Path(fs.__file__).parent, "rev-parse", "HEAD").strip())
    page = render(found)
    for said in (head, str(tmp_path / "data"), train.fingerprint, test.fingerprint, known["packages"]["polars"]):
        assert said in page
    assert known["command"].split()[0] in page


def test_the_command_line_can_be_typed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fedsub", "train.py"):
        (tmp_path / name).touch()
    words = ["run", "a file.csv", "--label", "rating>=4"]
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "fedsub"), *words])
    assert shlex.split(provenance.command_line()) == ["fedsub", *words]
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py"), "--n", "3"])
    assert shlex.split(provenance.command_line()) == ["python", str(tmp_path / "train.py"), "--n", "3"]
    monkeypatch.setattr(sys, "argv", ["-c"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-c", "import x"])
    assert shlex.split(provenance.command_line())[1:] == ["-c", "import x"]


def test_another_command_or_commit_that_goes_on_is_told(tmp_path: Path) -> None:
    clients, out = item_data(), tmp_path / "run"
    fs.run(METHOD, bag(clients), clients, rounds=1, engine="serial", out=out)
    before = (out / "versions.json").read_bytes()
    fs.run(METHOD, bag(clients), clients, rounds=2, engine="serial", out=out, resume=True)
    assert "Resumed" not in (out / "events.jsonl").read_text()
    write_sealed(out / "versions.json", json.loads(before) | {"command": "fedsub run x", "commit": "abc"})
    fs.run(METHOD, bag(clients), clients, rounds=3, engine="serial", out=out, resume=True)
    events = (out / "events.jsonl").read_text()
    assert "Resumed by: " in events
    assert "before abc" in events
    assert read(out)["command"] == "fedsub run x"  # what it was started with stays


def test_a_command_line_keeps_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    words = ["--token", "abc", "--n", "3", "--auth-secret=def", "--secret", "env:KEY", "--root", "ca.crt"]
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py"), *words])
    shown = ["--token", "…", "--n", "3", "--auth-secret=…", "--secret", "env:KEY", "--root", "ca.crt"]
    assert shlex.split(provenance.command_line())[2:] == shown
