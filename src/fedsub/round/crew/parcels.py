"""A group's work and its result as plain arrays, for crews outside this process.

Tensors travel as numpy arrays, which pickle can take out of band and shared memory can hold. Samples are counted from
their client's first one: so a worker needs only a part of the data, wherever its clients stand there. What comes back
is copied: the memory that it came in is used again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedsub.method.batches import Batches
from fedsub.method.groups import Cohort
from fedsub.round.client import ClientHalf
from fedsub.round.crew.base import Scene
from fedsub.round.engines.base import Engine
from fedsub.round.messages import Downlink, Kept, Uplink
from fedsub.trees import Tree

Arrays = dict[str, tuple[np.ndarray, str]]  # name -> values, and the torch type that numpy lacks, or ""


@dataclass(frozen=True)
class Job:
    """What a group needs to be trained anywhere but for data, method and model class, which workers have."""

    engine: str
    round: int
    clients: np.ndarray
    repeats: np.ndarray
    counts: dict[str, np.ndarray]
    trees: dict[str, Arrays]
    shared: dict[str, tuple[str, ...]]  # tree -> names of those that come with the round, alike for all groups
    numbers: dict[str, float]
    memory: dict[str, Arrays]
    samples: np.ndarray
    weights: np.ndarray
    steps: np.ndarray
    sizes: np.ndarray


@dataclass(frozen=True)
class Reply:
    """An uplink and what is kept."""

    refused: np.ndarray
    trees: dict[str, Arrays]
    sums: dict[str, np.ndarray]
    seen: dict[str, np.ndarray]
    lengths: np.ndarray | None
    kept: dict[str, dict[str, Arrays]]


def shared_of(scene: Scene, where: slice) -> dict[str, Tree]:
    """What is alike for all groups of a round: dense parameters, of a model with one value for all."""
    tables = scene.half.problem.tables
    return {
        tree: {name: value for name, value in values.items() if name not in tables}
        for tree, values in scene.down(where).trees.items()
    }


def job(scene: Scene, engine: Engine, where: slice, shared: Mapping[str, Tree]) -> Job:
    """The work of a group; ``shared`` goes with the round."""
    half, down, batches = scene.half, scene.down(where), scene.batches.take(where)
    at = half.places(down.who.clients)
    common = {t: tuple(n for n, v in tree.items() if shared.get(t, {}).get(n) is v) for t, tree in down.trees.items()}
    own = {t: {n: v for n, v in tree.items() if n not in common[t]} for t, tree in down.trees.items()}
    slots = [f"{part.key}.{slot}" for part in half.method.parts for slot in part.client_slots]
    return Job(
        engine.name, down.round, down.who.clients, down.who.repeats, down.counts,
        {tree: to_arrays(values) for tree, values in own.items()}, common, dict(down.numbers),
        {slot: to_arrays(scene.memory.read(slot, at)) for slot in slots},
        batches.samples - half.problem.clients.offsets[at][:, None, None], batches.weights, batches.steps,
        batches.sizes,
    )  # fmt: skip


class Rows:
    """The memory of a group's clients, as it came with the job."""

    def __init__(self, slots: Mapping[str, Arrays], count: int):
        self.slots, self.count = slots, count

    def read(self, slot: str, clients: np.ndarray) -> Tree:
        found, times = to_tree(self.slots[slot]), len(clients) // self.count
        # A lone client stands twice where clients are stacked, and so does what it remembers.
        return found if times == 1 else {name: torch.cat([value] * times) for name, value in found.items()}

    def write(self, slot: str, clients: np.ndarray, values: Tree, *, note: bool = True) -> None:
        raise NotImplementedError("what clients keep goes back with the reply")


def perform(half: ClientHalf, engines: Mapping[str, Engine], work: Job, shared: Mapping[str, Tree]) -> Reply:
    """Train a group where the data is."""
    who = Cohort(work.clients, work.repeats)
    trees = {tree: to_tree(values) for tree, values in work.trees.items()}
    for tree, names in work.shared.items():
        trees[tree] |= {name: shared[tree][name] for name in names}
    there = half.problem.clients
    samples = work.samples + there.offsets[half.places(who.clients)][:, None, None]
    batches = Batches(samples, work.weights, work.steps, work.sizes, there)
    down = Downlink(work.round, who, work.counts, trees, work.numbers)
    uplink, kept = half.train(engines[work.engine], down, Rows(work.memory, len(who)), batches)
    return Reply(
        uplink.refused, {tree: to_arrays(values) for tree, values in uplink.trees.items()}, uplink.sums, uplink.seen,
        uplink.lengths,
        {part: {slot: to_arrays(tree) for slot, tree in slots.items()} for part, slots in kept.items()},
    )  # fmt: skip


def opened(reply: Reply, who: Cohort) -> tuple[Uplink, Kept]:
    """A reply as `ClientHalf.train` would have given it."""
    trees = {tree: to_tree(values) for tree, values in reply.trees.items()}
    kept = {part: {slot: to_tree(tree) for slot, tree in slots.items()} for part, slots in reply.kept.items()}
    sums = {name: values.copy() for name, values in reply.sums.items()}
    seen = {name: values.copy() for name, values in reply.seen.items()}
    lengths = None if reply.lengths is None else reply.lengths.copy()
    return Uplink(who, reply.refused.copy(), trees, sums, seen, lengths), kept


_ODD = {torch.bfloat16: (torch.int16, "bfloat16")}
_BACK = {"bfloat16": torch.bfloat16}


def to_arrays(tree: Tree) -> Arrays:
    out: Arrays = {}
    for name, value in tree.items():
        kind, said = _ODD.get(value.dtype, (value.dtype, ""))
        value = value.detach().cpu()
        out[name] = (value.view(kind) if said else value).contiguous().numpy(), said
    return out


def to_tree(arrays: Arrays) -> Tree:
    out: Tree = {}
    for name, (values, said) in arrays.items():
        tensor = torch.from_numpy(np.array(values))  # a copy, which may be written
        out[name] = tensor.view(_BACK[said]) if said else tensor
    return out


def size_of(value: Any) -> int:
    """Bytes of the arrays of a job or reply."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    if isinstance(value, tuple):
        return sum(map(size_of, value))
    return sum(map(size_of, vars(value).values())) if isinstance(value, Job | Reply) else 0
