"""`fedsub data generate`: a synthetic twin, streamed to disk as train and test."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def generate(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="movielens-like, sentiment-like, amazon-like or alibaba-like."),
    ],
    to: Annotated[Path, typer.Option("--to", help="The directory to write; it gets train and test.", metavar="DIR")],
    scale: Annotated[
        float, typer.Option(help="Clients and samples: 1 is the published size, at most 100.", metavar="S")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Another seed, other data of the same shape.", metavar="N")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")] = False,
) -> None:
    """Generate data with the shape of a published data set and a known truth. Memory stays bounded at any scale."""
    from fedsub.cli.show import View
    from fedsub.data.twins import TWINS
    from fedsub.errors import ConfigError, nearest

    if name not in TWINS:
        raise ConfigError(f"There is no twin {name!r}; {nearest(name, TWINS)}")
    view = View(as_json=json)
    with view.busy(f"Generating {name}") as status:

        def progress(done: int, total: int) -> None:
            if status is not None:
                status.update(f"Generating {name}: {done / total:.0%} of {total:,} samples …")

        about = TWINS[name].write(to, scale=scale, seed=seed, progress=progress)
    view.line(f"{name}: {about['clients']:,} clients, {about['samples']:,} samples")
    for part in ("train", "test"):
        found = about[part]
        best = f"the truth itself has cross-entropy {found['best']['ce']:.4f}, AUC {found['best']['auc']:.4f}"
        view.line(f"{to / part}: {found['clients']:,} clients, {found['samples']:,} samples; {best}")
    view.finish(about)
