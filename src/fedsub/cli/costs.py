"""`fedsub costs`: averaging through a parameter server beside a ring."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedsub.cli.show import View
from fedsub.study.costs.collectives import Collective, parameter_server, ring_all_reduce
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
