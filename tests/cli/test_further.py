"""Going on from the command line: more rounds and seeds, changed code, a start that was refused."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner
from worlds import there

import fedsub as fs
from fedsub.cli import app
from fedsub.errors import ObjectiveError

RATINGS = ("ratings.csv", "--client", "user", "--label", "liked", "--table", "item", "-k", "5", "--engine", "serial")


def fedsub_(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in ((code, 3) if code == 0 else (code,)), result.output  # 3: diverged, no matter here
    return result.output


def test_more_rounds_and_seeds(folder):
    fedsub_("run", *RATINGS, "-m", "fedavg", "--rounds", "2", "--out", "a")
    fedsub_("resume", "a", "--rounds", "4", "--seeds", "2")
    fedsub_("run", *RATINGS, "-m", "fedavg", "--rounds", "4", "--seeds", "2", "--out", "b")
    for run in ("fedavg-seed0", "fedavg-seed1"):
        for name in ("traffic.jsonl", "model.safetensors"):
            assert (folder / "a" / run / name).read_bytes() == (folder / "b" / run / name).read_bytes()
    train = json.loads((folder / "a/compare.json").read_bytes())["config"]["train"]
    assert (train["rounds"], train["seeds"]) == (4, 2)
    assert "finished already" in fedsub_("resume", "a")
    for fewer in (("--rounds", "3"), ("--seeds", "1"), ("--seeds", "1,2")):
        assert "in the directory" in fedsub_("resume", "a", *fewer, code=2)


def test_a_refused_extension_leaves_the_comparison_as_it_was(folder):
    fedsub_("run", *RATINGS, "-m", "fedavg", "--rounds", "2", "--set", "train.schedule=cosine:2", "--out", "a")
    before = {p: p.read_bytes() for p in (folder / "a").rglob("*") if p.is_file()}
    assert "0 from round 3 on" in fedsub_("resume", "a", "--rounds", "4", code=2)
    assert {p: p.read_bytes() for p in (folder / "a").rglob("*") if p.is_file()} == before


def test_changed_code_needs_to_be_forced(folder):
    arguments = ("run", "study.toml", "-m", "fedavg")
    fedsub_(*arguments, "--out", "a")
    model = folder / "my_model.py"
    model.write_text(model.read_text().replace('self.items(batch["item"])', 'self.items(batch["item"]).tanh()'))
    assert "the forward of Scorer has changed" in fedsub_("resume", "a", "--rounds", "5", code=2).replace("\n", " ")
    said = fedsub_("resume", "a", "--rounds", "5", "--force-code")
    assert "going on was forced" in said.replace("\n", " ")
    assert "going on was forced" in fedsub_("resume", "a").replace("\n", " ")  # drawn again
    assert "going on was forced" in (folder / "a/report.html").read_text().replace("\n", " ")


def test_a_refused_start_leaves_out_free(folder):
    model = folder / "my_model.py"
    good = model.read_text()
    model.write_text(good.replace('tables={"items.weight": "item"}', 'tables={"out.weight": "item"}'))  # found late
    with pytest.raises((ObjectiveError, AssertionError)):
        fedsub_("run", "study.toml", "-m", "fedavg", "--out", "a")
    assert not (folder / "a").exists()
    model.write_text(good)
    fedsub_("run", "study.toml", "-m", "fedavg", "--out", "a", "--rounds", "2")


def test_a_start_that_was_killed_before_it_trained_leaves_out_free(folder):
    fedsub_("run", *RATINGS, "-m", "fedavg", "--rounds", "2", "--out", "a")
    (folder / "b").mkdir()
    (folder / "b/compare.json").write_bytes((folder / "a/compare.json").read_bytes())
    fedsub_("run", *RATINGS, "-m", "fedavg", "--rounds", "3", "--lr", "0.2", "--out", "b")


def test_new_items_from_the_command_line(folder):
    lines = (folder / "ratings.csv").read_text().splitlines()
    (folder / "newer.csv").write_text("\n".join([*lines, *(f"u{k},a{k},g1,5,{k % 2}" for k in range(3))]) + "\n")
    newer = ("newer.csv", *RATINGS[1:])
    fedsub_("run", *RATINGS, "-m", "fedavg", "--rounds", "2", "--out", "a")
    said = fedsub_("run", *newer, "-m", "fedavg", "--start", "a", "--out", "b", code=2)
    assert "3 id(s) of 'item' are not in the vocabulary" in said
    assert not (folder / "b").exists()
    fedsub_("run", *newer, "-m", "fedavg", "--start", "a", "--grow", "--rounds", "2", "--out", "b")
    old, new = fs.load(folder / "a/fedavg-seed0"), fs.load(folder / "b/fedavg-seed0")
    known = there(old.vocabulary["item"])
    assert there(new.vocabulary["item"]).tolist() == [*known.tolist(), "a0", "a1", "a2"]
    assert "started from a/fedavg-seed0" in (folder / "b/fedavg-seed0/events.jsonl").read_text()
    (folder / "b/fedavg-seed0/result.json").unlink()
    fedsub_("resume", "b")
    # Without --start the same file has another numbering, which the model would not fit.
    other = fs.Clients.from_file(folder / "newer.csv", "user", ids=["item"], label="liked")
    table = dict.fromkeys(new.ids, "item")
    objective = fs.Objective(new.module(), fs.losses.binary("liked"), table)
    with pytest.raises(ObjectiveError, match="stand for other ids"):
        fs.run(fs.methods.fedavg(clients_per_round=2), objective, other, rounds=1)


def test_a_start_from_a_file_of_settings(folder):
    fedsub_("run", "study.toml", "-m", "fedavg", "--out", "a")
    text = (folder / "study.toml").read_text().replace("[run]\n", '[run]\nstart = "a"\nstart_state = true\n')
    (folder / "on.toml").write_text(text)
    fedsub_("run", "on.toml", "-m", "fedavg", "--out", "b")
    assert "goes on with the state" in (folder / "b/fedavg-seed0/events.jsonl").read_text()
    assert "goes with a run to begin from" in fedsub_("run", *RATINGS, "-m", "fedavg", "--grow", code=2)
    assert "all begin anew" in fedsub_("tune", "on.toml", "--grid", "lr=0.1,0.2", "--out", "t", code=2)


def test_steps_beside_epochs_are_refused(folder):
    """As in Python; neither may win in silence."""
    said = fedsub_("run", *RATINGS, "-m", "fedavg", "--local-steps", "2", "--local-epochs", "1", "--out", "a", code=2)
    assert "--local-steps and --local-epochs exclude each other" in said.replace("\n", " ")
    assert not (folder / "a").exists()
