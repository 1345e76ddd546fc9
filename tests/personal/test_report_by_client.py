"""The report of personal models: columns, the page's section and the plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsub.running.result import Result
from fedsub.study.comparing import Comparison
from fedsub.study.report import clients, clients_plot, csv_rows, gains_plot, render, write_report

METRIC = "test.auc"


def by_client(auc: float, loss: float) -> dict:
    levels = [i / 20 for i in range(21)]
    return {
        "clients": 50, "loss": loss, "worst_decile_loss": 2 * loss, "auc_clients": 40, "auc": auc,
        "worst_decile_auc": auc / 2, "loss_quantiles": [2 * loss * x for x in levels], "auc_quantiles": levels,
    }  # fmt: skip


def result(label: str, seed: int, auc: float, loss: float, *, personal: bool) -> Result:
    split: dict[str, Any] = {"samples": 100, "auc": auc, "deciles": [], "by_client": by_client(auc, loss)}
    if personal:
        split["shared"] = {"auc": 0.6, "by_client": by_client(0.6, 0.7)}
        levels = [-0.1 + i / 40 for i in range(21)]
        gain: dict[str, Any] = {"mean": 0.7 - loss, "p10": 0.0, "median": 0.1, "p90": 0.3, "better_off": 0.8}
        split["gain"] = gain | {"quantiles": levels}
    history = [{"round": n, "loss": 0.6, "clients": 5, "down": 10, "up": 10, METRIC: auc} for n in (0, 10)]
    return Result(label, seed, history, {"test": split, "train": {"samples": 9, "deciles": []}}, 1.0, "batched")


def comparison(*, personal: bool = True) -> Comparison:
    results = {
        "FedAvg": [result("FedAvg", s, 0.61 + s / 100, 0.69, personal=False) for s in (0, 1)],
        "FedPer": [result("FedPer", s, 0.75 + s / 100, 0.55, personal=personal) for s in (0, 1)],
    }
    return Comparison(results, None, METRIC)


def test_the_table_has_means_over_clients() -> None:
    text = comparison().table()
    assert "over clients" in text
    assert "0.7550 ± 0.0071*" in text
    assert "0.6150 ± 0.0071" in text
    assert "over clients" not in comparison(personal=False).table()


def test_numbers_for_programs() -> None:
    head, first, second = csv_rows(comparison())
    at = head.index("last test.by_client.auc: mean")
    assert float(first[at]) == pytest.approx(0.615)
    assert float(second[at]) == pytest.approx(0.755)
    gained = head.index("last test.gain.mean: mean")
    assert first[gained] == ""
    assert float(second[gained]) == pytest.approx(0.15)
    assert not any("train.by_client" in name for name in head)
    assert "last test.by_client.auc: mean" in csv_rows(comparison(personal=False))[0]


def test_the_page_tells_how_clients_fare(tmp_path: Path) -> None:
    page = render(comparison())
    assert 'id="clients"' in page
    section = page[page.index('<section id="clients"') :]
    section = section[: section.index("</section>")]
    for words in ("AUC, worst tenth of clients", "0.3775", "80%", "clients better off", "0.6000"):
        assert words in section, words
    assert section.count("<svg") == 2
    assert 'id="clients"' not in render(comparison(personal=False))
    write_report(comparison(), tmp_path)
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("clients.png", "gains.png"))


def test_the_plots_show_every_method_and_the_shared_model() -> None:
    figure = clients_plot(comparison())
    assert [t.get_text() for t in figure.legends[0].get_texts()] == [
        "FedAvg", "FedPer", "FedPer, without own parameters",
    ]  # fmt: skip
    lines = [line for line in figure.axes[0].get_lines() if np.size(line.get_xdata()) == 21]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == len(lines) == 3
    figure = gains_plot(comparison())
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["FedPer"]
    assert np.max(figure.axes[0].get_lines()[0].get_ydata()) == pytest.approx(0.4)


def test_other_labels_are_compared_by_loss() -> None:
    made = comparison()
    for results in made.results.values():
        for one in results:
            for found in (one.final["test"]["by_client"], one.final["test"].get("shared", {}).get("by_client", {})):
                for name in ("auc", "worst_decile_auc", "auc_quantiles"):
                    found.pop(name, None)
    assert clients.kind_of(made, "test") == "loss"
    head, body = clients.rows(made)
    assert head[1] == "loss, mean over clients"
    assert body[1][1].startswith("0.5500")
    assert "loss" in made.table()
    assert clients_plot(made).axes[0].get_ylabel().startswith("loss")


def test_nothing_to_show() -> None:
    plain = comparison(personal=False)
    assert clients.split_of(plain) is None
    for plot in (clients_plot, gains_plot):
        assert "no method has personal models" in plot(plain).axes[0].texts[0].get_text().replace("\n", " ")
