"""The four tasks of the paper: which data stand for each, what differs from the paper's, and which file runs it."""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedsub.errors import ConfigError, nearest
from fedsub.study.experiment import tasks
from fedsub.study.experiment.config import merge, parse, read_toml
from fedsub.study.experiment.experiment import Experiment
from fedsub.study.reproduce.published import PUBLISHED, Published


@dataclass(frozen=True)
class Study:
    """``data`` are the built-in tasks on real data, the best one first; ``features`` the columns that heat counts."""

    name: str
    data: tuple[str, ...]
    twin: str
    features: tuple[str, ...] | None = None
    scale: float = 1.0  # of the twin, if nobody says
    auc: bool = False  # the target is on the AUC of the test split
    stand_ins: tuple[str, ...] = ()  # of ``data``, those that are not the paper's
    differs: dict[str, str] = field(default_factory=dict)

    @property
    def published(self) -> Published:
        return PUBLISHED[self.name]

    def titled(self, task: str) -> str:
        """The name of the data in a plot: what only stands for the paper's does not bear its name."""
        paper = self.published.title
        return f"{task}, for {paper}" if task in (*self.stand_ins, self.twin) else f"{paper} ({task})"


TWIN = "synthetic data of the published shape with a planted truth; only the shape can be compared with the paper"

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Study("movielens", ("movielens-1m",), "movielens-like", differs={
            "movielens-1m": "the same public data; the paper's random 80/20 split is unknown",
        }),
        Study("sentiment", ("sentiment140", "rotten-tomatoes-critics"), "sentiment-like",
              stand_ins=("rotten-tomatoes-critics",), differs={
            "sentiment140": "the same public data; the paper's words and split are unknown",
            "rotten-tomatoes-critics": "a stand-in: film critics' lines, not Sentiment140, which may not be passed on",
        }),
        Study("amazon", ("amazon-electronics",), "amazon-like", ("item",), auc=True, differs={
            "amazon-electronics": "the paper's training part only (its test part is not public): tested on each "
            "client's last 20 %; the paper counts the padding id as a client",
        }),
        Study("alibaba", ("taobao-cart-buy",), "alibaba-like", scale=0.1, auc=True,
              stand_ins=("taobao-cart-buy",), differs={
            "taobao-cart-buy": "a small stand-in: carts and purchases of public Taobao data; the paper's are private",
        }),
    )
}  # fmt: skip


def get(name: str) -> list[Study]:
    """The named tasks: one, several with commas, or all."""
    if name == "all":
        return list(STUDIES.values())
    found = [word.strip() for word in name.split(",") if word.strip()]
    for word in found:
        if word not in STUDIES:
            raise ConfigError(f"There is no task {word!r} to reproduce; {nearest(word, [*STUDIES, 'all'])}")
    if not found:
        raise ConfigError(f"No task is named; {nearest('', [*STUDIES, 'all'])}")
    return [STUDIES[word] for word in found]


def choose(study: Study, folder: Path | None, twin: bool) -> str | None:
    """The built-in task that provides the study's data; None if there is no real data and no twin was asked for."""
    if twin:
        return study.twin
    return next((name for name in study.data if tasks.present(name, folder)), None)


def missing(study: Study, folder: Path | None) -> ConfigError:
    where = f"in {folder}" if folder is not None else "in the cache of `fedsub data`"
    wanted = " or ".join(study.data)
    return ConfigError(
        f"{study.published.title}: there is no {wanted} {where}. Name the folder with --data DIR, fetch it with "
        f"`fedsub data get {study.data[-1]}`, or use synthetic data of the same shape: --twin."
    )


def difference(study: Study, task: str) -> str:
    """What is not as in the paper, about the data."""
    return study.differs.get(task, TWIN)


def twin_scale(study: Study, task: str, asked: float | None) -> float | None:
    """The size of generated data; None for real data and for the published size."""
    if task != study.twin:
        return None
    scale = study.scale if asked is None else asked
    return None if scale == 1 else scale


def experiment_file(name: str) -> Path:
    """A TOML file of experiments/, from the source tree or the installed package."""
    beside = Path(__file__).parents[4] / "experiments" / f"{name}.toml"
    installed = Path(str(importlib.resources.files("fedsub.study.reproduce"))) / "experiments" / f"{name}.toml"
    found = next((path for path in (installed, beside) if path.is_file()), None)
    if found is None:
        raise ConfigError(f"The experiment {name}.toml is not installed; install fedsub again.")
    return found


def experiment(name: str, task: str, data: Path | None, scale: float | None, changes: dict[str, Any]) -> Experiment:
    """An experiment file on the data of a task: the task's defaults, the file, then ``changes``."""
    raw = read_toml(experiment_file(name))
    if task != raw.get("task"):
        raw = {k: v for k, v in raw.items() if k not in ("task", "data", "split")}
    below = {k: v for k, v in tasks.get(task).config.items() if k != "methods"}
    raw = merge(merge(below, raw), {"task": task})
    own: dict[str, Any] = {}
    if data is not None and task in tasks.REAL:
        own["path"] = str(data.absolute())
    if scale is not None:
        own["scale"] = scale
    raw = merge(merge(raw, {"data": own}), changes)
    return Experiment(parse(raw, f"{name}.toml"), Path.cwd())


def changed(experiment: Experiment, methods: dict[str, Any]) -> Experiment:
    """The experiment with these methods."""
    return replace(experiment, config=experiment.config.model_copy(update={"methods": methods}))
