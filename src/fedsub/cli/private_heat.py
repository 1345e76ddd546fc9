"""`fedsub heat --private`: estimated heat beside the exact one, and what it costs."""

from __future__ import annotations

import math
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedsub.cli.options import DataFlags
from fedsub.cli.show import View
from fedsub.cli.what import experiment
from fedsub.errors import ConfigError

HEADINGS = (
    "", "ε a row", "ε a client", "standard\ndeviation", "error\n(rms)", "resolvable\nheat", "held rows\nbelow",
    "clipped\nto 1", "clipped\nto all", "lost to\nrows=", "bytes a\nclient",
)  # fmt: skip


def show(what: str, flags: DataFlags, out: Path | None, private: list[str], weighted: bool, seed: int) -> None:
    made = experiment(what, flags)
    view = View(as_json=flags.json)
    with view.busy("Asking every client"):
        from fedsub.method.spelling import heat
        from fedsub.privacy.heat.measured import measure
        from fedsub.privacy.heat.picture import draw

        mechanisms = {text: heat(text) for text in private}
        if None in mechanisms.values():
            raise ConfigError("--private exact is no estimate; leave it out: the exact heat stands beside each.")
        clients = made.clients(labelled=False)
        found = {text: measure(one, clients, weighted=weighted, seed=seed) for text, one in mechanisms.items()}
        picture = out or Path(f"{made.name}-private-heat.png")
        try:
            picture.parent.mkdir(parents=True, exist_ok=True)
            draw(list(found.values()), picture)
        except OSError as error:
            raise ConfigError(
                f"Cannot write the picture {picture}: {error.strerror or error}; choose another --out."
            ) from error
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), collapse_padding=True)
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left", overflow="fold")
    for text, one in found.items():
        share = one.below / one.held if one.held else 0.0
        table.add_row(
            text, _epsilon(one.epsilon_row), _epsilon(one.epsilon_client), f"{one.deviation:,.4g}", f"{one.error:,.4g}",
            f"{one.resolvable:,.4g}", f"{share:.1%}", f"{one.low:,}", f"{one.high:,}", f"{one.lost:.1%}",
            f"{one.upload:,}",
        )  # fmt: skip
    rows, whole = len(next(iter(found.values())).exact), next(iter(found.values())).whole
    everybody = f"{whole:,.0f} samples of all clients" if weighted else f"{whole:,.0f} clients"
    view.line(f"{made.name}: {everybody}, {rows:,} rows in {len(clients.spaces)} tables")
    view.console.print(table)
    view.line("ε a row: one row of a client more or less, in one table. ε a client: all rows of the client with most.")
    view.line("Resolvable: heat as large as its standard deviation; colder rows drown in the noise.")
    view.line(
        'Clipped to 1: the coefficient of FedSubAvg becomes all clients (samples); max_coef = "resolvable" caps it.'
    )
    view.line(f"Picture: {picture}")
    view.finish({
        "what": what, "picture": str(picture), "weighted": weighted, "seed": seed,
        "private": {text: one.plain() for text, one in found.items()},
    })  # fmt: skip


def _epsilon(value: float) -> str:
    if math.isnan(value):
        return "by δ"
    if value >= 1000 and math.isfinite(value):
        return f"{value:,.0f}"
    return f"{value:.4g}" if math.isfinite(value) else "no bound"
