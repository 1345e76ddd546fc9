"""The command line as a person uses it: end to end on small files, and what it says to mistakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedsub
from fedsub.cli import app

RATINGS = ("ratings.csv", "--client", "user", "--label", "liked", "--table", "item")
SHORT = ("--rounds", "4", "--every", "2", "-k", "5", "--engine", "batched")


def fedsub_(*arguments: str, code: int = 0):
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def start(*arguments: str, **options) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(fedsub.__file__).parents[1])}
    command = [sys.executable, "-m", "fedsub", *arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


# ---------------------------------------------------------------------- what it does


def test_compare_a_csv_file(real_report, folder):
    said = fedsub_("compare", *RATINGS, "--table", "genre", *SHORT, "--target", "train.ce<=0.69", "--out", "o").stdout
    assert "20 clients" in said
    assert "FedSubAvg, seed 0, 2 of 4: round 4 of 4, train.ce" in said
    assert "FedAdagrad, seed 0, 4 of 4: round 4 of 4, train.ce" in said
    assert "First round with train.ce<=0.69:" in said
    assert "Report: o/report.html" in said
    for name in ("report.html", "table.csv", "compare.json", "fedavg-seed0/result.json"):
        assert (folder / "o" / name).exists(), name


def test_json_is_all_there_is_on_stdout(folder):
    result = fedsub_("compare", *RATINGS, *SHORT, "--seeds", "2", "--json", "--out", "o")
    found = json.loads(result.stdout)
    assert [row["method"] for row in found["methods"]] == ["FedAvg", "FedSubAvg", "FedSubAvg tempered", "FedAdagrad"]
    assert [(r["method"], r["seed"]) for r in found["runs"]][:2] == [("FedAvg", 0), ("FedAvg", 1)]
    assert "round 4 of 4" in result.stderr


def test_quiet_prints_the_table_and_the_place(folder):
    said = fedsub_("run", *RATINGS, *SHORT, "-m", "fedsubavg", "-q", "--out", "o").stdout
    assert "FedSubAvg" in said
    assert said.rstrip().endswith("Report: o/report.html")
    assert "round 2 of 4" not in said


def test_the_default_directory_has_name_and_time(folder):
    fedsub_("run", *RATINGS, *SHORT, "-m", "fedavg")
    (made,) = (folder / "runs").iterdir()
    assert made.name.startswith("ratings-20")


def test_toml_with_an_objective_of_ones_own(folder, monkeypatch):
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    fedsub_("compare", "../study.toml", "--set", "methods.fedavg.lr=0.4", "--set", "run.tensorboard=true", "--out", "o")
    config = json.loads((elsewhere / "o/fedavg-seed0/config.json").read_text())
    assert config["method"]["local"]["lr"] == 0.4
    assert "items.weight" in config["parameters"]
    saved = json.loads((elsewhere / "o/compare.json").read_text())
    assert saved["format"] == "fedsub-compare"
    assert saved["command"] == "compare"
    assert saved["methods"]["Capped"]["max_coef"] == 5
    assert {p.name for p in (elsewhere / "o/tensorboard").iterdir()} == {"fedavg-seed0", "capped-seed0"}
    fedsub_("run", "../study.toml", "-m", "capped", "--set", "model.objective=my_model:without_seed", "--out", "p")


def test_a_finished_directory_is_shown_even_without_its_data(folder):
    fedsub_("compare", *RATINGS, *SHORT, "--out", "o")
    before = (folder / "o/fedavg-seed0/metrics.jsonl").read_bytes()
    (folder / "ratings.csv").unlink()
    for place in ("o", "o/fedavg-seed0"):
        said = fedsub_("resume", place).stdout
        assert "finished already" in said
        assert "FedSubAvg" in said
    assert (folder / "o/fedavg-seed0/metrics.jsonl").read_bytes() == before


def test_resume_flag_starts_skips_and_adds_methods(folder):
    arguments = ("compare", *RATINGS, *SHORT, "--out", "o", "--resume")
    fedsub_(*arguments, "--methods", "fedavg")
    said = fedsub_(*arguments, "--methods", "fedavg,fedprox", "--workers", "2").stdout
    assert "FedAvg, seed 0" not in said
    assert "FedProx, seed 0, 2 of 2: round 4 of 4" in said


def test_heat(folder):
    said = fedsub_("heat", "ratings.csv", "--client", "user", "--table", "item", "--table", "genre", "-k", "4").stdout
    assert "20 clients" in said
    assert (folder / "ratings-heat.png").stat().st_size > 1000
    found = json.loads(fedsub_("heat", "study.toml", "--out", "x/h.png", "--json").stdout)
    assert [space["name"] for space in found["spaces"]] == ["item"]
    assert found["overall"]["burst"] == pytest.approx(20 / (found["overall"]["min"] * 5))
    assert (folder / "x/h.png").exists()


def test_methods():
    said = fedsub_("methods").stdout
    assert "sampled_heat" in said
    said = fedsub_("methods", "FedSubAvg").stdout
    assert "NeurIPS 2022" in said
    assert "max_coef" in said
    assert json.loads(fedsub_("methods", "fedprox", "--json").stdout)["settings"]["mu"] == 0.01


def test_a_small_built_in_task(folder):
    flags = ("--scale", "0.02", "--rounds", "2", "--every", "1", "--out", "o", "--json")
    found = json.loads(fedsub_("compare", "movielens-like", *flags).stdout)
    usual = ["FedAvg", "FedProx", "FedSubAvg", "FedSubAvg tempered", "FedAdagrad", "CentralSGD"]
    assert [row["method"] for row in found["methods"]] == usual
    assert found["target"] == "train.ce<=0.65"


def test_help_needs_no_torch_and_every_command_has_examples():
    code = "import sys; from fedsub.cli import app; sys.exit('torch' in sys.modules or 'pydantic' in sys.modules)"
    path = str(Path(fedsub.__file__).parents[1])
    assert subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}).returncode == 0
    assert fedsub_("--version").stdout.strip() == f"fedsub {fedsub.__version__}"
    for command in ("run", "compare", "resume", "heat", "methods", "bench"):
        assert "Examples" in fedsub_(command, "--help").stdout


# ---------------------------------------------------------------------- Ctrl-C


def test_interrupted_and_resumed_is_as_if_never_interrupted(folder):
    arguments = ("compare", *RATINGS, "--rounds", "200", "--every", "50", "-k", "5", "--engine", "batched")
    going = start(*arguments, "--out", "a")
    log = folder / "a/fedavg-seed0/metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (log.exists() and log.read_bytes().count(b"\n") > 3):
        assert going.poll() is None, going.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    going.send_signal(signal.SIGINT)
    said, complaints = going.communicate(timeout=60)
    assert going.returncode == 130, (said, complaints)
    assert "Go on with: fedsub resume a" in complaints
    assert "Traceback" not in complaints
    assert not (folder / "a/fedavg-seed0/result.json").exists()
    assert "resumed after round" in fedsub_("resume", "a").stdout
    fedsub_(*arguments, "--out", "b", "-q")
    for run in ("fedavg-seed0", "fedsubavg-seed0"):
        for name in ("metrics.jsonl", "traffic.jsonl"):
            assert (folder / "a" / run / name).read_bytes() == (folder / "b" / run / name).read_bytes()


# ---------------------------------------------------------------------- mistakes

NEEDS = ("compare", *RATINGS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "movielens-lik"), "did you mean 'movielens-like'?"),
        (("compare", "nothing.csv"), "There is no file nothing.csv"),
        (("compare", "nothing.toml"), "There is no file nothing.toml"),
        (("compare", "my_model.py"), "is no data file of a known kind"),
        (("compare", "ratings.csv"), "Its columns: user, item, genre, time, liked."),
        (("compare", "ratings.csv", "--client", "usr", "--label", "liked", "--table", "item"), "did you mean 'user'?"),
        (("compare", "ratings.csv", "--client", "user", "--label", "time", "--table", "item"), "not a binary label"),
        ((*NEEDS, "--set", "train.lrr=3"), "did you mean 'train.lr'?"),
        ((*NEEDS, "--set", "methods.fedavg.lrr=3"), "did you mean 'methods.fedavg.lr'?"),
        ((*NEEDS, "--set", "train.lr=fast"), "train.lr is the text 'fast', expected a number."),
        ((*NEEDS, "--methods", "fedavgg"), "did you mean 'fedavg'?"),
        ((*NEEDS, "--lr", "-1"), "train.lr is -1.0, expected a number greater than 0."),
        ((*NEEDS, "-k", "500"), "there are only 20 clients"),
        ((*NEEDS, "--target", "train.cee<=0.5"), "did you mean 'train.ce'?"),
        ((*NEEDS, "--target", "low"), "Cannot read the target 'low'"),
        ((*NEEDS, "--split", "time"), "--time-column"),
        ((*NEEDS, "--device", "warp"), 'Cannot use device "warp"'),
        ((*NEEDS, "--out", "."), "is not empty and holds no fedsub comparison"),
        (("run", "study.toml"), "Name the method to run"),
        (("run", "study.toml"), "one of fedavg, Capped"),
        (("compare", "movielens-1m"), "--data DIR"),
        (("compare", "movielens-like", "--client", "user"), "brings its own data"),
        (("compare", "study.toml", "--set", "model.objective=my_model:fails"), "raised ZeroDivisionError"),
        (("compare", "study.toml", "--set", "model.objective=my_model:nothing"), "returned int 3, expected fedsub.Obj"),
        (
            ("compare", "study.toml", "--set", "model.objective=my_model:make_objectiv"),
            "did you mean 'make_objective'?",
        ),
        (("compare", "study.toml", "--set", "model.objective=my_modell:f"), "there is no file my_modell.py"),
        (("compare", "study.toml", "--set", "model.objective=my_model"), "expected file:function"),
        (("compare", "study.toml", "--set", "model.objective=my_model:leaves"), "my_model:leaves raised SystemExit"),
        ((*NEEDS, "--set", "train.seeds=99999999999999999999"), "expected how many to train"),
        ((*NEEDS, "--set", "train.seeds=[99999999999999999999]"), "below 2^63"),
        ((*NEEDS, "--set", "train.seeds=20000"), "expected how many to train"),
        (("compare", "~zzz/r.csv"), "home directory of an unknown user"),
        ((*NEEDS, "--out", "~zzz/o"), "home directory of an unknown user"),
        (("heat", "study.toml", "--out", "ratings.csv/h.png"), "Cannot write the picture ratings.csv/h.png"),
        (("heat", "study.toml", "--out", "."), "Cannot write the picture"),
        (("resume", "nothing"), "There is no directory nothing"),
        (("resume", "."), "holds no compare.json"),
        (("methods", "fedsubag"), "did you mean 'fedsubavg'?"),
    ],
)
def test_a_mistake_is_one_message_and_leaves_nothing_behind(folder, arguments, message):
    before = set(folder.iterdir())
    result = fedsub_(*arguments, code=2)
    assert message in result.stderr
    assert result.stderr.startswith("Error: ")
    assert "Traceback" not in result.output
    assert {p for p in folder.iterdir() if p.name != "__pycache__"} <= before


def test_bad_toml(folder):
    (folder / "bad.toml").write_text("[train\nrounds = 3")
    assert "bad.toml is not valid TOML" in fedsub_("compare", "bad.toml", code=2).stderr
    (folder / "bad.toml").write_text("[train]\nround = 3")
    assert "bad.toml: there is no setting 'train.round'" in fedsub_("compare", "bad.toml", code=2).stderr


def test_a_used_directory_needs_resume_and_the_same_settings(folder):
    fedsub_("compare", *RATINGS, *SHORT, "--out", "o")
    assert "fedsub resume o" in fedsub_("compare", *RATINGS, *SHORT, "--out", "o", code=2).stderr
    said = fedsub_("compare", *RATINGS, *SHORT, "--out", "o", "--resume", "--lr", "0.3", code=2).stderr
    assert "train.lr: absent in the directory, 0.3 now" in said
    assert "holds results, not data" in fedsub_("compare", "o", code=2).stderr


def test_resume_without_the_objectives_file(folder):
    fedsub_("compare", "study.toml", "--out", "o")
    (folder / "o/capped-seed0/result.json").unlink()
    (folder / "my_model.py").unlink()
    assert "my_model.py is gone" in fedsub_("resume", "o", code=2).stderr


def test_resume_with_other_data_is_refused(folder):
    fedsub_("compare", *RATINGS, *SHORT, "--methods", "fedavg,fedsubavg", "--out", "o")
    lines = (folder / "ratings.csv").read_text().splitlines()
    (folder / "ratings.csv").write_text("\n".join(lines[:-9]) + "\n")
    arguments = ("compare", *RATINGS, *SHORT, "--out", "o", "--resume")
    for methods in ("fedavg,fedsubavg", "fedprox,fedavg,fedsubavg"):
        said = fedsub_(*arguments, "--methods", methods, code=2).stderr
        assert "another configuration" in said
        assert "  data: " in said
    assert not (folder / "o/fedprox-seed0").exists()


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", None])
@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl"])
def test_a_damaged_run_is_one_message(folder, name, content):
    fedsub_("run", *RATINGS, *SHORT, "-m", "fedavg", "--out", "o")
    file = folder / "o/fedavg-seed0" / name
    file.unlink()
    if content is not None:
        file.write_bytes(content + b"\n")
    elif name == "result.json":
        return  # not finished, then
    for arguments in (("resume", "o"), ("run", *RATINGS, *SHORT, "-m", "fedavg", "--out", "o", "--resume")):
        assert name in fedsub_(*arguments, code=2).stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", "1"), ("version", None), ("command", 3), ("base", 3), ("config", []), ("objective", 3),
        ("objective", {"file": 3}), ("config", {"methods": 3}), ("config", {"methods": {}}), ("config", {"train": 3}),
    ],
)  # fmt: skip
def test_an_edited_compare_json_is_one_message(folder, name, value):
    fedsub_("run", *RATINGS, *SHORT, "-m", "fedavg", "--out", "o")
    file = folder / "o/compare.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))
    assert fedsub_("resume", "o", code=2).stderr.startswith("Error: ")
    if name in ("version", "config"):
        fedsub_("run", *RATINGS, *SHORT, "-m", "fedavg", "--out", "o", "--resume", code=2)


def test_a_reader_that_leaves_does_not_end_the_training(folder):
    for more in ((), ("--json",)):
        out = f"o{len(more)}"
        going = start("compare", *RATINGS, *SHORT, "--out", out, *more)
        assert going.stdout is not None
        if not more:
            going.stdout.readline()
        going.stdout.close()
        going.stdout = None
        _, complaints = going.communicate(timeout=120)
        assert going.returncode == 0, complaints
        assert "BrokenPipe" not in complaints
        assert (folder / out / "report.html").exists()


def test_a_method_that_diverges_is_left_out_and_named(folder):
    shown = ("compare", *RATINGS, *SHORT, "--methods", "fedavg,fedsubavg", "--set", "methods.fedavg.lr=1e38")
    result = fedsub_(*shown, "--set", "train.local_steps=20", "--out", "o", "--json", code=3)
    found = json.loads(result.stdout)
    assert [row["method"] for row in found["methods"]] == ["FedSubAvg"]
    assert found["notes"][0].startswith("FedAvg, seed 0, stopped: ")
    assert found["notes"][0] in result.stderr


def test_traceback_on_request(folder):
    result = CliRunner().invoke(app, ["--traceback", "compare", "nothing.csv"])
    assert isinstance(result.exception, fedsub.errors.ConfigError)


def test_a_run_that_diverged_says_so_quietly_too_and_in_its_exit_code(folder):
    wild = ("run", *RATINGS, *SHORT, "-m", "fedavg", "--lr", "1e30", "--out", "o", "-q")
    said = fedsub_(*wild, code=3).stdout
    assert "FedAvg (diverged)" in said
    assert "0.6931" not in said.partition("FedAvg (diverged)")[2].splitlines()[0]
    assert "FedAvg, seed 0, diverged: train.ce ended at " in said
    again = fedsub_("resume", "o", "--json", code=3)  # finished: drawn again
    assert json.loads(again.stdout)["notes"][0].startswith("FedAvg, seed 0, diverged: ")
    assert json.loads((folder / "o" / "fedavg-seed0" / "result.json").read_text())["diverged"]


def test_private_heat(folder):
    said = fedsub_("heat", "study.toml", "--private", "rr:2", "--private", "secure", "--out", "p.png").stdout
    assert "resolvable" in said
    assert "no bound" in said
    assert (folder / "p.png").stat().st_size > 1000
    how = ("--private", "prr:2", "--weighted", "--seed", "3", "--json", "--out", "q.png")
    found = json.loads(fedsub_("heat", "study.toml", *how).stdout)
    assert found["private"]["prr:2"]["epsilon_row"] == pytest.approx(2.70805, abs=1e-5)
    assert found["private"]["prr:2"]["deviation"] > 0
    assert (found["weighted"], found["seed"]) == (True, 3)
    assert "ε = 0 tells nothing" in fedsub_("heat", "study.toml", "--private", "rr:0", code=2).stderr


def test_private_heat_in_a_file(folder):
    """A method's heat in TOML, and what its run says of it."""
    (folder / "private.toml").write_text(
        (folder / "study.toml").read_text().partition("[methods")[0]
        + '[methods]\nprivate = { method = "fedsubavg", heat = "rr:2", max_coef = "resolvable" }\n'
    )
    fedsub_("compare", "private.toml", "--rounds", "2", "--out", "private", "-q", "--set", "methods.private.heat=oue:1")
    events = (folder / "private/private-seed0/events.jsonl").read_text()
    assert "optimal randomised response" in events
    assert "are clipped to" in events
