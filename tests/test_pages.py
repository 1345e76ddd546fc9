"""Pages of a search and of several comparisons, and what is read back from directories to draw them."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from urllib.parse import unquote

import pytest
from made_results import Reader, make
from typer.testing import CliRunner
from worlds import bag, item_data

import fedsub as fs
from fedsub.cli import app
from fedsub.errors import CheckpointError, ConfigError
from fedsub.running.result import Result, Target
from fedsub.study.comparing import Comparison, compare
from fedsub.study.reading import FILE, read_back
from fedsub.study.report import png, render_book, write_book, write_report, write_search
from fedsub.study.report.plots import rounds_plot
from fedsub.study.report.search import axis_chart
from fedsub.study.tuning import Tuning
from fedsub.study.tuning.choose import Criterion, Setting
from fedsub.study.tuning.trials import Trial


def trial(seed: int, loss: float, split: str = "validation") -> Trial:
    """Two evaluations, the last of them ``loss``."""
    history = [{"round": n, f"{split}.ce": ce, "train.ce": ce} for n, ce in ((0, 0.693), (10, loss))]
    deciles = [{"group": g, "samples": 10, "ce": loss, "auc": 0.6} for g in (0, 9)]
    final = {split: {"samples": 20, "ce": loss, "auc": 0.6, "deciles": deciles}, "train": {"ce": loss}}
    return Trial(seed, 10, history, final, None, 1.0, "batched", f"a-seed{seed}-{loss}")


def search(losses: dict[str, dict[float, tuple[float, ...]]], path: Path | None = None) -> Tuning:
    """By method and rate: the validation losses of the seeds; the smallest mean is chosen."""
    settings = [
        Setting(label, i + 1, {"lr": lr}, [trial(s, v) for s, v in enumerate(values)])
        for label, by_rate in losses.items()
        for i, (lr, values) in enumerate(by_rate.items())
    ]
    chosen = {label: min((s for s in settings if s.label == label), key=Criterion().rank) for label in losses}
    tested = {label: [trial(t.seed, t.loss("validation"), "test") for t in s.trials] for label, s in chosen.items()}
    return Tuning(Criterion(), "grid", ["lr"], settings, chosen, tested, ["<b>a note</b>"], path)


LOSSES = {
    "FedAvg": {0.1: (0.67, 0.68), 1.0: (0.65, 0.66), 10.0: (0.70, 0.72)},
    "FedSubAvg": {0.1: (0.66, 0.66), 1.0: (0.62, 0.63), 10.0: (12.0, float("inf"))},
}


def test_a_search_is_drawn_by_its_axis():
    chart = axis_chart(search(LOSSES), "lr")
    assert chart is not None
    first, second = (line.parts[0] for line in chart.lines)
    assert first.x == [0.1, 1.0, 10.0]
    assert first.mean == pytest.approx([0.675, 0.655, 0.71])
    assert (first.low[2], first.high[2]) == (0.70, 0.72)
    assert second.mean[2] == 12.0  # the seed that has a value
    assert chart.log
    low, high = chart.limits or (0, 0)
    assert low < 0.62 < 0.693 < high < 1  # what diverged does not press the others flat
    assert chart.cut.endswith("highest value 12")
    assert axis_chart(search({"a": {1.0: (0.6,)}}), "lr") is None  # one value is no search
    lost = search({"a": {0.1: (0.6,), 1.0: (0.5,), 10.0: (float("nan"),)}})
    assert "no seed has a value: a at 10." in (axis_chart(lost, "lr") or chart).caption


def test_the_page_of_a_search(tmp_path: Path):
    tuning = search(LOSSES, tmp_path)
    tuning.save(tmp_path)
    for trials in tuning.tested.values():
        (tmp_path / "winners" / trials[0].name).mkdir(parents=True)
    page = write_search(tuning, tmp_path).read_text()
    found = Reader(page)
    text = "".join(found.text).replace("\xa0", " ")
    for expected in ("2 methods, 3 settings each, 12 trials", "<b>a note</b>", "0.6250 ± 0.0071", "all settings"):
        assert expected in text
    for label, lr in (("FedAvg", "1"), ("FedSubAvg", "1")):  # the chosen ones are bold
        assert f'{label}</th><td class="best">2</td><td class="best">{lr}</td>' in page
    links = {unquote(link) for link in found.links if not link.startswith("#")}
    assert {"./trials.csv", "./winners.csv", "./search-lr.png", "./deciles-test.ce.png"} <= links
    assert all((tmp_path / link).exists() for link in links)
    assert len(found.ids) == len(set(found.ids))


def test_several_on_one_page(tmp_path: Path):
    """Every chapter's ids, charts and groups are its own, its files are where they were drawn."""
    first = Comparison({"A": [make("A", s) for s in range(2)]}, Target.parse("train.ce<=0.65"), path=tmp_path / "one")
    second = Comparison({"A": [make("A")], "B": [make("B")]}, Target.parse("train.ce<=0.66"), path=tmp_path / "two")
    write_report(first, tmp_path / "one")
    page = write_book({"one": first, "<two>": second, "tuned": search(LOSSES)}, tmp_path / "all.html").read_text()
    found = Reader(page)
    assert len(found.ids) == len(set(found.ids))
    inside = {link[1:] for link in found.links if link.startswith("#")}
    assert inside <= set(found.ids)
    outside = {unquote(link) for link in found.links if not link.startswith("#")}
    assert {"one/table.csv", "one/rounds-train.ce.png"} <= outside
    assert all((tmp_path / link).exists() for link in outside)  # "two" has no drawn report: nothing of it is linked
    assert set(re.findall(r'data-group="([^"]*)"', page)) == {"c1", "c2", "c3"}
    text = "".join(found.text)
    assert "<two>" in text
    head, *rows = (re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)[:4])
    assert head[2:4] == ["rounds to training cross-entropy ≤&nbsp;0.65", "rounds to training cross-entropy ≤&nbsp;0.66"]
    assert [row[:4] for row in rows] == [["one", "A", "20 ±&nbsp;0", "–"], ["&lt;two&gt;", "A", "–", "10"],
                                         ["&lt;two&gt;", "B", "–", "10"]]  # fmt: skip


def test_values_of_other_samples_are_told_apart(tmp_path: Path):
    parts = {}
    for name, test in (("one", "aaa"), ("two", "bbb")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"data": "same", "splits": {"test": test}}))
        parts[name] = Comparison({"A": [make("A", path=folder)]})
    text = "".join(Reader(render_book(parts)).text)
    assert "Not of the same samples. The test samples differ" in text
    assert "Not of the same samples" not in "".join(Reader(render_book({"one": parts["one"], "3": parts["one"]})).text)


def test_a_page_is_drawn_in_five_seconds(tmp_path: Path):
    """Nine methods, three seeds, a hundred evaluations of two splits; it once took 14 CPU seconds."""
    values = tuple(0.5 + 0.19 * 0.98**k for k in range(100))
    runs = {f"method {i}": [make(seed=s, values=values, splits=("train", "test")) for s in range(3)] for i in range(9)}
    begin = time.process_time()
    write_report(Comparison(runs, Target.parse("train.ce<=0.55")), tmp_path)
    assert time.process_time() - begin < 5


def test_a_long_key_leaves_the_axes_their_height():
    few, many = (plot_of({f"a method of a long name, number {i}": [make()] for i in range(count)}) for count in (3, 40))
    (one,), (other,) = few.axes, many.axes
    heights = [axes.get_position().height * figure.get_figheight() for axes, figure in ((one, few), (other, many))]
    assert heights[1] > 0.8 * heights[0]
    assert png(many).startswith(b"\x89PNG")


def plot_of(runs: dict[str, list[Result]]):
    return rounds_plot(Comparison(runs, None))


# Directories ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison and a search made in Python, the smallest there are."""
    folder = tmp_path_factory.mktemp("trained")
    train, test = item_data((6, 7, 4, 9, 5, 8), items=12), item_data((5, 5, 5), items=12, seed=1)
    own = {"lr": 0.3, "clients_per_round": 3, "local_steps": 2, "batch_size": 2}

    def objective(seed: int) -> fs.Objective:
        return bag(train, seed=seed)

    methods = {"Fed Avg!": fs.methods.fedavg(**own), "other": fs.methods.fedsubavg(**own)}
    compare(methods, objective, train, test=test, rounds=2, seeds=2, out=folder / "both", target="train.ce<=0.69",
            evaluate=fs.Evaluate(every=1))  # fmt: skip
    own = {"method": "fedavg", **own}
    fs.tune({"A": own}, objective, train, test=test, grid={"lr": [0.1, 1.0]}, rounds=2, validation=0.3,
            out=folder / "tuned")  # fmt: skip
    return folder


def test_a_comparison_made_in_python_is_read_back(trained: Path):
    found = read_back(trained / "both")
    assert isinstance(found, Comparison)
    assert [*found.results] == ["Fed Avg!", "other"]
    assert [r.seed for r in found.results["other"]] == [0, 1]
    assert str(found.target) == "train.ce<=0.69"
    single = read_back(trained / "both/other-seed1")
    assert isinstance(single, Comparison)
    assert single.results["fedsubavg"][0].history == found.results["other"][1].history


def test_a_search_is_read_back(trained: Path):
    found = Tuning.load(trained / "tuned")
    before = (trained / "tuned/trials.csv").read_bytes(), (trained / "tuned/winners.txt").read_bytes()
    found.save(trained / "again")
    assert ((trained / "again/trials.csv").read_bytes(), (trained / "again/winners.txt").read_bytes()) == before
    assert found.criterion == Criterion()


def test_report_draws_one_directory_or_several(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name in ("both", "tuned"):
        done = CliRunner().invoke(app, ["report", str(trained / name), "-q"])
        assert done.exit_code == 0, done.output
        assert "<title>" in (trained / name / "report.html").read_text()
    both = [str(trained / "both"), str(trained / "tuned")]
    done = CliRunner().invoke(app, ["report", *both, "--name", "mine", "--json"])
    assert done.exit_code == 0, done.output
    text = "".join(Reader((tmp_path / "report.html").read_text()).text)
    assert "2 chapters: mine and tuned" in text
    assert CliRunner().invoke(app, ["report", *both]).exit_code == 0  # ours
    (tmp_path / "mine.html").write_text("<p>something else</p>")
    done = CliRunner().invoke(app, ["report", str(trained / "both"), "--out", "mine.html"])
    assert done.exit_code == 2
    assert "is no page of fedsub" in done.output
    assert (tmp_path / "mine.html").read_text() == "<p>something else</p>"


def test_what_cannot_be_reported_is_refused(trained: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="There is no directory"):
        read_back(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="holds no finished run"):
        read_back(tmp_path)
    (tmp_path / "tune.json").write_text("{}")
    with pytest.raises(ConfigError, match="no finished search"):
        read_back(tmp_path)
    (tmp_path / "tuning.json").write_text('{"format": "other"}')
    with pytest.raises(CheckpointError, match="is damaged"):
        read_back(tmp_path)
    again = CliRunner().invoke(app, ["report", str(trained / "both"), str(trained / "both")])
    assert again.exit_code == 2
    assert "Two chapters are called 'both'" in again.output
    names = trained / "both" / FILE
    kept = names.read_bytes()
    names.write_text("[")
    with pytest.raises(CheckpointError, match="is damaged"):
        read_back(trained / "both")
    names.write_bytes(kept)


def test_unfinished_runs_are_named(trained: Path, tmp_path: Path):
    import shutil

    shutil.copytree(trained / "both", tmp_path / "both")
    (tmp_path / "both/other-seed1/result.json").unlink()
    found = read_back(tmp_path / "both")
    assert found.notes == ["other, seed 1, is not finished."]
    assert isinstance(found, Comparison)
    assert len(found.results["other"]) == 1
