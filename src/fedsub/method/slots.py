"""The vocabulary: the slots that make a method.

A method is a handful of orthogonal choices:

    local    how does a client improve its copy?             fedsub.method.local
    parts    what is added to every local step?              fedsub.method.parts
    average  over whom is a mean taken?                      fedsub.method.average
    server   how does the mean move the model?               fedsub.method.servers
    sampler  who takes part?                                 fedsub.method.sampling

The only operation across clients is a sum of named tensors (`fedsub.round.sums`). A part has a client's half
(`begin`, `grad`, `finish`) and a server's half (`combine`), and may keep state on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from fedsub.errors import MethodError
from fedsub.method.described import describe
from fedsub.method.groups import Cohort, Group
from fedsub.trees import Tree

if TYPE_CHECKING:
    from fedsub.objective.problem import Problem
    from fedsub.round.memory import ClientState


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
    numbers: dict[str, Tensor] = field(default_factory=dict)  # one per client, [c], 4 bytes each
    encoded: Tensor | None = None  # bytes of the update as a codec writes it, int64 [c]; None: plain values


class Part:
    """Something added to a method. Subclasses are frozen dataclasses; every hook is optional.

    ``client_slots`` names what each client keeps between rounds and ``server_slots`` what the server keeps and
    sends along; both are trees like the (sub)model, zero at first. ``pure_step`` says that `grad` reads of
    ``work`` only what was sent, the rate and the group, so that torch may compile it.
    """

    pure_step: ClassVar[bool] = False
    client_slots: ClassVar[tuple[str, ...]] = ()
    server_slots: ClassVar[tuple[str, ...]] = ()
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
        """The parameters that clients keep for themselves: they are neither sent nor counted as traffic."""
        return ()

    def kept_names(self, slot: str, names: Collection[str]) -> tuple[str, ...]:
        """The parameters for which a client slot is kept."""
        return tuple(names)

    def fill(self, kept: ClientState, params: Tree, seed: int) -> None:
        """Before the first round: what clients keep at first, if not zeros."""

    def begin(self, params: Tree, work: Work) -> None:
        """Client: before the first local step."""

    def grad(self, grads: Tree, params: Tree, work: Work) -> Tree:
        """Client: change the gradient of one local step."""
        return grads

    def finish(self, message: Message, params: Tree, work: Work) -> None:
        """Client: after the last local step; change what is sent and, in ``work.client``, what is kept."""

    def combine(self, mean: dict[str, Tree], total: Total, state: dict[str, Tree], round: int) -> None:
        """Server: change the means (by payload) and this part's server slots, on the round's rows only."""


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
    """Over whom is the mean of the updates taken? `bind` returns it fitted to a problem."""

    needs_held: bool

    def bind(self, problem: Problem, device: torch.device) -> BoundAverage: ...


class BoundAverage(Protocol):
    def weights(self, clients: np.ndarray) -> np.ndarray: ...  # a_i of each client, float64 [K]
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


class Engine(Protocol):
    """Runs the local work of a cohort and yields the groups' results in cohort order."""

    name: str

    def map(self, job: Any, cohort: Cohort) -> Iterator[Any]: ...


_SLOTS = {  # slot -> what it must have, and an example
    "local": (
        ("lr", "local_steps", "local_epochs", "batch_size", "batches", "rate", "scale", "init", "step"),
        "SGD(lr=0.1)",
    ),
    "average": (("needs_held", "bind"), "OverHolders()"),
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
    lost: float = 0.0
    on_bad_update: str = "skip"
    scratch: Path | None = None  # a folder for clients' state that is too large for memory


class Remembered(Protocol):
    """What a trainer remembers besides the shared model, as a checkpoint keeps it (see `fedsub.round.state`)."""

    tracking: bool

    def small(self) -> Tree: ...
    def tables(self) -> Tree: ...
    def take_moved(self) -> dict[str, np.ndarray] | None: ...
    def restore(self, tensors: Mapping[str, Tensor]) -> None: ...


class Trains(Protocol):
    """The rounds of a method on a problem. It may also have ``measures`` and ``final_measures`` (see `Session`)."""

    @property
    def engine(self) -> Any: ...
    @property
    def state(self) -> Remembered: ...

    def round(self, number: int) -> Any: ...  # a RoundReport
    def model(self, number: int) -> Any: ...  # what is evaluated: a Tree, or a PersonalModel
    def settle(self, number: int) -> None: ...


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
        """Fit it to a problem. ``params`` is the shared model; training changes it in place."""
        raise NotImplementedError

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

    def prepare(self, problem: Problem, params: Tree, options: Options) -> Prepared:
        from fedsub.round.rounds import prepare

        return prepare(self, problem, params, options)
