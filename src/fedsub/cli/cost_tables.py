"""What `fedsub costs` prints: averaging through a parameter server beside a ring; a model on several workers."""

from __future__ import annotations

from dataclasses import asdict

from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedsub.cli.show import View
from fedsub.errors import ConfigError
from fedsub.study.costs.collectives import Collective, parameter_server, ring_all_reduce
from fedsub.study.costs.flower import at_socket
from fedsub.study.costs.model_parallel import Split, data_parallel, pipeline, tensor_split
from fedsub.study.costs.submodels import sign_ratio
from fedsub.study.report.words import duration, size

HEADINGS = (
    "scheme", "sent by\na worker", "received by\na worker", "through\nthe server", "total", "latency\nsteps",
    "estimated\ntime",
)  # fmt: skip


def show(workers: int, parameters: int, width: int, bandwidth: float, latency: float, *, as_json: bool) -> None:
    schemes = [parameter_server(workers, parameters), ring_all_reduce(workers, parameters)]
    times = [scheme.seconds(bandwidth, latency, width) for scheme in schemes]
    view = View(as_json=as_json)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "scheme" else "right")
    for scheme, time in zip(schemes, times, strict=True):
        most = [size(float(part.max() * width)) for part in (scheme.sent, scheme.received)]
        sums = [size(float(count * width)) for count in (scheme.server, scheme.total)]
        table.add_row(scheme.name, *most, *sums, f"{scheme.steps:,}", duration(time))
    view.line(
        f"{workers:,} worker{'s' * (workers != 1)}, {parameters:,} parameters of {width} bytes; "
        f"links of {size(bandwidth)}/s, latency {latency:g} s"
    )
    view.console.print(table)
    view.line("Bytes of the worker with most. Time: latency · steps + the busiest link's bytes / bandwidth.")
    if parameters:
        view.line(f"Signs (SignSGD) instead of 32-bit values: × {sign_ratio(parameters):.4g}. More: docs/costs.md")
    view.finish({"schemes": [_plain(s, t, width) for s, t in zip(schemes, times, strict=True)]})


def show_socket(down: float, up: float, seconds: float, *, as_json: bool) -> None:
    made = at_socket(down, up, seconds=seconds)
    view = View(as_json=as_json)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("bytes of a round", "down", "up"):
        table.add_column(heading, justify="left" if heading == "bytes of a round" else "right")
    for name, part in (("fedsub's messages", made.payload), ("Flower's part", made.fixed), ("socket", made.total)):
        table.add_row(name, f"{part.down:,.0f}", f"{part.up:,.0f}")
    view.console.print(table)
    view.line(f"{made.requests} requests, and {made.looks} questions for work that find none, in {seconds:g} s.")
    view.finish(asdict(made) | {"total": asdict(made.total), "seconds": seconds})


def show_split(
    widths: list[int], batch: int, workers: int, micro_batches: int, width: int, bandwidth: float, latency: float, *,
    as_json: bool,
) -> None:  # fmt: skip
    schemes: list[Split] = [data_parallel(widths, workers)]
    left_out = []
    for make in (
        lambda: pipeline(widths, batch, workers, micro_batches),
        lambda: tensor_split(widths, batch, workers),
        lambda: tensor_split(widths, batch, workers, paired=True),
    ):
        try:
            schemes.append(make())
        except ConfigError as error:  # not every model can be cut in every way
            left_out.append(str(error))
    view = View(as_json=as_json)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in (
        "scheme",
        "held by\na worker",
        "sent by\na worker",
        "total",
        "latency\nsteps",
        "time of\nmessages",
        "waits",
    ):
        table.add_column(heading, justify="left" if heading == "scheme" else "right")
    for one in schemes:
        held, sent = (size(float(part.max() * width)) for part in (one.parameters, one.sent))
        time = duration(one.seconds(bandwidth, latency, width))
        waits = f"{one.idle:.1%}" if one.name == "pipeline" else "–"
        table.add_row(one.name, held, sent, size(float(one.total * width)), f"{one.steps:,}", time, waits)
    many = f"{workers:,} worker{'s' * (workers != 1)}"
    view.line(
        f"{len(widths) - 1} layers of {widths[0]:,} × {widths[0]:,}, batch {batch:,}, {micro_batches:,} micro-batches, "
        f"{many}; values of {width} bytes, links of {size(bandwidth)}/s, latency {latency:g} s"
    )
    view.console.print(table)
    for sentence in left_out:
        view.line(f"Left out: {sentence}")
    view.line("Of one training step, the worker with most. Time of messages: if no work hides them. Waits: the bubble.")
    view.line("More: docs/costs.md")
    view.finish({"schemes": [_plain_split(one, width, bandwidth, latency) for one in schemes], "left_out": left_out})


def _plain_split(one: Split, width: int, bandwidth: float, latency: float) -> dict[str, object]:
    return {
        "name": one.name,
        "workers": one.workers,
        "bytes_per_value": width,
        "most_parameters_at_a_worker": int(one.parameters.max()),
        "most_sent_by_a_worker": int(one.sent.max()),
        "total": one.total,
        "latency_steps": one.steps,
        "seconds": one.seconds(bandwidth, latency, width),
        "idle": one.idle,
    }


def _plain(scheme: Collective, seconds: float, width: int) -> dict[str, object]:
    return {
        "name": scheme.name,
        "workers": scheme.workers,
        "parameters": scheme.parameters,
        "bytes_per_parameter": width,
        "most_sent_by_a_worker": int(scheme.sent.max()),
        "most_received_by_a_worker": int(scheme.received.max()),
        "through_the_server": scheme.server,
        "total": scheme.total,
        "latency_steps": scheme.steps,
        "seconds": seconds,
    }
