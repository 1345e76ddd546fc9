"""Raw results for docs/results: what runs measured, and what searches tried, as two small Parquet files.

python experiments/raw_results.py NAME DIR [DIR …]

Each DIR is the --out of fedsub compare, run, tune, reproduce or vertical attack.

NAME-metrics.parquet has a line per run, round and number that was measured (evaluations during training, "round"
after which they were made; "final" ones are those of all samples of a split at the end; "bytes" are all of the run).
NAME-trials.parquet has a line per trial of a search. The complete settings of each DIR stand in the file's metadata
under "settings of DIR".
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from fedsub.running.run import finished_result

RESULTS = Path(__file__).parent.parent / "docs/results"
LARGEST = 200_000  # bytes of a file
ATTACK = "attack.json"
SCHEMA = {
    "of": pl.String, "run": pl.String, "seed": pl.Int32, "stage": pl.String, "round": pl.Int32,
    "metric": pl.String, "value": pl.Float64,
}  # fmt: skip


def attacked(folder: Path) -> Iterator[tuple[Any, ...]]:
    """The lines of attacks, if there were any: one per protection, seed and attack, and the task beside them."""
    if not (folder / ATTACK).exists():
        return
    found = json.loads((folder / ATTACK).read_text())
    for row in found["rows"]:
        who = (folder.name, row.pop("protection"), row.pop("seed"), "final", found["settings"]["passes"])
        yield from ((*who, found["metric"] if what == "task" else f"attack.{what}", auc) for what, auc in row.items())


def measured(folder: Path) -> Iterator[tuple[Any, ...]]:
    """The lines of all finished runs in a folder."""
    for path in sorted(file.parent for file in folder.rglob("result.json")):
        run = finished_result(path)
        who = (folder.name, path.name.partition("-seed")[0], run.seed)
        for line in run.history:
            for name, value in line.items():
                if "." in name and isinstance(value, float):
                    yield (*who, "curve", line["round"], name, value)
        last = run.history[-1]["round"]
        for split, found in run.final.items():
            several = [("", found), *((f"decile {d['group']}.", d) for d in found.get("deciles", []) if d["samples"])]
            several.append(("by_client.", found.get("by_client", {})))
            numbers = {
                f"{split}.{group}{name}": value
                for group, of_group in several
                for name, value in of_group.items()
                if isinstance(value, (int, float)) and name != "group"
            }
            yield from ((*who, "final", last, name, float(value)) for name, value in numbers.items())
        yield (*who, "final", last, "bytes", float(sum(line["down"] + line["up"] for line in run.history)))


def tried(folder: Path) -> pl.DataFrame:
    found = pl.read_csv(folder / "trials.csv", infer_schema_length=None)
    return found.select(pl.lit(folder.name).alias("of"), pl.all().exclude("note"))


def settings(folder: Path) -> str:
    """What a folder was made with, without the paths of the computer that made it."""
    if (attacks := folder / ATTACK).exists():
        return json.dumps(json.loads(attacks.read_text())["settings"])
    known = [p for p in (folder / "compare.json", folder / "tune.json") if p.exists()]
    if not known:  # of fedsub reproduce: a directory of runs
        configs = {p.parent.name.partition("-seed")[0]: json.loads(p.read_text()) for p in folder.rglob("config.json")}
        return json.dumps({"methods": {run: config["method"] for run, config in sorted(configs.items())}})
    made = json.loads(known[0].read_text())
    config = made.get("config", {})
    config.get("data", {}).pop("path", None)
    config.get("run", {}).pop("out", None)
    wanted = ("command", "config", "methods", "search", "grid", "rounds", "select")
    return json.dumps({k: v for k, v in made.items() if k in wanted})


def keep(name: str, folders: list[Path], to: Path = RESULTS) -> list[Path]:
    about = {f"settings of {folder.name}": settings(folder) for folder in folders}
    parts = {
        "metrics": pl.DataFrame(
            [line for f in folders for line in (*attacked(f), *measured(f))], schema=SCHEMA, orient="row"
        ),
        "trials": pl.concat(
            [tried(f) for f in folders if (f / "trials.csv").exists()] or [pl.DataFrame()], how="diagonal_relaxed"
        ),
    }
    to.mkdir(parents=True, exist_ok=True)
    written = []
    for kind, lines in parts.items():
        if not len(lines):
            continue
        path = to / f"{name}-{kind}.parquet"
        lines.write_parquet(path, compression="zstd", compression_level=19, metadata=about)
        if path.stat().st_size > LARGEST:
            sys.exit(f"{path} has {path.stat().st_size:,} bytes, more than the {LARGEST:,} that are kept here.")
        written.append(path)
    return written


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    for path in keep(sys.argv[1], [Path(folder) for folder in sys.argv[2:]]):
        print(f"{path}: {path.stat().st_size:,} bytes")
