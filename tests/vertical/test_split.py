"""A split model is the same network trained in one place, to rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sides import BATCH, ROUNDS, STEPS, label, paper, shop, world
from torch import Tensor

import fedsub as fs
from fedsub import vertical
from fedsub.vertical.agreed import batch_of


def central(parties: int, factory: Any = None, seed: int = 0) -> dict[str, dict[str, Tensor]]:
    """Plain torch on the joined columns: whole tables, one optimiser a party, autograd through everything."""
    side, others = world(parties)
    modules = {"label": side.module, **{p.name: p.bottom for p in others}}
    rates = {"label": 0.2, "shop": 0.5, "paper": 0.3}
    make = factory or (lambda tensors, lr: torch.optim.SGD(tensors, lr=lr))
    optimisers = [make(list(m.parameters()), rates[name]) for name, m in modules.items()]
    for step in range(1, ROUNDS * STEPS + 1):
        samples = batch_of(seed, side.data.samples, BATCH, step)
        joined: dict[str, Tensor] = {}
        for data in (side.data, *[p.data for p in others]):
            joined |= {n: torch.from_numpy(a) for n, a in data.gather(samples, local=False).items()}
        output = side.module(joined | {p.name: p.bottom(joined) for p in others})
        loss = torch.nn.functional.binary_cross_entropy_with_logits(output, joined["label"].double())
        for optimiser in optimisers:
            optimiser.zero_grad()
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()
    return {name: {n: p.detach() for n, p in m.named_parameters()} for name, m in modules.items()}


def gap(found: vertical.Outcome, expected: dict[str, dict[str, Tensor]]) -> float:
    trained = {"label": found.result.params} | {n: dict(m.named_parameters()) for n, m in found.bottoms.items()}
    assert trained.keys() == expected.keys()
    assert all(trained[name].keys() == expected[name].keys() for name in trained)
    return max(float((trained[k][n] - v).detach().abs().max()) for k, tree in expected.items() for n, v in tree.items())


def played(parties: int, **options: Any) -> vertical.Outcome:
    side, others = world(parties)
    return vertical.run(side, others, rounds=ROUNDS, steps=STEPS, batch_size=BATCH, **options)


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
