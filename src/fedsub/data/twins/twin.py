"""`Twin`: a synthetic data set with the published shape of a real one, in memory or streamed to disk.

A twin makes a *plan* for a scale and a seed: all that is in proportion to clients or tables. A plan makes
any *block* of clients on its own, from counters. So ``make`` (all blocks, joined) and ``write`` (block by
block) hold the same samples, however the clients are cut.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from fedsub.checks import is_number, is_whole
from fedsub.data.clients import Array, Clients, Column, Space
from fedsub.data.renumber import assemble, reorder
from fedsub.data.store import whole_directory, write_json
from fedsub.data.stream import ClientsWriter
from fedsub.errors import DataError

FORMAT, ABOUT = "fedsub-twin", "twin.json"
BLOCK = 1 << 18  # samples made at a time
LARGEST = 100  # scale
TRAIN = 0.8
NOTHING_YET = np.empty(0, np.int64)


@dataclass(frozen=True)
class Table1:
    """A row of Table 1 of Ding et al. (NeurIPS 2022): what the twin has at scale 1."""

    clients: int
    samples: int
    dispersion: int


@dataclass(frozen=True)
class Block:
    """Some clients with all their samples; ids are rows of the full tables.

    The columns are ids, then the label, then plain values. ``probability`` is the planted truth.
    """

    sizes: Array
    columns: list[Column]
    probability: Array


class Plan(Protocol):
    """One twin at one scale and seed."""

    @property
    def sizes(self) -> Array: ...  # samples of every client

    @property
    def spaces(self) -> tuple[Space, ...]: ...  # size, columns and padding

    def block(self, begin: int, end: int) -> Block: ...


@dataclass(frozen=True)
class Twin:
    """A generator. ``holdout`` names the column that marks test samples; without one the split is random."""

    name: str
    summary: str
    table1: Table1
    plan: Callable[[float, int], Plan]
    holdout: str | None = None

    def make(self, *, scale: float = 1.0, seed: int = 0, block: int = BLOCK) -> Clients:
        """All samples in memory, train and test together."""
        plan = self._plan(scale, seed)
        return join(plan, block)

    def truth(self, *, scale: float = 1.0, seed: int = 0, block: int = BLOCK) -> Array:
        """The planted probability of label 1 of every sample of ``make``, in its order."""
        plan = self._plan(scale, seed)
        return np.concatenate([plan.block(*cut).probability for cut in cuts(plan.sizes, block)])

    def write(
        self,
        folder: str | os.PathLike[str],
        *,
        scale: float = 1.0,
        seed: int = 0,
        block: int = BLOCK,
        progress: Callable[[int, int], object] | None = None,
    ) -> dict[str, Any]:
        """Stream to the directories ``train`` and ``test`` in ``folder``, which appears whole or not at all.

        They are what ``make`` and ``split`` give: by the holdout column, which is then left out, or a random
        80 % (``split(0.8, seed=seed)``). Memory holds one block of about ``block`` samples. ``progress`` is
        called with the samples written and their number. Returns what ``twin.json`` says: sizes,
        fingerprints, and the cross-entropy and AUC of the planted truth, which no learner can expect to beat.
        """
        plan = self._plan(scale, seed)
        return write(
            plan, folder, self.name, {"scale": scale}, seed=seed, block=block, holdout=self.holdout, progress=progress
        )

    def _plan(self, scale: float, seed: int) -> Plan:
        check(self.name, scale, seed)
        return self.plan(scale, seed)


def write(
    plan: Plan,
    folder: str | os.PathLike[str],
    name: str,
    said: dict[str, Any],
    *,
    seed: int,
    block: int = BLOCK,
    holdout: str | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, Any]:
    """`Twin.write` for any plan; ``said`` is told of it in ``twin.json``."""
    total, done = int(plan.sizes.sum()), 0
    coin = np.random.default_rng(seed)
    with whole_directory(folder, (ABOUT, FORMAT)) as fresh:
        parts = {part: _Part(ClientsWriter(fresh / part, plan.spaces, "label")) for part in ("train", "test")}
        try:
            for begin, end in cuts(plan.sizes, block):
                made = plan.block(begin, end)
                test = _held_out(made, holdout, coin)
                ids = np.arange(begin, end)
                parts["train"].add(ids, made, ~test, holdout)
                parts["test"].add(ids, made, test, holdout)
                done += int(made.sizes.sum())
                if progress is not None:
                    progress(done, total)
            writers = [part.writer for part in parts.values()]
            if not all(writer.samples for writer in writers):
                raise DataError(f"{name} with {total:,} samples leaves train or test empty; make it larger.")
            # One width for both, that of all samples: lists of train and test are padded alike.
            both = zip(*(writer.columns.values() for writer in writers), strict=True)
            widths = {a.name: max(a.width, b.width) for a, b in both}
            about = {"format": FORMAT, "name": name, **said, "seed": seed, "clients": len(plan.sizes)}
            about |= {"samples": total} | {part: one.finish(widths) for part, one in parts.items()}
        finally:
            for part in parts.values():
                part.writer.discard()
        write_json(fresh / ABOUT, about)
    return about


def _held_out(made: Block, holdout: str | None, coin: np.random.Generator) -> Array:
    if holdout is None:
        return coin.random(int(made.sizes.sum())) >= TRAIN  # the draws of Clients.split, in the same order
    return next(c.values for c in made.columns if c.name == holdout).astype(bool)


class _Part:
    """Train or test: the writer, and how good the planted truth is on it."""

    def __init__(self, writer: ClientsWriter) -> None:
        self.writer, self.loss = writer, 0.0
        self.scores = np.zeros((2, 1 << 16), np.int64)  # histogram of the true probability, by label

    def add(self, ids: Array, made: Block, mask: Array, without: str | None) -> None:
        samples = np.flatnonzero(mask)
        owner = np.repeat(np.arange(len(ids)), made.sizes)[samples]
        sizes = np.bincount(owner, minlength=len(ids))
        some = sizes > 0
        columns = [reorder(c, samples) for c in made.columns if c.name != without]
        # A list column keeps the width of the whole block, whatever the part's own longest list is.
        self.writer.add(ids[some], np.concatenate([[0], np.cumsum(sizes[some])]), columns)
        label = next(c.values for c in columns if c.name == "label") > 0
        right = np.where(label, made.probability[samples], 1 - made.probability[samples])
        self.loss -= float(np.log(right).sum())
        bins = self.scores.shape[1]
        place = np.minimum((made.probability[samples] * bins).astype(np.int64), bins - 1)
        for kind in (0, 1):
            self.scores[kind] += np.bincount(place[label == kind], minlength=bins)

    def finish(self, widths: dict[str, int]) -> dict[str, Any]:
        mark = self.writer.finish(widths)
        negative, positive = self.scores
        below = np.cumsum(negative) - negative / 2  # ties count half
        pairs = float(negative.sum()) * float(positive.sum())
        return {
            "clients": self.writer.clients,
            "samples": self.writer.samples,
            "fingerprint": mark,
            "best": {
                "ce": self.loss / self.writer.samples,
                "auc": float(positive @ below) / pairs if pairs else None,
            },
        }


def join(plan: Plan, block: int = BLOCK) -> Clients:
    """All blocks of a plan as `Clients`."""
    made = [plan.block(*cut).columns for cut in cuts(plan.sizes, block)]
    columns = [_joined(list(parts)) for parts in zip(*made, strict=True)]
    offsets = np.concatenate([[0], np.cumsum(plan.sizes)])
    return assemble(np.arange(len(plan.sizes)), offsets, columns, plan.spaces, label="label")


def _joined(parts: list[Column]) -> Column:
    values, width = np.concatenate([p.values for p in parts]), max(p.width for p in parts)
    lengths = [np.diff(p.starts) for p in parts if p.starts is not None]
    starts = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]) if lengths else None
    return replace(parts[0], values=values, starts=starts, width=width)


def cuts(sizes: Array, limit: int) -> Iterator[tuple[int, int]]:
    """Blocks of whole clients with at most ``limit`` samples, or one client."""
    if not is_whole(limit) or limit < 1:
        raise DataError(f"block={limit!r} must be a number of samples, 1 or more.")
    ends = np.cumsum(sizes)
    begin, before = 0, 0
    while begin < len(sizes):
        end = max(int(np.searchsorted(ends, before + limit, side="right")), begin + 1)
        yield begin, end
        begin, before = end, int(ends[end - 1])


def check(name: str, scale: Any, seed: Any) -> None:
    if not (is_number(scale) and 0 < scale <= LARGEST):
        raise DataError(f"{name}: scale={scale!r} must be above 0 and at most {LARGEST}; 1 is the published size.")
    check_seed(name, seed)


def check_seed(name: str, seed: Any) -> None:
    if not is_whole(seed) or not 0 <= seed < 2**63:
        raise DataError(f"{name}: seed={seed!r} must be a whole number, 0 or more.")


def space(name: str, size: int, *columns: str, padding: bool = False) -> Space:
    """A space before anybody's rows are known."""
    return Space(name, size, columns or (name,), NOTHING_YET, NOTHING_YET, padding)


def label_column(label: Array) -> Column:
    return Column("label", label.astype(np.float32))
