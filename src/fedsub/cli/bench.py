"""`fedsub bench`."""

from __future__ import annotations

from typing import Annotated

import typer


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(help="Workloads; all of them if none is named.", show_default=False)
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds to time.")] = None,
    growth: Annotated[
        bool,
        typer.Option(
            "--growth/--no-growth", help="The cost of a round as population and table grow: minutes, and up to 12 GiB."
        ),
    ] = True,
    compiled: Annotated[
        bool, typer.Option("--compiled/--no-compiled", help="Also with torch.compile, whose warm-up is long.")
    ] = True,
    zoo: Annotated[
        bool,
        typer.Option(
            "--zoo",
            help="Instead: what every part, server, codec and sampler adds to FedSubAvg's round, on w1 and w3, and "
            "(unless --no-growth: up to 9 GiB) with a table of 10 million rows.",
        ),
    ] = False,
    mixture: Annotated[
        bool,
        typer.Option(
            "--mixture",
            help="Instead: an iteration of L2SGD+ over all 6,040 clients of movielens-like beside a step "
            "of centralised SGD.",
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")] = False,
) -> None:
    """Measure a round of every engine beside centralised SGD and a plain loop, in one interleaved run."""
    from fedsub.study.bench import main

    main(names or None, rounds=rounds, growth=growth, compiled=compiled, zoo=zoo, mixture=mixture, json=json)
