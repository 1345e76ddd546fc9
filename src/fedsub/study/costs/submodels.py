"""Bytes of a round of submodels beside one of full models, and of the other ways to send less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsub.checks import check_number, check_whole
from fedsub.errors import ConfigError

if TYPE_CHECKING:
    from fedsub.objective.problem import Problem


@dataclass(frozen=True)
class SubmodelRound:
    """A round of ``clients`` clients; bytes are of the whole round.

    ``ratio`` = mean |S(i)| / M counts parameters; ``bytes_ratio`` also the ids, which full models need not send.
    """

    clients: int
    submodel_parameters: float  # mean |S(i)|
    parameters: int  # M
    down: int
    up: int
    ids: int  # the part of ``up`` that names rows
    full: int  # full models, down and up
    sign: int  # full models down, their signs up

    @property
    def ratio(self) -> float:
        return self.submodel_parameters / self.parameters

    @property
    def bytes_ratio(self) -> float:
        return (self.down + self.up) / self.full


def submodel_round(problem: Problem, clients: np.ndarray | None = None) -> SubmodelRound:
    """Messages of Σ_i 2 |S(i)| values and the ids of their rows, beside Σ_i 2 M; all clients, or those given."""
    cohort = np.arange(len(problem.clients)) if clients is None else _cohort(clients, len(problem.clients))
    from fedsub.round.ledger import plain_bytes  # which loads torch

    own = dict(problem.objective.module.named_parameters())
    parameters = sum(own[n].numel() for n in problem.names)
    held = np.full(len(cohort), sum(own[n].numel() for n in problem.dense), np.int64)
    for name, space in problem.tables.items():
        held += space.counts[cohort] * own[name][:1].numel()
    asked, down, up = (int(side.sum()) for side in plain_bytes(problem, cohort))
    model = sum(own[n].numel() * own[n].element_size() for n in problem.names)
    signs = -(-parameters // 8) + 4 * len(problem.names)  # a bit each, and one 32-bit scale per tensor
    return SubmodelRound(
        clients=len(cohort),
        submodel_parameters=float(held.mean()),
        parameters=parameters,
        down=down,
        up=asked + up,
        ids=asked,
        full=2 * model * len(cohort),
        sign=(model + signs) * len(cohort),
    )


def sign_ratio(parameters: int) -> float:
    """SignSGD's message beside 32-bit values: (d + 32) / (32 d), which tends to 1/32.

    d bits, and one 32-bit scale (EF-SignSGD) for d coordinates that are compressed together.
    """
    d = check_whole("parameters", parameters, 1, error=ConfigError)
    return (d + 32) / (32 * d)


def l2gd_averagings(p: float) -> float:
    """L2GD communicates when an averaging step follows a local one: p (1 − p) times per iteration."""
    chance = check_number("p", p, least=0, error=ConfigError)
    if chance > 1:
        raise ConfigError(f"p is {p!r}, expected the chance of an averaging step, 0 to 1; give such a number.")
    return chance * (1 - chance)


def _cohort(clients: np.ndarray, population: int) -> np.ndarray:
    found = np.asarray(clients)
    inside = found.ndim == 1 and len(found) and found.dtype.kind in "iu"
    if not inside or found.min() < 0 or found.max() >= population:
        raise ConfigError(
            f"clients is {clients!r}, expected numbers of clients from 0 to {population - 1:,}; give at least one."
        )
    return found.astype(np.int64)
