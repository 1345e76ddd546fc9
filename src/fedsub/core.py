"""The vocabulary: trees, groups of clients, and the slots that make a method.

A method is a handful of orthogonal choices:

    local    how does a client improve its copy?             fedsub.local
    parts    what is added to every local step?              fedsub.parts
    average  over whom is a mean taken?                      fedsub.average
    server   how does the mean move the model?               fedsub.server
    sampler  who takes part?                                 fedsub.samplers

The only operation across clients is a sum of named tensors (`fedsub.aggregate`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from fedsub import rng
from fedsub.errors import MethodError

if TYPE_CHECKING:
    from fedsub.problem import Problem

Tree = dict[str, Tensor]  # names as in module.named_parameters()


def take_rows(table: Tensor, rows: Tensor) -> Tensor:
    """A copy of some rows of a table."""
    if table.ndim == 2 and table.shape[1] == 1:  # torch handles a vector in a tight loop, rows one call each
        return table.view(-1).index_select(0, rows).view(-1, 1)
    return table.index_select(0, rows)


def add_rows(table: Tensor, rows: Tensor, values: Tensor) -> None:
    """Add values to some rows of a table, in order; a row may occur more than once."""
    if table.ndim == 2 and table.shape[1] == 1:
        table, values = table.view(-1), values.reshape(-1)
    table.index_add_(0, rows, values)


@dataclass(frozen=True)
class Cohort:
    """Who takes part in a round, in a fixed order. A client drawn twice has repeats 0 and 1."""

    clients: np.ndarray  # int64 [K]
    repeats: np.ndarray  # int64 [K]

    @classmethod
    def of(cls, clients: np.ndarray, *, may_repeat: bool = False) -> Cohort:
        repeats = np.zeros(len(clients), np.int64)
        if may_repeat:
            seen: dict[int, int] = {}
            for k, c in enumerate(clients.tolist()):
                repeats[k] = seen.get(c, 0)
                seen[c] = seen.get(c, 0) + 1
        return cls(clients, repeats)

    def __len__(self) -> int:
        return len(self.clients)

    def words(self, *parts: int) -> np.ndarray:
        """One random word per client: a function of ``parts`` and the client, not of who else takes part."""
        words = rng.key(*parts, self.clients)
        again = self.repeats > 0
        if again.any():
            words[again] = rng.key(words[again].view(np.int64), self.repeats[again])
        return words

    def take(self, which: np.ndarray) -> Cohort:
        return Cohort(self.clients[which], self.repeats[which])


@dataclass(frozen=True)
class Group:
    """Clients whose local work is done by the same tensor operations.

    A serial engine works on one client (``stacked`` False): tables are [|S(i)|, d] and dense parameters
    have their own shape. A batched engine stacks c clients: their rows lie one behind the other in one
    table [Σ|S(i)|, d], dense parameters are [c, …]. Elementwise code serves both; what differs by client
    goes through `spread`, and what reduces over one client's values through `total`.
    """

    count: int
    stacked: bool
    counts: dict[str, Tensor] = field(default_factory=dict)  # table -> rows of each client, int64 [c]
    _owners: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def owners(self, name: str) -> Tensor:
        """The position in the group of each row's client, [rows]; made when first asked for."""
        if name not in self._owners:
            counts = self.counts[name]
            self._owners[name] = torch.repeat_interleave(torch.arange(self.count, device=counts.device), counts)
        return self._owners[name]

    def spread(self, values: Tensor, name: str, like: Tensor) -> Tensor:
        """One number per client, [c], shaped to multiply the parameter ``name``."""
        if not self.stacked:
            return values[0]
        if name in self.counts:
            values = values[self.owners(name)]
        return values.reshape(-1, *[1] * (like.ndim - 1))

    def total(self, name: str, values: Tensor) -> Tensor:
        """Sum of one client's values of a parameter, per client, [c]."""
        if not self.stacked:
            return values.sum().reshape(1)
        if name in self.counts:
            flat = values.reshape(len(values), -1).sum(1)
            return torch.zeros(self.count, dtype=flat.dtype, device=flat.device).index_add_(0, self.owners(name), flat)
        return values.reshape(self.count, -1).sum(1)


@dataclass
class Work:
    """What a part and a local solver may read while a group does its local steps."""

    round: int
    step: int
    lr: float
    sent: Tree  # what the server sent, laid out like the parameters
    group: Group
    active: Tensor | None = None  # [c] 1 or 0; None when every client still has steps to do


class Part:
    """Something added to a method. Subclasses are frozen dataclasses; every hook is optional.

    ``pure_step`` says that `grad` reads of ``work`` only what was sent, the rate and the group, not the
    number of the round or step, so that torch may compile it.
    """

    pure_step: ClassVar[bool] = False

    def check(self, method: Method) -> None:
        """Raise MethodError if this part makes no sense in the method; called when it is built."""

    def grad(self, grads: Tree, params: Tree, work: Work) -> Tree:
        """Change the gradient of one local step."""
        return grads


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


class Average(Protocol):
    """Over whom is the mean of the updates taken? `bind` returns it fitted to a problem."""

    needs_held: bool

    def bind(self, problem: Problem, device: torch.device) -> BoundAverage: ...


class BoundAverage(Protocol):
    def weights(self, clients: np.ndarray) -> np.ndarray: ...  # a_i of each client, float64 [K]
    def __call__(self, total: Total) -> Tree: ...


class Server(Protocol):
    """How the mean update moves the model. `step` changes params in place, on the union's rows only."""

    def init(self, params: Tree) -> Tree: ...
    def step(self, params: Tree, mean: Tree, rows: dict[str, Tensor], state: Tree, round: int) -> None: ...


class Sampler(Protocol):
    """Who takes part in a round; a pure function of (seed, round)."""

    def select(self, round: int, population: int, seed: int) -> Cohort: ...


class Engine(Protocol):
    """Runs the local work of a cohort and yields the groups' results in cohort order."""

    name: str

    def map(self, job: Any, cohort: Cohort) -> Iterator[Any]: ...


_SLOTS = {  # slot -> what it must have, and an example
    "local": (("lr", "local_steps", "local_epochs", "batch_size", "batches", "init", "step"), "SGD(lr=0.1)"),
    "average": (("needs_held", "bind"), "OverHolders()"),
    "server": (("init", "step"), "Add()"),
    "sampler": (("select",), "Uniform(50)"),
}


@dataclass(frozen=True, kw_only=True)
class Method:
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
        for part in self.parts:
            part.check(self)

    def describe(self) -> dict[str, Any]:
        """The whole configuration as plain JSON values."""
        return describe(self)


def describe(value: Any) -> Any:
    """A value as plain JSON: the fields of a dataclass, a digest of an array, the name of a function."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"type": type(value).__name__} | {
            f.name: describe(getattr(value, f.name)) for f in fields(value) if f.repr
        }
    if isinstance(value, Tensor | np.ndarray):
        raw = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        import hashlib

        return f"array {raw.shape} {hashlib.blake2b(raw.tobytes(), digest_size=8).hexdigest()}"
    if isinstance(value, dict):
        return {str(k): describe(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [describe(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__qualname__", type(value).__qualname__)
