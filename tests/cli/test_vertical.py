"""`fedsub vertical`: align two files, then train on them as processes would, and in one; the same bits."""

from __future__ import annotations

import json
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from certificates import Authority
from safetensors.torch import load_file
from typer.testing import CliRunner

from fedsub.cli import app
from fedsub.cli.show import View
from fedsub.cli.vertical_runs import Line, align, feature, labelled
from fedsub.errors import WireError
from fedsub.vertical.align import intersect
from fedsub.vertical.config import read

STUDY = """
label = "paper"

[train]
rounds = 3
steps = 30
batch_size = 20
every = 1
target = "test.auc>=0.99"

[parties.paper]
data = "{paper}"
label = "liked"
tables = ["page"]
optimiser = "adam:0.05"

[parties.shop]
data = "{shop}"
tables = ["item", "tags"]
values = ["price"]
padding = ["tags"]
dim = 4
width = 5
optimiser = "adam:0.05"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    shop, paper = draw.permutation(160)[:120], draw.permutation(160)[:110]
    pl.DataFrame({
        "id": [f"u{n}" for n in shop], "item": shop % 7, "price": (shop % 5) / 5,
        "tags": [list(range(n % 3)) for n in shop],
    }).write_parquet(tmp_path / "shop.parquet")  # fmt: skip
    pl.DataFrame({"id": [f"u{n}" for n in paper], "page": paper % 3, "liked": ((paper % 7) > 3).astype(int)}).write_csv(
        tmp_path / "paper.csv"
    )
    (tmp_path / "study.toml").write_text(STUDY.format(paper="paper.csv", shop="shop.parquet"))
    (tmp_path / "shared.toml").write_text(STUDY.format(paper="paper-shared.csv", shop="shop-shared.parquet"))
    return tmp_path


def lines(folder: Path, port: int, keys: Authority | None = None) -> tuple[Line, Line]:
    """(who waits, who connects)"""
    keys = keys or Authority(folder / "keys")
    made = [
        (None if n else f"127.0.0.1:{port}", f"127.0.0.1:{port}" if n else None, *keys.issue(name), keys.file, False)
        for n, name in enumerate(("shop", "paper"))
    ]
    return Line(*made[0]), Line(*made[1])


def together(*work: Any) -> None:
    """Each in a thread of its own; the later ones when the first listens."""
    errors: list[BaseException] = []

    def safe(one: Any) -> None:
        try:
            one()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=safe, args=(one,), daemon=True) for one in work]
    for thread in threads:
        thread.start()
        time.sleep(0.5)
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads)


def free_port() -> int:
    from fedsub.round.channels import Listener

    with Listener() as listener:
        return listener.port


def test_align_then_train_as_processes_and_in_one(folder: Path) -> None:
    waits, connects = lines(folder, free_port())
    quiet = View(quiet=True)
    together(
        lambda: align(folder / "shop.parquet", "id", waits, count_only=False, out=None, view=quiet),
        lambda: align(folder / "paper.csv", "id", connects, count_only=False, out=None, view=quiet),
    )
    shop, paper = pl.read_parquet(folder / "shop-shared.parquet"), pl.read_csv(folder / "paper-shared.csv")
    whole = pl.read_parquet(folder / "shop.parquet"), pl.read_csv(folder / "paper.csv")
    assert set(shop["id"]) == set(whole[0]["id"]) & set(whole[1]["id"])
    assert shop["id"].to_list() == paper["id"].to_list()
    waits, connects = lines(folder, free_port())
    study = read(str(folder / "shared.toml"), {})
    together(
        lambda: feature(study, "shop", waits, quiet, folder / "shop", False),
        lambda: labelled(study, {"shop": connects}, quiet, folder / "paper", False),
    )
    found = CliRunner().invoke(
        app, ["vertical", "run", str(folder / "study.toml"), "--out", str(folder / "one"), "--json"]
    )
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert told["final"]["test"]["auc"] > 0.9
    one = folder / "one" / "split-seed0"
    for left, right in (
        (one / "model.safetensors", folder / "paper" / "split-seed0" / "model.safetensors"),
        (one / "bottom-shop.safetensors", folder / "shop" / "model.safetensors"),
    ):
        a, b = load_file(left), load_file(right)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[n], b[n]) for n in a)
    assert (one / "metrics.jsonl").read_bytes() == (folder / "paper" / "split-seed0" / "metrics.jsonl").read_bytes()
    assert "Split" in (folder / "one" / "report.html").read_text()
    again = CliRunner().invoke(app, ["report", str(folder / "one")])
    assert again.exit_code == 0, again.output


def test_resume_goes_on(folder: Path) -> None:
    command = ["vertical", "run", str(folder / "study.toml"), "-q", "--out"]
    assert CliRunner().invoke(app, [*command, str(folder / "a")]).exit_code == 0
    assert CliRunner().invoke(app, [*command, str(folder / "b"), "--rounds", "2"]).exit_code == 0
    refused = CliRunner().invoke(app, [*command, str(folder / "b")])
    assert refused.exit_code == 2
    assert "holds a run already" in refused.output
    for place in (folder / "b", folder / "b" / "split-seed0"):
        said = " ".join(CliRunner().invoke(app, ["resume", str(place)]).output.split())
        assert "is of fedsub vertical run; go on with it by the same command and --out" in said
    assert CliRunner().invoke(app, [*command, str(folder / "b"), "--resume"]).exit_code == 0
    a, b = (load_file(folder / x / "split-seed0" / "bottom-shop.safetensors") for x in "ab")
    assert all(torch.equal(a[n], b[n]) for n in a)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "no-such-task"], "There is no file and no task 'no-such-task'"),
        (["run", "ads-like", "--party", "publishr"], "did you mean 'publisher'?"),
        (["run", "ads-like", "--party", "ads"], "--connect publisher=HOST:PORT"),
        (["run", "ads-like", "--party", "publisher"], "--listen HOST:PORT"),
        (["run", "ads-like", "--listen", "127.0.0.1:1"], "--party NAME"),
        (["run", "ads-like", "--party", "publisher", "--listen", "127.0.0.1:1"], "needs --certificate, --key"),
        (["run", "ads-like", "--set", "parties.ads.optimiser=lion"], "parties.ads.optimiser"),
        (["run", "ads-like", "--set", "train.round=3"], "did you mean 'train.rounds'?"),
        (["run", "ads-like", "--protect", "marvel:4"], "marvell"),
        (["run", "movielens-1m"], "needs --data DIR"),
        (["align", "nothing.csv", "--listen", "127.0.0.1:1", "--without-tls"], "nothing.csv"),
        (["align", "nothing.csv", "--without-tls"], "--listen HOST:PORT and the other --connect"),
        (["align", "nothing.csv", "--connect", "here", "--without-tls"], "'here' is no address"),
    ],
)
def test_refusals(arguments: list[str], said: str) -> None:
    found = CliRunner().invoke(app, ["vertical", *arguments])
    assert found.exit_code == 2, found.output
    assert said in found.output


def test_a_missing_id_column_and_a_party_without_data(folder: Path) -> None:
    found = CliRunner().invoke(
        app,
        ["vertical", "align", str(folder / "paper.csv"), "--id", "ids", "--connect", "127.0.0.1:1", "--without-tls"],
    )
    assert "no column 'ids'; it has id, page, liked" in found.output
    text = (folder / "study.toml").read_text().replace('data = "shop.parquet"\n', "")
    (folder / "study.toml").write_text(text)
    found = CliRunner().invoke(app, ["vertical", "run", str(folder / "study.toml")])
    assert "The party shop has no data here" in found.output


def test_strangers_do_not_end_an_alignment(folder: Path) -> None:
    """Bytes of something else, one of another authority, and one whose name is another one."""
    keys, elsewhere = Authority(folder / "keys"), Authority(folder / "elsewhere")
    waits, connects = lines(folder, free_port(), keys)
    waits = replace(waits, only="paper")
    quiet, told = View(quiet=True), list[str]()
    quiet.note = told.append  # type: ignore[method-assign]

    def strangers() -> None:
        with socket.create_connection(connects.address) as loud:
            loud.sendall(b"GET / HTTP/1.1\r\n\r\n" * 20)
        for certificate, key in (elsewhere.issue("paper"), keys.issue("eve")):
            other = replace(connects, certificate=certificate, key=key)
            with pytest.raises(WireError, match="before it said anything"), other.channel(View(quiet=True)) as channel:
                intersect(["u1"], channel, first=False)

    together(
        lambda: align(folder / "shop.parquet", "id", waits, count_only=True, out=None, view=quiet),
        lambda: (strangers(), align(folder / "paper.csv", "id", connects, count_only=True, out=None, view=quiet)),
    )
    assert sum("Still waiting: somebody connected, but TLS was not agreed on" in one for one in told) == 2
    assert "Still waiting: 'eve' connected, and only 'paper' may; nothing was sent to it." in told


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (["a", None, "b", None], "2 ids in 'id' are missing, such as those of the rows 1 (None), 3 (None)"),
        (["a", "b", "a"], "2 ids in 'id' are there more than once, such as those of the rows 0 ('a'), 2 ('a')"),
        ([1.5, 2.0], "the ids in 'id' are Float64; they must be text or whole numbers"),
    ],
)
def test_ids_are_looked_at_before_anybody_waits(ids: list, said: str, tmp_path: Path) -> None:
    pl.DataFrame({"id": ids}).write_parquet(tmp_path / "bad.parquet")
    found = CliRunner().invoke(
        app, ["vertical", "align", str(tmp_path / "bad.parquet"), "--listen", "127.0.0.1:0", "--without-tls"]
    )
    assert found.exit_code == 2
    assert said in " ".join(found.output.split())


def test_a_module_of_ones_own_that_fails(folder: Path) -> None:
    (folder / "mine.py").write_text('def bottom(clients):\n    raise ValueError("boom")\n')
    (folder / "mine.toml").write_text(
        STUDY.format(paper="paper.csv", shop="shop.parquet").replace("width = 5", 'own = "mine.py:bottom"')
    )
    found = CliRunner().invoke(app, ["vertical", "run", str(folder / "mine.toml"), "--out", str(folder / "c")])
    assert found.exit_code == 2
    assert "parties.shop.own: mine.py:bottom raised ValueError: boom" in " ".join(found.output.split())


def test_a_module_of_ones_own(folder: Path) -> None:
    (folder / "mine.py").write_text(
        "from torch import nn\n\n\nclass Items(nn.Module):\n    def __init__(self, rows):\n        super().__init__()\n"
        "        self.rows = nn.Embedding(rows, 5)\n\n    def forward(self, batch):\n"
        '        return self.rows(batch["item"])\n\n\ndef bottom(clients):\n'
        '    return Items(clients.size("item")), {"rows.weight": "item"}\n'
    )
    (folder / "mine.toml").write_text(
        STUDY.format(paper="paper.csv", shop="shop.parquet").replace('["item", "tags"]', '["item"]').replace(
            'padding = ["tags"]', 'own = "mine.py:bottom"')
    )  # fmt: skip
    found = CliRunner().invoke(app, ["vertical", "run", str(folder / "mine.toml"), "--out", str(folder / "c")])
    assert found.exit_code == 0, found.output
    assert "mine.py (parties.shop.own)" in found.output
    assert set(load_file(folder / "c" / "split-seed0" / "bottom-shop.safetensors")) == {"rows.weight"}


@pytest.mark.slow
def test_two_processes_align_what_they_share() -> None:
    found = CliRunner().invoke(app, ["vertical", "bench", "--ids", "3001", "--json"])
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    for side in (told["first"], told["second"]):
        assert side["exact"] is True
        assert side["shared"] == 1501
        assert 0 < side["peak_bytes"] < 2 << 30
        assert side["ratio"] == pytest.approx(side["cpu"] / side["curve"])
    assert "1,501 ids shared, exactly those that are" in found.stderr
