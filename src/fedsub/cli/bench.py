"""`fedsub bench`: the arguments of the benchmarks."""

from __future__ import annotations

from typing import Annotated

import typer

from fedsub.cli.commands import Json, examples


def register(app: typer.Typer) -> None:
    app.command(epilog=examples(
        "fedsub bench", "fedsub bench --rounds 20 --json", "fedsub bench --gossip",
        "fedsub bench --secure --flower other/bin/python",
        "fedsub bench w2 w3-100 --workers",
        "fedsub bench --ingest --rows 20000000 --memory 2GB",
    ))(bench)  # fmt: skip


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
    gossip: Annotated[
        bool,
        typer.Option(
            "--gossip",
            help="Instead: a round of nodes without a server, in several ways, over all 6,040 clients of "
            "movielens-like beside one of FedAvg over all of them.",
        ),
    ] = False,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="Instead: a secure sum of 100 clients × 100,000 values; a client's CPU time beside its masks alone "
            "and beside bare ChaCha20.",
        ),
    ] = False,
    flower: Annotated[
        str | None,
        typer.Option(help="With --secure: a Python that has flwr 1.41, to time a client of its SecAgg+ in turn."),
    ] = None,
    ingest: Annotated[
        bool,
        typer.Option(
            "--ingest",
            help="Instead: Parquet files to saved clients in bounded memory, beside polars, which reads and sorts them "
            "in memory.",
        ),
    ] = False,
    workers: Annotated[
        bool,
        typer.Option(
            "--workers",
            help="Instead: rounds by the clock with one worker, two processes, and two workers of a Ray cluster here.",
        ),
    ] = False,
    rows: Annotated[int | None, typer.Option(min=1, help="With --ingest: rows. Default: 20 million.")] = None,
    memory: Annotated[str | None, typer.Option(help="With --ingest: memory at most. Default: 2GB.")] = None,
    json: Json = False,
) -> None:
    """Measure a round of every engine beside centralised SGD and a plain loop, in one interleaved run."""
    from fedsub.study.bench import main

    main(
        names or None,
        rounds=rounds,
        growth=growth,
        compiled=compiled,
        zoo=zoo,
        mixture=mixture,
        gossip=gossip,
        secure=secure,
        flower=flower,
        workers=workers,
        ingest=ingest,
        rows=rows,
        memory=memory,
        json=json,
    )
