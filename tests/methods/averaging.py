"""Means of made-up updates by the average slot alone, and the same by brute force."""

from __future__ import annotations

import numpy as np
import torch
from known_answers import DOUBLE
from torch import nn

import fedsub as fs
from fedsub.method.groups import Cohort
from fedsub.objective.population import Population
from fedsub.objective.problem import Problem
from fedsub.round.layout import Layouts, asked_of
from fedsub.round.messages import Uplink
from fedsub.round.sums import Sums

CPU = torch.device("cpu")


class Rows(nn.Module):
    """A table and a dense parameter, in double; only their shapes matter."""

    def __init__(self, rows: int):
        super().__init__()
        self.table, self.dense = nn.Embedding(rows, 2, dtype=DOUBLE), nn.Linear(2, 1, dtype=DOUBLE)

    def forward(self, batch):
        return self.dense(self.table(batch["ids"])).squeeze(-1)


def held_problem(holders: list[list[int]], sizes: list[int], rows: int) -> Problem:
    """Client i holds exactly the rows holders[i] and has sizes[i] samples."""
    clients = fs.Clients.from_arrays(
        {"ids": np.concatenate([np.resize(h, n) for h, n in zip(holders, sizes, strict=True)])},
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        ids=["ids"],
        sizes={"ids": rows},
    )
    return Problem.bind(fs.Objective(Rows(rows), lambda z, b: z, {"table.weight": "ids"}), clients)


def random_deltas(problem: Problem, seed: int) -> list[dict]:
    """One update per client: table rows in the order of S(i), and dense parameters."""
    torch.manual_seed(seed)
    out = []
    for i in range(len(problem.clients)):
        rows = len(problem.spaces["ids"].rows_of(i))
        out.append(
            {
                "table.weight": torch.randn(rows, 2, dtype=DOUBLE),
                "dense.weight": torch.randn(1, 2, dtype=DOUBLE),
                "dense.bias": torch.randn(1, dtype=DOUBLE),
            }
        )
    return out


def full(problem: Problem, i: int, delta: dict) -> torch.Tensor:
    out = torch.zeros(problem.spaces["ids"].size, 2, dtype=DOUBLE)
    out[torch.from_numpy(problem.spaces["ids"].rows_of(i)).long()] = delta["table.weight"]
    return out


def mean_over(problem: Problem, average, who, deltas, left_out=()) -> dict:
    """The average of the clients ``who``, scattered into the full table."""
    cohort = Cohort.of(np.array(who), may_repeat=True)
    population = Population.of(problem)
    layout = Layouts(population.rows, CPU)(asked_of(problem.spaces, cohort.clients))
    bound = average.bind(population, CPU)
    sums = Sums(
        problem.params(), population.tables, layout, {"update": problem.names}, held=average.needs_held
    )  # fmt: skip
    weights = average.weight(problem.clients.sizes[cohort.clients])
    for k, i in enumerate(who):
        share = weights[k : k + 1] * (i not in left_out)
        tree = {n: d * share[0] if n in problem.tables else (d * share[0])[None] for n, d in deltas[i].items()}
        numbers = {"weight": share, "count": np.array([float(i not in left_out)]), "loss": np.zeros(1)}
        uplink = Uplink(cohort.take(np.array([k])), np.array([i in left_out]), {"update": tree}, numbers)
        sums.add(uplink, slice(k, k + 1))
    summed = sums.total()
    mean = bound(summed)
    table = torch.zeros(problem.spaces["ids"].size, 2, dtype=DOUBLE)
    table[summed.rows["table.weight"]] = mean["table.weight"]
    return {**mean, "table.weight": table}


def close(a, b) -> None:
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
