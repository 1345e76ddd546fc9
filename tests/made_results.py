"""Results made by hand, and how the tests read reports of them."""

from __future__ import annotations

from html.parser import HTMLParser

from fedsub.running.result import Result, Target
from fedsub.study.comparing import Comparison
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


# Curves and plots ----------------------------------------------------------------------------------


def texts(figure) -> str:
    (axes,) = figure.axes
    found = [*axes.texts, *axes.get_xticklabels(), axes.xaxis.label, axes.yaxis.label]
    found += [text for legend in figure.legends for text in legend.get_texts()]
    return "\n".join(text.get_text() for text in found)


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
