"""Clicks of any size: so many clients, rows and samples, each row named in proportion to its rank to a power.

    row      = ⌊rows · u^(1 / (1 − s))⌋, u uniform: row r is named about r^(−s) times as often as row 1   (0 ≤ s < 1)
    logit    = mood[client] + quality[row], both normal, both functions of the seed and the number alone

Nothing is in proportion to rows, so a table may have a billion of them; low rows are hot. Samples go round:
sample p of client i is number p · clients + i, and the first clients have one more where they do not come out even.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsub import rng
from fedsub.checks import check_whole, is_number
from fedsub.data.clients import Array, Clients, Column, Space
from fedsub.data.store import whole_directory, write_json
from fedsub.data.twins import draws
from fedsub.data.twins.twin import ABOUT, BLOCK, FORMAT, Block, check_seed, join, label_column, space, write
from fedsub.errors import DataError

NAME = "zipf"
ROW, QUALITY, MOOD, CLICKED, ORDER = range(1, 6)  # purposes of draws
EXPONENT = 2 / 3
SPREAD = 0.5, 1.0  # of moods, of qualities
PIECE = 1 << 20  # samples of a Parquet file


@dataclass(frozen=True)
class Zipf:
    """So many ``clients`` with ``samples`` together, of one id each, in a table of so many ``rows``.

    fs.twins.Zipf(1_000_000, 100_000_000, 50_000_000).parquet("log")     # what an ingest is given
    fs.twins.Zipf(10_000, 1_000_000, 500_000).write("clicks")            # train and test, saved
    """

    clients: int
    rows: int
    samples: int
    exponent: float = EXPONENT
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("clients", "rows", "samples"):
            check_whole(name, getattr(self, name), 1, error=DataError)
        if self.samples < self.clients or self.samples >= 1 << 40 or self.rows >= 1 << 48:
            raise DataError(
                f"{NAME}: {self.samples:,} samples of {self.clients:,} clients in {self.rows:,} rows; expected at "
                "least a sample a client, below 2^40 samples and below 2^48 rows."
            )
        if not (is_number(self.exponent) and 0 <= self.exponent < 1):
            raise DataError(
                f"{NAME}: exponent={self.exponent!r} must be at least 0 (all rows alike) and below 1, where the share "
                "of a row has a closed form."
            )
        check_seed(NAME, self.seed)

    @property
    def sizes(self) -> Array:
        """Samples of every client."""
        return np.full(self.clients, self.samples // self.clients) + (
            np.arange(self.clients) < self.samples % self.clients
        )

    @property
    def spaces(self) -> tuple[Space, ...]:
        return (space("item", self.rows),)

    def block(self, begin: int, end: int) -> Block:
        """Clients ``begin`` … ``end`` - 1 with all their samples."""
        sizes = self.samples // self.clients + (np.arange(begin, end) < self.samples % self.clients)
        row, label, chance = self._drawn(np.repeat(np.arange(begin, end), sizes), draws.places(sizes))
        return Block(sizes, [Column("item", row, "item"), label_column(label)], chance)

    def _drawn(self, client: Array, place: Array) -> tuple[Array, Array, Array]:
        """(row, label, its probability of 1) of some samples."""
        u = rng.uniform(rng.key(rng.TWIN, self.seed, ROW, client, place))
        row = np.minimum((self.rows * u ** (1 / (1 - self.exponent))).astype(np.int64), self.rows - 1)
        mood = SPREAD[0] * rng.normal(rng.key(rng.TWIN, self.seed, MOOD, client))
        quality = SPREAD[1] * rng.normal(rng.key(rng.TWIN, self.seed, QUALITY, row))
        chance = draws.sigmoid(mood + quality)
        return row, rng.uniform(rng.key(rng.TWIN, self.seed, CLICKED, client, place)) < chance, chance

    def make(self, *, block: int = BLOCK) -> Clients:
        """All samples in memory."""
        return join(self, block)

    def write(
        self, folder: str | os.PathLike[str], *, block: int = BLOCK,
        progress: Callable[[int, int], object] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Stream to ``train`` (a random 80 %) and ``test`` in ``folder``, as twins do (`Twin.write`)."""
        about = {"rows": self.rows, "exponent": self.exponent}
        return write(self, folder, NAME, about, seed=self.seed, block=block, progress=progress)

    def parquet(
        self, folder: str | os.PathLike[str], *, piece: int = PIECE,
        progress: Callable[[int, int], object] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Parquet files with the columns client, item and label, as a log has them: no client's samples lie together.

        A file holds about ``piece`` samples, which are shuffled as far as no client's own change places. Read with
        ``ids=["item"], sizes={"item": rows}`` it is what `make` gives.
        """
        import polars as pl

        about = {"format": FORMAT, "name": NAME, "seed": self.seed, "clients": self.clients, "samples": self.samples}
        about |= {"rows": self.rows, "exponent": self.exponent}
        with whole_directory(folder, (ABOUT, FORMAT)) as fresh:
            for number, cuts in enumerate(self._files(check_whole("piece", piece, 1, error=DataError))):
                order = np.concatenate([self._shuffled(*cut) for cut in cuts])
                client, place = order % self.clients, order // self.clients
                row, label, _ = self._drawn(client, place)
                table = pl.DataFrame({"client": client, "item": row, "label": label.astype(np.int8)})
                table.write_parquet(fresh / f"part-{number:06}.parquet")
                if progress is not None:
                    progress(cuts[-1][1], self.samples)
            write_json(fresh / ABOUT, about)
        return about | {"files": len(list(Path(folder).glob("*.parquet")))}

    def _files(self, piece: int) -> Iterator[list[tuple[int, int]]]:
        """Stretches of sample numbers, several a file; none crosses into a client's next sample."""
        file: list[tuple[int, int]] = []
        begin = 0
        while begin < self.samples:
            end = min(begin + piece, (begin // self.clients + 1) * self.clients, self.samples)
            file.append((begin, end))
            if end - file[0][0] >= piece or end == self.samples:
                yield file
                file = []
            begin = end

    def _shuffled(self, begin: int, end: int) -> Array:
        numbers = np.arange(begin, end)
        return numbers[np.argsort(rng.key(rng.TWIN, self.seed, ORDER, numbers), kind="stable")]
