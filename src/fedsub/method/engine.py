"""Rounds on a Ray cluster, as a setting of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedsub.checks import check_positive, check_whole
from fedsub.errors import ConfigError


@dataclass(frozen=True)
class Ray:
    """``engine=fs.Ray()``: groups of clients are trained by ``workers`` of a Ray cluster; ``engine="ray"`` is short.

    ``address`` names a running cluster ("10.0.0.1:6379"); without one, RAY_ADDRESS does, and without that a cluster is
    started on this machine. ``workers``: by default as many as the cluster has CPUs. ``engine`` is what each of them
    trains with, "batched" (serial where clients cannot be batched) or "serial"; results are those of that engine in one
    process, bit for bit. ``deadline``: seconds of a round after which clients whose work has not come count as lost;
    results then depend on how fast machines are.
    """

    address: str | None = None
    workers: int | None = None
    engine: str = "batched"
    deadline: float | None = None

    def __post_init__(self) -> None:
        if self.workers is not None:
            check_whole("workers", self.workers, 1, error=ConfigError)
        if self.engine not in ("batched", "serial"):
            raise ConfigError(f"A worker of a cluster trains with engine batched or serial, got {self.engine!r}.")
        if self.deadline is not None:
            check_positive("deadline", self.deadline, error=ConfigError)
        if self.address is not None and not isinstance(self.address, str):
            raise ConfigError(f"address must be text such as '10.0.0.1:6379', got {self.address!r}.")

    @classmethod
    def of(cls, engine: Any, workers: int | None = None) -> Ray | None:
        """What ``engine`` asks for; None: it is computed in this process and its own."""
        if engine == "ray":
            return cls(workers=workers)
        if not isinstance(engine, cls):
            return None
        if workers not in (None, engine.workers) and engine.workers is not None:
            raise ConfigError(f"workers is {workers} beside {engine}; give it once.")
        return cls(engine.address, engine.workers or workers, engine.engine, engine.deadline)


def computed_by(engine: Any) -> str:
    """The engine that results depend on: of a cluster, the one that its workers train with."""
    ray = Ray.of(engine)
    return engine if ray is None else ray.engine
