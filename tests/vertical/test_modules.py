"""Modules for parties that bring none, against a few lines of numpy; and the data that they are for."""

from __future__ import annotations

import numpy as np
import torch

from fedsub.data.clients import Clients
from fedsub.vertical.data.divided import history_sides
from fedsub.vertical.models import Head, History, Interest, Tower

DRAW = np.random.default_rng(8)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def values(module: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: p.detach().double().numpy() for name, p in module.named_parameters()}


def test_a_tower_is_one_linear_layer_over_embeddings_means_of_lists_and_values() -> None:
    module = Tower({"a": (5, ("x",), False), "b.c": (7, ("y", "z"), True)}, ["v"], dim=3, width=2).double()
    x, y, z = np.array([0, 4]), np.array([[1, 2, 0], [0, 0, 0]]), np.array([[6, 0], [3, 3]])
    v = np.array([0.5, -1.0])
    out = module({n: torch.from_numpy(a) for n, a in {"x": x, "y": y, "z": z, "v": v}.items()}).detach().numpy()
    w = values(module)
    a, b = w["rows.of_a.weight"], w["rows.of_b_c.weight"]
    for i, parts in enumerate((
        [a[0], (b[1] + b[2]) / 2, b[6], [0.5]],
        [a[4], np.zeros(3), b[3], [-1.0]],  # an empty list is zero
    )):  # fmt: skip
        assert np.allclose(out[i], w["out.weight"] @ np.concatenate(parts) + w["out.bias"], atol=1e-12)


def test_a_head_is_one_hidden_layer() -> None:
    module = Head(5, 4).double()
    one, two = DRAW.normal(size=(3, 2)), DRAW.normal(size=(3, 3, 1))
    w = values(module)
    hidden = np.maximum(np.concatenate([one, two[:, :, 0]], 1) @ w["hidden.weight"].T + w["hidden.bias"], 0)
    wanted = hidden @ w["out.weight"][0] + w["out.bias"]
    assert np.allclose(module(torch.from_numpy(one), torch.from_numpy(two)).detach().numpy(), wanted, atol=1e-12)


def test_interest_weighs_what_is_there_by_how_well_it_goes_with_the_candidate() -> None:
    torch.manual_seed(4)
    bottom, top = History("history", 9, 3).double(), Interest(3, 2).double()
    assert top.slopes.alpha is not None
    top.slopes.alpha.data.uniform_(0.1, 0.4)
    ids = np.array([[4, 8, 0, 0], [1, 2, 3, 1], [0, 0, 0, 0]])
    z = bottom({"history": torch.from_numpy(ids)})
    assert z.shape == (3, 4, 4)
    assert z[..., -1].tolist() == (ids != 0).astype(float).tolist()
    assert not z[torch.from_numpy(ids == 0)].any()
    q, other = DRAW.normal(size=(3, 3)), DRAW.normal(size=(3, 2))
    out = top(torch.from_numpy(q), z, torch.from_numpy(other)).detach().numpy()
    w, table = values(top), values(bottom)["items.weight"]
    for i in range(3):
        k = table[ids[i][ids[i] != 0]]
        scores = np.array([_attention(w, q[i], one) for one in k])
        weights = np.exp(scores) / np.exp(scores).sum() if len(k) else np.zeros(0)
        plain, attended = k.sum(0), weights @ k if len(k) else np.zeros(3)
        x = np.concatenate([q[i], plain, q[i] * plain, attended, other[i]])
        hidden = x @ w["hidden.weight"] + w["hidden.bias"]
        hidden = np.where(hidden > 0, hidden, w["slopes.alpha"] * hidden)
        assert np.allclose(out[i], hidden @ w["out.weight"][:, 0] + w["out.bias"], atol=1e-10)


def _attention(w: dict[str, np.ndarray], q: np.ndarray, k: np.ndarray) -> float:
    x = np.concatenate([q, k, q - k, q * k])
    for layer in ("first", "second"):
        x = sigmoid(x @ w[f"attention.{layer}.weight"] + w[f"attention.{layer}.bias"])
    return float(x @ w["attention.third.weight"][:, 0] + w["attention.third.bias"][0])


def test_the_last_of_a_history_go_to_the_other_party() -> None:
    lists = [[], [3], [1, 2, 3, 4], [5, 6, 7], [2, 2]]
    data = {"who": list("aabbc"), "item": [1, 2, 3, 4, 5], "history": lists, "label": [0, 1, 0, 1, 1]}
    clients = Clients.from_arrays(
        data, client="who", ids={"item": ["item", "history"]}, label="label", padding=["item"], sizes={"item": 8}
    )  # fmt: skip
    sides = history_sides(clients, recent=3)
    order = clients.gather(np.arange(5), ["item"], local=False)["item"]
    kept = {item: some[-3:] + [0] * (3 - len(some[-3:])) for item, some in zip(data["item"], lists, strict=True)}
    every = np.arange(5)
    assert sides.label_party == "candidate"
    found = sides.parties["sequence"].gather(every, local=False)
    assert found["history"].tolist() == [kept[item] for item in order.tolist()]
    assert sides.labelled.gather(every, local=False)["item"].tolist() == order.tolist()
    assert sides.labelled.client_ids.tolist() == sides.parties["sequence"].client_ids.tolist()
