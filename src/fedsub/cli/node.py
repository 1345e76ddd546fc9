"""`fedsub node`: a resident node of an app over Flower."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsub.cli.commands import examples
from fedsub.errors import ConfigError

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="A node of an app over Flower that stays in memory."
)


@app.callback()
def node() -> None:
    """A node of an app over Flower that stays in memory."""


@app.command(epilog=examples(
    "fedsub node run app --superlink fed.example.org:443 --root-certificates ca.crt --key node-3 "
    "--node-config 'client=3 state=\"/var/lib/fedsub\" data=\"/srv/data\"'",
))  # fmt: skip
def run(
    folder: Annotated[
        Path, typer.Argument(help="The installed app: a folder with its pyproject.toml.", show_default=False)
    ],
    superlink: Annotated[str, typer.Option(help="Where the server is.", metavar="HOST:PORT")],
    key: Annotated[Path, typer.Option(help="This node's private key, in OpenSSH's format.", metavar="FILE")],
    root_certificates: Annotated[
        Path | None, typer.Option(help="Who must have signed the server's certificate (PEM).", metavar="FILE")
    ] = None,
    node_config: Annotated[
        str, typer.Option(help='What this node is: client=3 state="/var/lib/fedsub", and what its data needs.')
    ] = "",
    config: Annotated[str, typer.Option(help='Above the app\'s own configuration, such as method="fedsubavg".')] = "",
    poll: Annotated[float, typer.Option(help="Seconds between two looks for work.", min=0.01)] = 0.1,
    idle: Annotated[float, typer.Option(help="The same, when nothing came for a while.", min=0.01)] = 1.0,
) -> None:
    """Answer the server's messages until SIGTERM, with the app that is installed here.

    Module and data stay in memory, so that a message costs no new process. Code that a server submits is never asked
    for and never run: the app and its configuration are those of FOLDER. The server is asked again while it is not
    there, or refuses this node's key for a minute after a crash.
    """
    try:
        from fedsub.flower.resident import Installed, until_told
    except ImportError as err:
        raise ConfigError(f"Nodes over Flower need flwr ({err}): pip install 'fedsub[flower]'.") from err
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    until_told(
        Installed.read(folder, settings("--config", config)), superlink=superlink, key=key,
        root_certificates=root_certificates, node_config=settings("--node-config", node_config), poll=poll, idle=idle,
    )  # fmt: skip


def settings(option: str, given: str) -> dict[str, Any]:
    """Flower's way to write them: a=1 b="two", as lines of TOML between spaces."""
    lines, quote, word = [], "", ""
    for letter in given:
        if letter in "\"'":
            quote = "" if quote == letter else quote or letter
        if letter.isspace() and not quote:
            lines, word = [*lines, word], ""
        else:
            word += letter
    try:
        return tomllib.loads("\n".join([*lines, word]))
    except tomllib.TOMLDecodeError as err:
        raise ConfigError(f'{option} is {given!r}, not a=1 b="two": {err}.') from err
