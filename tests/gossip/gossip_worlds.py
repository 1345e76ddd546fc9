"""Small worlds of nodes, shared by the tests of gossip."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from worlds import SIZES, item_data

import fedsub as fs
from fedsub.gossip.exchange import Exchange, Outcome
from fedsub.gossip.peers import Pulls
from fedsub.gossip.trainer import GossipTrainer
from fedsub.method.training import Options
from fedsub.objective.problem import Problem

STEPS = fs.SGD(lr=0.2, local_steps=3, batch_size=4)


class Wide(nn.Module):
    """A table of several columns, and a dense layer."""

    def __init__(self, items: int, dim: int):
        super().__init__()
        self.emb, self.out = nn.EmbeddingBag(items, dim, mode="sum"), nn.Linear(dim, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.out(self.emb(batch["ids"])).squeeze(-1)


class Several(nn.Module):
    """Two tables of one space, of different widths, a table of another space, and a dense layer."""

    def __init__(self, items: int, slots: int):
        super().__init__()
        self.wide, self.narrow, self.slot = nn.Embedding(items, 3), nn.Embedding(items, 1), nn.Embedding(slots, 2)
        self.out = nn.Linear(5, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        joined = torch.cat([self.wide(batch["item"]), self.slot(batch["slot"])], 1)
        return (self.out(joined) + self.narrow(batch["item"])).squeeze(-1)


def several() -> tuple[fs.Objective, fs.Clients]:
    draw, n = np.random.default_rng(0), sum(SIZES)
    arrays = {"item": draw.integers(0, 15, n), "slot": draw.integers(0, 4, n), "label": draw.integers(0, 2, n)}
    ids = {"item": ["item"], "slot": ["slot"]}
    offsets = np.concatenate([[0], np.cumsum(SIZES)])
    clients = fs.Clients.from_arrays(arrays, offsets=offsets, ids=ids, label="label", sizes={"item": 15, "slot": 4})
    torch.manual_seed(0)
    module = Several(clients.size("item"), clients.size("slot"))
    tables = {"wide.weight": "item", "narrow.weight": "item", "slot.weight": "slot"}
    return fs.Objective(module, fs.losses.binary("label"), tables), clients


def world(dim: int = 3, *, sizes=SIZES, items: int = 12, seed: int = 0) -> tuple[fs.Objective, fs.Clients]:
    clients = item_data(sizes, items=items, seed=seed)
    torch.manual_seed(seed)
    objective = fs.Objective(Wide(items, dim), fs.losses.binary("label"), {"emb.weight": "ids"})
    return objective, clients


def gossip(mixing: fs.gossip.Mixing, **settings: Any) -> fs.gossip.Gossip:
    return fs.gossip.Gossip(**{"local": STEPS, "mixing": mixing, **settings})


def trainer(method: fs.gossip.Gossip, objective: fs.Objective, clients: fs.Clients, *, seed: int = 0) -> GossipTrainer:
    problem = Problem.bind(objective, clients)
    made = method.prepare(problem, problem.params(), Options(engine="serial", seed=seed)).trainer
    assert isinstance(made, GossipTrainer)
    return made


def models(made: GossipTrainer) -> list[dict[str, np.ndarray]]:
    """Every node's model as full arrays of doubles, NaN in rows that it does not hold."""
    out = []
    for k in range(len(made.problem.clients)):
        model = {}
        for name, value in made.params.items():
            stored, space = made.memory.tensors[f"{made.slot}/{name}"].double().numpy(), made.problem.tables.get(name)
            if space is None:
                model[name] = stored[k].copy()
            else:
                model[name] = np.full(tuple(value.shape), np.nan)
                model[name][space.rows_of(k)] = stored[space.row_offsets[k] : space.row_offsets[k + 1]]
        out.append(model)
    return out


def put(made: GossipTrainer, found: list[dict[str, np.ndarray]]) -> None:
    """Give every node a model, as `models` gives them."""
    for k, model in enumerate(found):
        for name, values in model.items():
            stored, space = made.memory.tensors[f"{made.slot}/{name}"], made.problem.tables.get(name)
            if space is None:
                stored[k] = torch.from_numpy(values)
            else:
                own = torch.from_numpy(values[space.rows_of(k)])
                stored[space.row_offsets[k] : space.row_offsets[k + 1]] = own


def pulls_of(found: Outcome) -> Pulls:
    """Who asked whom, of a round in which not everybody heard everybody."""
    assert found.meeting is not None
    return found.meeting.pulls


def scatter(made: GossipTrainer, seed: int = 1) -> None:
    """Models that differ from node to node, without training."""
    draw = np.random.default_rng(seed)
    for value in made.memory.tensors.values():
        value.copy_(torch.from_numpy(draw.normal(size=tuple(value.shape))))


def mix(exchange: Exchange, number: int, nodes: np.ndarray) -> Any:
    """One mixing without local steps; returns who met."""
    found = exchange.meet(number, nodes)
    exchange.mix(found, exchange.before())
    return found
