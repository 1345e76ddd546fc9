"""Trackers: every number of a run in TensorBoard, MLflow or Weights & Biases, one run of theirs for each of ours."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from fedsub.errors import lacking
from fedsub.running.callbacks import Callback


def run_name(info: dict[str, Any]) -> str:
    """In a comparison two runs may share a method and a seed; their directories differ."""
    return os.path.basename(info["out"]) if info["out"] else f"{info['method']}-seed{info['seed']}"


def numbers(record: dict[str, Any]) -> dict[str, float]:
    """The scalars of a round, "test.auc" as "test/auc": trackers group by the slash."""
    found = {n: v for n, v in record.items() if n != "round" and isinstance(v, int | float) and not isinstance(v, bool)}
    return {name.replace(".", "/"): value for name, value in found.items()}


def _needed(module: str, title: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as err:
        raise lacking(title, extra) from err


class TensorBoard(Callback):
    """Writes every number of a record as a scalar below ``folder``. Needs the extra ``tensorboard``."""

    def __init__(self, folder: str):
        self._make = _needed("torch.utils.tensorboard", "TensorBoard", "tensorboard").SummaryWriter
        self._folder, self._writer = folder, None

    def on_start(self, info: dict[str, Any]) -> None:
        # A resumed run rewrites the rounds after its checkpoint: purge what was logged beyond it.
        self._writer = self._make(f"{self._folder}/{run_name(info)}", purge_step=info["first"])

    def on_round(self, record: dict[str, Any]) -> None:
        assert self._writer is not None
        for name, value in numbers(record).items():
            self._writer.add_scalar(name, value, record["round"])

    def on_end(self, summary: dict[str, Any]) -> None:
        if self._writer is not None:
            self._writer.close()


class MLflow(Callback):
    """Logs metrics by round, and method, seed and rounds as parameters, to an MLflow experiment. Extra ``mlflow``.

    ``uri`` is the tracking server or folder; without it MLflow's own setting counts.
    """

    def __init__(self, experiment: str = "fedsub", *, uri: str | None = None):
        self._mlflow = _needed("mlflow", "MLflow", "mlflow")
        if uri is not None:
            self._mlflow.set_tracking_uri(uri)
        self._mlflow.set_experiment(experiment)
        self._client, self._experiment = self._mlflow.MlflowClient(), experiment
        self._run = ""

    def on_start(self, info: dict[str, Any]) -> None:
        home = self._client.get_experiment_by_name(self._experiment).experiment_id
        self._run = self._client.create_run(home, run_name=run_name(info)).info.run_id
        for name in ("method", "seed", "rounds"):
            self._client.log_param(self._run, name, info[name])

    def on_round(self, record: dict[str, Any]) -> None:
        for name, value in numbers(record).items():
            self._client.log_metric(self._run, name, value, step=record["round"])

    def on_event(self, sentence: str) -> None:
        if self._run:
            self._client.set_tag(self._run, "event", sentence)

    def on_end(self, summary: dict[str, Any]) -> None:
        self._client.set_terminated(self._run)


class WandB(Callback):
    """Logs every number of a record to a Weights & Biases project. Extra ``wandb``; ``options`` go to wandb.init.

    ``WandB("fedsub", mode="offline")`` sends nothing anywhere.
    """

    def __init__(self, project: str = "fedsub", **options: Any):
        self._wandb, self._project, self._options = _needed("wandb", "Weights & Biases", "wandb"), project, options
        self._run: Any = None

    def on_start(self, info: dict[str, Any]) -> None:
        about = {name: info[name] for name in ("method", "seed", "rounds")}
        self._run = self._wandb.init(
            project=self._project, name=run_name(info), config=about, reinit="create_new", **self._options
        )

    def on_round(self, record: dict[str, Any]) -> None:
        self._run.log(numbers(record), step=record["round"])

    def on_end(self, summary: dict[str, Any]) -> None:
        self._run.finish()
