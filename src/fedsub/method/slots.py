"""The vocabulary: the slots that make a method.

A method is a handful of orthogonal choices:

    local    how does a client improve its copy?             fedsub.method.local
    parts    what is added to every local step?              fedsub.method.parts
    average  over whom is a mean taken?                      fedsub.method.average
    server   how does the mean move the model?               fedsub.method.servers
    sampler  who takes part?                                 fedsub.method.sampling

The only operation across clients is a sum of named tensors (`fedsub.round.sums`). A part has a client's half
(`begin`, `grad`, `finish`) and a server's half (`combine`, `limit`), and may keep state on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedsub.errors import MethodError
from fedsub.method.groups import Cohort
from fedsub.method.part import Part, Total, Work
from fedsub.method.training import Algorithm
from fedsub.trees import Tree

if TYPE_CHECKING:
    from fedsub.objective.population import Population


class Local(Protocol):
    """How a client improves its copy, and on which batches; `fedsub.method.local.Solver` has defaults."""

    @property
    def lr(self) -> float: ...
    @property
    def local_steps(self) -> int | None: ...
    @property
    def local_epochs(self) -> int | None: ...
    @property
    def batch_size(self) -> int | None: ...
    @property
    def batches(self) -> str: ...
    @property
    def groups(self) -> Mapping[str, Mapping[str, float]] | None: ...
    @property
    def largest_lr(self) -> float: ...
    @property
    def pure_step(self) -> bool: ...  # a step is a function of tensors alone
    @property
    def linear(self) -> bool: ...  # a step adds −rate · gradient and nothing else

    def path_norm(self, steps: Tensor, pull: float) -> Tensor: ...  # ‖a‖₁ where the update is −η Σ a_k g_k
    def smooth(self) -> Local: ...  # what stands in for it where engines are compared
    def rate(self, round: int) -> float: ...  # the learning rate of a round
    def scale(self, name: str) -> float: ...  # a parameter's rate over that
    def init(self, params: Tree) -> Any: ...
    def step(self, params: Tree, grads: Tree, state: Any, work: Work) -> None: ...


class Average(Protocol):
    """Over whom is the mean of the updates taken?

    Clients multiply what they send by their `weight`; `bind` gives the server's half, fitted to a population.
    `fedsub.method.average.Averaging` has defaults.
    """

    @property
    def needs_held(self) -> bool: ...  # Σ a_i by row
    @property
    def corrects(self) -> bool: ...  # a row's mean is multiplied by a positive number of its own

    def grouped(self, name: str, groups: Any) -> Average: ...  # with settings by parameter pattern
    def weight(self, sizes: np.ndarray) -> np.ndarray: ...  # a_i of clients with that many samples, float64
    def bind(self, population: Population, device: torch.device) -> BoundAverage: ...


class BoundAverage(Protocol):
    def share(self, total: Total) -> float: ...  # of the population's weight, how much delivered
    def __call__(self, total: Total) -> Tree: ...


class Server(Protocol):
    """How the mean update moves the model. `step` changes params in place, on the union's rows only.

    State is named "slot/parameter". Where a row moves even in rounds that nobody sends it (momentum), the
    server is ``lazy``: `catch_up` brings rows to the end of a round, and is called before they are read.
    `fedsub.method.servers.ServerRule` has defaults.
    """

    @property
    def lazy(self) -> bool: ...
    @property
    def whole_tables(self) -> bool: ...  # a step changes rows that nobody sent
    def fitted(self, share: float, rounds: int | None = None) -> Server: ...  # to the share of clients in a round
    def advance(self, params: Tree, mean: Tree, rows: dict[str, Tensor], state: Tree, round: int) -> None: ...
    def init(self, params: Tree, tables: Collection[str]) -> Tree: ...
    def step(self, params: Tree, mean: Tree, rows: dict[str, Tensor], state: Tree, round: int) -> None: ...
    def catch_up(self, params: Tree, rows: dict[str, Tensor] | None, state: Tree, round: int) -> None: ...
    def outcome(self, params: Tree, state: Tree, round: int) -> Tree: ...  # what is evaluated and kept


# Asks clients for their loss at the current model, on all their data or (True) on one batch.
Probe = Callable[[np.ndarray, bool], np.ndarray]


class BoundSampler(Protocol):
    """A sampler fitted to a population: a pure function of (seed, round, state)."""

    state: dict[str, np.ndarray]  # saved in checkpoints
    may_be_empty: bool
    repeats: bool  # a client may be drawn twice
    reports: tuple[str, ...]  # what clients that took part tell of their losses: "loss", "deviation"
    least: int  # the fewest eligible clients it can do with

    def select(self, round: int, seed: int, probe: Probe, eligible: np.ndarray | None = None) -> Cohort: ...
    def observe(self, round: int, clients: np.ndarray, losses: np.ndarray, deviations: np.ndarray) -> None: ...
    def meet(self, sizes: np.ndarray) -> None: ...  # clients came that were not there, of size 0 until now


class Sampler(Protocol):
    """Who takes part in a round; ``sizes`` are the clients' numbers of samples.

    `fedsub.method.sampling.Sampler` has defaults.
    """

    @property
    def may_repeat(self) -> bool: ...  # a client may be drawn twice in a round
    @property
    def probes(self) -> bool: ...  # it asks clients for their loss at the shared model
    def share(self, population: int) -> float: ...  # of the clients, in a round
    def bind(self, sizes: np.ndarray) -> BoundSampler: ...


_LOCAL = ("lr", "local_steps", "local_epochs", "batch_size", "batches", "rate", "scale", "init", "step")
_SLOTS = {  # slot -> what it must have, and an example
    "local": ((*_LOCAL, "groups", "largest_lr", "pure_step", "linear", "path_norm", "smooth"), "SGD(lr=0.1), a Solver"),
    "average": (("needs_held", "corrects", "grouped", "weight", "bind"), "OverHolders(), an Averaging"),
    "server": (
        ("lazy", "init", "step", "catch_up", "advance", "fitted", "whole_tables", "outcome"),
        "Add(), a servers.ServerRule",
    ),
    "sampler": (("bind", "share", "may_repeat", "probes"), "Uniform(50), a sampling.Sampler"),
}


def check_slot(slot: str, value: Any, of: str) -> None:
    """Refuse what lacks something that its slot needs."""
    needed, example = _SLOTS[slot]
    lacking = [name for name in needed if not hasattr(value, name)]
    if isinstance(value, type) or lacking:
        why = "is a class, not an object" if isinstance(value, type) else f"lacks {', '.join(lacking)}"
        raise MethodError(f"{slot} of {of} must be like {example}; {value!r} {why}.")


def check_parts(parts: Any) -> None:
    """Refuse what is no tuple of parts."""
    if not isinstance(parts, tuple) or not all(isinstance(p, Part) for p in parts):
        raise MethodError(f"parts must be a tuple of fedsub parts, got {parts!r}; one part needs a comma: (Prox(),).")


@dataclass(frozen=True, kw_only=True)
class Method(Algorithm):
    """A composition of slots. Named methods (`fedsub.methods`) are functions that return one."""

    local: Local
    average: Average
    server: Server
    sampler: Sampler
    parts: tuple[Part, ...] = ()
    pooled: bool = False  # all data at one place: the centralised baseline
    name: str = "custom"

    def __post_init__(self) -> None:
        for slot in _SLOTS:
            check_slot(slot, getattr(self, slot), "a Method")
        if not isinstance(self.name, str) or not isinstance(self.pooled, bool):
            raise MethodError(f"A Method has name=text and pooled=True or False, got {self.name!r}, {self.pooled!r}.")
        check_parts(self.parts)
        self._check_parts()

    def _check_parts(self) -> None:
        keys = [part.key for part in self.parts]
        for key in keys:
            if keys.count(key) > 1:
                raise MethodError(f"parts holds {key} twice; give it once, with the settings you mean.")
        if len(keepers := [part for part in self.parts if part.own]) > 1:
            listed = " and ".join(type(part).__name__ for part in keepers)
            raise MethodError(f"One part keeps all parameters that are clients' own, but parts hold {listed}.")
        if len(steering := [part for part in self.parts if part.steers]) > 1:
            listed = " and ".join(type(part).__name__ for part in steering)
            raise MethodError(f"One part bends clients' steps towards what all want, but parts hold {listed}.")
        codecs = [part for part in self.parts if part.codec]
        for part in codecs:
            if type(part).decode is Part.decode:
                raise MethodError(
                    f"{type(part).__name__} says codec = True and has no decode, so that nobody could read what it "
                    "writes; make it a fedsub.codecs.Codec."
                )
        if len(codecs) > 1:
            listed = " and ".join(type(part).__name__ for part in codecs)
            raise MethodError(f"A client writes its update in one way, but parts hold {listed}; choose one.")
        if codecs and self.parts[-1] is not codecs[0]:
            raise MethodError(
                f"{type(codecs[0]).__name__} writes down what the parts before it made, so it must be the last part; "
                f"the last one is {type(self.parts[-1]).__name__}."
            )
        if self.pooled and (stateful := [p for p in self.parts if p.codec or p.client_slots]):
            raise MethodError(f"{type(stateful[0]).__name__} is for clients; pooled data has none.")
        for part in self.parts:
            part.check(self)

    @property
    def composition(self) -> Method:
        return self

    @property
    def keeper(self) -> Part | None:
        """The part that says which parameters are clients' own, if there is one."""
        return next((part for part in self.parts if part.own), None)

    def private(self, names: Collection[str]) -> tuple[str, ...]:
        """The parameters that stay with the clients."""
        return tuple(name for part in self.parts for name in part.private(names))

    def check_population(self, sizes: np.ndarray) -> None:
        self.sampler.bind(sizes.sum(keepdims=True) if self.pooled else sizes)
