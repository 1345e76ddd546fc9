"""A Ray cluster that shares the groups of a cohort: work goes to where the data is, and what dies is done again."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from sysconfig import get_paths
from typing import Any

import numpy as np

import fedsub
from fedsub.data.shards import some
from fedsub.errors import ConfigError, RunError
from fedsub.method.engine import Ray
from fedsub.round.client import ClientHalf
from fedsub.round.cluster import connect
from fedsub.round.crew.actors import Worker, recipe_of
from fedsub.round.crew.base import Crew, Done, Scene
from fedsub.round.crew.parcels import job, opened, shared_of, size_of, to_arrays
from fedsub.round.crew.schedule import Event, Schedule
from fedsub.round.crew.threads import Threads
from fedsub.round.engines.base import Engine

PATIENCE = 120  # seconds for a worker to begin


class Cluster(Crew):
    """The workers of a run on a cluster, as its crew and as the `Pool` of each round's schedule."""

    steals = True

    def __init__(self, settings: Ray, half: ClientHalf, *, chunk: int | None, compile: bool):
        super().__init__()
        self.half, self.chunk, self.compile, self.deadline = half, chunk, compile, settings.deadline
        self.ray: Any = connect(settings.address, cpus=settings.workers)
        self.trained: Counter[str] = Counter()  # clients by where
        self._recipe = self._put_recipe()
        self._number, self._pending = 0, dict[Any, tuple[int, int]]()  # (worker, group) by what it will give
        nodes = self._nodes()
        there = max(1, int(sum(nodes.values())))
        self.count = settings.workers or there
        if self.count > there:
            raise ConfigError(
                f"{self.count} workers take a CPU each, and the cluster has {there}; ask for fewer, or add machines."
            )
        self._actors = [self._start(node) for node in _spread(nodes, self.count)]
        self._late: list[list[Any]] = [[] for _ in self._actors]  # what a worker still does for nobody
        self._about: list[dict[str, Any] | None] = [self._met(actor) for actor in self._actors]
        self._coming: dict[Any, int] = {}  # who begins in the place of one that is gone, by what it will say of itself

    # Who there is

    def _nodes(self) -> dict[str, float]:
        """CPUs by node."""
        found = {n["NodeID"]: n["Resources"].get("CPU", 0.0) for n in self.ray.nodes() if n["Alive"]}
        return {node: cpus for node, cpus in found.items() if cpus} or found

    def _put_recipe(self) -> Any:
        with by_value():
            return self.ray.put(recipe_of(self.half, chunk=self.chunk, compile=self.compile))

    def _start(self, node: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node, soft=True)
        actor = self.ray.remote(Worker).options(num_cpus=1, max_restarts=0, scheduling_strategy=there)
        return actor.remote(self._recipe)

    def _met(self, actor: Any) -> dict[str, Any]:
        """What a worker says of itself."""
        try:
            return self.ray.get(actor.about.remote(), timeout=PATIENCE)
        except self.ray.exceptions.GetTimeoutError as err:
            raise RunError(
                f"A worker did not begin within {PATIENCE} s: the cluster has no free CPU for it, or its machine lacks "
                "fedsub. 'ray status' shows what is in use; ask for fewer workers."
            ) from err
        except self.ray.exceptions.RayActorError as err:
            raise RunError(f"A worker could not begin: {str(err).strip().splitlines()[-1]}") from err

    def who(self) -> str:
        where = Counter(_place(about) for about in self._about if about)
        listed = ", ".join(f"{n} on {place}" for place, n in where.items())
        address = self.ray.get_runtime_context().gcs_address
        return f"Ray at {address}: {self.count} worker{'s' * (self.count != 1)}, {listed}"

    def did(self) -> tuple[str, ...]:
        listed = ", ".join(f"{place} {n:,}" for place, n in sorted(self.trained.items()))
        return (f"clients trained: {listed}",) if listed else ()

    # A round

    def train(self, scene: Scene, engine: Engine, groups: Sequence[slice]) -> Iterator[Done]:
        if scene.narrowed or not groups:
            yield from Threads(1).train(scene, engine, groups)
            return
        if scene.half is not self.half:
            self.half = scene.half
            self._recipe = self._put_recipe()
            self._about = [self._told(n) for n in range(self.count)]
        shared = shared_of(scene, groups[0])
        common = self.ray.put({tree: to_arrays(values) for tree, values in shared.items()})
        self._number += 1
        self._set_aside()
        self._scene = scene, engine, groups, shared, common
        schedule = Schedule(self, groups, self.deadline)
        for group, (uplink, kept) in schedule:
            yield groups[group], uplink, kept
        for worker, clients in schedule.by.items():
            self.trained[_place(self._about[worker])] += clients
        if schedule.dropped:
            late = sum(groups[g].stop - groups[g].start for g in schedule.dropped)
            self.notes.append(f"{late} clients were left out: their work had not come after {self.deadline:g} s")

    def _told(self, worker: int) -> dict[str, Any] | None:
        self._actors[worker].follow.remote(self._recipe)
        return self._about[worker]

    def _set_aside(self) -> None:
        """What another worker was faster with, or nobody waited for, is not waited for now either."""
        for ref, (worker, _) in self._pending.items():
            self._late[worker].append(ref)
        self._pending = {}
        for worker, refs in enumerate(self._late):
            self._late[worker] = self.ray.wait(refs, num_returns=len(refs), timeout=0)[1] if refs else []

    def holds(self, worker: int, group: int) -> bool:
        """A group goes to who has its data, if anybody has; and not to who is late, while others are not."""
        there = [w for w, about in enumerate(self._about) if about is not None]
        free = [w for w in there if not self._late[w]] or there
        return worker in ([w for w in free if self._has(w, group)] or free)

    def _has(self, worker: int, group: int) -> bool:
        about, clients = self._about[worker], self._clients(group)
        return about is not None and about["span"][0] <= clients.min() and int(clients.max()) < about["span"][1]

    def _clients(self, group: int) -> np.ndarray:
        scene, _, groups, *_ = self._scene
        return scene.who.clients[groups[group]]

    def send(self, worker: int, group: int) -> None:
        scene, engine, groups, shared, common = self._scene
        data = None
        if not self._has(worker, group):  # nobody there has it, so it goes along
            clients = list(dict.fromkeys(self._clients(group).tolist()))
            data = some(scene.half.problem.clients, np.array(clients))
        work = job(scene, engine, groups[group], shared)
        ref = self._actors[worker].train.remote(self._number, common, work, data)
        self._pending[ref] = worker, group

    def wait(self, seconds: float | None) -> list[Event]:
        scene, _, groups, *_ = self._scene
        alone = not self._pending  # only those who begin anew are left
        waiting = [*self._pending, *self._coming]
        ready, _ = self.ray.wait(waiting, num_returns=1, timeout=PATIENCE if alone else seconds)
        if alone and not ready:
            raise RunError("All workers of the cluster are gone; 'ray status' shows what is left of it.")
        found: list[Event] = []
        for ref in ready:
            if ref in self._coming:
                self._welcome(ref)
                continue
            worker, group = self._pending.pop(ref)
            try:
                reply = self.ray.get(ref)
            except self.ray.exceptions.RayTaskError as err:
                found.append(Event(worker, group, error=err.cause if isinstance(err.cause, Exception) else err))
            except self.ray.exceptions.RayError as err:
                self._replace(worker, err)
                found.append(Event(worker))
            else:
                answer = opened(reply, scene.who.take(groups[group]))
                found.append(Event(worker, group, answer, size=size_of(reply)))
        return found

    def _replace(self, worker: int, why: Exception) -> None:
        """A worker is gone: another one begins, on its machine or on one that is left; the others go on meanwhile."""
        before = self._about[worker]
        self._pending = {ref: at for ref, at in self._pending.items() if at[0] != worker}
        self._about[worker], self._late[worker] = None, []
        with suppress(Exception):  # it may be out of reach, and at work
            self.ray.kill(self._actors[worker])
        nodes = self._nodes()
        node = before["node"] if before is not None and before["node"] in nodes else max(nodes, key=lambda n: nodes[n])
        self._actors[worker] = self._start(node)
        self._coming[self._actors[worker].about.remote()] = worker
        self.notes.append(f"a worker on {_place(before)} ended ({type(why).__name__}); what it did is done again")

    def _welcome(self, ref: Any) -> None:
        worker = self._coming.pop(ref)
        try:
            self._about[worker] = self.ray.get(ref)
        except self.ray.exceptions.RayError as err:
            self._replace(worker, err)
        else:
            self.notes.append(f"a worker on {_place(self._about[worker])} took its place")

    def close(self) -> None:
        for actor in self._actors:
            with suppress(Exception):  # the cluster may have ended before
                self.ray.kill(actor)
        self._actors, self._pending, self._coming = [], {}, {}


@contextmanager
def by_value() -> Iterator[None]:
    """What is written for Ray meanwhile brings along code that is not installed: other machines need not have it."""
    from ray import cloudpickle

    installed = {str(Path(place).resolve()) for place in get_paths().values()} | {str(Path(fedsub.__file__).parent)}
    own = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and module.__name__ != "__main__" and not any(map(str(Path(file).resolve()).startswith, installed)):
            cloudpickle.register_pickle_by_value(module)
            own.append(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def _spread(nodes: dict[str, float], count: int) -> list[str]:
    """Where to begin each worker: on the node with most CPUs for each that it would then have."""
    given = Counter[str]()
    for _ in range(count):
        given[max(nodes, key=lambda node: (nodes[node] / (given[node] + 1), node))] += 1
    return sorted(given.elements())


def _place(about: dict[str, Any] | None) -> str:
    if about is None:
        return "a machine that is gone"
    first, last = about["span"]
    held = f" with clients {first:,} to {last - 1:,} of {about['data']}" if last else ""
    return f"{about['host']} node {about['node'][:6]}{held}"
