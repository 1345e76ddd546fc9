"""A node that stays: module and data in memory, and nothing is ever run that came over the line.

It keeps trying for as long as it is not told to stop: a SuperLink that is not there, that is restarted, or that refuses
a key for a minute after its node crashed, is asked again.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import threading
import time
import tomllib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsub.errors import ConfigError
from fedsub.flower.fleet import Fleet, Refused, RunEnded, Unreachable, check_version, private_key
from fedsub.flower.host import RESIDENT

log = logging.getLogger("fedsub")

WAIT = 5.0  # seconds until a SuperLink that refused or was not there is asked again


@dataclass(frozen=True)
class Installed:
    """The ClientApp that is installed on a node, and its configuration."""

    app: ClientApp
    config: Mapping[str, Any]

    @classmethod
    def read(cls, folder: str | os.PathLike[str], config: Mapping[str, Any] | None = None) -> Installed:
        """The app of a folder with a pyproject.toml; ``config`` stands above what is configured there."""
        path = Path(folder).expanduser().resolve() / "pyproject.toml"
        try:
            flower = tomllib.loads(path.read_text())["tool"]["flwr"]["app"]
            named = str(flower["components"]["clientapp"])
        except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as err:
            raise ConfigError(
                f'{path} does not name a ClientApp ([tool.flwr.app.components] clientapp = "package.client_app:app"): '
                f"{err!r}."
            ) from err
        module, _, name = named.partition(":")
        if str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
        try:
            app = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as err:
            raise ConfigError(f"The ClientApp {named!r} of {path} cannot be imported: {err}.") from err
        if not isinstance(app, ClientApp):
            raise ConfigError(f"{named!r} of {path} is a {type(app).__name__}, not a ClientApp.")
        return cls(app, {**_flat(flower.get("config", {})), **(config or {})})


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Flower's way with tables: {"a": {"b": 1}} is a.b."""
    out: dict[str, Any] = {}
    for name, value in values.items():
        out |= _flat(value, f"{above}{name}.") if isinstance(value, Mapping) else {f"{above}{name}": value}
    return out


def run(
    installed: Installed,
    *,
    superlink: str,
    key: str | os.PathLike[str],
    node_config: Mapping[str, Any],
    root_certificates: str | os.PathLike[str] | None = None,
    poll: float = 0.1,
    idle: float = 1.0,
    stop: threading.Event | None = None,
) -> None:
    """Answer messages until ``stop`` is set. ``poll`` and ``idle`` are the shortest and longest pause of `Looks`."""
    stop, known = stop or threading.Event(), private_key(key)
    authority = None if root_certificates is None else str(Path(root_certificates).expanduser())
    if authority is not None and not Path(authority).is_file():
        raise ConfigError(
            f"There is no certificate {authority}; give that of the authority that signed the SuperLink's."
        )
    said = ""
    while not stop.is_set():
        try:
            with Fleet(superlink, known, authority=authority, stop=stop) as fleet:
                log.info("node %d is online at %s", fleet.node, superlink)
                said = ""
                _answer(fleet, installed, {**node_config, RESIDENT: True}, poll, idle, stop)
        except (Refused, Unreachable) as err:
            if str(err) != said:
                log.warning("%s: %s; asked again every %g s", superlink, err, WAIT)
                said = str(err)
            stop.wait(WAIT)


class Looks:
    """When a node looks for its next message: every look costs the SuperLink a request, and those of all nodes add up.

    The first look is after half of the shortest of the last ``MEMORY`` waits (`found`), but after ``poll`` seconds at
    least and ``idle`` at most; each further one after 1.5 times as many (`missed`), up to ``idle``.
    """

    MEMORY = 4  # a round over a secure sum has short waits between its stages, and a long one

    def __init__(self, poll: float, idle: float):
        self.poll, self.idle, self.pause = poll, idle, poll
        self._waits: deque[float] = deque(maxlen=self.MEMORY)

    def found(self, waited: float) -> None:
        self._waits.append(waited)
        self.pause = min(self.idle, max(self.poll, min(self._waits) / 2))

    def missed(self) -> float:
        """Seconds until the next look."""
        now, self.pause = self.pause, min(self.idle, 1.5 * self.pause)
        return now


def _answer(
    fleet: Fleet, installed: Installed, node_config: dict[str, Any], poll: float, idle: float, stop: threading.Event
) -> None:
    looks, contexts, since = Looks(poll, idle), dict[int, Context](), time.monotonic()
    while not stop.is_set():
        try:
            message = fleet.receive()
        except (Refused, Unreachable):
            raise
        except Exception as err:  # of a run that has ended, or not what a message is: the node goes on
            log.warning("a message is dropped: %s: %s", type(err).__name__, err)
            stop.wait(looks.pause)
            continue
        if message is None:
            stop.wait(looks.missed())
            continue
        looks.found(time.monotonic() - since)
        run = message.metadata.run_id
        context = contexts.setdefault(run, Context(run, fleet.node, node_config, RecordDict(), dict(installed.config)))
        begun = time.monotonic()
        try:
            fleet.reply(_told(installed.app, message, context), time.monotonic() - begun)
        except RunEnded as err:
            log.info("an answer is dropped, its run has ended: %s", err)
        since = time.monotonic()
        stop.wait(looks.missed())


def _told(app: ClientApp, message: Message, context: Context) -> Message:
    """The app's answer; what it raises is answered, too, and the node goes on."""
    from flwr.app import Error

    try:
        return app(message, context)
    except Exception as err:
        log.exception("the app failed")
        return Message(Error(code=2, reason=f"{type(err).__name__}: {err}"), reply_to=message)


def until_told(installed: Installed, **options: Any) -> None:
    """`run`, until the process gets SIGTERM or SIGINT."""
    check_version()
    stop = threading.Event()

    def end(number: int, _: object) -> None:
        log.info("%s: the node goes offline", signal.Signals(number).name)
        stop.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        run(installed, stop=stop, **options)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
