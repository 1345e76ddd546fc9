"""Reports of results made by hand: what the tables say, what the plots draw, and a page that stands alone."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from importlib.resources import files
from io import StringIO
from pathlib import Path
from urllib.parse import unquote

import pytest
from rich.console import Console

from fedsub.running.result import Result, Target
from fedsub.study.comparing import Comparison
from fedsub.study.report import (
    bytes_plot,
    csv_rows,
    deciles_plot,
    latex_table,
    markdown_table,
    png,
    render,
    rich_table,
    rounds_plot,
    text_table,
    write_report,
)
from fedsub.study.report import words as w
from fedsub.study.report.charts import by_metric, left_out
from fedsub.study.report.curves import by_decile, curve, decile_groups, decile_metric, megabytes
from fedsub.study.report.drawing import COLOURS, style
from fedsub.study.report.table import columns

NASTY = '<script>alert("x")</script> & $a_b$ | `c`'


def make(
    method="FedAvg",
    seed=0,
    values=(0.69, 0.66, 0.64),
    *,
    bytes_=1000,
    splits=("train",),
    deciles=True,
    auc=True,
    **more,
):
    """A run evaluated every 10 rounds: cross-entropy ``values``, and 0.01 more on each further split."""
    history = []
    for i, ce in enumerate(values):
        record = {"round": 10 * i, "loss": None, "clients": 5 if i else 0, "down": 3 * bytes_ if i else 0}
        record["up"] = 2 * bytes_ if i else 0
        for j, split in enumerate(splits):
            record |= {f"{split}.ce": ce + 0.01 * j} | ({f"{split}.auc": 1.2 - ce - 0.01 * j} if auc else {})
        history.append(record)
    groups = [{"group": g, "samples": n, **({"ce": 0.7 - 0.01 * g, "auc": 0.6} if n else {})}
              for g, n in [(-1, 7), (0, 50), (1, 0), (9, 2500)]]  # fmt: skip
    final = {s: {"samples": 100, "deciles": groups if deciles else []} for s in splits}
    return Result(method, seed, history, final, seconds=12.5, engine="batched", **more)


def comparison(target: str | None = "train.ce<=0.65", /, **runs: list[Result]) -> Comparison:
    goal = Target.parse(target) if target else None
    return Comparison(dict(runs), goal, "train.ce")


def cells(result: Comparison, heading: str) -> list[str]:
    (found,) = [c for c in columns(result) if c.heading.startswith(heading)]
    return found.cells


# Tables --------------------------------------------------------------------------------------------


def test_rounds_to_the_target():
    slow, fast = (0.69, 0.68, 0.67), (0.69, 0.64, 0.60)
    result = comparison(
        none=[make(seed=s, values=slow) for s in range(3)],
        some=[make(values=slow), make(seed=1, values=fast), make(seed=2)],
        every=[make(values=fast), make(seed=1, values=fast), make(seed=2)],
        one=[make(values=fast)],
    )
    assert cells(result, "rounds to training cross-entropy ≤ 0.65") == ["20+", "15 (2 of 3)", "13.3 ± 5.8", "10"]
    # Only methods that always get there compete, so "some" is no candidate; of "one" a single seed tells too little.
    assert next(c for c in columns(result) if c.heading.startswith("rounds")).best == frozenset()
    alone = comparison(none=[make(values=slow)], one=[make(values=fast)])
    assert next(c for c in columns(alone) if c.heading.startswith("rounds")).best == {1}
    assert not any(c.heading.startswith("rounds") for c in columns(comparison(None, a=[make()])))


def test_seeds_and_best():
    better = [make(values=(0.69, 0.60, 0.69)), make(seed=1, values=(0.69, 0.58, 0.60))]
    result = comparison(a=[make(), make(seed=1, values=(0.69, 0.62, 0.66))], b=better)
    assert cells(result, "best training cross-entropy") == ["0.6300 ± 0.0141", "0.5900 ± 0.0141"]
    marked = {c.heading: c.best for c in columns(result)}
    assert marked["best training cross-entropy (nats)"] == {1}
    assert marked["best training ROC area (AUC)"] == {1}  # higher is better
    assert marked["seconds per run"] == frozenset()  # all the same: nothing to mark
    assert not any(c.best for c in columns(comparison(a=[make()])))  # alone, nothing is best


def test_nan_metric_is_never_best():
    nan = math.nan
    dead = make(values=(nan, nan, nan))
    result = comparison(
        bad=[make(values=(0.7, 0.68)), make(seed=1, values=(0.7, 0.68))], dead=[dead, make(seed=1, values=[nan] * 3)],
        half=[dead, make(seed=1, values=(0.69, 0.5, 0.4))], fine=[make(), make(seed=1)],
    )  # fmt: skip
    assert cells(result, "best training cross") == ["0.6800 ± 0.0000", "–", "0.4000 (1 of 2)", "0.6400 ± 0.0000"]
    assert next(c for c in columns(result) if "cross-entropy (nats)" in c.heading).best == {3}
    assert "nan" not in text_table(result) + markdown_table(result) + str(csv_rows(result))


def test_bytes_of_the_centralised_baseline():
    result = comparison(big=[make(bytes_=2_000_000)], small=[make(bytes_=3000)], central=[make(bytes_=0)])
    assert cells(result, "bytes per client and round") == ["2 MB", "3 kB", "–"]
    assert next(c for c in columns(result) if c.heading.startswith("bytes")).best == {1}


def test_chosen_columns():
    both = [make(splits=("train", "test"))]
    assert w.chosen(comparison(a=both)) == ["train.ce", "test.ce", "test.auc"]
    assert w.chosen(comparison("train.auc>=0.6", a=both)) == ["train.ce", "train.auc", "test.ce", "test.auc"]
    other = make()
    other.history = [{"round": 0, "clients": 0, "down": 0, "up": 0, "train.loss": 2.0, "train.half_ce": 1.0}]
    assert w.chosen(comparison(None, a=[other])) == ["train.loss"]


def test_counts_are_told_at_the_end():
    """Of communications so far there is no best value, which would be that of the start."""
    counted = make()
    for record in counted.history:
        record |= {"mixture.communications": 7 * record["round"], "mixture.psi": 0.5}
    result = comparison(a=[counted], b=[make()])
    assert w.chosen(result) == w.chosen(comparison(b=[make()]))
    assert cells(result, "times averaged") == ["140", "–"]
    head, *rows = csv_rows(result)
    assert [row[head.index("last mixture.communications: mean")] for row in rows] == ["140.0", ""]
    assert not any("best mixture" in name for name in head)


def test_text_is_aligned_and_marked():
    result = comparison(**{"FedAvg": [make()], "联邦": [make(values=(0.69, 0.6, 0.5))]})
    lines = text_table(result).splitlines()
    rule = next(i for i, line in enumerate(lines) if line.startswith("---"))
    rows = lines[rule + 1 : rule + 3]
    assert "0.5000*" in rows[1]
    assert "0.5000*" not in rows[0]
    assert lines[-1] == "* best of its column"
    console = Console(width=140, record=True, file=StringIO())
    console.print(rich_table(result))
    assert "0.5000" in console.export_text()


def test_markup_in_labels():
    result = comparison(**{NASTY: [make()], "[bold]b[/bold]\nc": [make()]})
    markdown = markdown_table(result)
    assert "<script>" not in markdown
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in markdown.splitlines()}) == 1
    assert list(rich_table(result).columns[0].cells)[1].plain == "[bold]b[/bold] c"  # type: ignore[union-attr]
    assert csv_rows(result)[1][0] == NASTY


def test_csv_has_exact_numbers():
    head, row = csv_rows(comparison(a=[make(values=(0.7, 0.1 + 0.2))]))
    found = dict(zip(head, row, strict=True))
    assert found["best train.ce: mean"] == repr(0.1 + 0.2)
    assert found["best train.ce: std"] == ""
    assert found["rounds to train.ce<=0.65: mean"] == "10.0"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "–"), (999, "999 B"), (999.6, "1 kB"), (12_345, "12.3 kB"), (123_456_789, "123 MB")]
)
def test_sizes(count, text):
    assert w.size(count) == text


def test_numbers():
    assert [w.number(0.5), w.number(math.nan), w.number(math.inf), w.number(1234.5, 6.7)] == [
        "0.5000", "–", "∞", "1234 ± 6.7",
    ]  # fmt: skip
    assert [w.compact(n) for n in (7, 950, 1234, 46_694, 2_500_000)] == ["7", "950", "1.2k", "47k", "2.5M"]
    assert w.with_unit("train.ce") == "cross-entropy on training samples (nats)"


# Curves and plots ----------------------------------------------------------------------------------


def test_seeds_that_end_early_go_on_alone():
    found = curve([make(values=(0.7, 0.6)), make(seed=1, values=(0.7, 0.5, 0.4))], "train.ce")
    assert (found.x, found.low, found.high) == ([0, 10], [0.7, 0.5], [0.7, 0.6])
    assert found.mean == pytest.approx([0.7, 0.55])
    assert found.tails == [[(10, 0.5), (20, 0.4)]]


def test_megabytes_add_up_per_client():
    run = make(bytes_=1_000_000)
    assert list(megabytes(run).values()) == [0, 1, 2]  # 5 clients share 5 MB a round
    assert curve([run], "train.ce", megabytes).x == [0, 1, 2]


def test_deciles_prefer_test_and_read_nan_as_text():
    run = make(splits=("train", "test"))
    run.final["test"]["deciles"][0] = {"group": -1, "samples": 7, "ce": "nan"}  # as read back from JSON
    result = comparison(a=[run])
    assert decile_metric(result, "train.ce") == "test.ce"
    assert decile_metric(comparison(a=[make()]), "train.ce") == "train.ce"
    assert decile_metric(comparison(a=[make(deciles=False)]), "train.ce") is None
    groups = decile_groups(result, "test.ce")
    assert [(g.group, g.samples) for g in groups] == [(-1, 7), (0, 50), (9, 2500)]
    assert by_decile([run], "test.ce", groups) == {0: [0.7], 9: [pytest.approx(0.61)]}


def test_other_groups_are_not_compared():
    """To a centralised run all features are equally hot: its one group is no tenth of the others."""
    pooled = make(bytes_=0)
    pooled.final["train"]["deciles"] = [{"group": 4, "samples": 2557, "ce": 0.5}]
    result = comparison(central=[pooled], fed=[make()])
    groups = decile_groups(result, "train.ce")
    assert 4 not in {g.group for g in groups}
    assert by_decile([pooled], "train.ce", groups) == {}
    heat = texts(deciles_plot(result))
    assert "fed" in heat
    assert "central" not in heat
    assert "Without central, whose samples" in left_out(result, "train.ce")


def test_looks_differ():
    looks = {(style(i)["color"], str(style(i)["linestyle"])) for i in range(49)}
    assert len(looks) == 49
    assert len({str(style(i)["linestyle"]) for i in range(len(COLOURS))}) == len(COLOURS)


def texts(figure) -> str:
    (axes,) = figure.axes
    found = [*axes.texts, *axes.get_xticklabels(), axes.xaxis.label, axes.yaxis.label]
    found += [text for legend in figure.legends for text in legend.get_texts()]
    return "\n".join(text.get_text() for text in found)


def test_plots_say_what_they_show():
    result = comparison(**{"_hidden $x$": [make(), make(seed=1)], "central": [make(bytes_=0)]})
    rounds = texts(rounds_plot(result))
    assert "cross-entropy on training samples (nats)" in rounds
    assert "target\n≤\u00a00.65" in rounds
    assert "_hidden $x$" in rounds
    moved = texts(bytes_plot(result))
    assert "megabytes per participating client" in moved
    assert "best" in moved  # the baseline's line
    heat = texts(deciles_plot(result))
    assert "unseen\ncoldest\nhottest" in heat  # the empty second tenth is left out
    assert "2,500" in heat
    assert "ln 2" in heat


@pytest.mark.parametrize(
    ("plot", "run", "says"),
    [
        (rounds_plot, make(values=(0.7,)), "rounds"),
        (bytes_plot, make(values=(0.7, 0.6)), "megabytes"),
        (rounds_plot, make(values=(math.nan, math.nan)), "no finite cross-entropy"),
        (rounds_plot, make(values=(0.69, 30.0, 0.6)), "cut off at 0.717; highest value 30"),
        (rounds_plot, make(values=(0.5, 0.5)), "rounds"),
        (deciles_plot, make(deciles=False), "was not measured by"),
        (bytes_plot, make(bytes_=0), "moves bytes"),
    ],
    ids=["single", "one step", "nan", "diverged", "flat", "no deciles", "no bytes"],
)
def test_plots_of_odd_runs(plot, run, says):
    figure = plot(comparison(None, a=[run]))
    assert says in texts(figure).replace("\n", " ")
    assert png(figure).startswith(b"\x89PNG")


# Page ----------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Collects tags, ids, addresses and text; void and SVG elements included."""

    def __init__(self, page: str):
        super().__init__()
        self.tags, self.ids, self.links, self.text = [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href", "action", "data"):
                self.links.append(value)

    def handle_data(self, data):
        self.text.append(data)


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


def test_latex_table():
    better = [make(seed=s, values=(0.69, 0.6, 0.5)) for s in range(2)]
    result = comparison(**{"50% & more_\\x": [make(seed=s) for s in range(2)], "b": better})
    lines = latex_table(result).splitlines()
    assert lines[-1] == r"\end{tabular}"
    width = len(columns(result))
    assert rf"\begin{{tabular}}{{l{'r' * width}}}" in lines
    rows = [line for line in lines if line.endswith(r" \\")]
    assert all(len(re.findall(r"(?<!\\)&", row)) == width for row in rows)
    assert rows[1].startswith(r"50\% \& more\_\textbackslash{}x & ")
    assert r"0.6400 $\pm$ 0.0000" in rows[1]
    assert r"\textbf{0.5000 $\pm$ 0.0000}" in rows[2]


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
