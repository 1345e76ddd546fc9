"""`Host`: where a `Node` lives between Flower's messages, whether the process stays or every message has its own."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsub.data.clients import Clients
from fedsub.errors import ConfigError, WireError
from fedsub.flower import parcel
from fedsub.flower.task import Config, Task, opened
from fedsub.node import Node
from fedsub.node.heat import adds_in_secret
from fedsub.round import wire
from fedsub.secure import Identity
from fedsub.secure.wire import MAGIC

log = logging.getLogger("fedsub")

SIMULATED = "FEDSUB_SIMULATED_NODES"
RESIDENT = "resident"  # in the configuration that a resident node gives its app: the process stays


class UnknownRun(WireError):
    """A letter of a run that this node has not joined: it has to say hello."""


class Host:
    """Answers letters with the node of their run; who was restarted goes on from its disk."""

    def __init__(self, task: Task, config: Config, node_config: Config):
        node_config = simulated(node_config)
        self.task, self.config, self.node_config = task, config, node_config
        self.number = number_of(node_config)
        self.folder = folder_of(node_config, self.number)
        self._own: tuple[Clients, Identity | None] | None = None
        self._node: Node | None = None

    def answer(self, about: str, data: bytes) -> bytes:
        if about == parcel.HELLO:
            return self._anew().hello()
        if about == parcel.WELCOME:
            node = self._node if self._node is not None and self._node.letters is None else self._anew()
            node.join(data)
            return b""
        if about == parcel.LETTERS:
            return parcel.fold([self._of(letter).answer(letter) for letter in parcel.unfold(data)])
        if about != parcel.LETTER:
            raise WireError(f"A message about {about!r} came, unknown to this fedsub; install the same version.")
        return self._of(data).answer(data)

    def _anew(self) -> Node:
        clients, identity = self._data()
        method = self.task.method(self.config)
        if adds_in_secret(method) and not self.node_config.get(RESIDENT):
            raise ConfigError(
                f"Client {self.number} runs {method.name} over a secure sum, whose keys live in a process that "
                "stays; a stock SuperNode starts one for every message. Start it with fedsub node run."
            )
        self._node = Node(clients, self.task.objective, method, self.number, self.folder, identity)
        return self._node

    def _data(self) -> tuple[Clients, Identity | None]:
        """This node's own, read once."""
        if self._own is None:
            found = self.task.data(self.node_config)
            identity = None if isinstance(found, Clients) else Identity.find(found)
            self._own = opened(found), identity
        return self._own

    def _of(self, data: bytes) -> Node:
        """The node that has joined the run of a letter; those of a secure sum belong to the one under way."""
        if data[: len(MAGIC)] == MAGIC and self._node is not None:
            return self._node
        run = wire.run_of(data)
        node = self._node
        if node is not None and node.letters is not None and node.letters.run == run:
            return node
        node = self._anew()
        if not node.rejoin(run):
            raise UnknownRun(f"Client {self.number} has not joined the run of this letter; it has to say hello first.")
        return node


def simulated(node_config: Config) -> Config:
    """In Flower's simulation a node knows its number alone; the rest is in the file that `fedsub deploy simulate` names
    in FEDSUB_SIMULATED_NODES, {number: configuration}."""
    known = os.environ.get(SIMULATED)
    if not known or "partition-id" not in node_config:
        return node_config
    try:
        own = json.loads(Path(known).read_text())[str(node_config["partition-id"])]
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise ConfigError(
            f"{SIMULATED} names {known}, which has no configuration of node {node_config['partition-id']} ({err!r})."
        ) from err
    return {**node_config, **own}


def number_of(node_config: Config) -> int:
    """Which client a node is."""
    for name in ("client", "partition-id"):  # Flower's simulation numbers its nodes by the second
        if name in node_config:
            try:
                number = int(node_config[name])
            except (TypeError, ValueError):
                number = -1
            if number < 0:
                raise ConfigError(
                    f"{name} of the node's configuration is {node_config[name]!r}; it is a whole number from 0."
                )
            return number
    raise ConfigError(
        f"The node's configuration does not say which client it is: --node-config 'client=3'. {_has(node_config)}"
    )


def folder_of(node_config: Config, number: int) -> Path:
    """Where a node keeps what it remembers."""
    given = node_config.get("state")
    if isinstance(given, str) and given:
        return Path(os.path.expanduser(given))
    if "partition-id" in node_config:  # a simulation: its nodes end with it
        return Path(tempfile.gettempdir()) / f"fedsub-simulation-{os.getuid()}" / f"client-{number:06d}"
    raise ConfigError(
        f'The node\'s configuration does not say where it may keep its memory: state="/var/lib/…". {_has(node_config)}'
    )


def _has(config: Mapping[str, Any]) -> str:
    return f"It has {', '.join(sorted(config))}." if config else "It is empty."
