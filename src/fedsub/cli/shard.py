"""`fedsub data shard`: saved data in parts, one for each machine of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsub.cli.commands import examples


def shard(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="Saved data.")],
    into: Annotated[int, typer.Option("--into", min=1, help="How many parts.")],
    to: Annotated[Path, typer.Option("--to", help="The folder of the parts: 0-of-N and so on.", metavar="DIR")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")] = False,
) -> None:
    """Cut saved data into parts for the machines of a Ray cluster, each with some of the clients (docs/cluster.md)."""
    from fedsub.cli.show import View
    from fedsub.data.clients import Clients
    from fedsub.data.shards import save_shards

    view = View(as_json=json)
    paths = save_shards(Clients.open(path), to, into)
    for part in paths:
        view.line(f"{part}: {Clients.open(part, verify=False)}")
    view.line("On the machine that has a part: FEDSUB_DATA=PART ray start --address=…")
    view.finish({"parts": paths})


EPILOG = examples("fedsub data shard clicks.fedsub --into 2 --to parts")
