"""Tables of results made by hand: what is counted, marked and escaped."""

from __future__ import annotations

import math
import re
from io import StringIO

import pytest
from made_results import NASTY, cells, comparison, make
from rich.console import Console

from fedsub.study.report import (
    csv_rows,
    latex_table,
    markdown_table,
    rich_table,
    text_table,
)
from fedsub.study.report import words as w
from fedsub.study.report.table import columns


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
