"""Sign codecs and rows that no gradient moves: padding, and rows whose gradient is always zero."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fedsub as fs

ENGINES = pytest.mark.parametrize("engine", ["serial", "batched"])
ROWS, IDLE = 60, 20  # of the table; the last ones get no gradient


class Masked(nn.Module):
    """Logistic regression over ids, of which some weigh nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, 1, padding_idx=0, dtype=torch.float64)
        nn.init.zeros_(self.items.weight)

    def forward(self, batch):
        weight = (batch["ids"] < ROWS).to(torch.float64) * batch["counts"].to(torch.float64)
        return (self.items(batch["ids"]).squeeze(-1) * weight).sum(-1)


def world(clients: int = 12, samples: int = 8) -> tuple[fs.Objective, fs.Clients]:
    draw = np.random.default_rng(0)
    n = clients * samples
    ids = draw.integers(1, ROWS - IDLE, (n, 4))
    ids[:, 3] = 0  # padding stands in every sample
    ids[:, 2] = draw.integers(ROWS - IDLE, ROWS, n)  # and an id that counts for nothing
    arrays = {"ids": ids, "counts": np.tile([1.0, 1.0, 0.0, 1.0], (n, 1)), "label": draw.integers(0, 2, n)}
    data = fs.Clients.from_arrays(
        arrays, offsets=np.arange(clients + 1) * samples, ids=["ids"], values=["counts"], label="label",
        sizes={"ids": ROWS}, padding=("ids",),
    )  # fmt: skip
    return fs.Objective(Masked(), fs.losses.binary("label"), {"items.weight": "ids"}), data


@ENGINES
@pytest.mark.parametrize("codec", ["sign", "ef-sign", "topk:0.3", "randomk:0.3", "int8"])
def test_padding_rows_are_never_written(engine: str, codec: str) -> None:
    goal, data = world()
    method = fs.methods.fedavg(lr=0.5, codec=codec, clients_per_round=6, server_lr=0.1, weighting="clients")
    trained = fs.run(method, goal, data, rounds=10, engine=engine).params["items.weight"]
    assert trained[0].tolist() == [0.0]
    assert trained[1 : ROWS - IDLE].abs().sum() > 0


@ENGINES
def test_zeros_do_not_drift_under_error_feedback(engine: str) -> None:
    """A zero is sent as + or − by a fair coin: no row without gradient drifts.

    After one round; later the residual has taken back what was sent, also if that was always +.
    """
    goal, data = world()
    method = fs.methods.ef_signsgd(lr=0.5, clients_per_round=6, weighting="clients")
    ends = [
        fs.run(method, goal, data, rounds=1, seed=seed, engine=engine).params["items.weight"][ROWS - IDLE :].flatten()
        for seed in range(5)
    ]
    moved = torch.cat(ends)
    up, down = int((moved > 1e-12).sum()), int((moved < -1e-12).sum())
    assert min(up, down) > 10  # both ways: always + would leave no row below zero
    assert abs(float(moved.mean())) < 3 * float(moved.std()) / len(moved) ** 0.5 + 1e-9


@ENGINES
def test_the_residual_of_padding_is_zero(engine: str) -> None:
    from worlds import trainer_for

    goal, data = world()
    trainer = trainer_for(fs.methods.ef_signsgd(lr=0.5, clients_per_round=6), goal, data, engine)
    for number in (1, 2, 3):
        trainer.round(number)
    kept = trainer.memory.tensors["errorfeedbacksign.residual/items.weight"]
    first = torch.from_numpy(data.spaces["ids"].row_offsets[:-1].astype(np.int64))
    assert kept[first].abs().sum() == 0
    assert kept.abs().sum() > 0
