"""The actors of a Ray cluster: each holds data of some clients and trains groups of them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedsub.data.clients import Clients
from fedsub.data.shards import held
from fedsub.objective.problem import Problem
from fedsub.round.client import ClientHalf
from fedsub.round.crew.parcels import Arrays, Job, Reply, perform, to_tree
from fedsub.round.engines.base import Engine, Plan, template
from fedsub.round.engines.batched import Batched
from fedsub.round.engines.serial import Serial
from fedsub.trees import Tree

DATA = "FEDSUB_DATA"  # on a machine of the cluster: directories of clients' data there, as PATH lists them


@dataclass(frozen=True)
class Recipe:
    """All that a worker needs besides data, once for a run."""

    problem: Problem  # without data, and without the rows of its tables
    half: ClientHalf
    chunk: int | None
    compile: bool
    mark: str  # the fingerprint of the data
    paths: tuple[str, ...]  # where the driver found it


def recipe_of(half: ClientHalf, *, chunk: int | None, compile: bool) -> Recipe:
    """What workers are made from; ``half`` may then be one with data of its own."""
    problem = half.problem
    objective = replace(problem.objective, module=template(problem, torch.device("cpu")))
    bare = Problem(objective, nobody(problem.clients), problem.tables, problem.dense)
    bare = with_data(bare, bare.clients)
    source = problem.clients.source
    paths = (os.path.abspath(source),) if source else ()
    return Recipe(bare, replace(half, problem=bare), chunk, compile, problem.clients.fingerprint, paths)


def nobody(clients: Clients) -> Clients:
    """The same columns and spaces with no client in them."""
    columns = {
        name: replace(c, values=c.values[:0], starts=None if c.starts is None else c.starts[:1] * 0)
        for name, c in clients.columns.items()
    }
    spaces = {
        name: replace(s, row_offsets=s.row_offsets[:1] * 0, rows=s.rows[:0], vocabulary=None)
        for name, s in clients.spaces.items()
    }
    return Clients(clients.client_ids[:0], clients.offsets[:1] * 0, columns, spaces, clients.label)


def with_data(problem: Problem, clients: Clients) -> Problem:
    """The same problem on other clients' data."""
    tables = {table: clients.spaces[space.name] for table, space in problem.tables.items()}
    return Problem(problem.objective, clients, tables, problem.dense)


class Worker:
    """Lives in an actor's process."""

    def __init__(self, recipe: Recipe):
        torch.set_num_threads(1)
        named = os.environ.get(DATA, "")
        self.held = held([*filter(None, named.split(os.pathsep)), *recipe.paths], recipe.mark)
        self.follow(recipe)

    def follow(self, recipe: Recipe) -> None:
        """Train by this recipe from now on."""
        self.recipe, self.shared = recipe, (-1, dict[str, Tree]())
        plan: Plan = recipe.half.plan
        serial = Serial(recipe.problem, plan)
        batched = Batched(recipe.problem, plan, chunk=recipe.chunk, compile=recipe.compile)
        self.engines: Mapping[str, Engine] = {"serial": serial, "batched": batched}
        if self.held is not None:
            first, problem = self.held.first, with_data(recipe.problem, self.held.clients)
            self.half = replace(recipe.half, problem=problem, places=lambda numbers: numbers - first)

    def about(self) -> dict[str, Any]:
        """Where it is and which clients' data it has."""
        import ray

        span = (self.held.first, self.held.last) if self.held is not None else (0, 0)
        where = self.held.clients.source if self.held is not None else ""
        node = ray.get_runtime_context().get_node_id()
        return {"host": socket.gethostname(), "node": node, "pid": os.getpid(), "span": span, "data": where}

    def train(self, number: int, shared: dict[str, Arrays], work: Job, data: Clients | None) -> Reply:
        """A group's work in the exchange ``number``; ``data`` are its clients', in their order, if it is sent along."""
        if self.shared[0] != number:
            self.shared = number, {tree: to_tree(values) for tree, values in shared.items()}
        half = self.half if data is None else self._carried(data, work)
        return perform(half, self.engines, work, self.shared[1])

    def _carried(self, data: Clients, work: Job) -> ClientHalf:
        place = {number: at for at, number in enumerate(dict.fromkeys(work.clients.tolist()))}
        problem = with_data(self.recipe.problem, data)
        return replace(self.recipe.half, problem=problem, places=lambda numbers: _at(place, numbers))


def _at(place: Mapping[int, int], numbers: Iterable[Any]) -> np.ndarray:
    return np.array([place[int(n)] for n in numbers], np.int64)
