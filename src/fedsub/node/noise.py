"""Noise of `LocalDP` on a node: its own, never the same for two updates, and no more often than the budget allows.

In a simulation noise follows from the seed, or from one secret. On a node neither would do: the server knows the seed,
and who could ask a client twice for the same round, with another model, would see two updates under one noise. So a
node's noise follows from a secret in its folder *and from the update itself*: the same update is answered by the same
bytes, any other by independent noise. What it has told is counted in its folder, and its budget is its own to keep.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from fedsub.disk.files import write_atomic
from fedsub.disk.reading import parse_json
from fedsub.errors import CheckpointError, WireError
from fedsub.method.parts import LocalDP
from fedsub.method.slots import Method
from fedsub.privacy.noise import OwnSecret
from fedsub.privacy.spending import Spend
from fedsub.round.messages import UPDATE, Uplink
from fedsub.trees import digest_of

SECRET, TOLD = "noise-secret", "noise-told.json"


class OwnNoise:
    """``before``: what the client spends on private heat and on rows that it names, out of the same budget."""

    def __init__(self, method: Method, folder: str | os.PathLike[str], before: Iterable[Spend] = ()):
        self.folder = Path(folder)
        self.part = next((part for part in method.parts if isinstance(part, LocalDP)), None)
        self.most = self.part.budget.times(self.part.spend(1), before) if self.part is not None else 0
        self._counts = self.part is not None and self.part.epsilon is not None

    def own(self, method: Method) -> Method:
        """The method whose noise comes from this node's secret."""
        if self.part is None:
            return method
        path = self.folder / SECRET
        if not path.exists():
            write_atomic(path, os.urandom(32), mode=0o600)
        part = replace(self.part, secret=OwnSecret("a node's own", path.read_bytes()))
        return replace(method, parts=tuple(part if one is self.part else one for one in method.parts))

    def tell(self, uplink: Uplink) -> None:
        """Before noised values leave: count them, unless they are those that were told last; WireError past the end of
        the budget."""
        if not self._counts or uplink.refused.all():
            return
        assert self.part is not None
        path, told = self.folder / TOLD, blake2b(digest_of(uplink.trees[UPDATE]), digest_size=16).hexdigest()
        times, last = self._read(path)
        if told == last:
            return
        if times >= self.most:
            raise WireError(
                f"This client has told noised updates {times} times, and epsilon={self.part.epsilon:g} at "
                f"delta={self.part.delta:g} allows no more; nothing was sent."
            )
        write_atomic(path, json.dumps({"times": times + 1, "last": told}).encode())

    def _read(self, path: Path) -> tuple[int, str]:
        if not path.exists():
            return 0, ""
        try:
            content = parse_json(path.read_bytes())
            return int(content["times"]), str(content["last"])
        except (OSError, ValueError, KeyError, TypeError) as err:
            raise CheckpointError(
                f"{path} should say how often this client has told noised updates, and does not ({err}). Restore it; "
                "to begin at 0 gives away more than was promised, so delete it only if you mean that."
            ) from err
