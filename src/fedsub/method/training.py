"""What `fedsub.run` can train with, and how a method becomes rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsub.errors import ConfigError
from fedsub.method.described import describe
from fedsub.method.engine import Ray
from fedsub.trees import Tree

if TYPE_CHECKING:
    from fedsub.data.clients import Clients
    from fedsub.method.slots import Method
    from fedsub.objective.problem import Problem
    from fedsub.round.clock.devices import Devices


@dataclass(frozen=True)
class Options:
    """How a run is computed, whatever the method."""

    engine: str | Ray = "auto"
    chunk: int | None = None
    workers: int = 1
    compile: bool = False
    seed: int = 0
    lost: float = 0.0  # the chance that a client of the cohort never delivers
    on_bad_update: str = "skip"
    scratch: Path | None = None  # a folder for clients' state that is too large for memory
    rounds: int | None = None  # of the whole run
    devices: Devices | None = None  # on whose clock clients train; None: nobody asked
    shards: int | None = None  # actors of a Ray cluster that hold the tables; None: the driver does

    def refuse(self, method: str, *names: str, but: Mapping[str, Any] | None = None) -> None:
        """Raise ConfigError for options that were given and that a method does not use; ``but`` are values it has."""
        for name in names:
            usual = type(self).__dataclass_fields__[name].default
            if (given := getattr(self, name)) not in (usual, (but or {}).get(name, usual)):
                raise ConfigError(f"{method} does not use {name}={given!r}; leave it out.")


# Options of how clients are trained, which a method on pooled data has none of.
OF_CLIENTS = "engine", "chunk", "workers", "compile", "lost", "shards"


def shared_options(method: Algorithm, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that several methods share, as one of them is given them.

    A baseline on pooled data goes without those of clients, which it refuses where it is trained by itself.
    """
    return {name: value for name, value in options.items() if not (method.pooled and name in OF_CLIENTS)}


class Trains:
    """The rounds of a method on a problem, as a run plays them."""

    engine: Any  # with a name
    state: Any  # `fedsub.round.remembered.Remembered`: what a checkpoint keeps besides the shared model

    def settle_engine(self, before: str, tell: Callable[[str], None]) -> None:
        """Before the first round: the engine that an earlier session settled on, or "", and who hears of a choice."""

    def round(self, number: int) -> Any:
        """Play a round; returns its RoundReport."""
        raise NotImplementedError

    def model(self, number: int) -> Any:
        """What is evaluated after round ``number``: a Tree, a PersonalModel, or one of which parts are `Elsewhere`."""
        raise NotImplementedError

    def saves(self, number: int, run: Path) -> dict[str, Any] | None:
        """Before a checkpoint of round ``number`` is written: others that keep parts of the state write theirs.

        ``run`` is the run's directory; what the checkpoint should say of it is returned.
        """

    def settle(self, number: int) -> None:
        """Bring the shared model up to date in place, at the end of training."""

    def helped(self) -> tuple[str, ...]:
        """After the last round: who did the work, in sentences, if that was not this process alone."""
        return ()

    def close(self) -> None:
        """No round will be played any more: whoever helped may go."""

    def measures(self, splits: dict[str, Clients]) -> dict[str, float]:
        """What the method measures of itself at an evaluation, by name."""
        return {}

    def stops(self, number: int) -> str:
        """Why round ``number`` must not be played and training ends before it, in a sentence; "" if it may be."""
        return ""

    def spent(self) -> dict[str, Any]:
        """What was spent of a privacy budget, for the result."""
        return {}


@dataclass(frozen=True)
class Prepared:
    """A method fitted to a problem, ready to train."""

    trainer: Trains
    reason: str  # how it is computed, in a sentence
    columns: tuple[str, ...]  # what module and loss read
    fallback: bool = False  # whether a faster way was tried in vain
    notes: tuple[str, ...] = ()  # what the run's events should say besides


class Algorithm:
    """Whatever `fedsub.run` can train with. Subclasses are frozen dataclasses and describe themselves as JSON."""

    name: str
    pooled: bool

    @property
    def clocked(self) -> bool:
        """Whether what is learned depends on how fast clients' devices are."""
        return False

    @property
    def composition(self) -> Method | None:
        """The slots that it is a composition of, wherever its clients are; None: it trains in a way of its own."""
        return None

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
