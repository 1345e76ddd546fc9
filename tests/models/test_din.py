"""DIN against a forward written out in numpy, its sizes, Dice, and the half cross-entropy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from test_kinds import shop
from worlds import there

import fedsub as fs
from fedsub.methods import fedsubavg
from fedsub.objective.losses import Binary, CrossEntropy, HalfCrossEntropy, measured
from fedsub.objective.models import DIN, make_objective
from fedsub.objective.models.din import Dice


def batch_of(samples: int, longest: int, *, categories: bool, seed: int = 0) -> dict[str, torch.Tensor]:
    """Items with ragged histories, the second one empty, none as long as the column is wide."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, longest - 1, samples)
    lengths[1] = 0
    real = np.arange(longest) < lengths[:, None]
    arrays = {
        "user": draw.integers(0, 5, samples),
        "item": draw.integers(1, 30, samples),
        "history": draw.integers(1, 30, (samples, longest)) * real,
        "label": draw.integers(0, 2, samples).astype(np.float64),
        "sample_mask": np.ones(samples),
    }
    if categories:
        arrays["category"] = draw.integers(1, 8, samples)
        arrays["category_history"] = draw.integers(1, 8, (samples, longest)) * real
    return {name: torch.from_numpy(a) for name, a in arrays.items()}


def network(**options) -> DIN:
    """In double precision, with all parameters away from their special starting values."""
    torch.manual_seed(3)
    module = DIN(**options).double()
    with torch.no_grad():
        for value in module.parameters():
            value.add_(0.3 * torch.randn_like(value))
    return module


def losses_in_numpy(module: DIN, batch: dict[str, torch.Tensor], *, faithful: bool, users=True, categories=False):
    """Sample by sample, position by position, as the paper's formulas read."""
    w = {name: p.detach().numpy() for name, p in module.named_parameters()}
    b = {name: v.numpy() for name, v in batch.items()}

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    def item(i, c):
        return np.concatenate([w["items.weight"][i], w["categories.weight"][c]]) if categories else w["items.weight"][i]

    longest = int((b["history"] != 0).sum(1).max())
    rows = []
    for s in range(len(b["item"])):
        q = item(b["item"][s], b["category"][s] if categories else 0)
        length = int((b["history"][s] != 0).sum())
        width = longest if faithful else length
        k = [item(b["history"][s, t], b["category_history"][s, t] if categories else 0) for t in range(width)]
        scores = []
        for t in range(width):
            x = np.concatenate([q, k[t], q - k[t], q * k[t]])
            x = sigmoid(x @ w["attention.first.weight"] + w["attention.first.bias"])
            x = sigmoid(x @ w["attention.second.weight"] + w["attention.second.bias"])
            score = (x @ w["attention.third.weight"] + w["attention.third.bias"])[0]
            scores.append(score if t < length else -(2.0**32) + 1)
        plain, attended = np.zeros_like(q), np.zeros_like(q)
        if width:
            e = np.exp(np.array(scores) - max(scores))
            plain, attended = np.sum(k, axis=0), (e / e.sum()) @ np.array(k)
        user = [w["users.weight"][b["user"][s]]] if users else []
        rows.append(np.concatenate([*user, q, plain, q * plain, attended]))
    x = w["scale.gamma"] * np.array(rows) / np.sqrt(1.001) + w["scale.beta"]
    for n in range(2):
        x = x @ w[f"layers.{n}.weight"] + w[f"layers.{n}.bias"]
        mean = x.mean(0)
        std = np.sqrt(((x - mean) ** 2 + 1e-9).mean(0))
        p = sigmoid((x - mean) / (std + 1e-9))
        x = p * x + (1 - p) * w[f"activations.{n}.alpha"] * x
    z = x @ w["out.weight"] + w["out.bias"]
    y_hat = np.exp(z) / np.exp(z).sum(1, keepdims=True) + (1e-8 if faithful else 0)
    one_hot = np.stack([b["label"], 1 - b["label"]], 1)
    return -(one_hot * np.log(y_hat)).mean(1)


@pytest.mark.parametrize("faithful", [False, True])
@pytest.mark.parametrize(("users", "categories"), [(True, False), (True, True), (False, False)])
def test_the_whole_network_is_the_papers(faithful, users, categories):
    batch = batch_of(7, 9, categories=categories)
    module = network(users=5 if users else None, items=30, categories=8 if categories else None, faithful=faithful)
    loss = HalfCrossEntropy(epsilon=1e-8 if faithful else 0.0)
    want = losses_in_numpy(module, batch, faithful=faithful, users=users, categories=categories)
    for mode in (module.train(), module.eval()):  # in eval mode, histories are cut to the longest
        got = loss(mode(batch), batch)
        np.testing.assert_allclose(got.detach().numpy(), want, rtol=1e-9, atol=1e-12)


def test_faithful_and_clean_differ_by_the_padding_alone():
    batch = batch_of(6, 8, categories=False)
    full = batch | {"history": torch.from_numpy(np.random.default_rng(1).integers(1, 30, (6, 8)))}
    same, other = network(users=5, items=30), network(users=5, items=30, faithful=True)
    assert torch.allclose(same(full), other(full), rtol=1e-12)
    assert not torch.allclose(same(batch), other(batch), rtol=1e-3)


@pytest.mark.parametrize("faithful", [False, True])
def test_padded_samples_and_wider_columns_change_nothing(faithful):
    batch = batch_of(5, 8, categories=False)
    module = network(users=5, items=30, faithful=faithful)
    wide = {name: torch.cat([v, v[-2:]]) for name, v in batch.items()}
    wide["history"] = torch.nn.functional.pad(wide["history"], (0, 3))
    wide["history"][5:] = 7  # longer than any real one
    wide["sample_mask"][5:] = 0
    torch.testing.assert_close(module(wide)[:5], module(batch), rtol=1e-10, atol=1e-12)


def test_only_the_last_of_a_long_history_are_used():
    batch = batch_of(6, 9, categories=True)
    cut = dict(batch)
    for name in ("history", "category_history"):
        lists = [row[row != 0][-3:].tolist() for row in batch[name].numpy()]
        cut[name] = torch.tensor([row + [0] * (3 - len(row)) for row in lists])
    sizes = {"users": 5, "items": 30, "categories": 8}
    torch.testing.assert_close(network(**sizes, max_history=3)(batch), network(**sizes)(cut))


def test_lengths_may_be_given_where_ids_are_zero():
    """The released reader replaces all ids by 0: the history is then so many times row 0."""
    batch = batch_of(4, 6, categories=False)
    lengths = torch.tensor([2.0, 0.0, 5.0, 1.0])
    module = network(users=5, items=30, faithful=True, columns={"history_length": "history_length"})
    with torch.no_grad():
        module.items.weight[7] = module.items.weight[0]
    said = module(batch | {"history": torch.zeros(4, 6, dtype=torch.int64), "history_length": lengths})
    sevens = (torch.arange(6) < lengths.unsqueeze(1)) * 7
    torch.testing.assert_close(said, module(batch | {"history": sevens, "history_length": lengths}))
    zeros = torch.zeros(4)
    none = module(batch | {"history": torch.zeros(4, 6, dtype=torch.int64), "history_length": zeros})
    assert not torch.allclose(said, none)


def test_sizes_are_those_of_the_released_network():
    amazon, alibaba = DIN(1_870, 33_136), DIN(10, 20, 30)
    assert sum(p.numel() for p in amazon.parameters()) == 674_131
    dense = {n: p.numel() for n, p in amazon.named_parameters() if n not in ("users.weight", "items.weight")}
    assert sum(dense.values()) == 44_023
    # 162 inputs and 144 to the attention: 80 · 145 + 40 · 81 + 41 + 2 · 162 + 200 · 163 + 200 + 80 · 201 + 80 + 162
    assert sum(p.numel() for p in alibaba.parameters()) - 18 * 60 == 64_327


def test_tables_start_glorot_uniform_over_their_full_shape():
    module = DIN(1_870, 33_136)
    for name, limit in (("users.weight", 0.0564), ("items.weight", 0.01345)):
        table = module.get_parameter(name)
        assert table.abs().max().item() == pytest.approx(limit, rel=5e-3)
        assert table.std().item() == pytest.approx(limit / math.sqrt(3), rel=2e-2)
    layers = (*module.layers, module.out, module.attention.first)
    assert all(not layer.get_parameter("bias").any() for layer in layers)


def test_dice_of_one_sample_is_half_open():
    dice, x = Dice(3), torch.tensor([[2.0, -4.0, 1e6]])
    torch.testing.assert_close(dice(x, torch.ones(1)), x / 2)
    with torch.no_grad():
        dice.alpha.fill_(1.0)
    torch.testing.assert_close(dice(x, torch.ones(1)), x)


@pytest.mark.parametrize("activation", ["prelu", "relu"])
def test_without_dice_samples_do_not_affect_each_other(activation):
    batch = batch_of(5, 8, categories=False)
    module = network(users=5, items=30, activation=activation)
    alone = torch.cat([module({n: v[s : s + 1] for n, v in batch.items()}) for s in range(5)])
    torch.testing.assert_close(module(batch), alone)


def test_no_gradient_is_lost_in_a_batch_without_real_samples():
    batch = batch_of(3, 5, categories=False)
    batch["sample_mask"] = torch.zeros(3, dtype=torch.float64)
    module = network(users=5, items=30)
    module(batch).sum().backward()
    assert all(torch.isfinite(there(p.grad)).all() for p in module.parameters())


# Half cross-entropy --------------------------------------------------------------------------------


def test_half_cross_entropy_is_half_and_moves_like_binary():
    z = torch.tensor([[1.5, -0.2], [0.3, 2.0], [-40.0, 40.0]], dtype=torch.float64, requires_grad=True)
    batch = {"label": torch.tensor([1.0, 0.0, 1.0])}
    half = HalfCrossEntropy()(z, batch)
    classes = {"label": 1 - batch["label"]}  # the first logit is label 1
    torch.testing.assert_close(half, CrossEntropy()(z, classes) / 2)
    torch.testing.assert_close(half, Binary()(z[:, 0] - z[:, 1], {"label": batch["label"].double()}) / 2)
    clipped = HalfCrossEntropy(epsilon=1e-8)(z, batch)
    torch.testing.assert_close(clipped[:2], half[:2], rtol=1e-6, atol=1e-8)
    assert clipped[2].item() == pytest.approx(-0.5 * math.log(1e-8))


def test_evaluation_reports_both_conventions():
    clients = shop()
    objective = make_objective(clients, "din", dim=3)
    assert measured(objective.loss) == measured(Binary())
    result = fs.run(
        fedsubavg(clients_per_round=3), objective, clients, rounds=1, engine="serial", evaluate=fs.Evaluate(every=1)
    )
    row = result.history[0]
    assert row["train.ce"] == pytest.approx(math.log(2), abs=0.02)
    assert row["train.half_ce"] == pytest.approx(row["train.ce"] / 2)
    assert 0 <= row["train.auc"] <= 1


def test_labels_must_be_binary():
    numbers = fs.Clients.from_arrays(
        {"item": [1, 2, 3], "history": [[1], [], [2]], "label": [0, 2, 1]},
        offsets=[0, 1, 3], ids={"item": ["item", "history"]}, label="label", binary_label=False,
    )  # fmt: skip
    with pytest.raises(fs.errors.ObjectiveError, match="half_cross_entropy needs labels 0 and 1"):
        fs.run(fedsubavg(), make_objective(numbers, "din"), numbers, rounds=1)
