"""What a feature party keeps on its disk: a run directory like any other, with checkpoints when it is asked to.

The label party asks every feature party to save a round before it saves that round itself. So whatever round the label
party goes on from, the others have it, and all go on from the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsub.disk.checkpoint import Checkpoints, Snapshot
from fedsub.disk.rundir import RunDir
from fedsub.errors import CheckpointError
from fedsub.method.training import Algorithm
from fedsub.objective.problem import Problem
from fedsub.round.remembered import Remembered
from fedsub.running import keep
from fedsub.trees import Tree

if TYPE_CHECKING:
    from fedsub.vertical.party import Party


class Store:
    """The run directory of a feature party. Making it only looks."""

    def __init__(self, folder: Path, resume: bool):
        self.dir, self.resume = RunDir(folder), resume
        self.saved = Checkpoints(self.dir.checkpoints)
        if self.dir.started and not resume:
            raise CheckpointError(
                f"{folder} holds a run already; pass resume=True (--resume) to go on with it, or choose another "
                "directory."
            )

    def open(self, party: Party, problem: Problem, params: Tree, state: Remembered, said: Mapping[str, int]) -> None:
        """Take the directory; refuse other settings than it was begun with."""
        self.dir.start({"method": {"name": "Split", "side": "features"}, "seed": said["seed"], **party.describe(),
                        "run": dict(said)})  # fmt: skip
        if self.saved.latest_round() is None:
            keep.begin(self.dir.path, problem, Algorithm(), params)
            self._write(0, params, problem, state)

    def save(self, round: int, params: Tree, problem: Problem, state: Remembered) -> None:
        self._write(round, params, problem, state)
        self.dir.log_event(f"saved round {round}")

    def _write(self, round: int, params: Tree, problem: Problem, state: Remembered) -> None:
        self.dir.flush()
        meta: dict[str, Any] = {"config": self.dir.identity()}
        self.saved.save(Snapshot(round, state.small(), state.tables(), meta), state.take_moved())

    def go_to(self, round: int, params: Tree, problem: Problem, state: Remembered) -> None:
        """Back to the end of a round; later ones are replaced by the next save."""
        snapshot, notes = self.saved.load(into=state.tables(), round=round)
        for sentence in (*notes, f"goes on after round {round}"):
            self.dir.log_event(sentence)
        state.restore({**snapshot.tensors, **snapshot.tables})
        state.take_moved()

    def finish(self, rounds: int, problem: Problem, params: Tree, refused: int) -> None:
        files = keep.end(self.dir.path, problem, params, params)
        self.dir.finish({"method": "Split", "rounds": rounds, "refused": refused, "files": files})

    def close(self) -> None:
        self.dir.close()
