"""What the tests of differential privacy train."""

from __future__ import annotations

from typing import Any

import torch
from worlds import bag, item_data

import fedsub as fs

SIZES = (1, 7, 4, 9, 2, 5, 8, 3, 6, 4, 2, 5)


def world(items: int = 40) -> tuple[fs.Objective, fs.Clients]:
    """In double precision; clients hold some of the rows, and the last ten nobody."""
    clients = item_data(SIZES, items=items - 10)
    made = fs.Clients.from_arrays(
        {"ids": clients.columns["ids"].values, "label": clients.columns["label"].values},
        offsets=clients.offsets, ids={"ids": ["ids"]}, label="label", sizes={"ids": items},
    )  # fmt: skip
    return bag(made, dim=3, dtype=torch.float64), made


def method(*parts: fs.Part, per_round: int | None = 4, **slots: Any) -> fs.Method:
    sampler = fs.Everyone() if per_round is None else fs.sampling.Poisson(per_round)
    usual = {
        "local": fs.SGD(lr=0.5, local_steps=2, batch_size=3), "average": fs.OverClients("clients"),
        "server": fs.Add(), "sampler": sampler, "parts": parts,
    }  # fmt: skip
    return fs.Method(**{**usual, **slots})


def train(made: fs.Method, rounds: int = 6, **options: Any) -> fs.Result:
    objective, clients = world()
    return fs.run(made, objective, clients, rounds=rounds, **{"engine": "serial", **options})
