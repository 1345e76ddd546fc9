"""`Hadamard`: a few bytes per client instead of a bit for every row, for tables of millions.

A client draws one of its rows, or ``reports`` of them, from a list that is padded to k, so that its length tells
nothing, and says of each a single bit: the entry H[l, c] of a Hadamard matrix, at a place l that it draws and in the
column c of its row, turned around with probability 1/(e^ε + 1). Bits of other columns cancel, for their columns are
orthogonal, and a fast Walsh–Hadamard transform adds all of them up in O(K log K):

    n̂_m = (k/r) c Σ_reports b H[l, column(m)],     c = (e^ε + 1)/(e^ε − 1)
    Var n̂_m = N c² k²/r − n_m                       with a column for every row

(Acharya, Sun, Zhang, "Hadamard Response", AISTATS 2019; padding and sampling: Qin et al., CCS 2016.) Is K smaller than
the table, rows are hashed into columns, by D hash functions of which every report draws one: the Hadamard count mean
sketch (Apple, "Learning with Privacy at Scale", 2017). Rows that share a column are told apart in the mean only:

    n̂_m = (K' raw_m − T)/(K' − 1),    K' = K − 1,  T = Σ_m n_m
    Var adds (K'/(K' − 1))² Σ_{y≠m} n_y² / (D K')

Column 0 is that of the padding, which therefore shares it with no row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsub.checks import check_positive, check_whole
from fedsub.errors import MethodError
from fedsub.privacy.heat.holdings import Holdings
from fedsub.privacy.heat.mechanism import Estimate, LocalHeat
from fedsub.privacy.heat.response import Response
from fedsub.privacy.heat.words import PERMANENT, SAMPLE, Array, Words
from fedsub.privacy.spending import Spend
from fedsub.rng import below, key, mix, uniform

_HASHES = 0x5EED  # keys the hash functions, which are public


@dataclass(frozen=True)
class Hadamard(LocalHeat):
    """``reports`` rows of each client, of at most ``rows``; ε is for one report.

    All that a client says costs reports · ε, whatever it holds. With ``reports = rows`` it tells of every row, and one
    row in place of another (or of padding) costs ε. ``width``, a power of two, bounds the columns, and with it the
    memory of the server.
    """

    epsilon: float = 1.0
    reports: int = 1
    width: int | None = None
    hashes: int = 64

    def __post_init__(self) -> None:
        check_positive("epsilon of Hadamard", self.epsilon)
        if self.rows is None:
            raise MethodError(
                "Hadamard needs rows=k, to which every client's list of rows is padded; clients with more rows draw k "
                "of them. A usual choice is a high quantile of the numbers of rows of a client."
            )
        check_whole("rows of Hadamard", self.rows, 1)
        check_whole("reports of Hadamard", self.reports, 1)
        check_whole("hashes of Hadamard", self.hashes, 1)
        if self.reports > self.rows:
            raise MethodError(f"A list of rows={self.rows} has no reports={self.reports} different rows; take fewer.")
        if self.width is not None:
            check_whole("width of Hadamard", self.width, 4)
            if self.width & (self.width - 1):
                raise MethodError(f"width must be a power of two, got {self.width}.")

    @property
    def title(self) -> str:
        sketch = f", hashed to {self.width:,} columns" if self.width is not None else ""
        return f"Hadamard response, ε {self.epsilon:g} a report, {self.reports} of {self.rows} rows{sketch}"

    @property
    def epsilon_row(self) -> float:
        """A row in place of another, or of padding, is in one report at most."""
        return self.epsilon

    def epsilon_set(self, rows: int) -> float:
        return min(self.reports, rows) * self.epsilon if rows else 0.0

    @property
    def scale(self) -> float:
        """c = (e^ε + 1)/(e^ε − 1)."""
        return 1 / math.tanh(self.epsilon / 2)

    def variance(self, heat: Any, whole: float) -> Any:
        """Without that of shared columns, which depends on all rows."""
        assert self.rows is not None
        return whole * (self.scale * self.rows) ** 2 / self.reports - heat

    def columns(self, size: int) -> int:
        """K: with a column for every row, if the width allows."""
        needed = 1 << size.bit_length()  # above size: column 0 is the padding's
        return needed if self.width is None else min(needed, self.width)

    def hashed(self, size: int) -> bool:
        return self.columns(size) <= size

    def upload(self, rows: int) -> int:
        return self.reports * self._bytes(rows)

    def _bytes(self, size: int) -> int:
        """Of a report: a bit, a place, and which hash function."""
        hashes = self.hashes if self.hashed(size) else 1
        return -(-(self.columns(size).bit_length() + (hashes - 1).bit_length()) // 8)

    def spends(self, spaces: int = 1) -> tuple[Spend, ...]:
        """Once, for all questions: the answer stands."""
        return (Spend.pure(f"heat by {self.title}", self.reports * self.epsilon, times=spaces),)

    def column_of(self, rows: Array, which: Array, size: int) -> Array:
        """The column of rows under the hash functions ``which``."""
        if not self.hashed(size):
            return rows + 1
        return 1 + below(mix(key(_HASHES, which, rows)), self.columns(size) - 1)

    # Clients

    def effort(self, size: int) -> int:
        assert self.rows is not None
        return self.rows + 3 * self.reports

    def memo(self, held: Holdings, words: Words) -> Array:
        """Reports as whole numbers: (hash function · K + place) · 2 + bit, int64 [clients, reports]."""
        assert self.rows is not None
        width, many = self.columns(held.size), self.reports
        order = np.argsort(words(SAMPLE, 1, self.rows), axis=1, kind="stable")[:, :many]  # of the padded list
        padding = order >= held.space.counts[:, None]
        place = held.space.row_offsets[:-1, None] + np.where(padding, 0, order)
        rows = np.asarray(held.space.rows)
        chosen = np.where(padding, 0, rows[np.minimum(place, len(rows) - 1)] if len(rows) else 0).astype(np.int64)
        drawn = words(PERMANENT, 0, 3 * many).reshape(len(held), 3, many)
        hashes = self.hashes if self.hashed(held.size) else 1
        which, at = below(drawn[:, 0], hashes), below(drawn[:, 1], width)
        column = np.where(padding, 0, self.column_of(chosen, which, held.size))
        bit = (np.bitwise_count(column & at) & 1).astype(np.int64)  # 1 stands for −1
        turned = uniform(drawn[:, 2]) < Response.symmetric(self.epsilon).q
        return (which * width + at) * 2 + (bit ^ turned)

    def pack(self, answer: Array, size: int) -> bytes:
        raw = np.ascontiguousarray(answer.reshape(-1), "<i8").view(np.uint8).reshape(-1, 8)
        return raw[:, : self._bytes(size)].tobytes()

    def unpack(self, data: bytes, size: int) -> Array:
        if len(data) != self.upload(size):
            raise ValueError(f"{len(data)} bytes for {self.reports} reports")
        raw = np.zeros((self.reports, 8), np.uint8)
        raw[:, : self._bytes(size)] = np.frombuffer(data, np.uint8).reshape(self.reports, -1)
        codes = raw.view("<i8").astype(np.int64)[:, 0]
        hashes = self.hashes if self.hashed(size) else 1
        if (codes < 0).any() or (codes >= 2 * hashes * self.columns(size)).any():
            raise ValueError("a report that the mechanism does not make")
        return codes[None]

    # The server

    def tally(self, size: int) -> HadamardTally:
        hashes = self.hashes if self.hashed(size) else 1
        return HadamardTally(self, size, np.zeros((hashes, self.columns(size))))

    def _estimate(self, held: Holdings, seed: int, question: int) -> Estimate:
        return self.total(self.ask(held, seed, question), held.size)


@dataclass
class HadamardTally:
    """Σ w_i b by hash function and place."""

    of: Hadamard
    size: int
    table: Array
    whole: float = 0.0
    squares: float = 0.0

    def add(self, answers: Array, weights: Array) -> None:
        signs = 1 - 2 * (answers & 1)
        added = np.bincount((answers >> 1).ravel(), (weights[:, None] * signs).ravel(), self.table.size)
        self.table += added.reshape(self.table.shape)
        self.whole += float(weights.sum())
        self.squares += float((weights**2).sum())

    def estimate(self) -> Estimate:
        of, hashed = self.of, self.of.hashed(self.size)
        assert of.rows is not None
        spectrum = of.scale * of.rows / of.reports * transform(self.table)
        rows = np.arange(self.size)
        raw = np.zeros(self.size)
        for which, line in enumerate(spectrum):
            raw += line[of.column_of(rows, np.full(self.size, which), self.size)]
        variance = of.variance(0.0, self.squares) * np.ones(self.size)
        if not hashed:
            return Estimate(raw, np.sqrt(variance - np.clip(raw, 0, self.squares)), self.whole)
        columns = self.table.shape[1] - 1
        everything = self.whole * of.rows - float(spectrum[:, 0].sum())  # T: of all k, what was no padding
        heat = (columns * raw - everything) / (columns - 1)
        shared = max(float((heat**2 - variance).sum()), 0.0) / (len(self.table) * columns)
        return Estimate(heat, columns / (columns - 1) * np.sqrt(variance + shared), self.whole)


def transform(values: Array) -> Array:
    """The fast Walsh–Hadamard transform of every line: Σ_l values[l] (−1)^popcount(l & column)."""
    lines, width = values.shape
    out, half = values.astype(np.float64), 1
    while half < width:
        pair = out.reshape(lines, -1, 2, half)
        out = np.stack([pair[:, :, 0] + pair[:, :, 1], pair[:, :, 0] - pair[:, :, 1]], axis=2).reshape(lines, width)
        half *= 2
    return out
