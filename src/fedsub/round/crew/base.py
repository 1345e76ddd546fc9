"""What a crew is given and what it owes: the seam below `fedsub.round.here.Here`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fedsub.method.batches import Batches
from fedsub.method.groups import Cohort
from fedsub.round.client import ClientHalf
from fedsub.round.engines.base import Engine
from fedsub.round.memory import Memory
from fedsub.round.messages import Downlink, Kept, Uplink

Done = tuple[slice, Uplink, Kept]  # which clients of the cohort, what they send, what they keep


@dataclass(frozen=True)
class Scene:
    """The local work of a round: the groups of its cohort can be trained in any order and anywhere."""

    half: ClientHalf
    who: Cohort
    memory: Memory
    batches: Batches
    down: Callable[[slice], Downlink]
    narrowed: bool = False  # whether clients train on samples of this round's own

    def train(self, engine: Engine, where: slice) -> Done:
        return where, *self.half.train(engine, self.down(where), self.memory, self.batches.take(where))


class Crew:
    """Who trains. What comes back is in the order of the groups, so nothing depends on who did what and when."""

    count = 1  # workers among whom groups are shared
    deadline: float | None = None  # seconds of a round after which groups are left out

    def __init__(self) -> None:
        self.notes: list[str] = []  # sentences for the events of this round

    def train(self, scene: Scene, engine: Engine, groups: Sequence[slice]) -> Iterator[Done]:
        """The groups' work; a crew with a deadline may leave groups out."""
        raise NotImplementedError

    def who(self) -> str:
        """Who they are, in a sentence; "" where there is nothing to tell."""
        return ""

    def did(self) -> tuple[str, ...]:
        """Who has trained how many clients, in sentences."""
        return ()

    def close(self) -> None:
        """Nobody will ask again."""
