"""The frame of every algorithm for F = f + λψ: settings, state, and what an iteration cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsub import rng
from fedsub.checks import is_number
from fedsub.errors import CheckpointError, MethodError
from fedsub.families.mixture.constants import Constants
from fedsub.families.mixture.functions import Functions, Memory, assign, copy, zeros_like
from fedsub.trees import Tree

COUNTERS = ("iterations", "communications", "gradients", "proxes")


@dataclass
class State:
    """Everything an algorithm needs to go on exactly where it stopped. All tensors are changed in place.

    ``trees`` are laid out like x and hold what clients keep; the iterate is ``trees["x"]``. ``numbers`` are step
    sizes, counters, and whether the last iteration averaged.
    """

    trees: dict[str, Tree]
    numbers: dict[str, Tensor]
    memory: Memory | None = None
    cache: dict[str, Tree] = field(default_factory=dict, repr=False)  # derived from the problem, made when missing

    @property
    def x(self) -> Tree:
        return self.trees["x"]

    def number(self, name: str) -> float:
        return float(self.numbers[name])

    def tensors(self) -> Tree:
        """All of it under flat names: slot/parameter, memory/…, number/…."""
        out = {f"{slot}/{name}": leaf for slot, tree in self.trees.items() for name, leaf in tree.items()}
        if self.memory is not None:
            out |= {f"memory/{name}": leaf for name, leaf in self.memory.tensors.items()}
        return out | {f"number/{name}": value for name, value in self.numbers.items()}

    def restore(self, tensors: Tree) -> None:
        """Put back what `tensors` gave."""
        own = self.tensors()
        if own.keys() != tensors.keys():
            odd = ", ".join(sorted(own.keys() ^ tensors.keys()))
            raise CheckpointError(f"The saved state is of another algorithm or model: {odd} is only in one of them.")
        for name, leaf in own.items():
            leaf.copy_(tensors[name])

    def count(self, step: Step) -> Step:
        self.numbers["iterations"] += 1
        self.numbers["communications"] += step.communications
        self.numbers["gradients"] += step.gradients
        self.numbers["proxes"] += step.proxes
        return step


@dataclass(frozen=True)
class Step:
    """What one iteration did.

    ``gradients`` counts gradients of terms over all clients (a full local gradient is m_i of them), ``proxes``
    local proxes over all clients. ``vectors`` is how many vectors like x_i a communication carries each way.
    """

    loss: float = math.nan  # mean local loss where gradients were taken
    averaged: bool = False
    communications: int = 0
    gradients: int = 0
    proxes: int = 0
    vectors: int = 1

    @property
    def communicated(self) -> bool:
        return self.communications > 0


@dataclass(frozen=True, kw_only=True)
class Solver:
    """An algorithm for F. `begin` makes the state, `step` does iteration ``number`` on it.

    Randomness is a function of (seed, purpose, number, client) alone.
    """

    name: ClassVar[str]
    has_lam: ClassVar[bool] = False  # whether it has the setting ``lam``, and with it a path over λ

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise MethodError for settings that make no sense whatever the problem is."""

    def begin(self, functions: Functions, constants: Constants, start: Tree | None = None) -> State:
        """The state before the first iteration, at ``start`` (laid out like x) or at x⁰."""
        raise NotImplementedError

    def step(self, state: State, functions: Functions, number: int, seed: int) -> Step:
        raise NotImplementedError


def new_state(functions: Functions, start: Tree | None, slots: dict[str, str], **numbers: float) -> State:
    """A state at ``start`` or x⁰. ``slots`` are further trees, "zero" or "x" (a copy of the iterate)."""
    x = functions.start()
    if start is not None:
        assign(x, start)
    trees = {"x": x} | {slot: copy(x) if kind == "x" else zeros_like(x) for slot, kind in slots.items()}
    kept = {name: torch.tensor(float(value), dtype=torch.float64) for name, value in numbers.items()}
    kept |= {name: torch.zeros((), dtype=torch.int64) for name in COUNTERS}
    # Everybody starts from the same point, so the mean is known: the start counts as averaged.
    kept["averaged"] = torch.tensor(int(start is None), dtype=torch.int64)
    return State(trees, kept)


def toss(p: float, number: int, seed: int, purpose: int = rng.COIN) -> bool:
    """The coin of an iteration, common to all clients: True with probability p."""
    return bool(rng.uniform(rng.key(seed, purpose, number)) < p)


def draw_terms(terms: np.ndarray, number: int, seed: int) -> np.ndarray:
    """One term for every client, uniformly, int64 [n]."""
    return rng.below(rng.key(seed, rng.TERM, number, np.arange(len(terms))), terms)


def check_lam(lam: float, *, infinite: bool = False) -> None:
    if not (is_number(lam) and lam >= 0) and not (infinite and lam == math.inf):
        raise MethodError(
            f"lam must be 0 (purely local) or a positive number{' or inf' if infinite else ''}, got {lam!r}."
        )


def check_coin(p: float | None, lam: float) -> None:
    if p is None or (is_number(p) and (0 < p < 1 or (p == 0 and lam == 0))):
        return
    why = "never averages, so lam has no effect" if p == 0 else "never trains" if p == 1 else "is no such probability"
    raise MethodError(f"p must lie between 0 and 1, got {p!r}: it {why}. Use None for the best p; p=0 goes with lam=0.")
