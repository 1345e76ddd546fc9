"""What a client keeps between rounds, on its own disk, apart for every run.

A file for every round whose answer may or may not have entered the model: the server says with each task which of them
did (``accepted``), and the client goes on from that one. With each invitation it says to which of them it can come back
itself, that of its last checkpoint, and the client forgets older ones. A file appears whole or not at all.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from fedsub.disk.files import write_atomic
from fedsub.disk.tensorfile import Source, TensorFile
from fedsub.errors import CheckpointError
from fedsub.round.memory import ClientState

_WELCOME, _INVITED, _HOLDS = "welcome", "invited", "holds"
_FILE = re.compile(r"state-(\d+)\.safetensors")


class Store:
    """The files of one client's memory in one run, and what the server said when the client joined it."""

    def __init__(self, folder: str | os.PathLike[str], run: int):
        self.folder = Path(folder) / f"run-{run:016x}"
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def welcome(self) -> bytes | None:
        path = self.folder / _WELCOME
        return path.read_bytes() if path.exists() else None

    @welcome.setter
    def welcome(self, data: bytes) -> None:
        write_atomic(self.folder / _WELCOME, data)

    @property
    def invited(self) -> int | None:
        """The round of the last invitation; without the disk's promise: one that is lost is given again."""
        path = self.folder / _INVITED
        return int(path.read_text() or 0) if path.exists() else None

    @invited.setter
    def invited(self, round: int) -> None:
        (self.folder / _INVITED).write_text(str(round))

    @property
    def holds(self) -> str | None:
        """A digest of the rows that the client held when it joined."""
        path = self.folder / _HOLDS
        return path.read_text() if path.exists() else None

    @holds.setter
    def holds(self, digest: str) -> None:
        write_atomic(self.folder / _HOLDS, digest.encode())

    @property
    def rounds(self) -> list[int]:
        """The rounds after which something is kept; 0 is the beginning."""
        found = [_FILE.fullmatch(path.name) for path in self.folder.iterdir()]
        return sorted(int(match[1]) for match in found if match)

    def save(self, memory: ClientState, round: int) -> None:
        sources = {name: Source(value) for name, value in memory.tensors.items()}
        write_atomic(self._path(round), TensorFile(sources).write)

    def load(self, memory: ClientState, round: int) -> None:
        """Fill the memory with what was kept after a round."""
        path = self._path(round)
        try:
            with safe_open(path, framework="pt") as file, torch.no_grad():
                for name, value in memory.tensors.items():
                    value.copy_(file.get_tensor(name))
        except (OSError, SafetensorError, KeyError, RuntimeError) as err:
            raise CheckpointError(
                f"{path} should hold what this client kept after round {round}, which the server says it accepted, and "
                f"cannot be read ({err}). Restore the file, or join the run as a new client."
            ) from err

    def forget(self, before: int) -> None:
        """Drop what is older than what was kept after a round, if that is there."""
        found = self.rounds
        for round in found if before in found else ():
            if round < before:
                self._path(round).unlink(missing_ok=True)

    def _path(self, round: int) -> Path:
        return self.folder / f"state-{round:08d}.safetensors"
