"""`fedsub vertical`: learning between parties that know different things about the same people."""

from __future__ import annotations

import typer

from fedsub.cli.vertical_attack import EPILOG, attack

ABOUT = "Parties with different features: what a curious one learns of labels."

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help=ABOUT)


@app.callback()
def vertical() -> None:
    """Parties with different features: what a curious one learns of labels."""


app.command(epilog=EPILOG)(attack)
