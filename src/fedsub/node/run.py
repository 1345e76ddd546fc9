"""`run`: train with clients that are elsewhere, as `fedsub.run` trains with those whose data is at hand.

The method is played by `Rounds`; everything else, from the run directory and its checkpoints to callbacks and the
model that is loaded again, is that of `fedsub.run`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedsub.data.clients import Clients
from fedsub.errors import ConfigError, MethodError
from fedsub.method.parts import SecureSum
from fedsub.method.slots import Method
from fedsub.method.training import Algorithm, Options, Prepared
from fedsub.node.post import Post
from fedsub.node.rounds import Patience, Rounds, Seen
from fedsub.objective.objective import Objective
from fedsub.objective.population import Population
from fedsub.objective.problem import Problem
from fedsub.round.evaluate import Evaluate
from fedsub.running.callbacks import Callback
from fedsub.running.result import Result, Target
from fedsub.running.run import run as train
from fedsub.secure import Registry
from fedsub.trees import Tree

POPULATION = "population.safetensors"


@dataclass(frozen=True)
class Afar(Algorithm):
    """A method whose clients are reached by post, as `fedsub.run` sees it."""

    method: Method
    post: Post = field(repr=False, compare=False)
    population: Population | None = field(default=None, repr=False, compare=False)
    patience: Patience = field(default_factory=Patience, compare=False)
    identities: Registry | str | os.PathLike[str] | None = field(default=None, repr=False, compare=False)
    out: Path | None = field(default=None, compare=False)
    tell: Callable[[Seen], None] = field(default=lambda seen: None, repr=False, compare=False)
    pooled: bool = field(default=False, init=False)

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.method.name

    @property
    def composition(self) -> Method:
        return self.method

    def describe(self) -> dict[str, Any]:
        return self.method.describe()

    def prepare(self, problem: Problem, params: Tree, options: Options) -> Prepared:
        options.refuse(
            "A server whose clients are elsewhere", "chunk", "workers", "compile", "lost", "on_bad_update", "shards"
        )
        options.refuse("A server whose clients are elsewhere", "engine", but={"engine": "serial"})
        if self.method.pooled:
            raise MethodError(f"{self.method.name} trains on data in one place, and these clients are elsewhere.")
        kept = self.out / POPULATION if self.out is not None else None
        before = kept if kept is not None and kept.exists() else None
        known = self.population if before is None else Population.open(before)
        played = _Kept(
            self.method, params, known, self.post, names=Population.of(problem), heat_known=before is not None,
            seed=options.seed, run=_new_run(), rounds=options.rounds, patience=self.patience,
            identities=self.identities, tell=self.tell,
        )  # fmt: skip
        played.keep_at(kept)
        how = "secure sums" if any(isinstance(part, SecureSum) for part in self.method.parts) else "messages"
        reason = f"{len(played.population)} clients elsewhere, reached by {how}"
        return Prepared(played, reason, tuple(problem.clients.columns), notes=played.notes)


class _Kept(Rounds):
    """Rounds that leave what they know of their clients beside the checkpoints."""

    path: Path | None = None
    kept: Population | None = None  # what lies there

    def keep_at(self, path: Path | None) -> None:
        self.path = path
        self.kept = self.population if path is not None and path.exists() else None
        self.safe = None if path is None else torch.zeros_like(self.accepted)

    def saves(self, number: int, run: Path) -> None:
        if self.safe is not None:
            self.safe.copy_(self.accepted)  # nothing is sent until the checkpoint is written
        if self.path is not None and self.kept is not self.population:
            self.keep(self.path)
            self.kept = self.population


def run(
    method: Method,
    objective: Objective,
    outline: Clients,
    post: Post,
    *,
    rounds: int,
    population: Population | None = None,
    patience: Patience | None = None,
    identities: Registry | str | os.PathLike[str] | None = None,
    tell: Callable[[Seen], None] = lambda seen: None,
    splits: dict[str, Clients] | None = None,
    seed: int = 0,
    evaluate: Evaluate | None = None,
    target: str | Target | None = None,
    stop_at_target: bool = False,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    checkpoint_every: int = 1,
    callbacks: Sequence[Callback] = (),
    settings: dict[str, Any] | None = None,
) -> Result:
    """Train ``objective`` with clients that are reached by ``post``; ``outline`` is their data without samples.

    ``population`` is what is known of them beforehand (sizes, heat); without it all must say hello before the first
    round, and it is counted from what they say. ``splits`` is data at the server that is evaluated, such as
    {"test": …}. A run that is resumed goes on from its last checkpoint with the clients' own memory of it; the numbers
    are those of a run that was never interrupted. All else is as in `fedsub.run`.
    """
    if not isinstance(method, Method):
        raise ConfigError(f"Clients elsewhere train with a composition of slots (fedsub.Method), got {method!r}.")
    if outline.samples:
        raise ConfigError(
            f"outline has {outline.samples:,} samples, and this server has none of its clients' data; give "
            "fedsub.node.outline(clients), or the directory outline/ that hand_out writes."
        )
    folder = Path(out) if out is not None else None
    afar = Afar(method, post, population, patience or Patience(), identities, folder, tell)
    return train(
        afar, objective, outline, rounds=rounds, splits=splits or {}, seed=seed, engine="serial", evaluate=evaluate,
        target=target, stop_at_target=stop_at_target, out=out, resume=resume, checkpoint_every=checkpoint_every,
        callbacks=callbacks, settings=settings,
    )  # fmt: skip


def _new_run() -> int:
    """A number that no earlier run has: what nodes keep for one is not that of another."""
    return int.from_bytes(os.urandom(7), "little") + 1
