"""Ratings of a small shop, a run of every kind of model on them, and their scores by hand."""

from __future__ import annotations

import numpy as np
import polars as pl

import fedsub as fs

ROWS = 240


def frame(seed: int = 0) -> pl.DataFrame:
    """Twelve users, thirty items with names, the genre of an item, an age, a label."""
    draw = np.random.default_rng(seed)
    item = draw.integers(0, 30, ROWS)
    return pl.DataFrame(
        {
            "user": [f"u{k % 12}" for k in range(ROWS)],
            "item": [f"sku-{i}" for i in item],
            "genre": item % 4 + 100,
            "age": draw.normal(size=ROWS).astype(np.float32),
            "liked": (draw.random(ROWS) < np.where(item % 3 == 0, 0.8, 0.3)).astype(int),
        }
    )


FRAME = frame()
CLIENTS = fs.Clients.from_frame(FRAME, "user", ids=["item", "genre"], label="liked", values=["age"])


def train(out=None, kind: str = "lr", personal: list[str] | None = None, rounds: int = 4, **options) -> fs.Result:
    method = fs.methods.fedsubavg(lr=0.5, clients_per_round=6, personal=personal)
    return fs.run(method, fs.models.make_objective(CLIENTS, kind, **options), CLIENTS, rounds=rounds, out=out)


def weight(result: fs.Result, column: str, value) -> float:
    """The weight of an id in a logistic regression."""
    ids = CLIENTS.spaces[column].vocabulary
    assert ids is not None
    at = np.flatnonzero(ids == value)
    return float(result.params[f"weights.t_{column}.weight"][at[0], 0]) if len(at) else 0.0


def by_hand(result: fs.Result, rows: pl.DataFrame) -> np.ndarray:
    """item + genre + age · slope, row by row."""
    slope = float(result.params["slope"][0])
    return np.array(
        [weight(result, "item", r["item"]) + weight(result, "genre", r["genre"]) + slope * r["age"]
         for r in rows.iter_rows(named=True)]
    )  # fmt: skip
