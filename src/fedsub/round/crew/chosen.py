"""The crew of a run."""

from __future__ import annotations

from fedsub.errors import MethodError
from fedsub.method.engine import Ray
from fedsub.method.parts import SecureSum
from fedsub.round.client import ClientHalf
from fedsub.round.crew.base import Crew
from fedsub.round.crew.processes import Processes, can_fork
from fedsub.round.crew.threads import Threads
from fedsub.trees import Tree


def crew_of(
    half: ClientHalf, params: Tree, *, workers: int = 1, chunk: int | None = None, compile: bool = False,
    ray: Ray | None = None,
) -> Crew:  # fmt: skip
    """Workers of a cluster, if that is asked for; else processes, if they can be forked and what is trained lies in
    memory that they share; else threads. A process would compile every step for itself.
    """
    if ray is not None:
        if ray.deadline is not None and any(isinstance(part, SecureSum) for part in half.method.parts):
            raise MethodError("A secure sum decides itself whom it waits for; leave out deadline.")
        from fedsub.round.crew.distributed import Cluster

        return Cluster(ray, half, chunk=chunk, compile=compile)
    if workers == 1:
        return Threads(1)
    if not compile and can_fork() and all(value.device.type == "cpu" for value in params.values()):
        return Processes(workers)
    # Torch's own generator belongs to the process: threads would draw from it in any order.
    return Threads(1 if half.plan.random else workers)
