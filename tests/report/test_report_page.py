"""The page of a comparison: it stands alone, escapes everything, and says where numbers come from."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from importlib.resources import files
from pathlib import Path
from urllib.parse import unquote

import pytest
from made_results import NASTY, Reader, comparison, make

from fedsub.running.result import Target
from fedsub.study.comparing import Comparison
from fedsub.study.report import (
    render,
    write_report,
)
from fedsub.study.report.charts import by_metric


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def page(folder) -> str:
    runs = {NASTY: [make(seed=s, splits=("train", "test"), auc=False) for s in range(2)]}
    runs["central"] = [make(bytes_=0, auc=False)]
    for seed, run in enumerate(runs[NASTY]):
        run.path = path = folder / str(seed)
        path.mkdir()
        method = {"type": "Method", "local": {"type": "SGD", "lr": 0.3}, "parts": [{"type": "Prox", "mu": 0.01}]}
        config = {"method": method, "seed": seed, "data": "abc123", "splits": {"test": "def456"}, "note": "<i>"}
        (path / "config.json").write_text(json.dumps(config))
        (path / "versions.json").write_text('{"format": "fedsub-run", "version": 1, "torch": "9.8.7"}')
        (path / "events.jsonl").write_text('{"time": "now", "event": "engine <batched> chosen"}\n')
    notes = ["fedsub compare --target 'train.ce<=0.65'", "<b>a note</b>"]
    result = Comparison(runs, Target.parse("train.ce<=0.65"), "train.ce", folder, notes)
    out = folder / "report"
    path = write_report(result, out)
    assert path == out / "report.html"
    assert {p.name for p in out.iterdir()} == {
        "report.html", "table.csv", "table.md", "table.tex", "deciles-test.ce.png",
        *(f"{kind}-{m}.png" for kind in ("rounds", "bytes") for m in ("train.ce", "test.ce")),
    }  # fmt: skip
    return path.read_text()


def test_page_is_self_contained(page):
    outside = set(re.findall(r"https?://[^\s\"'<>]*", page))
    assert outside <= {"http://www.w3.org/2000/svg", "https://github.com/leeoniya/uPlot"}  # a name, and a comment
    found = Reader(page)
    assert not {"link", "img", "iframe", "object"} & set(found.tags)
    assert "@import" not in page
    inside = [link for link in found.links if link.startswith("#")]
    assert {link[1:] for link in inside} <= set(found.ids)
    assert len(found.ids) == len(set(found.ids))
    assert set(re.findall(r"url\(#([^)]*)\)", page)) <= set(found.ids)


def test_page_links_files_and_runs_that_are_there(page, folder):
    links = {unquote(link) for link in Reader(page).links if not link.startswith("#")}
    assert {"./table.csv", "./table.md", "./table.tex", "../0", "../1"} <= links
    assert {f"./{kind}-test.ce.png" for kind in ("rounds", "bytes", "deciles")} <= links
    assert all((folder / "report" / link).exists() for link in links)


def test_only_our_scripts_may_run(page):
    """The policy names the digests of the two scripts, so that what a name smuggles in would not run."""
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    assert len(digests) == 2
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.endswith("script-src " + " ".join(f"'sha256-{d}'" for d in digests))


def test_the_library_is_as_published():
    """uPlot 1.6.32 of the npm registry, file by file, with its licence."""
    kept = {
        "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
        "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    }
    folder = files("fedsub.study.report") / "assets"
    assert {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in kept} == kept
    assert "(v1.6.32)" in (folder / "uPlot.iife.min.js").read_text()[:80]


def test_page_escapes_everything(page):
    assert page.count("<script") == 3  # the data, the library, ours
    assert "&lt;script&gt;alert(" in page
    text = "\n".join(Reader(page).text)
    for expected in (NASTY, "<b>a note</b>", "engine <batched> chosen", "<i>", "train.ce<=0.65"):
        assert expected in text


def test_the_data_cannot_end_their_element_and_hold_no_nan():
    runs = {"</script><b>": [make(values=(0.69, math.nan, 0.6))], "x\u202ey\x07": [make(values=(0.69, math.inf, 0.5))]}
    page = render(comparison(None, **runs))
    (data,) = re.findall(r'<script type="application/json" id="charts">(.*?)</script>', page)
    first = json.loads(data)["f1"]
    assert first["lines"][0]["label"] == "</script><b>"
    assert first["lines"][0]["parts"][0]["y"] == [0.69, 0.6]
    told = page.replace(data, "")
    assert "\u202e" not in told  # shown by its code: it would turn the line around
    assert "\x07" not in told
    assert r"x\u202ey\u0007" in told


def test_charts_hold_what_the_runs_measured():
    runs = [make(seed=s, values=(0.69, 0.66 + s / 100, 0.64)) for s in range(2)]
    result = comparison(a=runs, central=[make(bytes_=0)])
    rounds, moved, heat = by_metric(result)["train.ce"]
    (part,) = rounds.plain()["lines"][0]["parts"]
    assert part == {"x": [0, 10, 20], "y": [0.69, 0.665, 0.64], "low": [0.69, 0.66, 0.64], "high": [0.69, 0.67, 0.64],
                    "range": [0.64, 0.69]}  # fmt: skip
    assert [mark["y"] for mark in rounds.plain()["marks"]] == [0.65]
    assert [line["label"] for line in moved.plain()["lines"]] == ["a"]
    assert moved.plain()["marks"][1]["colour"] == 1  # the baseline's own line
    assert [tick["name"] for tick in heat.plain()["ticks"]] == ["unseen", "coldest", "hottest"]
    assert [len(part["x"]) for part in heat.plain()["lines"][0]["parts"]] == [2, 1]  # unseen features stand alone


def test_page_tells_where_numbers_come_from(page):
    text = "".join(Reader(page).text)
    for expected in (
        "abc123",
        "def456",
        "9.8.7",
        "method.local.lr",
        "Prox",
        "fedsub compare",
        "batched",
        "peak memory",
    ):
        assert expected in text
    assert page.count('role="img"') == page.count("<svg") == 2 * 2 + 1
    assert "prefers-color-scheme: dark" in page


def test_smallest_page():
    """No run directory, no test split, no target, no deciles, a single evaluated round."""
    result = comparison(None, a=[make(values=(0.7,), deciles=False)])
    text = "".join(Reader(render(result)).text)
    assert "1 method, 1 seed each, up to 0 rounds" in text
    assert "Not known" in text
    assert "±" not in text
