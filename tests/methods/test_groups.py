"""Settings by parameter pattern."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from known_answers import (
    DOUBLE,
    ENGINES,
    EVERYONE,
    Point,
    final,
    start_of,
)
from torch import nn
from worlds import bag, item_data

import fedsub as fs
from fedsub.data.heat import row_heat
from fedsub.errors import MethodError


class Two(nn.Module):
    """Two dense vectors, ``a.x`` and ``b.x``."""

    def __init__(self):
        super().__init__()
        self.a, self.b = Point(1.0, 2.0), Point(-3.0, 0.5)

    def forward(self, batch):
        return self.a.x, self.b.x


A, B = torch.tensor([1.0, 2.0], dtype=DOUBLE), torch.tensor([-3.0, 0.5], dtype=DOUBLE)


GA, GB = torch.tensor([3.0, 4.0], dtype=DOUBLE), torch.tensor([0.6, -0.8], dtype=DOUBLE)  # norms 5 and 1


def two() -> tuple[fs.Objective, fs.Clients]:
    """Two equal clients whose gradient is (GA, GB) everywhere."""
    clients = fs.Clients.from_arrays({"one": np.ones(2, np.float32)}, offsets=[0, 1, 2], ids=[], values=["one"])
    loss = lambda z, batch: batch["one"].double() * ((GA * z[0]).sum() + (GB * z[1]).sum())  # noqa: E731
    return fs.Objective(Two(), loss), clients


def together(norm: float) -> tuple[torch.Tensor, torch.Tensor]:
    return GA * norm / math.sqrt(26), GB * norm / math.sqrt(26)


GROUPS = {  # settings -> the update of one step of lr 0.1 (server included)
    "lr": ({"groups": {"b.*": {"lr": 0.02}}}, -0.1 * GA, -0.02 * GB),
    "first pattern wins": ({"groups": {"b.x": {"lr": 0.3}, "*": {"lr": 0.02}}}, -0.02 * GA, -0.3 * GB),
    "weight_decay": ({"groups": {"a.*": {"weight_decay": 0.5}}}, -0.1 * (GA + 0.5 * A), -0.1 * GB),
    "decay but for one": (
        {"weight_decay": 0.5, "groups": {"a.*": {"weight_decay": 0.0}}}, -0.1 * GA, -0.1 * (GB + 0.5 * B),
    ),
    "clip_norm": ({"groups": {"a.*": {"clip_norm": 2.0}}}, -0.1 * GA * 2 / 5, -0.1 * GB),
    "clip_norm of the rest": (
        {"clip_norm": 0.25, "groups": {"a.*": {"clip_norm": 2.0}}}, -0.1 * GA * 2 / 5, -0.1 * GB * 0.25,
    ),
    "clip_norm for all": ({"clip_norm": 1.0}, -0.1 * together(1.0)[0], -0.1 * together(1.0)[1]),
    "server_lr": ({"groups": {"b.*": {"server_lr": 3.0}}}, -0.1 * GA, -0.3 * GB),
    "lr and server_lr": ({"groups": {"b.*": {"server_lr": 3.0, "lr": 0.2}}}, -0.1 * GA, -0.6 * GB),
    "proximal": ({"mu": 5.0, "groups": {"b.*": {"lr": 0.2}}}, -0.1 * GA, -0.2 * GB),
}  # fmt: skip


@ENGINES
@pytest.mark.parametrize("which", GROUPS)
def test_groups_by_hand(engine: str, which: str) -> None:
    settings, a, b = GROUPS[which]
    goal, clients = two()
    found = final(fs.methods.fedavg(lr=0.1, local_steps=1, batch_size=1, **EVERYONE, **settings), goal, clients,
                  engine=engine)  # fmt: skip
    torch.testing.assert_close(found["a.x"], A + a, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found["b.x"], B + b, rtol=1e-12, atol=1e-12)


@ENGINES
def test_temper_and_cap_by_pattern(engine: str) -> None:
    clients = item_data((4, 8, 2, 1, 16))
    goal = bag(clients, dim=2, dtype=DOUBLE)
    local = {"lr": 0.3, "local_steps": 2, "batch_size": 2, **EVERYONE}
    x, heat = start_of(goal)["emb.weight"], row_heat(clients.spaces["ids"])
    plain = final(fs.methods.fedavg(**local), goal, clients, engine=engine)["emb.weight"] - x
    for group, c in (
        ({"temper": 0.5}, (5 / np.maximum(heat, 1)) ** 0.5),
        ({"max_coef": 2.0}, np.minimum(5 / np.maximum(heat, 1), 2.0)),
    ):
        method = fs.methods.fedsubavg(groups={"emb.*": group}, **local)
        found = final(method, goal, clients, engine=engine)["emb.weight"] - x
        torch.testing.assert_close(found, plain * torch.from_numpy(c)[:, None], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("key", ["lr", "weight_decay", "clip_norm", "server_lr", "temper", "max_coef"])
def test_a_pattern_that_fits_nothing_is_refused(key: str) -> None:
    clients = item_data()
    method = fs.methods.fedsubavg(clients_per_round=4, groups={"embedding.*": {key: 1.0}})
    with pytest.raises(MethodError, match="fits no parameter"):
        fs.run(method, bag(clients), clients, rounds=1)


def test_unknown_settings_of_groups_are_refused() -> None:
    with pytest.raises(MethodError, match="momentum"):
        fs.methods.fedavg(groups={"*": {"momentum": 0.9}})
    with pytest.raises(MethodError, match="fedsubavg"):
        fs.methods.fedavg(groups={"*": {"temper": 0.5}})
    with pytest.raises(MethodError, match="patterns"):
        fs.methods.fedavg(groups=["emb.*"])  # pyright: ignore[reportArgumentType]
