"""Parts: what is added to every local step, kept, encoded or corrected; and what a part meets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import Tensor

from fedsub.method.groups import Group
from fedsub.trees import Tree

if TYPE_CHECKING:
    from fedsub.method.slots import Local, Method


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
    numbers: dict[str, dict[str, float]] = field(default_factory=dict)  # part -> name -> the server's number
    padding: frozenset[str] = frozenset()  # tables whose first row, of every client, means nothing and never trains
    tables: frozenset[str] = frozenset()  # parameters whose rows are those that a client holds
    words: np.ndarray | None = None  # uint64 [c]: one random word per client and round
    memory: dict[str, Any] = field(default_factory=dict)  # part -> anything, for this round
    gradient: Callable[[Tree, float], Tree] | None = (
        None  # mean gradient at other parameters, over a share of the batches
    )
    same_batch: Callable[[Tree], Tree] | None = None  # gradient of this step's batch at other parameters
    frequency: Callable[[], Tree] | None = None  # by table: in which share of its samples a client names each row
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
    sent_numbers: ClassVar[tuple[str, ...]] = ()  # numbers that the server keeps and sends to all who train
    codec: ClassVar[bool] = False  # whether it changes how the update is written; a method has one at most
    votes: ClassVar[bool] = False  # whether what it sends has lost its size: a factor would change nothing
    shrinks: ClassVar[bool] = False  # whether what its `finish` sends is never longer (in L2) than what it was given
    noises: ClassVar[bool] = False  # whether the server adds noise to the sum over whole tables
    silent: ClassVar[bool] = False  # whether clients must not tell their training loss
    steers: ClassVar[bool] = False  # whether it bends local steps towards what all clients want
    rowwise: ClassVar[bool] = False  # whether `combine` and `limit` treat every row, and every dense value, by itself
    turns: ClassVar[int] = 1  # rounds that it needs the same clients for: `fedsub.sampling.InTurns`
    own: ClassVar[str] = ""  # of client_slots, the one with the values of the parameters that are `private`

    @property
    def key(self) -> str:
        """The name under which its state and messages are kept."""
        return type(self).__name__.lower()

    @property
    def pull(self) -> float:
        """μ, where `grad` adds μ (x − what was sent), as FedProx does: other parts reckon with it."""
        return 0.0

    @property
    def rowwise_at_server(self) -> bool:
        """Whether the server's half may work on some rows of a table without the others."""
        plain = type(self).combine is Part.combine and type(self).limit is Part.limit
        return plain or self.rowwise

    @property
    def own_slot(self) -> str:
        """Where clients' memory keeps the values of private parameters."""
        return f"{self.key}.{self.own}"

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

    def drawn(self, local: Local, round: int) -> Local:
        """The local solver by which steps and batches of a round are drawn."""
        return local

    def plain(self, round: int) -> Collection[str]:
        """Of "update" and its payloads, those whose mean in this round is the plain one, not corrected for heat."""
        return ()

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

    def rest(self, message: Message, work: Work) -> None:
        """Client: in place of begin, steps and `finish`, where none of its samples are left in a round of perturbed
        rows. What it sends is zero by then; what it keeps stays as it is."""

    def decode(self, data: bytes, like: Mapping[str, Tensor], padding: Collection[str] = ()) -> Tree:
        """Server: the update that a codec wrote into a message; `fedsub.method.codecs.Codec` has it."""
        raise NotImplementedError

    def combine(self, mean: dict[str, Tree], total: Total, state: dict[str, Tree], round: int) -> None:
        """Server: change the means (by payload) and this part's server slots.

        Both have the same shapes: of tables the round's rows alone. Change ``state`` in place or put new tensors
        into its trees.
        """

    def limit(self, update: Tree, total: Total) -> None:
        """Server: after every part's `combine`, bound in place what the server's step is given."""

    def first_number(self, name: str) -> float:
        """Server: what one of ``sent_numbers`` is before the first round."""
        return 0.0

    def next_numbers(self, numbers: Mapping[str, float], total: Total, round: int) -> dict[str, float]:
        """Server, after the sum: ``sent_numbers`` for the rounds to come; those left out stay as they are."""
        return {}


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
