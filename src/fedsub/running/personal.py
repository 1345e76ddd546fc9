"""The parameters that each client has of its own, read back client by client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedsub.disk.checkpoint import Snapshot
from fedsub.disk.files import digest
from fedsub.errors import CheckpointError, DataError
from fedsub.trees import Tree

Read = Callable[[str, slice], Tensor]  # some entries of a parameter


@dataclass(frozen=True)
class PersonalParams:
    """Personal parameters by client: ``names``, and ``params`` of a client given by its id in the data."""

    path: Path
    names: tuple[str, ...]
    client_ids: np.ndarray = field(repr=False)
    tables: Mapping[str, str] = field(repr=False)  # those of the names that are tables -> their space
    held: Mapping[str, Tensor] = field(repr=False)  # rows/SPACE, offsets/SPACE: what each client holds
    read: Read = field(repr=False)

    def __len__(self) -> int:
        return len(self.client_ids)

    def params(self, client: Any) -> Tree:
        """A client's own values by name; of a table those of the rows that it holds (`rows`)."""
        at = self._place(client)
        out = {}
        for name in self.names:
            where = self._run(self.tables[name], at) if name in self.tables else slice(at, at + 1)
            found = self.read(name, where)
            if len(found) != where.stop - where.start:
                raise CheckpointError(f"The personal parameter {name} in {self.path} is shorter than it was saved.")
            out[name] = found.clone() if name in self.tables else found[0].clone()
        return out

    def rows(self, client: Any) -> dict[str, Tensor]:
        """Which rows of every personal table a client holds."""
        at = self._place(client)
        spaces = {s: self.held[f"rows/{s}"][self._run(s, at)].long() for s in set(self.tables.values())}
        return {name: spaces[space] for name, space in self.tables.items()}

    def _run(self, space: str, at: int) -> slice:
        begin, end = self.held[f"offsets/{space}"][at : at + 2].tolist()
        return slice(begin, end)

    def _place(self, client: Any) -> int:
        known = self._places.get(client.item() if isinstance(client, np.generic) else client)
        if known is None:
            some = ", ".join(repr(c) for c in self.client_ids[:3].tolist())
            raise DataError(
                f"There is no client {client!r} among the {len(self):,} of {self.path}; they are {some} … "
                "(client_ids). A newcomer has the shared model, module() without client; fedsub adapt fits it one of "
                "its own."
            )
        return known

    @cached_property
    def _places(self) -> dict[Any, int]:
        return {client: k for k, client in enumerate(self.client_ids.tolist())}


def in_snapshot(snapshot: Snapshot, slot: str) -> Read:
    """Read from a checkpoint, which holds what clients keep."""
    return lambda name, where: snapshot.tables[f"client/{slot}/{name}"][where]


def in_file(path: Path, expected: str | None) -> Read:
    """Read from a file, whose content is looked over once, when the first client is asked for."""
    seen = False

    def read(name: str, where: slice) -> Tensor:
        nonlocal seen
        try:
            if not seen and expected is not None and digest(path) != expected:
                raise ValueError("its content does not match its digest")
            seen = True
            with safe_open(path, framework="pt") as file:
                return torch.as_tensor(file.get_slice(name)[where])
        except (OSError, ValueError, SafetensorError) as error:
            raise CheckpointError(f"{path} is missing or damaged ({error}); restore it from a copy.") from error

    return read
