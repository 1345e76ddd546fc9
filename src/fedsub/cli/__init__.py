"""The command line: `fedsub run`, `compare`, `tune`, `report`, `predict`, `recommend`, `export`, `heat`, `data` …

Nothing here imports torch until a command needs it, so that help comes at once.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedsub.cli import bench, commands, costs, data, deploy, mixture, node, plan, privacy, report, serving, vertical
from fedsub.cli.show import data_notices, error
from fedsub.errors import FedsubError


class Group(TyperGroup):
    """Errors made on purpose are a message and exit code 2; a traceback is for those who ask."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with data_notices():
                return super().invoke(ctx)
        except FedsubError as problem:
            if ctx.params.get("traceback") or os.environ.get("FEDSUB_TRACEBACK", "") not in ("", "0"):
                raise
            error(str(problem))
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            error("stopped.")
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=Group,
    name="fedsub",
    help="Federated learning of models with large sparse tables, by submodels.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from fedsub import __version__

        typer.echo(f"fedsub {__version__}")
        raise typer.Exit


@app.callback(
    epilog="Start with: `fedsub compare movielens-like --scale 0.1 --rounds 50`. "
    "Every command has its own --help with examples."
)
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where an error comes from (also FEDSUB_TRACEBACK=1).")
    ] = False,
) -> None:
    """Federated learning of models with large sparse tables, by submodels."""


commands.register(app)
report.register(app)
bench.register(app)
costs.register(app)
plan.register(app)
serving.register(app)
app.add_typer(data.app, name="data")
app.add_typer(deploy.app, name="deploy")
app.add_typer(mixture.app, name="mixture")
app.add_typer(node.app, name="node")
app.add_typer(privacy.app, name="privacy")
app.add_typer(vertical.app, name="vertical")
