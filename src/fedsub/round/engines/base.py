"""What all engines share: the job of a round, what a group delivers, and workers."""

from __future__ import annotations

import copy
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar, overload

import numpy as np
import torch
from torch import Tensor, nn

from fedsub import rng
from fedsub.errors import ObjectiveError
from fedsub.method.batches import Batches
from fedsub.method.groups import Cohort, Group
from fedsub.method.slots import Message, Method, Work
from fedsub.objective.losses import Batch
from fedsub.objective.problem import Problem
from fedsub.round.memory import ClientState
from fedsub.round.sums import SpaceRows
from fedsub.torch_private import foreach_add_, foreach_mul_
from fedsub.trees import Tree, take_rows

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Job:
    """The local work of one round."""

    method: Method
    params: Tree  # the server's parameters; engines read rows of them and never write
    cohort: Cohort
    rows: dict[str, SpaceRows]  # by space
    batches: Batches
    round: int
    seed: int
    shared: dict[str, dict[str, Tree]] = field(default_factory=dict)  # part -> slot -> what the server keeps of it
    kept: ClientState | None = None  # what clients keep between rounds

    def keys(self) -> np.ndarray:
        """One random word per client and step, int64 [K, steps], for dropout."""
        steps = np.arange(self.batches.samples.shape[1])
        words = rng.key(self.cohort.words(self.seed, rng.DROPOUT_LAYER, self.round).view(np.int64)[:, None], steps)
        return (words >> np.uint64(33)).astype(np.int64)


@dataclass(frozen=True)
class Delivery:
    """What a group of clients sends back: the clients ``where`` of the cohort, in its order."""

    where: slice
    message: Message
    losses: np.ndarray  # mean training loss over the local steps, by client
    deviations: np.ndarray  # standard deviation over the local steps, by client
    finite: np.ndarray  # bool by client: no NaN or infinity in the update
    stacked: bool
    kept: dict[str, dict[str, Tree]] = field(default_factory=dict)  # part -> slot -> what the clients keep from now on

    @property
    def deltas(self) -> Tree:
        return self.message.trees["update"]


@dataclass(frozen=True)
class Plan:
    """What the setup learned about the module, for engines to rely on."""

    columns: tuple[str, ...]  # the columns that module and loss read
    dropout: bool = False
    sample_mask: bool = False  # whether the module reads which samples are real
    random: bool = False  # other random functions; only the serial engine can seed them


def make_work(job: Job, names: Sequence[str], sent: Tree, group: Group, who: np.ndarray) -> Work:
    """The scene of a group's local work; ``who`` are the positions of its clients in the cohort."""
    method = job.method
    work = Work(job.round, 0, method.local.rate(job.round), sent, group, method=method)
    work.scales = {name: scale for name in names if (scale := method.local.scale(name)) != 1.0}
    if method.parts:  # nobody else asks
        device = next(iter(sent.values())).device
        work.steps = torch.from_numpy(job.batches.steps[who].astype(np.float32)).to(device)
        work.words = job.cohort.words(job.seed, rng.PART, job.round)[who]
    return work


def load_state(problem: Problem, job: Job, work: Work, who: np.ndarray, places: dict[str, slice]) -> None:
    """Give the group what its parts keep: the clients' own and what the server sends along, laid out like ``sent``."""
    group, double = work.group, False
    for part in job.method.parts:
        if not (part.client_slots or part.server_slots):
            continue
        double = len(who) > 1 and who[0] == who[1]  # a chunk of one that is run as a pair
        rows = {s: _twice(job.rows[s].rows[at], double) for s, at in places.items()}
        work.server[part.key] = {
            slot: _sent_of(problem, job.shared[part.key][slot], rows, group) for slot in part.server_slots
        }
        if part.client_slots:
            assert job.kept is not None
            clients = job.cohort.clients[who]
            work.client[part.key] = {
                slot: _laid_out(problem, job.kept.read(f"{part.key}.{slot}", clients), group)
                for slot in part.client_slots
            }


@overload
def first_steps(steps: int, share: float) -> int: ...
@overload
def first_steps(steps: np.ndarray, share: float) -> np.ndarray: ...
def first_steps(steps: int | np.ndarray, share: float) -> int | np.ndarray:
    """A share of a client's steps, rounded up."""
    found = np.ceil(np.multiply(steps, share)).astype(np.int64)
    return found if isinstance(steps, np.ndarray) else int(found)


def mean_gradient(params: Tree, at: Tree, steps: Sequence[Callable[[], Tree]]) -> Tree:
    """The mean over steps of the gradient at ``at``. The steps read ``params``, which are lent and given back."""
    own = {name: value.clone() for name, value in params.items()}
    for name, value in params.items():
        value.copy_(at[name])
    mean = steps[0]()
    for step in steps[1:]:
        foreach_add_(list(mean.values()), list(step().values()))
    foreach_mul_(list(mean.values()), 1.0 / len(steps))
    for name, value in params.items():
        value.copy_(own[name])
    return mean


def _twice(rows: Tensor, double: bool) -> Tensor:
    return torch.cat([rows, rows]) if double else rows


def _sent_of(problem: Problem, whole: Tree, rows: dict[str, Tensor], group: Group) -> Tree:
    out: Tree = {}
    for name, value in whole.items():
        if name in problem.tables:
            out[name] = take_rows(value, rows[problem.tables[name].name])
        else:
            out[name] = value.expand(group.count, *value.shape) if group.stacked else value
    return out


def _laid_out(problem: Problem, stacked: Tree, group: Group) -> Tree:
    """Dense state comes stacked; a lone client's has no such dimension."""
    if group.stacked:
        return stacked
    return {name: value if name in problem.tables else value[0] for name, value in stacked.items()}


def template(problem: Problem, device: torch.device) -> nn.Module:
    """A copy of the user's module without its tables, to be filled with a submodel, on ``device``."""
    own = dict(problem.objective.module.named_parameters())
    empty = {id(own[n]): nn.Parameter(own[n].detach()[:0].clone()) for n in problem.tables}
    try:
        return copy.deepcopy(problem.objective.module, empty).to(device).train()
    except Exception as err:
        raise ObjectiveError(
            f"The module cannot be copied ({type(err).__name__}: {err}); engines work on copies of it. Keep locks, "
            "files and results of forward out of its attributes."
        ) from err


class Filled:
    """A module whose parameters are exchanged: every client gets fresh ones, so that nothing of the last is left."""

    def __init__(self, module: nn.Module):
        self.module = module
        names = {id(p): name for name, p in module.named_parameters()}
        self._places: dict[str, list[tuple[nn.Module, str]]] = {}
        for owner in module.modules():
            for attribute, p in owner.named_parameters(recurse=False, remove_duplicate=False):
                self._places.setdefault(names[id(p)], []).append((owner, attribute))

    def fill(self, values: Tree) -> dict[str, nn.Parameter]:
        """Put ``values`` into the module (shared, not copied) and return the parameters that hold them."""
        params = {name: nn.Parameter(value) for name, value in values.items()}
        for name, param in params.items():
            for owner, attribute in self._places[name]:
                setattr(owner, attribute, param)
        return params


def columns_to(arrays: dict[str, np.ndarray], device: torch.device) -> Batch:
    return {name: torch.from_numpy(a).to(device) for name, a in arrays.items()}


class Workers:
    """Threads that take tasks in order; results come back in order, so nothing depends on their number.

    Torch releases the interpreter lock inside operations. Each thread should own its module copies
    (`local`), because swapping parameters changes a module while it runs.
    """

    def __init__(self, count: int):
        self.count = max(1, count)
        self.local = threading.local()
        self._pool = ThreadPoolExecutor(self.count) if self.count > 1 else None

    def map(self, work: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        if self._pool is None:
            yield from map(work, tasks)
            return
        waiting: deque[Future[R]] = deque()
        for task in tasks:  # bounded: at most two finished results per worker wait in memory
            waiting.append(self._pool.submit(work, task))
            if len(waiting) > 2 * self.count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def all_finite(deltas: Iterable[Tensor]) -> bool:
    """Whether no value is NaN or infinite; a sum is enough to tell in the common case."""
    return all(math.isfinite(float(d.sum())) or bool(torch.isfinite(d).all()) for d in deltas)
