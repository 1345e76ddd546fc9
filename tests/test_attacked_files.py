"""Files that were changed on the disk: refused or made again with a sentence, or without consequence."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from tools import mutations
from worlds import bag, equal, item_data

import fedsub as fs
from fedsub.disk.files import JsonLines
from fedsub.disk.reading import DEEPEST
from fedsub.errors import CheckpointError, ConfigError, MethodError, ObjectiveError
from fedsub.running.run import finished_result


def run(out: Path | None = None, **more) -> fs.Result:
    clients = item_data()
    method = fs.methods.fedsubavg(lr=0.3, local_steps=2, batch_size=4, clients_per_round=4)
    given = {"rounds": 4, "engine": "serial", "checkpoint_every": 2, "out": out} | more
    return fs.run(method, bag(clients), clients, **given)


def check(attack, count: int, seed: int) -> None:
    told, wrong = attack(count, seed)
    assert not wrong, "\n".join(wrong)
    assert set(told) == {"same", "refused"}


@pytest.mark.parametrize(
    ("attack", "count"),
    [(mutations.attack_runs, 36), (mutations.attack_comparisons, 30), (mutations.attack_clients, 60)],
)
def test_a_changed_file_is_refused_or_makes_no_difference(attack, count):
    check(attack, count, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "count"),
    [(mutations.attack_runs, 480), (mutations.attack_comparisons, 500), (mutations.attack_clients, 500)],
)
def test_many_changed_files(attack, count):
    check(attack, count, 2)


@pytest.mark.parametrize("name", ["metrics.jsonl", "traffic.jsonl", "timing.jsonl", "events.jsonl"])
def test_a_line_that_was_changed_is_noticed_by_a_resume_and_by_a_look(tmp_path: Path, name: str):
    run(tmp_path)
    file = tmp_path / name
    file.write_bytes(file.read_bytes().replace(b"1", b"2", 1))  # another number, as long
    with pytest.raises(CheckpointError, match=f"{name} was changed since the checkpoint was taken"):
        run(tmp_path, resume=True, rounds=6)
    run(tmp_path / "other")
    file = tmp_path / "other" / name
    file.write_bytes(file.read_bytes().replace(b"1", b"2", 1))
    with pytest.raises(CheckpointError, match=f"{name} is missing or damaged"):
        finished_result(tmp_path / "other")


def test_what_a_resume_can_make_again_is_made_again(tmp_path: Path):
    whole = run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", callbacks=[mutations.Stop()], rounds=8)
    before = {name: (tmp_path / "cut" / name).read_bytes() for name in ("samples.npy", "model.json")}
    for name, content in before.items():
        (tmp_path / "cut" / name).write_bytes(content[:-3])
    on = run(tmp_path / "cut", resume=True, rounds=8)
    assert {name: (tmp_path / "cut" / name).read_bytes() for name in before} == before
    assert sum("written again" in said for said in on.events) == 1  # and that of the samples, in events.jsonl
    assert "samples.npy was not what" in (tmp_path / "cut" / "events.jsonl").read_text()
    assert whole.path is not None


def test_directories_of_an_older_fedsub_go_on(tmp_path: Path):
    """Without seals and digests."""
    whole = run(tmp_path / "whole", rounds=6)
    run(tmp_path / "old")
    for name in ("result.json", "versions.json", "model.json"):
        file = tmp_path / "old" / name
        content = json.loads(file.read_bytes())
        file.write_text(json.dumps({k: v for k, v in content.items() if k not in ("seal", "logs", "kept", "files")}))
    assert finished_result(tmp_path / "old").history[-1]["round"] == 4
    on = run(tmp_path / "old", resume=True, rounds=6)
    assert equal(on.params, whole.params)


def test_a_log_is_cut_back_by_bytes_alone_where_no_digest_was_kept(tmp_path: Path):
    log = JsonLines(tmp_path / "log")
    log.append({"a": 1})
    end = log.position
    log.append({"a": 2})
    log.truncate(end)
    assert JsonLines.read(tmp_path / "log") == [{"a": 1}]


# ---------------------------------------------------------------------- without end


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs /dev/zero")
@pytest.mark.parametrize("name", ["config.json", "versions.json", "result.json", "metrics.jsonl", "samples.npy"])
def test_files_without_end_are_refused(tmp_path: Path, name: str):
    run(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match="not a plain file"):
        finished_result(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)  # which nobody will ever write to
    with pytest.raises(CheckpointError, match="not a plain file"):
        finished_result(tmp_path)


def test_files_nested_without_end_are_refused(tmp_path: Path):
    run(tmp_path)
    for depth in (DEEPEST + 1, 900, 200_000):
        (tmp_path / "config.json").write_text('{"a":' * depth + "1" + "}" * depth)
        with pytest.raises(CheckpointError, match=r"config\.json cannot be read \(it is nested too deeply\)"):
            run(tmp_path, resume=True)


# ---------------------------------------------------------------------- sizes and names


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 10**19}, "batch_size must be a whole number of at least 1 and at most 2,147,483,647"),
        ({"local_steps": 10**9}, "samples for a client and round: to draw them for 4 clients takes"),
        ({"local_steps": None, "local_epochs": 10**9}, "lower local_epochs, batch_size or clients_per_round"),
        ({"local_steps": 10**19}, "local_steps must be"),
        ({"batch_size": 2**31 - 1, "batches": "replacement"}, "this machine has"),
    ],
)
def test_local_work_that_no_machine_can_do_is_refused_before_training(tmp_path: Path, settings, words):
    clients = item_data()
    given = {"lr": 0.1, "clients_per_round": 4} | settings
    with pytest.raises(MethodError, match=words):
        fs.run(fs.methods.fedavg(**given), bag(clients), clients, rounds=1, out=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_table_that_no_machine_can_hold_is_refused():
    rows = {"user": [0, 1], "item": [2**62 - 2, 2**62 - 3], "y": [0, 1]}
    near = fs.Clients.from_arrays(rows, "user", ids=["item"], label="y", sizes={"item": 2**62})
    with pytest.raises(ObjectiveError, match=r"cannot be made.*4,611,686,018,427,387,904.*leave sizes out"):
        fs.models.make_objective(near, "lr")
    numbered = fs.Clients.from_arrays(rows, "user", ids=["item"], label="y")
    assert numbered.size("item") == 2
    made = fs.models.make_objective(numbered, "lr")
    trained = fs.run(fs.methods.fedavg(clients_per_round=2), made, numbered, rounds=1, engine="serial")
    assert np.isfinite(trained.history[-1]["train.ce"])


@pytest.mark.parametrize(("label", "words"), [("x" * 300, "300 characters"), ("a\ud800", "not valid Unicode")])
def test_labels_that_cannot_be_directories_are_refused_before_training(tmp_path: Path, label, words):
    clients = item_data()
    with pytest.raises(ConfigError, match=words):
        fs.compare({label: fs.methods.fedavg()}, bag(clients), clients, rounds=1, out=tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("name", ["x" * 300, "a\ud800", "a\0b"])
def test_paths_that_cannot_be(tmp_path: Path, name: str):
    with pytest.raises(ConfigError, match="expected the path of a directory"):
        run(Path(f"{tmp_path}/{name}"))
