"""`fedsub heat`: how many clients hold each row, per table and overall."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedsub.cli.options import DataFlags
from fedsub.cli.show import View
from fedsub.cli.what import experiment
from fedsub.errors import ConfigError

HEADINGS = (
    "table", "rows", "held by\nnobody", "held\nby one", "min", "median", "mean", "max",
    "disper-\nsion", "spar-\nsity", "burst",
)  # fmt: skip


def show(what: str, flags: DataFlags, out: Path | None) -> None:
    made = experiment(what, flags)
    view = View(as_json=flags.json)
    with view.busy("Reading"):
        from fedsub.data.heat import HeatSummary, plot, summarise

        clients = made.clients(labelled=False)
        cohort = made.cohort(len(clients)) or len(clients)
        report = summarise(clients, cohort)
        picture = out or Path(f"{made.name}-heat.png")
        try:
            picture.parent.mkdir(parents=True, exist_ok=True)
            plot(clients, picture)
        except OSError as error:
            raise ConfigError(
                f"Cannot write the picture {picture}: {error.strerror or error}; choose another --out."
            ) from error

    def cells(s: HeatSummary) -> list[str]:
        middle = [f"{s.min:,}", f"{s.median:,.0f}", f"{s.mean:,.1f}", f"{s.max:,}"]
        return [s.name, f"{s.rows:,}", f"{s.unheld:,}", f"{s.single:,}", *middle, f"{s.dispersion:,.4g}",
                f"{s.sparsity_held:.2g}", f"{s.burst:,.3g}"]  # fmt: skip

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), collapse_padding=True)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "table" else "right", overflow="fold")
    for summary in report.spaces:
        table.add_row(*cells(summary))
    if len(report.spaces) > 1:
        table.add_section()
        table.add_row(*cells(report.overall), style="bold")
    view.line(f"{made.name}: {report.clients:,} clients, {clients.samples:,} samples, {cohort:,} clients a round")
    view.console.print(table)
    view.line("Heat: how many clients hold a row. Dispersion: max/min. Sparsity: mean heat of held rows / clients.")
    view.line("Burst: clients / (min heat · clients a round), the factor on an update of the coldest row.")
    view.line(
        f"Hottest: {report.overall.hottest}. With dense layers the dispersion is {report.parameter_dispersion:,.4g}."
    )
    view.line(f"Picture: {picture}")
    view.finish(
        {"what": what, "picture": str(picture), "parameter_dispersion": report.parameter_dispersion, **asdict(report)}
    )
