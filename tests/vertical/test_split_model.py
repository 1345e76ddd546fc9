"""A split model is the same network trained in one place, to rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sides import BATCH, ROUNDS, STEPS, label, paper, shop
from split_trained import central, gap, played

import fedsub as fs
from fedsub import vertical
from fedsub.vertical.agreed import batch_of


@pytest.mark.parametrize("parties", [0, 1, 2])
def test_parameters_are_those_of_central_training(parties: int) -> None:
    found = played(parties)
    assert gap(found, central(parties)) < 1e-12
    assert gap(found, central(parties, seed=1)) > 1e-3  # other batches: the comparison can fail
    assert found.result.history[-1]["round"] == ROUNDS
    assert {"train.auc", "test.auc"} <= set(found.result.history[-1])


@pytest.mark.parametrize(
    ("own", "torchs"),
    [
        (lambda lr: fs.servers.Add(lr=lr, momentum=0.7), lambda t, lr: torch.optim.SGD(t, lr=lr, momentum=0.7)),
        (
            lambda lr: fs.servers.TorchOptimiser(lambda t: torch.optim.Adam(t, lr=lr / 10)),
            lambda t, lr: torch.optim.Adam(t, lr=lr / 10),
        ),
    ],
)
def test_other_optimisers(own: Any, torchs: Any) -> None:
    """Momentum moves rows that no batch named; they catch up, at every party."""
    others = [shop(own(0.5)), paper(own(0.3))]
    found = vertical.run(
        label(5, ("shop", "paper"), own(0.2)), others, rounds=ROUNDS, steps=STEPS, batch_size=BATCH
    )  # fmt: skip
    assert gap(found, central(2, torchs)) < 1e-12


def test_a_factory_moves_the_rows_of_a_batch_only() -> None:
    party = shop(lambda tensors: torch.optim.Adam(tensors, lr=0.01))
    before = party.bottom.items.weight.detach().clone()  # type: ignore[union-attr]
    side = label(3, ("shop",))
    found = vertical.run(side, [party], rounds=1, steps=1, batch_size=4)
    moved = (found.bottoms["shop"].items.weight != before).any(1).nonzero().flatten()  # type: ignore[operator]
    named = party.data.gather(batch_of(0, side.data.samples, 4, 1), ["item"], local=False)["item"]
    assert moved.tolist() == np.unique(named).tolist()
