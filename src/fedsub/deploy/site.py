"""The folder of a deployment: its settings (`deploy.toml`), and where everything of it lies.

    [run]    out = "runs/first"
    [server] port = 8000             names = ["localhost", "127.0.0.1"]
    [proxy]  listen = "127.0.0.1:8443"   body_mb = 16
    [nodes]  local = 5               kind = "resident"
    [page]   port = 8080

What is trained and how stands in the app's own pyproject.toml; here is only what runs where.
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from fedsub.errors import ConfigError
from fedsub.study.experiment.complaints import explain
from fedsub.study.experiment.config import Section, read_toml

SETTINGS = "deploy.toml"
NAME = re.compile(r"[a-z][a-z0-9-]{0,30}[a-z0-9]")
NODE = re.compile(r"(.*\D)?(\d+)")
Port = Annotated[int, Field(ge=1, le=65535)]


class Run(Section):
    """``out``: the run's directory at the server. ``tries``: submissions in a row without a new round before giving
    up."""

    out: str = "runs/first"
    tries: Annotated[int, Field(ge=1)] = 3


class Server(Section):
    """``names``: what nodes call the server; they stand in its certificate."""

    port: Port = 8000
    names: list[str] = Field(default=["localhost", "127.0.0.1"], min_length=1)


class Proxy(Section):
    """``listen``: where nodes connect. ``body_mb``: the largest request that is taken from them."""

    listen: str = "127.0.0.1:8443"
    body_mb: Annotated[float, Field(gt=0)] = 16.0
    command: str = "nginx"


class Nodes(Section):
    """``local``: nodes that run on this machine, 0 … local − 1; others are elsewhere."""

    local: Annotated[int, Field(ge=0)] = 0
    kind: Literal["resident", "stock"] = "resident"
    poll: Annotated[float, Field(gt=0)] = 0.2  # seconds between two questions for work
    port: Port = 9094  # of the first stock node; the others follow


class Page(Section):
    port: Port = 8080


class Settings(Section):
    run: Run = Run()
    server: Server = Server()
    proxy: Proxy = Proxy()
    nodes: Nodes = Nodes()
    page: Page = Page()


def address(text: str, where: str) -> tuple[str, int]:
    """Host and port of "127.0.0.1:8443" or "[::1]:8443"."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"{where} is {text!r}, expected HOST:PORT, such as 127.0.0.1:8443.")
    return host, int(port)


def loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class Site:
    """A deployment's folder. Paths are absolute."""

    folder: Path
    settings: Settings

    @classmethod
    def open(cls, folder: str | os.PathLike[str] = ".") -> Site:
        folder = Path(folder).resolve()
        path = folder / SETTINGS
        if not path.exists():
            raise ConfigError(
                f"{folder} has no {SETTINGS}, so it is no deployment; make one with: fedsub deploy new NAME"
            )
        try:
            made = cls(folder, Settings.model_validate(read_toml(path)))
        except ValidationError as error:
            raise ConfigError(explain(error, str(path), Settings)) from error
        _ = made.listens, made.app
        return made

    @cached_property
    def pyproject(self) -> dict[str, Any]:
        path = self.folder / "pyproject.toml"
        if not path.exists():
            raise ConfigError(f"{path} is missing; it names the app, see fedsub deploy new.")
        return read_toml(path)

    @cached_property
    def app(self) -> dict[str, Any]:
        """[tool.flwr.app] of the app: its components and settings."""
        found = self.pyproject.get("tool", {}).get("flwr", {}).get("app", {})
        for name in ("serverapp", "clientapp"):
            named = found.get("components", {}).get(name)
            if not isinstance(named, str) or not re.fullmatch(r"[\w.]+:\w+", named):
                raise ConfigError(
                    f"{self.folder / 'pyproject.toml'}: [tool.flwr.app.components] {name} is {named!r}, expected "
                    '"package.module:app".'
                )
        return found

    @property
    def name(self) -> str:
        return str(self.pyproject.get("project", {}).get("name", self.folder.name))

    @property
    def package(self) -> str:
        """The app's Python package."""
        return str(self.app["components"]["serverapp"]).partition(".")[0]

    @property
    def config(self) -> dict[str, Any]:
        """The app's settings as the server is given them; `folder` and `out` are those of this machine."""
        return dict(self.app.get("config", {})) | {"folder": str(self.folder), "out": str(self.out)}

    @property
    def listens(self) -> tuple[str, int]:
        """Where the proxy listens."""
        return address(self.settings.proxy.listen, "proxy.listen")

    @property
    def exposed(self) -> bool:
        """Whether the proxy can be reached from other machines."""
        return not loopback(self.listens[0])

    def at(self, path: str) -> Path:
        return self.folder / path

    @property
    def out(self) -> Path:
        return self.at(self.settings.run.out)

    @property
    def certificates(self) -> Path:
        return self.at("certs")

    @property
    def authority(self) -> Path:
        return self.certificates / "ca.crt"

    @property
    def keys(self) -> Path:
        """Public keys of all nodes that may join, NAME.pub; private ones only of those that run here."""
        return self.at("keys")

    @property
    def state(self) -> Path:
        """What the processes leave between starts: Flower's database, logs, process numbers."""
        return self.at("state")

    @property
    def registered(self) -> dict[str, Path]:
        """Public keys by the node's name."""
        return {path.stem: path for path in sorted(self.keys.glob("*.pub"))} if self.keys.is_dir() else {}

    def node(self, number: int) -> str:
        return f"node-{number}"


def toml_value(value: bool | int | float | str) -> str:
    """A value as TOML writes it, for flwr's --run-config and --node-config."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = value.replace("\\", "\\\\").replace('"', '\\"')
        if any(ord(letter) < 32 for letter in text):
            raise ConfigError(f"{value!r} holds control characters; write it without.")
        return f'"{text}"'
    return repr(value)


def toml_pairs(values: dict[str, Any]) -> str:
    """`a=1 b="x"`, as flwr takes it."""
    text = " ".join(f"{key}={toml_value(value)}" for key, value in values.items())
    tomllib.loads("\n".join(f"{key}={toml_value(value)}" for key, value in values.items()))
    return text
