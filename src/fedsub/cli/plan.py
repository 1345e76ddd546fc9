"""`fedsub plan`: its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsub.cli.commands import examples
from fedsub.cli.options import NOT_TUNED, Flags, takes
from fedsub.errors import ConfigError

POPULATION, CLUSTER = "Population", "Cluster"
# What changes neither bytes nor work of a round, or is what a plan chooses.
NOT_PLANNED = (
    *NOT_TUNED, "engine", "chunk", "workers", "compile", "device", "out", "resume", "quiet", "devices", "target",
    "every", "metric", "rank", "norms", "lost",
)  # fmt: skip


def register(app: typer.Typer) -> None:
    app.command(epilog=examples(
        "fedsub plan movielens-like --scale 0.1 -m fedsubavg --rounds 1000",
        "fedsub plan clicks.fedsub --population 100000000 --rows item=1000000000 --machines 8 --memory 64GB",
        "fedsub plan --calibrate constants.json",
        "fedsub plan study.toml -m fedsubavg --constants constants.json --price-hour 2.5 --price-gb 0.05",
    ))(plan)  # fmt: skip


@takes(Flags, without=NOT_PLANNED)
def plan(
    what: Annotated[
        str | None,
        typer.Argument(metavar="WHAT", help="As for fedsub run: some of the clients.", show_default=False),
    ] = None,
    method: Annotated[str | None, typer.Option("--method", "-m", help="A method, or a label of [methods].")] = None,
    population: Annotated[
        int | None, typer.Option(min=1, help="Clients like these. Default: these.", rich_help_panel=POPULATION)
    ] = None,
    rows: Annotated[
        list[str] | None,
        typer.Option(help="Rows of a table then. Repeatable.", metavar="TABLE=N", rich_help_panel=POPULATION),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Samples then. Default: as many a client as here.", rich_help_panel=POPULATION),
    ] = None,
    machines: Annotated[int, typer.Option(min=1, help="Machines, all alike.", rich_help_panel=CLUSTER)] = 1,
    cores: Annotated[
        int, typer.Option(min=0, help="Cores of each. Default: this computer's.", rich_help_panel=CLUSTER)
    ] = 0,
    memory: Annotated[
        str | None, typer.Option(help="Of each, as 64GB. Default: this computer's.", rich_help_panel=CLUSTER)
    ] = None,
    bandwidth: Annotated[
        str, typer.Option(help="Between two of them, as 10Gbit/s or 1.25GB/s.", rich_help_panel=CLUSTER)
    ] = "10Gbit/s",
    price_hour: Annotated[
        float, typer.Option(min=0, help="Of a machine, for the cost.", rich_help_panel=CLUSTER)
    ] = 0.0,
    price_gb: Annotated[
        float, typer.Option(min=0, help="Of a gigabyte to or from clients.", rich_help_panel=CLUSTER)
    ] = 0.0,
    constants: Annotated[
        Path | None,
        typer.Option(help="What --calibrate wrote. Default: fedsub's own.", metavar="FILE", rich_help_panel=CLUSTER),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            help="Instead: measure this machine's constants, about a minute, and write them to FILE.", metavar="FILE",
            rich_help_panel=CLUSTER,
        ),
    ] = None,
    *,
    flags: Flags,
) -> None:  # fmt: skip
    """What a run will need: memory, bytes on the wire, time a round, cost; and which engine, tables and workers to
    choose. Two rounds are played on the clients at hand and what they do is counted (docs/planning.md)."""
    from fedsub.cli import trust
    from fedsub.cli.own_data import sizes_of
    from fedsub.cli.show import View
    from fedsub.cli.what import experiment

    if (what is None) == (calibrate is None):
        raise ConfigError("Name what to plan (as for fedsub run), or --calibrate FILE to measure this machine.")
    view = View(as_json=flags.json)
    if what is None:
        assert calibrate is not None
        _calibrate(view, calibrate)
        return
    made = experiment(what, flags, None if method is None else [method], usual=True, alone=True)
    trust.check(made, view, trust=flags.trust, folder=made.base)
    if len(made.config.methods) != 1:
        raise ConfigError(f"Name the method to plan with --method, one of {', '.join(made.config.methods)}.")
    with view.busy("Counting"):
        from fedsub.objective.objective import of_seed
        from fedsub.study.planning import Cluster, Constants
        from fedsub.study.planning import plan as planned

        seed = made.config.train.seed_list[0]
        clients = made.cuts()(seed)["train"]
        (chosen,) = made.methods(len(clients)).values()
        found = planned(
            chosen, of_seed(made.objective(clients), seed), clients, rounds=made.config.train.rounds,
            population=population, rows=sizes_of(rows), samples=samples, seed=seed,
            cluster=Cluster(
                machines, cores, memory or 0, bandwidth, price_hour=price_hour, price_gb=price_gb
            ),
            constants=None if constants is None else Constants.open(constants),
        )  # fmt: skip
    view.line(str(found))
    view.finish(found.as_dict())


def _calibrate(view: object, path: Path) -> None:
    from fedsub.cli.show import View
    from fedsub.study.planning import calibrate

    assert isinstance(view, View)
    with view.busy("Measuring"):
        made, lines = calibrate(lambda what: view.note(what))
    made.save(path)
    for one in lines:
        ratio = one["predicted"] / one["measured"]
        view.line(
            f"{one['engine']:<8} {one['clients']:>5,.0f} clients {1e3 * one['measured']:>9.3g} ms measured, "
            f"{1e3 * one['predicted']:>9.3g} predicted ({ratio:.2f} x)"
        )
    view.line(f"Written to {path}. To plan with them: fedsub plan WHAT --constants {path}")
    view.finish({"constants": vars(made), "tasks": lines})
