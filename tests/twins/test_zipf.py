"""Clicks of any size: rows by Zipf's law, a known truth, and the same samples however they are written."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from fedsub.cli import app
from fedsub.data import Clients
from fedsub.data.twins import Zipf
from fedsub.errors import DataError
from fedsub.objective.metrics import auc

SMALL = Zipf(300, 5000, 10_123, seed=3)


def test_a_log_that_is_read_in_is_what_is_made(tmp_path):
    about = SMALL.parquet(tmp_path / "log", piece=2000)
    assert about["files"] == 5 == len(list((tmp_path / "log").glob("*.parquet")))
    log = pl.read_parquet(tmp_path / "log/*.parquet")
    assert log["client"].head(300).n_unique() == 300  # nobody's samples lie together
    assert log["client"].head(300).to_list() != list(range(300))
    made = SMALL.make()
    options = {"ids": ["item"], "label": "label", "sizes": {"item": 5000}}
    for read in (
        Clients.from_file(tmp_path / "log", "client", **options),
        Clients.from_file(tmp_path / "log", "client", **options, to=tmp_path / "saved", memory="2GB"),
    ):
        assert read.fingerprint == made.fingerprint
    SMALL.parquet(tmp_path / "other", piece=100)  # how it is cut changes the order of clients in it, and no more
    assert Clients.from_file(tmp_path / "other", "client", **options).fingerprint == made.fingerprint


def test_blocks_change_nothing_and_train_and_test_are_a_split(tmp_path):
    made = SMALL.make()
    assert len(made) == 300
    assert made.samples == 10_123
    assert np.array_equal(made.sizes, SMALL.sizes)
    assert set(made.sizes) == {33, 34}
    assert SMALL.make(block=77).fingerprint == made.fingerprint != Zipf(300, 5000, 10_123).make().fingerprint
    about = SMALL.write(tmp_path / "clicks", block=1000)
    for part, expected in zip(("train", "test"), made.split(0.8, seed=3), strict=True):
        assert Clients.open(tmp_path / "clicks" / part, verify=True).fingerprint == expected.fingerprint
        assert about[part]["samples"] == expected.samples


def test_rows_follow_the_law_and_labels_the_truth():
    """Of rows drawn with density r^(-s) on (0, R) the share below x·R is x^(1 - s)."""
    for exponent in (0.0, 0.5, 2 / 3):
        data = Zipf(1000, 10**9, 100_000, exponent)
        rows = data.block(0, 1000).columns[0].values
        for below in (0.001, 0.1, 0.5):
            share = below ** (1 - exponent)
            assert (rows < below * 10**9).mean() == pytest.approx(share, abs=4 * (share * (1 - share) / 1e5) ** 0.5)
    block = data.block(0, 1000)
    label = block.columns[1].values
    assert label.mean() == pytest.approx(block.probability.mean(), abs=0.01)
    # mood + quality is normal with deviation √1.25: E|2 p - 1| is the chance by which the better guess is right.
    sure = np.abs(np.tanh(np.random.default_rng(0).normal(0, 1.25**0.5, 10**6) / 2)).mean()
    assert np.abs(2 * block.probability - 1).mean() == pytest.approx(sure, abs=0.01)
    assert auc(block.probability, label) > 0.7
    one = np.unique(np.stack([rows, np.round(np.log(block.probability / (1 - block.probability)), 9)]), axis=1)
    assert one.shape[1] > 1000


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"clients": 0}, "clients"),
        ({"samples": 9}, "9 samples of 10 clients"),
        ({"exponent": 1.0}, "closed form"),
        ({"seed": -1}, "seed"),
    ],
)
def test_what_cannot_be_made_is_said(sizes, said):
    with pytest.raises(DataError, match=said):
        Zipf(**({"clients": 10, "rows": 10, "samples": 20} | sizes))


def test_the_command_writes_both_forms(tmp_path):
    def call(*words: str):
        return CliRunner().invoke(app, ["data", "generate", *words])

    sizes = ["--clients", "50", "--rows", "1000", "--samples", "700", "--seed", "4"]
    done = call("zipf", *sizes, "--to", str(tmp_path / "clicks"), "--json")
    assert done.exit_code == 0, done.output
    made = Zipf(50, 1000, 700, seed=4).make()
    assert json.loads(done.stdout)["train"]["fingerprint"] == made.split(0.8, seed=4)[0].fingerprint
    assert call("zipf", *sizes, "--parquet", "--to", str(tmp_path / "log")).exit_code == 0
    log = str(tmp_path / "log")
    words = ["data", "import", log, "--client", "client", "--label", "label", "--table", "item", "--rows", "item=1000"]
    done = CliRunner().invoke(app, [*words, "--to", str(tmp_path / "saved")])
    assert done.exit_code == 0, done.output
    assert Clients.open(tmp_path / "saved").fingerprint == made.fingerprint
    assert "are of zipf" in call("amazon-like", "--rows", "5", "--to", str(tmp_path / "x")).output
    assert "--clients, --rows and --samples" in call("zipf", "--scale", "2", "--to", str(tmp_path / "x")).output
