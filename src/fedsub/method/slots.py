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

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from fedsub.errors import ConfigError, MethodError
from fedsub.method.described import describe
from fedsub.method.groups import Cohort, Group
from fedsub.trees import Tree

if TYPE_CHECKING:
    from fedsub.data.clients import Clients
    from fedsub.objective.population import Population
    from fedsub.objective.problem import Problem


@dataclass
class Work:
    """What a part and a local solver may read while a group does its local steps."""

    round: int
    step: int
    lr: float  # this round's rate; `rate` gives a parameter's own
    sent: Tree  # what the server sent, laid out like the parameters
    group: Group
    active: Tensor | None = None  # [c] 1 or 0; None when every client still has steps to do
    steps: Tensor | None = None  # [c] local steps of each client in this round
    scales: dict[str, float] = field(default_factory=dict)  # parameter -> its rate over ``lr``, where not 1
    client: dict[str, dict[str, Tree]] = field(default_factory=dict)  # part -> slot -> what the clients keep
    server: dict[str, dict[str, Tree]] = field(default_factory=dict)  # part -> slot -> what the server sent of it
    padding: frozenset[str] = frozenset()  # tables whose first row, of every client, means nothing and never trains
    words: np.ndarray | None = None  # uint64 [c]: one random word per client and round
    memory: dict[str, Any] = field(default_factory=dict)  # part -> anything, for this round
    gradient: Callable[[Tree, float], Tree] | None = (
        None  # mean gradient at other parameters, over a share of the batches
    )
    method: Method | None = None

    def rate(self, name: str) -> float:
        """The learning rate of one parameter in this round."""
        return self.lr * self.scales.get(name, 1.0)


@dataclass
class Message:
    """What a group of clients is about to send: named trees like the submodel, and numbers."""

    trees: dict[str, Tree]  # "update", and whatever parts add
    numbers: dict[str, Tensor] = field(default_factory=dict)  # one per client, [c]
    encoded: np.ndarray | None = None  # bytes of the update as a codec writes it, int64 [c]; None: plain values
    written: Callable[[], bytes] | None = None  # that writing, for a lone client


@dataclass(frozen=True)
class Start:
    """From what a part makes the first values that some clients keep of one parameter."""

    values: Tensor  # the shared parameter: the clients' rows one behind the other, or [c, …]
    counts: np.ndarray  # how many entries of ``values`` each client has, int64 [c]
    words: np.ndarray  # uint64 [c]: a random word of each client's own
    mean: float  # of all values of the shared parameter, also those that these clients do not hold
    spread: float  # their standard deviation
    padded: bool = False  # whether each client's first row means nothing


class Part:
    """Something added to a method. Subclasses are frozen dataclasses; every hook is optional.

    ``client_slots`` names what each client keeps between rounds and ``server_slots`` what the server keeps; both are
    trees like the (sub)model, zero at first. Of the server's slots only those in ``sent_slots`` travel to the clients,
    and only they cost bytes. ``pure_step`` says that `grad` reads of ``work`` only what was sent, the rate and the
    group, so that torch may compile it.

    A client that is drawn twice in a round trains twice from what it keeps. What it keeps afterwards, and the payloads
    of a part that keeps anything, are those of its first draw alone: they count once.
    """

    pure_step: ClassVar[bool] = False
    client_slots: ClassVar[tuple[str, ...]] = ()
    server_slots: ClassVar[tuple[str, ...]] = ()
    sent_slots: ClassVar[tuple[str, ...]] = ()  # of server_slots, those that clients read in ``work.server``
    payloads: ClassVar[tuple[str, ...]] = ()  # trees that `finish` adds to the message, each the size of the update
    numbers: ClassVar[tuple[str, ...]] = ()  # numbers that `finish` adds, one per client
    codec: ClassVar[bool] = False  # whether it changes how the update is written; a method has one at most

    @property
    def key(self) -> str:
        """The name under which its state and messages are kept."""
        return type(self).__name__.lower()

    def check(self, method: Method) -> None:
        """Raise MethodError if this part makes no sense in the method; called when it is built."""

    def private(self, names: Collection[str]) -> tuple[str, ...]:
        """The parameters that clients keep for themselves: they are never sent, in neither direction."""
        return ()

    def kept_names(self, slot: str, names: Collection[str]) -> tuple[str, ...]:
        """The parameters for which a client slot is kept."""
        return tuple(names)

    def first(self, slot: str, name: str, start: Start) -> Tensor | None:
        """What clients keep of a parameter before their first round, laid out like ``start.values``; None: zeros."""
        return None

    def supply(self, work: Work) -> Tree:
        """Client: its own values of the parameters that are `private`, before it begins."""
        return {}

    def begin(self, params: Tree, work: Work) -> None:
        """Client: before the first local step."""

    def grad(self, grads: Tree, params: Tree, work: Work) -> Tree:
        """Client: change the gradient of one local step."""
        return grads

    def finish(self, message: Message, params: Tree, work: Work) -> None:
        """Client: after the last local step; change what is sent and, in ``work.client``, what is kept."""

    def combine(self, mean: dict[str, Tree], total: Total, state: dict[str, Tree], round: int) -> None:
        """Server: change the means (by payload) and this part's server slots.

        Both have the same shapes: of tables the round's rows alone. Change ``state`` in place or put new tensors
        into its trees.
        """

    def limit(self, update: Tree, total: Total) -> None:
        """Server: after every part's `combine`, bound in place what the server's step is given."""


class Local(Protocol):
    """How a client improves its copy, and on which batches."""

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

    def rate(self, round: int) -> float: ...  # the learning rate of a round
    def scale(self, name: str) -> float: ...  # a parameter's rate over that
    def init(self, params: Tree) -> Any: ...
    def step(self, params: Tree, grads: Tree, state: Any, work: Work) -> None: ...


@dataclass(frozen=True)
class Total:
    """Sums over the clients of a round. Table values are over the round's union of rows."""

    values: Tree  # Σ a_i Δ_i: [union rows, d] for tables, the parameter's shape otherwise
    rows: dict[str, Tensor]  # table -> global rows of the union, [union rows]
    held: dict[str, Tensor]  # table -> Σ a_i over the clients that hold the row; only if the average asks
    weight: float  # Σ a_i
    count: int  # clients that delivered
    numbers: dict[str, float] = field(default_factory=dict)  # Σ a_i · number / Σ a_i, of what messages carried
    share: float = 1.0  # Σ a_i of those who delivered over that of everybody


class Average(Protocol):
    """Over whom is the mean of the updates taken?

    Clients multiply what they send by their `weight`; `bind` gives the server's half, fitted to a population.
    """

    needs_held: bool

    def weight(self, sizes: np.ndarray) -> np.ndarray: ...  # a_i of clients with that many samples, float64
    def bind(self, population: Population, device: torch.device) -> BoundAverage: ...


class BoundAverage(Protocol):
    def share(self, total: Total) -> float: ...  # of the population's weight, how much delivered
    def __call__(self, total: Total) -> Tree: ...


class Server(Protocol):
    """How the mean update moves the model. `step` changes params in place, on the union's rows only.

    State is named "slot/parameter". Where a row moves even in rounds that nobody sends it (momentum), the
    server is ``lazy``: `catch_up` brings rows to the end of a round, and is called before they are read.
    """

    @property
    def lazy(self) -> bool: ...
    def init(self, params: Tree, tables: Collection[str]) -> Tree: ...
    def step(self, params: Tree, mean: Tree, rows: dict[str, Tensor], state: Tree, round: int) -> None: ...
    def catch_up(self, params: Tree, rows: dict[str, Tensor] | None, state: Tree, round: int) -> None: ...


# Asks clients for their loss at the current model, on all their data or (True) on one batch.
Probe = Callable[[np.ndarray, bool], np.ndarray]


class BoundSampler(Protocol):
    """A sampler fitted to a population: a pure function of (seed, round, state)."""

    state: dict[str, np.ndarray]  # saved in checkpoints
    may_be_empty: bool

    def select(self, round: int, seed: int, probe: Probe, eligible: np.ndarray | None = None) -> Cohort: ...
    def observe(self, round: int, clients: np.ndarray, losses: np.ndarray, deviations: np.ndarray) -> None: ...


class Sampler(Protocol):
    """Who takes part in a round; ``sizes`` are the clients' numbers of samples."""

    def bind(self, sizes: np.ndarray) -> BoundSampler: ...


_SLOTS = {  # slot -> what it must have, and an example
    "local": (
        ("lr", "local_steps", "local_epochs", "batch_size", "batches", "rate", "scale", "init", "step"),
        "SGD(lr=0.1)",
    ),
    "average": (("needs_held", "weight", "bind"), "OverHolders()"),
    "server": (("lazy", "init", "step", "catch_up"), "Add()"),
    "sampler": (("bind",), "Uniform(50)"),
}


@dataclass(frozen=True)
class Options:
    """How a run is computed, whatever the method."""

    engine: str = "auto"
    chunk: int | None = None
    workers: int = 1
    compile: bool = False
    seed: int = 0
    lost: float = 0.0  # the chance that a client of the cohort never delivers
    on_bad_update: str = "skip"
    scratch: Path | None = None  # a folder for clients' state that is too large for memory

    def refuse(self, method: str, *names: str) -> None:
        """Raise ConfigError for options that were given and that a method does not use."""
        for name in names:
            usual = type(self).__dataclass_fields__[name].default
            if (given := getattr(self, name)) != usual:
                raise ConfigError(f"{method} does not use {name}={given!r}; leave it out.")


class Trains:
    """The rounds of a method on a problem, as a run plays them."""

    engine: Any  # with a name
    state: Any  # `fedsub.round.remembered.Remembered`: what a checkpoint keeps besides the shared model

    def round(self, number: int) -> Any:
        """Play a round; returns its RoundReport."""
        raise NotImplementedError

    def model(self, number: int) -> Any:
        """What is evaluated after round ``number``: a Tree, or a PersonalModel."""
        raise NotImplementedError

    def settle(self, number: int) -> None:
        """Bring the shared model up to date in place, at the end of training."""

    def measures(self, splits: dict[str, Clients]) -> dict[str, float]:
        """What the method measures of itself at an evaluation, by name."""
        return {}

    def final_measures(self, splits: dict[str, Clients]) -> dict[str, dict[str, Any]]:
        """What it measures at the end, by split."""
        return {}


@dataclass(frozen=True)
class Prepared:
    """A method fitted to a problem, ready to train."""

    trainer: Trains
    reason: str  # how it is computed, in a sentence
    columns: tuple[str, ...]  # what module and loss read
    fallback: bool = False  # whether a faster way was tried in vain


class Algorithm:
    """Whatever `fedsub.run` can train with. Subclasses are frozen dataclasses and describe themselves as JSON."""

    name: str
    pooled: bool

    def prepare(self, problem: Problem, params: Tree, options: Options) -> Prepared:
        """Fit it to a problem. ``params`` is the shared model; training changes it in place.

        Methods that are compositions of slots are fitted by `fedsub.round.prepare`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how it trains")

    def check_population(self, sizes: np.ndarray) -> None:
        """Raise MethodError if it cannot work with clients of these numbers of samples, such as too few of them."""

    def describe(self) -> dict[str, Any]:
        """The whole configuration as plain JSON values."""
        return describe(self)


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
        for slot, (needed, example) in _SLOTS.items():
            value = getattr(self, slot)
            lacking = [name for name in needed if not hasattr(value, name)]
            if isinstance(value, type) or lacking:
                why = "is a class, not an object" if isinstance(value, type) else f"lacks {', '.join(lacking)}"
                raise MethodError(f"{slot} of a Method must be like {example}; {value!r} {why}.")
        if not isinstance(self.name, str) or not isinstance(self.pooled, bool):
            raise MethodError(f"A Method has name=text and pooled=True or False, got {self.name!r}, {self.pooled!r}.")
        if not isinstance(self.parts, tuple) or not all(isinstance(p, Part) for p in self.parts):
            raise MethodError(
                f"parts must be a tuple of fedsub parts, got {self.parts!r}; one part needs a comma: (Prox(),)."
            )
        self._check_parts()

    def _check_parts(self) -> None:
        keys = [part.key for part in self.parts]
        for key in keys:
            if keys.count(key) > 1:
                raise MethodError(f"parts holds {key} twice; give it once, with the settings you mean.")
        codecs = [part for part in self.parts if part.codec]
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

    def private(self, names: Collection[str]) -> tuple[str, ...]:
        """The parameters that stay with the clients."""
        return tuple(name for part in self.parts for name in part.private(names))

    def check_population(self, sizes: np.ndarray) -> None:
        self.sampler.bind(sizes.sum(keepdims=True) if self.pooled else sizes)
