"""`fedsub bench --ingest`: Parquet files to saved `Clients` in bounded memory, beside polars, which reads the same
files and sorts them by client in memory.

Turns are taken, each in a process of its own, so that nobody inherits memory; what is timed begins after the imports.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
from rich.table import Table

from fedsub.errors import ConfigError

ROWS, FILES, TURNS = 20_000_000, 10, 3
MEMORY = "2GB"
LABELS = {
    "polars": "polars: read and sort, in memory",
    "fedsub": "fedsub: to saved Clients",
    "memory": "fedsub: in memory",
}

POLARS = """
columns = ["user", "item", "label", "time"]
table = pl.scan_parquet(folder + "/*.parquet").select(columns).collect()
table = table.sort("user", maintain_order=True)
"""
FEDSUB = """
from fedsub.data import Clients
said["fingerprint"] = Clients.from_file(
    folder, "user", ids=["item"], label="label", values=["time"], to=folder + "/../out.fedsub", memory=memory,
    workers=workers,
).fingerprint
"""
WHOLE = """
from fedsub.data import Clients
made = Clients.from_file(folder, "user", ids=["item"], label="label", values=["time"])
made.save(folder + "/../out.fedsub")
said["fingerprint"] = made.fingerprint
"""
CHILD = """
import json, os, sys, time
import polars as pl
{imports}
folder, memory, workers = sys.argv[1], sys.argv[2], int(sys.argv[3]) or None
said, wall, cpu = {{}}, time.perf_counter(), time.process_time()
{what}
said["wall"], said["cpu"] = time.perf_counter() - wall, time.process_time() - cpu
from fedsub.data.large.budget import most_resident
said["peak"] = most_resident()
print(json.dumps(said))
"""
WHAT = {"polars": POLARS, "fedsub": FEDSUB, "memory": WHOLE}


def run(
    *, rounds: int | None = None, rows: int = ROWS, memory: str = MEMORY, workers: int = 0, whole: bool = True,
    progress: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:  # fmt: skip
    """Seconds (wall and CPU) and peak memory of every turn. ``whole``: fedsub in memory, too, once.

    The command leaves that out of more than `ROWS` rows, which might not fit.
    """
    turns = rounds or TURNS
    out: dict[str, Any] = {
        "rows": rows,
        "files": FILES,
        "memory": memory,
        "polars": [],
        "fedsub": [],
        "memory_path": [],
    }
    with TemporaryDirectory() as place:
        folder = Path(place) / "log"
        folder.mkdir()
        progress(f"making {rows:,} rows")
        out["clients"] = generate(folder, rows)
        out["bytes"] = sum(path.stat().st_size for path in folder.iterdir())
        for turn in range(turns):
            for name in ("polars", "fedsub"):
                progress(f"turn {turn + 1} of {turns}: {name}")
                out[name].append(_child(name, folder, memory, workers))
        if whole:
            progress("in memory")
            out["memory_path"].append(_child("memory", folder, memory, workers))
        marks = {one["fingerprint"] for one in (*out["fedsub"], *out["memory_path"])}
        assert len(marks) == 1, "the same data were read differently"
    return out


def generate(folder: Path, rows: int, files: int = FILES, seed: int = 0) -> int:
    """Clicks in the order of time: clients at random, items by Zipf's law; how many clients there may be."""
    clients, items = max(rows // 40, 1), max(rows // 20, 1)
    for part in range(files):
        draw = np.random.default_rng([seed, part])
        count = rows * (part + 1) // files - rows * part // files
        pl.DataFrame(
            {
                "user": draw.integers(0, clients, count) * 7,
                "item": draw.zipf(1.2, count) % items,
                "label": draw.integers(0, 2, count).astype(np.int8),
                "time": 1_700_000_000 + rows * part // files + np.arange(count),
            }
        ).write_parquet(folder / f"part-{part:02}.parquet")
    return clients


def _child(name: str, folder: Path, memory: str, workers: int) -> dict[str, Any]:
    imports = "" if name == "polars" else "import fedsub.data.large.save"
    code = CHILD.format(imports=imports, what=WHAT[name])
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), memory, str(workers)], capture_output=True, text=True
    )  # fmt: skip
    if done.returncode:
        raise ConfigError(f"{LABELS[name]} failed: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def figures(found: dict[str, Any]) -> dict[str, float]:
    """Ratios of the fastest turns, and the largest peak."""
    best = {n: {k: min(one[k] for one in found[n]) for k in ("wall", "cpu")} for n in ("polars", "fedsub")}
    return {
        "x_wall": best["fedsub"]["wall"] / best["polars"]["wall"],
        "x_cpu": best["fedsub"]["cpu"] / best["polars"]["cpu"],
        "peak": max(one["peak"] for one in found["fedsub"]),
    }


def table(found: dict[str, Any]) -> Table:
    title = (
        f"Ingest: {found['rows']:,} rows of {found['clients']:,} clients in {found['files']} Parquet files of "
        f"{found['bytes'] / 1e6:,.0f} MB, memory at most {found['memory']}"
    )
    shown = Table(title=title, title_justify="left", caption_justify="left")
    for head in ("", "wall s", "CPU s", "x polars, wall", "x polars, CPU", "peak MB", "turns"):
        shown.add_column(head, justify="right" if head else "left")
    polars = {k: min(one[k] for one in found["polars"]) for k in ("wall", "cpu")}
    for name, label in LABELS.items():
        turns = found["memory_path" if name == "memory" else name]
        if not turns:
            continue
        wall, cpu = min(one["wall"] for one in turns), min(one["cpu"] for one in turns)
        peak = max(one["peak"] for one in turns) / 1e6
        ratios = (f"{wall / polars['wall']:.2f}", f"{cpu / polars['cpu']:.2f}")
        shown.add_row(label, f"{wall:.1f}", f"{cpu:.1f}", *ratios, f"{peak:,.0f}", str(len(turns)))
    shown.caption = "the fastest of the turns, which are taken in turn; fedsub writes to disk, polars does not"
    return shown
