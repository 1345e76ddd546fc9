"""The published numbers are complete, and every experiment file runs on its data and on the twin."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedsub.cli import app
from fedsub.cli.options import Flags
from fedsub.cli.what import experiment as from_file
from fedsub.data.datasets import DATASETS
from fedsub.data.twins import TWINS
from fedsub.errors import ConfigError
from fedsub.study.experiment import tasks
from fedsub.study.reproduce import Request, studies
from fedsub.study.reproduce.published import METHODS, PUBLISHED, rounds_text

EVERY = list(studies.STUDIES.values())
FILES = sorted(p.stem for p in studies.experiment_file("table2_movielens_stated").parent.glob("table*.toml"))


def test_published_numbers_are_complete():
    assert list(PUBLISHED) == list(studies.STUDIES) == ["movielens", "sentiment", "amazon", "alibaba"]
    for paper in PUBLISHED.values():
        assert tuple(paper.to_target) == METHODS
        assert len(paper.by_cohort) == 3
        assert round(paper.samples / paper.clients) in (paper.per_client, paper.per_client + 1)
        largest = max(n for n in paper.to_target.values() if n is not None)
        assert largest <= paper.rounds
        # FedSubAvg's count stands in both tables, under the largest cohort.
        assert paper.by_cohort[max(paper.by_cohort)] == paper.to_target["FedSubAvg"]


def test_a_count_that_was_not_reached_is_printed_as_in_the_paper():
    assert rounds_text(PUBLISHED["amazon"], "FedAvg") == "200+"
    assert rounds_text(PUBLISHED["amazon"], "FedAdam") == "16"
    assert rounds_text(PUBLISHED["amazon"], "FedNova") == ""


@pytest.mark.parametrize("study", EVERY, ids=lambda s: s.name)
def test_every_study_has_its_files_for_real_data_and_twin(study):
    for task in (*study.data, study.twin):
        for protocol in ("stated", "tuned"):
            made = studies.experiment(f"table2_{study.name}_{protocol}", task, None, None, {})
            assert tuple(made.methods(10_000)) == METHODS
            assert made.config.run.target is not None
        made = studies.experiment(f"table3_{study.name}", task, None, None, {})
        cohorts = {label: settings["clients_per_round"] for label, settings in made.settings(10_000).items()}
        assert cohorts == {f"K={k}": k for k in study.published.by_cohort}


def test_a_stand_in_does_not_bear_the_papers_name():
    critics = studies.STUDIES["sentiment"]
    assert critics.titled("rotten-tomatoes-critics") == "rotten-tomatoes-critics, for Sent140"
    assert critics.titled("sentiment-like") == "sentiment-like, for Sent140"
    assert critics.titled("sentiment140") == "Sent140 (sentiment140)"
    for study in studies.STUDIES.values():
        assert set(study.stand_ins) <= set(study.data)
        assert all(("stand-in" in study.differs[name]) == (name in study.stand_ins) for name in study.data)


def test_the_twin_brings_its_own_split_and_batches():
    real = studies.experiment("table2_alibaba_stated", "taobao-cart-buy", None, None, {})
    twin = studies.experiment("table2_alibaba_stated", "alibaba-like", None, 0.1, {})
    assert (real.config.split.by, real.config.train.batch_size, real.config.train.clip_norm) == ("random", 4, 0.1)
    assert (twin.config.split.by, twin.config.train.batch_size, twin.config.train.clip_norm) == ("column", 32, 0.1)
    assert twin.config.data.scale == 0.1


@pytest.mark.parametrize("name", FILES)
def test_a_file_can_be_compared_by_itself(name):
    made = from_file(str(studies.experiment_file(name)), Flags(data="DIR"))
    assert made.methods(10_000)
    assert made.evaluation().every >= 1
    if name.endswith("tuned"):
        assert made.config.tune.grid


def test_there_are_no_other_files():
    wanted = {f"table2_{s.name}_{p}" for s in EVERY for p in ("stated", "tuned")} | {f"table3_{s.name}" for s in EVERY}
    assert set(FILES) == wanted


def test_every_data_set_and_twin_is_a_task_with_its_own_split():
    assert set(tasks.REAL) == set(DATASETS)
    assert set(tasks.TWINS) == set(TWINS)
    for name, found in DATASETS.items():
        assert tasks.get(name).config["split"] == dict(found.split), name
    for name, twin in TWINS.items():
        assert tasks.get(name).config["split"].get("column") == twin.holdout, name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table4"], "There is no 'table4' to reproduce; did you mean 'table3'"),
        (["table2", "--task", "movielen"], "did you mean 'movielens'"),
        (["table2", "--task", "movielens", "--protocol", "tune"], "did you mean 'tuned'"),
        (["table2", "--task", "movielens"], "there is no movielens-1m in the cache"),
        (["table2", "--task", "amazon", "--data", "."], "use synthetic data of the same shape: --twin"),
        (["table2", "--data", "nowhere"], "There is no folder nowhere"),
        (["table2", "--task", "movielens", "--scale", "0.1"], "give --twin too"),
        (["table2", "--twin", "--data", "."], "leave --data out"),
        (["table2", "--twin", "--scale", "0.01", "--task", "movielens", "--methods", "fedsubav"], "'fedsubavg'"),
    ],
)
def test_a_mistake_is_one_message(folder: Path, arguments, message):
    result = CliRunner().invoke(app, ["reproduce", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (folder / "runs").exists()


def test_a_request_names_its_directory():
    assert Request("table2", "movielens").name == "table2-stated-movielens"
    assert Request("figure4", twin=True).name == "figure4-twin"
    with pytest.raises(ConfigError, match="no task"):
        Request("table1", "netflix")
