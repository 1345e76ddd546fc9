"""`fedsub costs`: its arguments."""

from __future__ import annotations

from typing import Annotated

import typer

from fedsub.cli.commands import Json, examples


def register(app: typer.Typer) -> None:
    app.command(epilog=examples(
        "fedsub costs --workers 8 --parameters 1000000",
        "fedsub costs -k 100 -n 38840 --bandwidth 500e3 --latency 0.05",
        "fedsub costs -k 4 --layers 8 --width 1024 --micro-batches 8",
        "fedsub costs --flower 3200 3300 --seconds 10",
    ))(costs)  # fmt: skip


def costs(
    workers: Annotated[int, typer.Option("--workers", "-k", help="Workers that average one vector.")] = 8,
    parameters: Annotated[int, typer.Option("--parameters", "-n", help="Values of the vector.")] = 1_000_000,
    bytes_per_parameter: Annotated[int, typer.Option("--bytes", help="Bytes of one value.")] = 4,
    bandwidth: Annotated[float, typer.Option(help="Bytes per second of one link. Default: an assumed 10 MB/s.")] = 1e7,
    latency: Annotated[float, typer.Option(help="Seconds that a message is under way. Default: an assumed 50 ms.")] = (
        0.05
    ),
    layers: Annotated[
        int | None, typer.Option(min=1, help="Instead: so many layers on the workers, as a pipeline or each cut.")
    ] = None,
    width: Annotated[int, typer.Option(min=1, help="With --layers: inputs and outputs of each.")] = 1024,
    batch: Annotated[int, typer.Option(min=1, help="With --layers: samples of a training step.")] = 32,
    micro_batches: Annotated[int, typer.Option(min=1, help="With --layers: pieces of a batch in the pipeline.")] = 8,
    flower: Annotated[
        tuple[float, float] | None,
        typer.Option(help="Instead: what Flower adds to a round of so many bytes.", metavar="DOWN UP"),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0, help="With --flower: how long the round takes; a node asks for work meanwhile.")
    ] = 0.0,
    json: Json = False,
) -> None:
    """What averaging costs, through a parameter server or a ring; or a model on several workers (--layers); or what
    crosses a node's socket over Flower (--flower)."""
    from fedsub.cli.cost_tables import show, show_socket, show_split

    if flower is not None:
        show_socket(*flower, seconds, as_json=json)
    elif layers is None:
        show(workers, parameters, bytes_per_parameter, bandwidth, latency, as_json=json)
    else:
        shape = [width] * (layers + 1), batch, workers, micro_batches
        show_split(*shape, bytes_per_parameter, bandwidth, latency, as_json=json)
