"""Split models trained, and the same network trained in one place by plain torch."""

from __future__ import annotations

from typing import Any

import torch
from sides import BATCH, ROUNDS, STEPS, world
from torch import Tensor

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
