"""The actors that hold shards: told in order, asked, and made again where one is lost.

What changes a shard is written down until it is safe elsewhere (its base). A shard that is lost begins with its base
and is told again what was told since, in the same order: it comes to the same bits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsub.disk.inshards import FOLDER, clear
from fedsub.errors import RunError
from fedsub.method.engine import Ray
from fedsub.round.cluster import connect
from fedsub.round.shards.shard import Piece, Shard

TRIES = 5  # how often in a row a shard may be lost before training ends
LOGGED = 256 << 20  # bytes of what was told to a shard, after which its state is written to a file instead
Call = tuple[Any, ...]  # (what, *arguments)


class Holders:
    """``pieces`` say what each shard begins with; they are kept, for a shard that is lost early."""

    def __init__(self, pieces: Sequence[Callable[[], Piece]], where: Ray, scratch: Path | None = None):
        self.ray = connect(where.address, cpus=where.workers)
        self.pieces = pieces
        # A shard works only while others wait for it.
        self._class = self.ray.remote(Shard).options(num_cpus=0, max_restarts=0, scheduling_strategy="SPREAD")
        self._folder = tempfile.TemporaryDirectory(dir=scratch, prefix=".shards-", ignore_cleanup_errors=True)
        self.lost = 0  # how many were made again
        self._base: list[Call | None] = [None] * len(pieces)  # what takes a new actor to where its log begins
        self._rests, self._saves = 0, list[list[str]]()  # how often a log was ended; the folders of checkpoints
        self._log: list[list[Call]] = [[] for _ in pieces]
        self._bytes = [0] * len(pieces)
        self._pending: list[list[Any]] = [[] for _ in pieces]  # what was told and is not known to be done
        self._actors = [self._begun(piece) for piece in pieces]

    def __len__(self) -> int:
        return len(self.pieces)

    def _begun(self, piece: Callable[[], Piece]) -> Any:
        return self._class.remote(self.ray.put(piece()))

    @property
    def processes(self) -> list[int]:
        """The process of each shard."""
        return self.ask(dict.fromkeys(range(len(self)), ("process",)))

    def tell(self, calls: Mapping[int, Call]) -> None:
        """What changes shards; nobody waits for it."""
        for number, call in calls.items():
            self._log[number].append(call)
            self._bytes[number] += _size(call)
            self._pending[number].append(self._actors[number].do.remote(*call))

    def ask(self, calls: Mapping[int, Call]) -> list[Any]:
        """Answers in the order of ``calls``, after all that was told; a shard that is lost answers when it is back."""
        refs = {number: self._actors[number].do.remote(*call) for number, call in calls.items()}
        answers = {number: self._answer(number, ref, calls[number]) for number, ref in refs.items()}
        for number in calls:
            if self._bytes[number] > LOGGED:
                self._rest(number)
        return list(answers.values())

    def _answer(self, number: int, ref: Any, call: Call) -> Any:
        for _ in range(TRIES):
            try:
                *_, answer = self.ray.get([*self._pending[number], ref])
            except self.ray.exceptions.RayActorError:
                ref = self._again(number, call)
            except self.ray.exceptions.RayTaskError as error:
                raise error.as_instanceof_cause() from None
            else:
                self._pending[number] = []
                return answer
        raise RunError(
            f"Shard {number} of {len(self)} was lost {TRIES} times in a row, perhaps for want of memory; use more "
            "shards, or look at what Ray says of its actor."
        )

    def _again(self, number: int, call: Call) -> Any:
        """A new actor in the place of one that is gone, and the question that it has not answered."""
        self.lost += 1
        self.ray.kill(self._actors[number])
        self._actors[number] = actor = self._begun(self.pieces[number])
        told = list(self._log[number])
        if (base := self._base[number]) is not None:
            told.insert(0, base)
        self._pending[number] = [actor.do.remote(*one) for one in told]
        return actor.do.remote(*call)

    def _rest(self, number: int) -> None:
        """Have a shard write down what it is: what it was told so far need not be kept any more."""
        before, self._rests = self._base[number], self._rests + 1
        path = Path(self._folder.name) / f"{number}-{self._rests}"
        self._answer(number, self._actors[number].do.remote("dump", str(path)), ("dump", str(path)))
        self._safe(number, ("load", str(path)))
        if before is not None and before[0] == "load":
            Path(before[1]).unlink(missing_ok=True)

    def save(self, number: int, run: Path) -> list[tuple[str, str]]:
        """Have the shards write a checkpoint; returns the folder, under the run's of shards, and the seal of each."""
        clear(run, {folder for folders in self._saves[-2:] for folder in folders})
        found = self.ask(dict.fromkeys(range(len(self)), ("save", str(run / FOLDER), number)))
        self._saves.append([folder for folder, _ in found])
        for shard, (folder, seal) in enumerate(found):
            self._safe(shard, ("restore", str(run / FOLDER / folder), number, seal))
        return found

    def _safe(self, number: int, base: Call) -> None:
        """All that a shard was told is in ``base``."""
        self._base[number], self._log[number], self._bytes[number] = base, [], 0

    def close(self) -> None:
        for actor in self._actors:
            self.ray.kill(actor)
        self._folder.cleanup()


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, tuple | list):
        return sum(map(_size, value))
    return sum(map(_size, vars(value).values())) if hasattr(value, "__dict__") else 8
