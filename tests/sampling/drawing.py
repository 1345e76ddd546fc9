"""Populations, probes and counts for the tests of samplers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedsub import rng
from fedsub.method.sampling import (
    BoundSampler,
)

ROUNDS = 4000


EVEN = np.full(8, 5)


UNEVEN = np.array([1, 2, 3, 4, 10, 20])


def no_probe(clients: np.ndarray, batch: bool) -> np.ndarray:
    raise AssertionError("nobody should be asked")


def fixed(losses: np.ndarray) -> Callable[[np.ndarray, bool], np.ndarray]:
    return lambda clients, batch: losses[clients]


def cohorts(bound: BoundSampler, rounds: int = ROUNDS, seed: int = 3, probe: Any = no_probe, **more: Any) -> np.ndarray:
    """How often each client was drawn."""
    counts = np.zeros(len(bound.sizes), int)
    for number in range(1, rounds + 1):
        counts += np.bincount(bound.select(number, seed, probe, **more).clients, minlength=len(counts))
    return counts


def close(counts: np.ndarray | float, chance: np.ndarray | float, trials: int = ROUNDS) -> None:
    """Within four standard deviations of a binomial."""
    chance = np.asarray(chance)
    off = np.abs(np.asarray(counts) - trials * chance)
    assert (off <= 4 * np.sqrt(trials * chance * (1 - chance)) + 1e-9).all(), (counts, trials * chance)


def play(bound: BoundSampler, rounds: range, constant: bool = False) -> list[list[int]]:
    """Train: client k's loss drifts around k + 1; returns the cohorts."""
    out = []
    for number in rounds:
        chance = rng.uniform(rng.key(0, number, np.arange(len(bound.sizes))))
        clients = bound.select(number, 5, fixed(chance)).clients
        draws = chance[clients]
        losses = np.ones(len(clients)) if constant else (clients + 1) * (0.5 + draws)
        bound.observe(number, clients, losses, np.full(len(clients), 0.5) if constant else draws)
        out.append(clients.tolist())
    return out
