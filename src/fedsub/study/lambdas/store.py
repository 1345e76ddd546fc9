"""What a directory keeps of a λ path: points as lines of metrics.jsonl, models in the checkpoints of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fedsub.disk.checkpoint import Checkpoints, Snapshot
from fedsub.disk.files import JsonLines
from fedsub.disk.rundir import RunDir
from fedsub.errors import CheckpointError
from fedsub.trees import Tree


class Store:
    """A path's directory. A checkpoint follows every point: which of them there are, and the models still needed."""

    def __init__(self, out: str | os.PathLike[str], config: Mapping[str, Any], resume: bool):
        self.folder = RunDir(out)
        if self.folder.started and not resume:
            raise CheckpointError(
                f"{self.folder.path} holds a path already; pass resume=True (--resume) to go on with it, or choose "
                "another directory."
            )
        self.folder.start(config)
        self.points: dict[float, dict[str, Any]] = {}
        self.kept: dict[float, Tree] = {}
        self._saved = Checkpoints(self.folder.checkpoints)
        self._number = 0
        try:
            self._restore()
        except BaseException:
            self.folder.close()
            raise

    def _restore(self) -> None:
        """Go back to the newest intact checkpoint; without one the path begins anew."""
        if self._saved.latest_round() is None:
            self.folder.rewind(None)
            return
        try:
            snapshot, sentences = self._saved.load()
        except CheckpointError as error:
            self.folder.log_event(f"The path is computed from its beginning: {error}")
            self.folder.rewind(None)
            for file in self.folder.checkpoints.iterdir():
                file.unlink()
            self._saved = Checkpoints(self.folder.checkpoints)
            return
        for sentence in sentences:
            self.folder.log_event(sentence)
        self.folder.rewind(snapshot.meta["files"])
        self.points = {float(line["lam"]): line for line in JsonLines.read(self.folder.path / "metrics.jsonl")}
        self._number = snapshot.round
        for name, value in snapshot.tensors.items():
            lam, _, leaf = name.partition("/")
            self.kept.setdefault(float(lam), {})[leaf] = value

    def add(self, point: Mapping[str, Any], kept: Mapping[float, Tree]) -> None:
        """A point, and the models of all λ that are still of use."""
        self.folder.log_metrics(point)
        self._number += 1
        tensors = {f"{lam!r}/{name}": leaf for lam, x in kept.items() for name, leaf in x.items()}
        self._saved.save(Snapshot(self._number, tensors, meta={"files": self.folder.positions()}), None)
