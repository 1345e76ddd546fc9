"""The gradient's norms during a run, beside closed forms, brute force and what methods do with a small step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner
from worlds import bag, click_data, item_data, there

import fedsub as fs
from fedsub.cli import app
from fedsub.errors import ConfigError
from fedsub.objective.problem import Problem
from fedsub.round import norms
from fedsub.round.engines.setup import choose
from fedsub.study import theory
from fedsub.study.report.charts import rounds_chart
from fedsub.study.report.plots import plot, png
from fedsub.study.report.svg import picture


class Slopes(nn.Module):
    """A linear function whose slopes are data: the gradient is what the data say."""

    def __init__(self):
        super().__init__()
        self.x = nn.Embedding(3, 1)

    def forward(self, batch):
        return (self.x(batch["of"]).squeeze(-1) * batch["slope"]).sum(-1)


def test_three_parameters():
    """Two clients, (x1, x2) and (x2, x3), with gradients (2, 3) and (5, 7): 42.5 and 29.25."""
    clients = fs.Clients.from_arrays(
        {"of": np.array([[0, 1], [1, 2]]), "slope": np.array([[2.0, 3.0], [5.0, 7.0]], np.float32), "label": [0, 0]},
        offsets=[0, 1, 2], ids=["of"], values=["slope"], label="label",
    )  # fmt: skip
    goal = fs.Objective(Slopes(), lambda output, batch: output, {"x.weight": "of"})
    method = fs.methods.fedavg(lr=0.1, clients_per_round=2)
    result = fs.run(method, goal, clients, rounds=1, evaluate=fs.Evaluate(norms=1), engine="serial")
    assert [r["train.elementwise_norm"] for r in result.history] == [42.5, 42.5]
    assert [r["train.squared_norm"] for r in result.history] == [29.25, 29.25]


def measured(goal: fs.Objective, clients: fs.Clients, weighting: str) -> dict[str, float]:
    problem = Problem.bind(goal, clients)
    params = problem.params(torch.device("cpu"))
    plan = choose(problem, fs.methods.fedavg(clients_per_round=2), params, engine="serial").plan
    return norms.GradientNorms(problem, clients, plan.columns, weighting)(params)


@pytest.mark.parametrize("weighting", ["samples", "clients"])
def test_logistic_regression(weighting: str):
    """∂f/∂x_m = Σ p (σ(z) − y) over the samples with m, by hand; D from who holds m."""
    clients = item_data(items=15, width=3, seed=4)
    rng = np.random.default_rng(0)
    goal = bag(clients, dtype=torch.float64)
    ids = clients.gather(np.arange(clients.samples), ["ids"], local=False)["ids"]
    weights, scale, bias = rng.normal(size=15), 1.3, -0.2
    module: Any = goal.module
    with torch.no_grad():
        module.emb.weight.copy_(torch.from_numpy(weights[:, None]))
        module.out.weight.fill_(scale)
        module.out.bias.fill_(bias)
    owner, label = clients.clients_of(np.arange(clients.samples)), clients.column("label").values
    inner = weights[ids].sum(1)
    error = 1 / (1 + np.exp(-(scale * inner + bias))) - label
    by_client = np.zeros((len(clients), 15 + 2))  # the mean loss of each: rows, scale, bias
    for s, c in enumerate(owner):
        np.add.at(by_client[c], ids[s], error[s] * scale / clients.sizes[c])
        by_client[c, 15:] += error[s] * np.array([inner[s], 1.0]) / clients.sizes[c]
    held = np.ones_like(by_client, bool)
    for c in range(len(clients)):
        held[c, :15] = np.isin(np.arange(15), ids[owner == c])
    share = clients.sizes / clients.samples if weighting == "samples" else np.full(len(clients), 1 / len(clients))
    mean, by = share @ by_client, share @ held
    found = measured(goal, clients, weighting)
    assert found["squared_norm"] == pytest.approx(mean @ mean, rel=1e-12)
    assert found["elementwise_norm"] == pytest.approx((mean**2 / by).sum(), rel=1e-12)
    if weighting == "clients":
        assert found["squared_norm"] == pytest.approx(theory.squared_norm(by_client), rel=1e-12)
        assert found["elementwise_norm"] == pytest.approx(theory.elementwise_norm(by_client, held), rel=1e-12)


def texts() -> fs.Clients:
    draw = np.random.default_rng(0)
    words = [draw.integers(1, 30, length).tolist() for length in draw.integers(1, 6, 50)]
    return fs.Clients.from_arrays(
        {"words": words, "label": draw.integers(0, 2, 50)}, offsets=[0, 3, 20, 21, 50], ids=["words"], label="label",
        sizes={"words": 30},
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["embedding", "lstm"])
def test_any_module_in_blocks(kind: str, monkeypatch: pytest.MonkeyPatch):
    """Lists with padding, several tables, l2, samples in pieces: the same as autograd of the whole at once."""
    if kind == "lstm":
        clients = texts()
        goal = fs.models.make_objective(clients, "lstm", dim=3, hidden=4, l2=0.3)
    else:
        clients = click_data()
        goal = fs.models.make_objective(clients, "embedding", dim=3, hidden=4, l2=0.3)
    problem, module = Problem.bind(goal, clients), goal.module.double().eval()
    everything = clients.gather(np.arange(clients.samples), local=False)
    batch: dict[str, torch.Tensor] = {n: torch.from_numpy(a) for n, a in everything.items()}
    batch |= {n: v.double() for n, v in batch.items() if v.dtype == torch.float32}
    batch["sample_mask"] = torch.ones(clients.samples, dtype=torch.float64)
    owner = clients.clients_of(np.arange(clients.samples))
    loss = (goal.loss(module(batch), batch) / torch.from_numpy(clients.sizes[owner] * float(len(clients)))).sum()
    for name, parameter in module.named_parameters():
        space = problem.tables.get(name)
        share = torch.ones(()) if space is None else torch.from_numpy(fs.heat.row_heat(space) / len(clients))
        share = share.double().reshape(-1, *[1] * (parameter.ndim - 1)) if space is not None else share
        loss = loss + 0.15 * (share * parameter**2).sum()
    loss.backward()
    squared = elementwise = 0.0
    for name, parameter in module.named_parameters():
        slope, space = there(parameter.grad), problem.tables.get(name)
        heat = np.full(len(slope) if slope.ndim else 1, len(clients)) if space is None else fs.heat.row_heat(space)
        by_row = slope.square().reshape(len(heat), -1).sum(1).numpy()
        squared += by_row.sum()
        elementwise += (by_row[heat > 0] * len(clients) / heat[heat > 0]).sum()
    monkeypatch.setattr(norms, "BLOCK", 7 if kind == "embedding" else 40)
    goal.module.float()
    found = measured(goal, clients, "clients")
    assert found["squared_norm"] == pytest.approx(squared, rel=1e-5)
    assert found["elementwise_norm"] == pytest.approx(elementwise, rel=1e-5)


class Centred(nn.Module):
    """Rows minus the mean of all rows that the module has: on a client, of its own."""

    def __init__(self, items: int):
        super().__init__()
        self.rows = nn.Embedding(items, 1, dtype=torch.float64)

    def forward(self, batch):
        return (self.rows(batch["ids"]).squeeze(-1) - self.rows.weight.mean()).sum(-1)


def test_modules_are_asked_in_evaluation_mode():
    clients = item_data(seed=1)
    plain = bag(clients, dim=4)
    dropped = fs.Objective(nn.Sequential(plain.module, nn.Dropout(0.5)), plain.loss, {"0.emb.weight": "ids"})
    assert measured(dropped, clients, "samples") == measured(plain, clients, "samples")


def test_of_a_table_used_whole_each_client_sees_its_own_rows():
    clients = item_data((3, 5, 2), items=9, seed=2)
    goal = fs.Objective(
        Centred(9), fs.losses.binary("label"), {"rows.weight": "ids"}, whole=("rows.weight",)
    )  # fmt: skip
    module: Any = goal.module
    table = module.rows.weight.detach().clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    arrays = clients.gather(np.arange(clients.samples), local=False)
    space, label = clients.space_of("ids"), torch.from_numpy(arrays["label"]).double()
    for c in range(3):
        mine = slice(int(clients.offsets[c]), int(clients.offsets[c + 1]))
        centre = table[torch.from_numpy(space.rows_of(c).astype(np.int64))].mean()
        z = (table[torch.from_numpy(arrays["ids"][mine])].squeeze(-1) - centre).sum(-1)
        total = total + (nn.functional.softplus(z) - label[mine] * z).sum() / clients.samples
    (slope,) = torch.autograd.grad(total, [table])
    assert measured(goal, clients, "samples")["squared_norm"] == pytest.approx(float(slope.square().sum()), rel=1e-12)


@pytest.mark.parametrize(("method", "falls"), [("fedavg", "squared_norm"), ("fedsubavg", "elementwise_norm")])
def test_a_small_step_of_everybody_lowers_the_loss_by_its_own_norm(method: str, falls: str):
    """(f(X) − f(X⁺)) / lr → ‖∇f‖² of FedAvg, ∇fᵀD∇f of FedSubAvg: two derivatives, and no formula of ours."""
    clients, lr = item_data(items=60, width=2, seed=4), 1e-5
    made: Any = getattr(fs.methods, method)
    one = made(lr=lr, clients_per_round=None, local_steps=1, batch_size=None)
    result = fs.run(
        one, bag(clients, dtype=torch.float64, seed=3), clients, rounds=1, engine="serial",
        evaluate=fs.Evaluate(every=1, samples=None, norms=1),
    )  # fmt: skip
    before, after = result.history
    dropped = (before["train.ce"] - after["train.ce"]) / lr
    other = {"squared_norm": "elementwise_norm", "elementwise_norm": "squared_norm"}[falls]
    assert dropped == pytest.approx(before[f"train.{falls}"], rel=1e-3)
    assert abs(dropped / before[f"train.{other}"] - 1) > 0.1  # it is not the other one


def test_in_rounds_of_their_own_and_the_same_after_a_break(tmp_path: Path):
    clients = item_data(seed=1)
    method = fs.methods.fedsubavg(lr=0.5, clients_per_round=3)
    options: dict[str, Any] = {"engine": "serial", "checkpoint_every": 2}
    plan = fs.Evaluate(every=4, norms=[1, 3, 5])
    whole = fs.run(method, bag(clients), clients, rounds=6, evaluate=plan, **options)
    assert [r["round"] for r in whole.history if "train.squared_norm" in r] == [1, 3, 5]
    assert [r["round"] for r in whole.history if "train.ce" in r] == [0, 4, 6]

    class Stop(fs.Callback):
        def on_round(self, record):
            if record["round"] == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fs.run(
            method, bag(clients), clients, rounds=6, evaluate=plan, out=tmp_path / "a", callbacks=[Stop()], **options
        )
    again = fs.run(method, bag(clients), clients, rounds=6, evaluate=plan, out=tmp_path / "a", resume=True, **options)
    assert again.history == whole.history

    seen = []

    class Watch(fs.Callback):
        def on_round(self, record):
            seen.append(self.now.norms())

    fs.run(method, bag(clients), clients, rounds=6, callbacks=[Watch()], **options)
    assert seen[3] == {n: v for n, v in whole.history[3].items() if n.endswith("_norm")}


def test_a_pooled_baseline_is_weighed_by_the_same_heat():
    """Where everybody is one client, n_m = N would make both norms one."""
    clients = item_data(seed=1)
    methods = fs.methods.centralsgd(lr=0.5, batch_size=4), fs.methods.fedavg(lr=0.5, clients_per_round=3)
    central, fed = (
        fs.run(method, bag(clients), clients, rounds=1, evaluate=fs.Evaluate(norms=1)).history[0] for method in methods
    )
    for name in ("train.squared_norm", "train.elementwise_norm"):
        assert central[name] == fed[name]


def test_a_target_a_table_and_a_chart():
    clients = item_data(seed=1)
    found = fs.compare(
        {"a": fs.methods.fedsubavg(lr=0.5, clients_per_round=3)}, bag(clients), clients, rounds=3, seeds=1,
        evaluate=fs.Evaluate(every=1, norms=fs.Norms(1, "clients")), target="train.squared_norm<=1000",
    )  # fmt: skip
    assert "∇fᵀD∇f" in found.table()
    chart = rounds_chart(found, "train.elementwise_norm")
    assert chart.logy
    assert "∇fᵀD∇f on training samples" in picture(chart, "a")
    assert len(png(plot(chart))) > 5000


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clients = item_data(seed=1)
    personal = fs.methods.fedper(personal="out.*", clients_per_round=3)
    with pytest.raises(ConfigError, match="parameters of their own; leave norms out"):
        fs.run(personal, bag(clients), clients, rounds=1, evaluate=fs.Evaluate(norms=[1]))
    wrong: tuple[Any, ...] = (0, [], [-1], [None], [3, None], 1.5, "all")
    for bad in wrong:
        with pytest.raises(ConfigError, match="at of Norms"):
            fs.Evaluate(norms=bad)
    with pytest.raises(ConfigError, match='expected "samples" or "clients"'):
        fs.Norms(weighting="rows")
    with pytest.raises(ConfigError, match="'squared_norm', which evaluations have"):
        fs.Metric(lambda losses: 0.0, better="lower", name="squared_norm")


def test_from_the_command_line_and_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    common = (
        "--scale",
        "0.01",
        "--rounds",
        "3",
        "-k",
        "2",
        "--lr",
        "0.01",
        "--quiet",
        "--set",
        "evaluate.final_samples=100",
    )
    made = CliRunner().invoke(app, ["run", "movielens-like", *common, "-m", "fedsubavg", "--norms", "2", "--out", "o"])
    assert made.exit_code == 0, made.output
    (file,) = (tmp_path / "o").rglob("metrics.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    rounds = [line.get("round") for line in lines if any("elementwise_norm" in key for key in line)]
    assert rounds == [0, 2, 3]
    (tmp_path / "a.toml").write_text(
        'task = "movielens-like"\n[data]\nscale = 0.01\n[evaluate]\nnorms = { at = [1], weighting = "clients" }\n'
    )
    made = CliRunner().invoke(app, ["run", "a.toml", *common[2:], "-m", "fedsubavg", "--out", "p"])
    assert made.exit_code == 0, made.output
    assert "∇fᵀD∇f" in (tmp_path / "p" / "report.html").read_text()
    made = CliRunner().invoke(app, ["run", "movielens-like", *common, "--set", "evaluate.norms.weighting=rows"])
    assert made.exit_code == 2
    assert "evaluate.norms.weighting" in made.output
