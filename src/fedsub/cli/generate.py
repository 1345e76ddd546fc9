"""`fedsub data generate`: synthetic data, streamed to disk: a twin as train and test, or clicks of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

_SIZES = {"clients": 10_000, "rows": 1_000_000, "samples": 500_000}


def generate(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="movielens-like, sentiment-like, amazon-like or alibaba-like; or zipf."),
    ],
    to: Annotated[Path, typer.Option("--to", help="The directory to write; it gets train and test.", metavar="DIR")],
    scale: Annotated[
        float | None, typer.Option(help="Clients and samples: 1 is the published size, at most 100.", metavar="S")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed, other data of the same shape.", metavar="N")] = 0,
    clients: Annotated[int | None, typer.Option(help="Of zipf. Default 10,000.", metavar="N")] = None,
    rows: Annotated[int | None, typer.Option(help="Of zipf: of its table. Default 1,000,000.", metavar="N")] = None,
    samples: Annotated[int | None, typer.Option(help="Of zipf. Default 500,000.", metavar="N")] = None,
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Of zipf: a log in Parquet files instead, for fedsub data import.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")] = False,
) -> None:
    """Generate data with the shape of a published data set, or of any size, and a known truth. Memory stays bounded."""
    from fedsub.cli.show import View
    from fedsub.data.twins import TWINS, Zipf
    from fedsub.errors import ConfigError, nearest

    if name not in TWINS and name != "zipf":
        raise ConfigError(f"There is no twin {name!r}; {nearest(name, [*TWINS, 'zipf'])}")
    sizes = {"clients": clients, "rows": rows, "samples": samples}
    given = [f"--{key}" for key, value in sizes.items() if value is not None] + ["--parquet"] * parquet
    if name != "zipf" and given:
        raise ConfigError(f"{' and '.join(given)} are of zipf; {name} has a shape of its own, which --scale enlarges.")
    if name == "zipf" and scale is not None:
        raise ConfigError("zipf has no published size that --scale could mean; give --clients, --rows and --samples.")
    view = View(as_json=json)
    with view.busy(f"Generating {name}") as status:

        def progress(done: int, total: int) -> None:
            if status is not None:
                status.update(f"Generating {name}: {done / total:.0%} of {total:,} samples …")

        about: dict[str, Any]
        if name == "zipf":
            data = Zipf(**{key: value or _SIZES[key] for key, value in sizes.items()}, seed=seed)
            about = data.parquet(to, progress=progress) if parquet else data.write(to, progress=progress)
        else:
            about = TWINS[name].write(to, scale=1.0 if scale is None else scale, seed=seed, progress=progress)
    view.line(f"{name}: {about['clients']:,} clients, {about['samples']:,} samples")
    for part in ("train", "test") if not parquet else ():
        found = about[part]
        best = f"the truth itself has cross-entropy {found['best']['ce']:.4f}, AUC {found['best']['auc']:.4f}"
        view.line(f"{to / part}: {found['clients']:,} clients, {found['samples']:,} samples; {best}")
    if parquet:
        view.line(f"{to}: {about['files']:,} Parquet files. To read them: fedsub data import {to} --client client")
        view.line(f"    --label label --table item --rows item={about['rows']} --to {to}.fedsub")
    view.finish(about)
