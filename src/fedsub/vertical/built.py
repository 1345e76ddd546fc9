"""A split model made from the data alone: an embedding per id and a hidden layer at every party, and a top.

bottom of a party    z = W₂ relu(W₁ [rows that its columns name, the mean of lists])
top                  logit = w · relu(V [z of the label party, z of the others])
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedsub.method.servers import Adam
from fedsub.objective.losses import binary
from fedsub.objective.models.columns import space_tables
from fedsub.objective.models.embedding import EmbeddingModel
from fedsub.vertical.data.sides import Sides
from fedsub.vertical.joined import Joined
from fedsub.vertical.party import Party
from fedsub.vertical.run import LabelParty

DIM, HIDDEN, OUT, LR = 8, 16, 8, 0.005


class Top(nn.Module):
    """One logit per sample of all parties' activations."""

    def __init__(self, width: int, hidden: int = HIDDEN):
        super().__init__()
        self.hidden, self.out = nn.Linear(width, hidden), nn.Linear(hidden, 1)

    def forward(self, *z: Tensor) -> Tensor:
        return self.out(torch.relu(self.hidden(torch.cat(z, 1)))).squeeze(-1)


def built(
    train: Sides, test: Sides, *, seed: int = 0, alone: bool = False, lr: float = LR, **options: Any
) -> tuple[LabelParty, list[Party]]:
    """The label party and the feature parties of some aligned data; ``options`` are those of `LabelParty`.

    ``alone``: the label party without the others, for comparison. Initial values are those of the seed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        own = EmbeddingModel(train.labelled, dim=DIM, hidden=HIDDEN, out=OUT)
        bottoms = {name: EmbeddingModel(train.parties[name], dim=DIM, hidden=HIDDEN, out=OUT) for name in train.others}
        names = () if alone else train.others
        top = Top(OUT * (1 + len(names)))
    assert train.labelled.label is not None
    label = LabelParty(
        Joined(own, top, names), binary(train.labelled.label), train.labelled, {"test": test.labelled},
        space_tables(train.labelled, "bottom.tables"), Adam(lr=lr), **options,
    )  # fmt: skip
    return label, [
        Party(
            name, bottoms[name], train.parties[name], {"test": test.parties[name]},
            space_tables(train.parties[name], "tables"), Adam(lr=lr),
        )
        for name in names
    ]  # fmt: skip
