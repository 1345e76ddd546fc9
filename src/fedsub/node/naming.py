"""Which rows a node names where its method perturbs them, and what it once decided to say of each.

Whether it says a row to be its own is decided when it is first asked about that row, and then stands: in other rounds
and runs, after a restart, and when its data change or its table grows. What is drawn anew for every round follows from
a secret in its folder and the round's number.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedsub.disk.files import write_atomic
from fedsub.errors import CheckpointError
from fedsub.node.agree import digest
from fedsub.privacy.heat import PermanentResponse
from fedsub.privacy.heat.words import Array, Words

_LENGTH = 8  # bytes that say of how many rows the file is
_BITS = 3  # by row: whether it was asked about, what is said of it, whether it was held then


class Naming:
    """``words`` gives the randomness of a mechanism for a space."""

    def __init__(self, response: PermanentResponse, folder: Path, words: Callable[[str], Words]):
        self.response, self.folder, self.words = response, folder, words

    def said(self, space: str, held: Array, union: Array, size: int, round: int, *, padded: bool) -> Array:
        """The rows of the union that this client names in a round, ascending. A padding row is named by all."""
        first = int(padded and len(union) > 0 and union[0] == 0)
        asked, words = union[first:], self.words(space)
        settled = self._settled(space, held[held > 0] if padded else held, asked, size, words)
        return np.concatenate([union[:first], asked[self.response.report(settled, asked, words, round)]])

    def _settled(self, space: str, held: Array, asked: Array, size: int, words: Words) -> Array:
        path = self.folder / f"rows-{digest([space, self.response]):015x}"
        known, says, was = self._read(path, size)
        new = asked[~known[asked]]
        if len(new):
            told = np.intersect1d(self.response.told(held, size, words), new)
            if self.response.rows is not None:  # what was held before, and is no more, has been told of all the same
                told = told[: max(self.response.rows - int(was.sum()), 0)]
            known[new], was[told] = True, True
            says[new] = self.response.settle(told, new, words)
            kept = np.packbits(np.stack([known, says, was]), axis=1)
            write_atomic(path, size.to_bytes(_LENGTH, "little") + kept.tobytes())
        return says[asked]

    def _read(self, path: Path, size: int) -> Array:
        """[known, says, was] by row; rows that the table has got since are not known."""
        out = np.zeros((_BITS, size), bool)
        if not path.exists():
            return out
        data = path.read_bytes()
        rows = int.from_bytes(data[:_LENGTH], "little")
        width = -(-rows // 8)
        if len(data) != _LENGTH + _BITS * width or rows > size:
            raise CheckpointError(
                f"{path} should hold what this client once said of its {size:,} rows, and does not ({len(data)} bytes "
                f"about {rows:,} rows). Restore it; to say it anew gives away more than was promised, so delete it "
                "only if you mean that."
            )
        kept = np.frombuffer(data, np.uint8, offset=_LENGTH).reshape(_BITS, width)
        out[:, :rows] = np.unpackbits(kept, axis=1, count=rows).astype(bool)
        return out
