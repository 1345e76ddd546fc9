"""Dropout: anew at every step while training, none afterwards."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from engine_checks import methods
from engine_modules import DATA, LOSS, objective
from torch import nn
from worlds import item_data, trainer_for

import fedsub as fs


def test_dropout_drops_the_right_share_anew_every_step() -> None:
    seen: list[torch.Tensor] = []

    class Probe(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 64)
            nn.init.ones_(self.emb.weight)

        def forward(self, batch):
            x = F.dropout(self.emb(batch["ids"]), 0.25, self.training)
            seen.append(x.detach().clone())
            return x.mean((1, 2))

    goal = fs.Objective(Probe(), LOSS, {"emb.weight": "ids"})
    method = fs.methods.fedavg(lr=1e-9, local_steps=4, batch_size=4, clients_per_round=6)
    trainer = trainer_for(method, goal, item_data(), "serial")
    seen.clear()
    trainer.round(1)
    values = torch.cat([x.reshape(-1) for x in seen])
    assert ((values == 0) | ((values - 4 / 3).abs() < 1e-5)).all()
    share = float((values == 0).float().mean())
    assert abs(share - 0.25) < 4 * (0.25 * 0.75 / len(values)) ** 0.5
    masks = {tuple((x[0] == 0).reshape(-1).tolist()) for x in seen}
    assert len(masks) == len(seen)  # every client and step has a mask of its own


def test_evaluation_and_the_returned_module_use_no_dropout() -> None:
    result = fs.run(methods()["short batches"], objective("dropout_layernorm"), DATA, rounds=1, engine="serial")
    batch = {k: torch.from_numpy(v) for k, v in DATA.gather(torch.arange(20).numpy(), local=False).items()}
    module = result.module()
    assert not module.training
    assert torch.equal(module(batch), module(batch))
