"""What the tests of data larger than memory share: both ways to read the same files, and what comes of each."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl

from fedsub.data import Clients
from fedsub.data.ingest import from_file
from fedsub.data.large.budget import Budget
from fedsub.data.large.save import To
from fedsub.errors import DataError, DataNotice

TINY = Budget(piece=7, part=300, block=100, workers=2, text=50)


@dataclass(frozen=True)
class Outcome:
    """The files that were written, or the error; and what was told."""

    files: dict[str, bytes]
    manifest: dict[str, Any]
    error: str
    told: list[str]


def outcome(make: Callable[[Path], Clients], folder: Path) -> Outcome:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            clients = make(folder)
            error = ""
        except DataError as found:
            clients, error = None, f"{type(found).__name__}: {found}"
    told = [str(w.message) for w in caught if issubclass(w.category, DataNotice)]
    told = [text for text in told if not text.startswith("What was read is kept")]
    if clients is None:
        return Outcome({}, {}, error, told)
    if not folder.exists():
        clients.save(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    files = {path.name: path.read_bytes() for path in folder.glob("*.npy")}
    return Outcome(files, {k: v for k, v in manifest.items() if k not in ("made", "seal")}, "", told)


def to(folder: Path, budget: Budget = TINY, **options: Any) -> To:
    return replace(To.of(folder, "4GB", budget.workers, **options), budget=budget)


def same(source: Any, where: Path, client: str, budget: Budget = TINY, **options: Any) -> Outcome:
    """Read in memory and piece by piece; checks that all is the same, and returns it."""
    there = outcome(lambda folder: from_file(source, client, **options), where / "memory.fedsub")
    here = outcome(lambda folder: from_file(source, client, to=to(folder, budget), **options), where / "large.fedsub")
    assert here.error == there.error, (here.error, there.error)
    assert here.told == there.told
    assert here.manifest == there.manifest
    assert here.files == there.files
    return there


def written(frame: pl.DataFrame, folder: Path, cuts: list[int], group: int = 5) -> Path:
    """The frame as Parquet files, cut at some rows."""
    folder.mkdir(parents=True)
    edges = [0, *sorted(min(cut, len(frame)) for cut in cuts), len(frame)]
    for i, (begin, end) in enumerate(pairwise(edges)):
        frame[begin:end].write_parquet(folder / f"part-{i}.parquet", row_group_size=group)
    return folder
