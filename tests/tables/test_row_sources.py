"""Tables that are asked for their rows: evaluation and scores are those of the whole table, and only named rows go."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor
from worlds import click_data

import fedsub as fs
from fedsub.errors import ObjectiveError
from fedsub.objective.problem import Problem
from fedsub.round.cut import cut
from fedsub.round.evaluate import Evaluator
from fedsub.trees import whole


@dataclass
class Asked:
    """A table behind a counter."""

    table: Tensor
    rows: list[int] = field(default_factory=list)

    @property
    def shape(self) -> torch.Size:
        return self.table.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.table.dtype

    @property
    def device(self) -> torch.device:
        return self.table.device

    def take(self, rows: Tensor) -> Tensor:
        self.rows += rows.tolist()
        return self.table[rows]


def test_evaluation_is_that_of_the_whole_tables_and_asks_for_named_rows_only() -> None:
    clients = click_data(items=40)
    goal = fs.models.make_objective(clients, "embedding", dim=4)
    problem = Problem.bind(goal, clients)
    own = {n: p.detach() for n, p in goal.module.named_parameters()}
    found = Evaluator(problem, {"train": clients}, fs.Evaluate(), tuple(clients.columns))
    tables = {n: Asked(own[n]) for n in goal.tables}
    sources = {**own, **tables}
    assert found(sources) == found(own)
    assert repr(found.final(sources)) == repr(found.final(own))  # some of it is NaN
    for name, space in problem.tables.items():
        assert set(tables[name].rows) == set(space.rows.tolist()) | {0}


def test_ids_are_renumbered_and_row_0_stays_row_0() -> None:
    clients = click_data(items=40)
    problem = Problem.bind(fs.models.make_objective(clients, "embedding", dim=4), clients)
    table = torch.arange(80.0).reshape(40, 2)
    name = next(n for n, space in problem.tables.items() if space.name == "item")
    arrays = {"item": np.array([30, 7, 7]), "history": np.array([[9, 0], [30, 0], [0, 0]]), "value": np.zeros(3)}
    own, ids, rows = cut({name: problem.tables[name]}, {name: Asked(table), "w": torch.ones(1)}, arrays)
    assert rows["item"].tolist() == [0, 7, 9, 30]
    assert ids["item"].tolist() == [3, 1, 1]
    assert ids["history"].tolist() == [[2, 0], [3, 0], [0, 0]]
    assert torch.equal(own[name], table[[0, 7, 9, 30]])
    assert ids["value"] is arrays["value"]
    assert arrays["item"].tolist() == [30, 7, 7]  # the caller's stay as they were


def test_what_needs_all_rows_says_so() -> None:
    with pytest.raises(ObjectiveError, match="all 40 rows of 'a', which are not at hand"):
        whole({"a": Asked(torch.zeros(40, 2))}, "The gradient's norm")
