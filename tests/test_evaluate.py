"""Evaluation: the right model on the right samples, by heat decile and by client."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch import nn
from worlds import bag, click_data, item_data

import fedsub as fs
from fedsub.errors import ConfigError
from fedsub.objective.losses import Binary
from fedsub.objective.problem import Problem
from fedsub.round import sampled
from fedsub.round.evaluate import Evaluator


def evaluator(goal, clients, plan=None, columns=None, **splits) -> Evaluator:
    splits = splits or {"train": clients}
    return Evaluator(Problem.bind(goal, clients), splits, plan or fs.Evaluate(), columns or tuple(clients.columns))


def params_of(goal: fs.Objective) -> dict:
    return {n: p.detach() for n, p in goal.module.named_parameters()}


def scores(goal: fs.Objective, clients: fs.Clients) -> tuple[np.ndarray, np.ndarray]:
    arrays = clients.gather(np.arange(clients.samples), local=False)
    batch = {k: torch.from_numpy(v) for k, v in arrays.items()}
    with torch.no_grad():
        return goal.module(batch).double().numpy(), arrays["label"]


@pytest.mark.parametrize("kept", [sampled.KEPT, 1000])
def test_scalars_equal_sklearn(monkeypatch, kept) -> None:
    """More than one batch of evaluation, in double: nothing is lost at the seams, nor when it is packed once."""
    monkeypatch.setattr(sampled, "NUMBERS", 0)
    monkeypatch.setattr(sampled, "KEPT", kept)
    clients = item_data((700, 800, 25), width=3)
    assert clients.samples > sampled.BATCH
    goal = bag(clients, dim=3, dtype=torch.float64)
    own = evaluator(goal, clients)
    found = own(params_of(goal))
    assert own(params_of(goal)) == found
    z, y = scores(goal, clients)
    ce = log_loss(y, 1 / (1 + np.exp(-z)))
    assert found["train.ce"] == pytest.approx(ce, rel=1e-12)
    assert found["train.half_ce"] == pytest.approx(ce / 2, rel=1e-12)
    assert found["train.auc"] == pytest.approx(roc_auc_score(y, z), abs=1e-12)
    assert found["train.accuracy"] == pytest.approx(((z > 0) == (y > 0.5)).mean())
    assert set(found) == {"train.ce", "train.half_ce", "train.auc", "train.accuracy"}


def test_parameters_given_are_the_ones_evaluated() -> None:
    clients = item_data()
    goal = bag(clients)
    other = {n: p + 1 for n, p in params_of(goal).items()}
    own = evaluator(goal, clients)
    first, second = own(params_of(goal)), own(other)
    assert first["train.ce"] != second["train.ce"]
    assert own(params_of(goal)) == first
    with torch.no_grad():
        for p in goal.module.parameters():
            p += 1
    assert evaluator(goal, clients)(params_of(goal)) == second


def test_what_a_module_does_to_its_input_is_gone_at_the_next_evaluation() -> None:
    class Greedy(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.table = nn.Embedding(size, 1)

        def forward(self, batch):
            found = self.table(batch["ids"]).sum((1, 2))
            batch["ids"].zero_()
            batch["label"] *= 1
            return found

    clients = item_data((30, 40), width=3)
    goal = fs.Objective(Greedy(clients.size("ids")), Binary("label"), tables={"table.weight": "ids"})
    own = evaluator(goal, clients)
    assert own(params_of(goal)) == own(params_of(goal)) == evaluator(goal, clients)(params_of(goal))


def test_a_sample_of_the_split_is_fixed() -> None:
    clients = item_data((200, 300))
    goal = bag(clients)
    plan = fs.Evaluate(samples=50, final_samples=60)
    first = evaluator(goal, clients, plan)(params_of(goal))
    assert evaluator(goal, clients, plan)(params_of(goal)) == first
    assert first != evaluator(goal, clients)(params_of(goal))
    assert evaluator(goal, clients, plan).final(params_of(goal))["train"]["samples"] == 60
    assert evaluator(goal, clients).final(params_of(goal))["train"]["samples"] == 500


def test_multiclass() -> None:
    draw = np.random.default_rng(0)
    clients = fs.Clients.from_arrays(
        {"ids": draw.integers(0, 9, (60, 2)), "label": draw.integers(0, 4, 60)},
        offsets=[0, 20, 60],
        ids=["ids"],
        label="label",
        binary_label=False,
    )

    class Classes(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.EmbeddingBag(clients.size("ids"), 4, mode="sum", dtype=torch.float64)

        def forward(self, batch):
            return self.emb(batch["ids"])

    goal = fs.Objective(Classes(), fs.losses.cross_entropy("label"), {"emb.weight": "ids"})
    found = evaluator(goal, clients)(params_of(goal))
    z, y = scores(goal, clients)
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    assert found["train.ce"] == pytest.approx(log_loss(y, p, labels=[0, 1, 2, 3]), rel=1e-9)
    assert found["train.accuracy"] == pytest.approx((z.argmax(1) == y).mean())


def test_other_losses_may_return_outputs_of_any_kind() -> None:
    clients = item_data()

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 1)

        def forward(self, batch):
            x = self.emb(batch["ids"]).sum((1, 2))
            return x, x**2

    def loss(output, batch):
        return (output[0] - batch["label"]) ** 2 + 0.1 * output[1]

    goal = fs.Objective(Two(), loss, {"emb.weight": "ids"})
    result = fs.run(fs.methods.fedsubavg(clients_per_round=3), goal, clients, rounds=2)
    assert result.metrics() == ["train.loss"]
    assert result.series("train.loss")[0] == [0, 2]


# ---------------------------------------------------------------------- heat deciles


def heat_world() -> tuple[fs.Clients, fs.Clients]:
    """Row m = 1..20 is held by the first m of 20 clients, so all heats differ; row 21 by nobody."""
    train = fs.Clients.from_arrays(
        {
            "ids": [[m] for c in range(20) for m in range(c + 1, 21)],
            "label": [m % 2 for c in range(20) for m in range(c + 1, 21)],
        },
        client=np.array([c for c in range(20) for _ in range(c + 1, 21)]),
        ids=["ids"],
        label="label",
        sizes={"ids": 22},
    )
    test = fs.Clients.from_arrays(
        {"ids": [[1], [20, 19], [20, 1], [21], [20, 21], [], [10]], "label": [1, 0, 1, 0, 1, 0, 1]},
        client=np.array([0, 0, 1, 1, 2, 2, 3]),
        ids=["ids"],
        label="label",
        sizes={"ids": 22},
    )
    return train, test


def test_samples_are_grouped_by_their_coldest_feature() -> None:
    train, test = heat_world()
    goal = fs.models.make_objective(train)
    with torch.no_grad():
        for p in goal.module.parameters():
            p.copy_(torch.linspace(-1, 1, 22)[:, None])
    found = evaluator(goal, train, test=test).final(params_of(goal))["test"]
    # 20 features, all of different heat: two to a decile. Padding and an empty list count as hottest.
    assert found["samples"] == 7
    counts = {d["group"]: d["samples"] for d in found["deciles"]}
    assert counts == {-1: 2, 0: 2, 1: 0, 2: 0, 3: 0, 4: 1, 5: 0, 6: 0, 7: 0, 8: 0, 9: 2}
    z = np.linspace(-1, 1, 22)
    logits = np.array([z[1], z[20] + z[19], z[20] + z[1], z[21], z[20] + z[21], 0.0, z[10]])
    labels = np.array([1, 0, 1, 0, 1, 0, 1])
    losses = np.logaddexp(0, logits) - labels * logits
    by = {d["group"]: d for d in found["deciles"]}
    assert by[-1]["ce"] == pytest.approx(losses[[3, 4]].mean(), rel=1e-5)
    assert by[0]["ce"] == pytest.approx(losses[[0, 2]].mean(), rel=1e-5)
    assert by[4]["ce"] == pytest.approx(losses[6], rel=1e-5)
    assert "ce" not in by[1]
    spread = found["spread"]
    means = [losses[:2].mean(), losses[2:4].mean(), losses[4:6].mean(), losses[6]]
    assert spread["clients"] == 4
    assert spread["mean"] == pytest.approx(np.mean(means), rel=1e-5)
    assert spread["median"] == pytest.approx(np.median(means), rel=1e-5)


def test_deciles_are_over_all_features_together() -> None:
    clients = click_data((5,) * 12)
    goal = fs.models.make_objective(clients)
    found = evaluator(goal, clients).final(params_of(goal))["train"]
    assert sum(d["samples"] for d in found["deciles"]) == clients.samples
    assert found["deciles"][0]["samples"] == 0  # the training data itself holds no unseen feature
    mean = sum(d["samples"] * d["ce"] for d in found["deciles"] if d["samples"]) / clients.samples
    assert mean == pytest.approx(found["ce"])


def test_data_without_ids_has_no_deciles() -> None:
    clients = fs.Clients.from_arrays(
        {"x": np.arange(6.0), "label": [0, 1] * 3}, offsets=[0, 2, 6], ids=[], label="label", values=["x"]
    )

    class Line(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(2))

        def forward(self, batch):
            return self.w[0] + self.w[1] * batch["x"]

    goal = fs.Objective(Line(), fs.losses.binary("label"))
    for engine in ("serial", "batched"):
        result = fs.run(fs.methods.fedavg(clients_per_round=2), goal, clients, rounds=1, engine=engine)
        assert result.final["train"]["deciles"] == []
        assert result.engine == engine


def test_splits_and_rounds_of_evaluation() -> None:
    clients = item_data((20, 30, 25))
    train, test = clients.split(0.7)
    goal = bag(clients)
    result = fs.run(
        fs.methods.fedavg(clients_per_round=2),
        goal,
        train,
        test=test,
        rounds=7,
        evaluate=fs.Evaluate(every=3),
        engine="serial",
    )
    assert result.series("test.auc")[0] == [0, 3, 6, 7]
    assert [r["round"] for r in result.history] == list(range(8))
    assert set(result.final) == {"train", "test"}
    assert result.final["test"]["ce"] == pytest.approx(result.series("test.ce")[1][-1])
    with pytest.raises(ConfigError, match="at least 1"):
        fs.Evaluate(every=0)


def test_a_split_of_other_data_is_refused() -> None:
    clients = item_data()
    with pytest.raises(ConfigError, match="make all splits from the same data"):
        evaluator(bag(clients), clients, test=item_data(items=21))
    with pytest.raises(ConfigError, match="make all splits from the same data"):
        evaluator(bag(clients), clients, test=click_data())
