"""Trackers get every number of a run; the packages themselves are stood in for by recorders of the same calls."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from worlds import bag, item_data

import fedsub as fs
from fedsub.errors import MissingExtra


def trained(*callbacks: fs.Callback) -> fs.Result:
    clients = item_data()
    objective = bag(clients)
    return fs.run(
        fs.methods.fedavg(clients_per_round=2, local_steps=1), objective, clients, rounds=2, engine="serial",
        evaluate=fs.Evaluate(every=1), callbacks=callbacks, seed=3,
    )  # fmt: skip


def logged(result: fs.Result) -> dict[tuple[str, int], float]:
    return {
        (name.replace(".", "/"), record["round"]): value
        for record in result.history
        for name, value in record.items()
        if name != "round" and isinstance(value, int | float)
    }


def test_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[tuple[str, int], float] = {}
    params: dict[str, Any] = {}
    ended: list[str] = []
    client = SimpleNamespace(
        get_experiment_by_name=lambda name: SimpleNamespace(experiment_id=f"id of {name}"),
        create_run=lambda home, run_name: SimpleNamespace(info=SimpleNamespace(run_id=f"{home}/{run_name}")),
        log_param=lambda run, name, value: params.update({name: value}),
        log_metric=lambda run, name, value, step: seen.update({(name, step): value}),
        set_tag=lambda run, name, value: None,
        set_terminated=ended.append,
    )
    module: Any = ModuleType("mlflow")
    module.MlflowClient, module.set_experiment, module.set_tracking_uri = lambda: client, print, print
    monkeypatch.setitem(sys.modules, "mlflow", module)
    result = trained(fs.MLflow("trials"))
    assert seen == logged(result)
    assert params["seed"] == 3
    assert len(ended) == 1
    assert ended[0].startswith("id of trials/")


def test_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[tuple[str, int], float] = {}
    begun: dict[str, Any] = {}
    ended: list[bool] = []
    run = SimpleNamespace(
        log=lambda values, step: seen.update({(name, step): v for name, v in values.items()}),
        finish=lambda: ended.append(True),
    )
    module: Any = ModuleType("wandb")
    module.init = lambda **options: begun.update(options) or run
    monkeypatch.setitem(sys.modules, "wandb", module)
    result = trained(fs.WandB("trials", mode="offline"))
    assert seen == logged(result)
    assert (begun["project"], begun["mode"], begun["config"]["rounds"]) == ("trials", "offline", 2)
    assert ended == [True]


@pytest.mark.parametrize(("make", "extra"), [(lambda: fs.MLflow(), "mlflow"), (lambda: fs.WandB(), "wandb")])
def test_what_is_missing_is_named(make, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(MissingExtra, match=rf"pip install -e '\.\[{extra}\]'"):
        make()
