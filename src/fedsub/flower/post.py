"""`GridPost`: the post of a server app, over Flower's Grid.

A node is known by what it is registered as (its name, or its public key), for its node id is another one after every
registration; one that is neither says its number in its hello. Messages are handed out once: to a node that is gone
while it owes an answer, its letter is sent again when it is back, until the deadline. All clocks are this machine's.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedsub.errors import ConfigError, WireError
from fedsub.flower import parcel
from fedsub.node.post import WORDS, Letter, plain
from fedsub.round import wire

log = logging.getLogger("fedsub")

AT_ONCE = 32 << 20  # bytes of messages that are handed to the SuperLink together
LOOK = 2.0  # seconds between two looks at who is there
AGAIN = 5.0  # seconds until a node whose hello could not be used is asked for another one
NOBODY = -2  # a node that is registered, and not among those that names lists
SENDINGS = 4  # how often a letter is sent within an exchange
_RAISED, _GONE = 2, 5  # Flower's error codes: the app raised, the node is not there


@dataclass
class Place:
    """Where a client is: its node, and since when."""

    node: int
    since: str
    name: str = ""
    online: bool = True


@dataclass
class Owed:
    """A letter without an answer yet, or several that travel together."""

    places: range  # among all letters
    client: int
    about: str
    data: bytes
    sent: str = ""  # the message's id; "" while the node is away
    place: Place | None = None
    sendings: int = 0
    away: float | None = None  # since when its node is gone


class GridPost:
    """``names`` says which client a registered name or public key is; a name that ends in a number says so itself."""

    def __init__(
        self, grid: Grid, *, names: Mapping[str, int] | None = None, deadline: float = 600.0, returns: float = 120.0,
        poll: float = 0.2, most: int = parcel.MOST, piece: int = parcel.PIECE,
    ):  # fmt: skip
        self.grid, self.names = grid, dict(names or {})
        self.deadline, self.returns, self.poll, self.most, self.piece = deadline, returns, poll, most, piece
        self.places: dict[int, Place] = {}  # of every client that is known
        self._greeted: dict[int, tuple[int, str]] = {}  # client or, of nodes without a name, -1 - node -> who was asked
        self._hellos: dict[str, tuple[int, int]] = {}  # message -> (client or -1, node)
        self._later: dict[int, float] = {}  # whose hello could not be used, and when it is asked for again
        self._doubles: set[int] = set()  # nodes that are registered as a client that another one is
        self._gone: set[int] = set()
        self._counts: dict[str, int] = {}
        self._looked = 0.0
        self.said: list[str] = []  # what nodes said in words, the last ones

    # Who is there

    def hellos(self) -> dict[int, bytes | None]:
        """Ask nodes that are new, or began anew, for their hello; returns those that came meanwhile."""
        nodes = self._look()
        for node in nodes:
            client = self._client_of(node)
            if client == NOBODY:
                continue
            known, now = -1 - node.node_id if client is None else client, (node.node_id, str(node.last_activated_at))
            if (until := self._later.get(known)) is not None and time.monotonic() > until:
                del self._later[known]
                self._greeted.pop(known, None)
            if node.status in ("online", "") and self._greeted.get(known) != now:
                if client is not None and self._taken(client, node, nodes):
                    continue
                self._greeted[known] = now
                self._later.pop(known, None)
                message = self._message(parcel.HELLO, b"", node.node_id, self.deadline)
                for sent in self._push([message]):
                    self._hellos[sent] = -1 if client is None else client, node.node_id
        found: dict[int, bytes | None] = {}
        for reply in self._pull(list(self._hellos)):
            client, node = self._hellos.pop(reply.metadata.reply_to_message_id)
            data = self._opened(reply, client)
            if data is None:
                self._later[-1 - node if client < 0 else client] = time.monotonic() + AGAIN
                continue
            if client < 0:
                client = self._number(data, node)
            if client >= 0:
                found[client] = data
                self._gone.discard(client)
                place = next((n for n in nodes if n.node_id == node), None)
                self.places[client] = Place(node, str(getattr(place, "last_activated_at", "")), self._name(place))
        return found

    def _number(self, data: bytes, node: int) -> int:
        """The client that a node without a registered name says it is; the first one who says so keeps it."""
        try:
            client = wire.read(data, wire.HELLO).client
        except WireError as err:
            self._count("refused", f"node {node}: {err}")
            return -1
        if client in self.places and self.places[client].node != node and self.places[client].online:
            self._count("refused", f"node {node} says that it is client {client}, which is another one")
            return -1
        return client

    def _taken(self, client: int, node: Any, nodes: list[Any]) -> bool:
        """Whether another node that is there is registered as the same client: the first one keeps it."""
        first = self._greeted.get(client, (node.node_id, ""))[0]
        if first == node.node_id or all(n.node_id != first or n.status not in ("online", "") for n in nodes):
            return False
        if node.node_id not in self._doubles:
            self._doubles.add(node.node_id)
            self._count("refused", f"node {node.node_id} is registered as client {client}, which is another one")
        return True

    def gone(self) -> set[int]:
        return set(self._gone)

    def news(self) -> dict[str, int]:
        found, self._counts = self._counts, {}
        return found

    def _look(self) -> list[Any]:
        """The nodes there are; of clients that are known, whether they are still there."""
        self._looked = time.monotonic()
        nodes = list(self.grid.get_nodes())
        there = {node.node_id: node for node in nodes if node.status in ("online", "")}
        for place in self.places.values():
            node = there.get(place.node)
            place.online = node is not None and str(node.last_activated_at) == place.since
        return nodes

    def _client_of(self, node: Any) -> int | None:
        """Which client a node is by its registration; None: it says so itself. NOBODY: it is of another run."""
        for known in (self._name(node), _key(node)):
            if known and known in self.names:
                return self.names[known]
        if self.names:
            return NOBODY if self._name(node) or _key(node) else None
        ending = re.search(r"(\d+)$", self._name(node))
        return int(ending[1]) if ending else None

    @staticmethod
    def _name(node: Any) -> str:
        return str(getattr(node, "name", "") or "")

    # Letters

    def tell(self, letters: Iterable[Letter]) -> None:
        """Wait until they were read: what is sent next may depend on it."""
        self._through(letters, parcel.WELCOME)

    def exchange(self, letters: Iterable[Letter]) -> list[bytes | None]:
        """Letters to one client that follow on one another travel as one message, and so do their answers."""
        return self._through(letters, parcel.LETTER)

    def _through(self, letters: Iterable[Letter], about: str) -> list[bytes | None]:
        until = time.monotonic() + self.deadline
        owed: list[Owed] = []
        waiting: list[Owed] = []
        count = size = 0
        for client, some in groupby(letters, key=itemgetter(0)):
            folded = [data for _, data in some]
            places = range(count, count := count + len(folded))
            one = len(folded) == 1
            owed.append(
                Owed(places, client, about if one else parcel.LETTERS, folded[0] if one else parcel.fold(folded))
            )
            waiting.append(owed[-1])
            size += len(owed[-1].data)
            if size >= AT_ONCE:
                self._send(waiting, until)
                waiting, size = [], 0
        self._send(waiting, until)
        found: list[bytes | None] = [None] * count
        while owed and time.monotonic() < until:
            by_message = {one.sent: one for one in owed if one.sent}
            done: set[int] = set()  # by first place
            for reply in self._pull(list(by_message)):
                one = by_message[reply.metadata.reply_to_message_id]
                if not self._again(one, reply):
                    found[one.places.start : one.places.stop] = self._answers(one, reply)
                    done.add(one.places.start)
            if time.monotonic() - self._looked > LOOK and len(done) < len(owed):
                self._look_after(owed, until, done)
            owed = [one for one in owed if one.places.start not in done]
            if owed:
                time.sleep(self.poll)
        if late := sum(len(one.places) for one in owed):
            self._count("late", f"{late} letters were not answered in {self.deadline:g} s", late)
        return found

    def _answers(self, one: Owed, reply: Message) -> list[bytes | None]:
        """The answer to each of the letters that travelled together."""
        data, count = self._opened(reply, one.client), len(one.places)
        if data is None or one.about != parcel.LETTERS:
            return [data] * count
        try:
            found = parcel.unfold(data)
            if len(found) != count:
                raise WireError(f"{count} letters that were sent together came back as {len(found)}.")
        except WireError as err:
            self._count("refused", f"client {one.client}: {err}")
            return [None] * count
        return [*found]

    def _send(self, letters: list[Owed], until: float) -> None:
        """Hand letters to the SuperLink; of clients whose node is away, later."""
        messages = []
        for one in letters:
            place = self.places.get(one.client)
            if place is None or not place.online:
                one.sent, one.away = "", one.away or time.monotonic()
                continue
            left = max(until - time.monotonic(), 1.0)
            messages.append((one, self._message(one.about, one.data, place.node, left)))
            one.place, one.away, one.sendings = place, None, one.sendings + 1
        pushed = set(self._push([message for _, message in messages]))
        for one, message in messages:
            one.sent = message.metadata.message_id if message.metadata.message_id in pushed else ""
            if not one.sent:  # the SuperLink refused it: the node is not there any more
                one.away = time.monotonic()

    def _again(self, one: Owed, reply: Message) -> bool:
        """Whether what came is that Flower could not reach the node: then the letter is sent again."""
        if not reply.has_error() or reply.error.code == _RAISED or one.sendings >= SENDINGS:
            return False
        log.info("client %s: %s; its letter is sent again", one.client, reply.error.reason)
        one.sent, one.away = "", one.away or time.monotonic()
        if (place := self.places.get(one.client)) is not None:
            place.online = False  # until somebody looks again
        return True

    def _look_after(self, owed: list[Owed], until: float, done: set[int]) -> None:
        """Send letters again to nodes that are back, and give up on those that are not for too long."""
        nodes = {self._client_of(node): node for node in self._look() if node.status in ("online", "")}
        back = []
        for one in owed:
            place = self.places.get(one.client)
            if one.places.start in done or place is None:
                done.add(one.places.start)
                continue
            if not place.online:
                node = nodes.get(one.client)
                if node is not None:  # back, or begun anew while it owed an answer
                    place.node, place.since, place.online = node.node_id, str(node.last_activated_at), True
                    self._greeted[one.client] = place.node, place.since
                    self._count("sent again")
                    back.append(one)
                    continue
                one.away = one.away or time.monotonic()
                if time.monotonic() - one.away > self.returns:
                    self._count("gone", f"client {one.client} is gone for {self.returns:g} s")
                    self._gone.add(one.client)
                    done.add(one.places.start)
            elif not one.sent:
                back.append(one)
        self._send(back, until)

    def _opened(self, reply: Message, client: int) -> bytes | None:
        if reply.has_error():
            self._count("failed", f"client {client}: {reply.error.reason}")
            return None
        try:
            about, data = parcel.unpack(reply.content, self.most)
        except parcel.TooLarge as err:
            self._count("too_large", f"client {client}: {err}")
            return None
        except WireError as err:
            self._count("refused", f"client {client}: {err}")
            return None
        if about in (parcel.REFUSED, parcel.UNKNOWN):
            self._count("refused", f"client {client} says: {data[: 4 * WORDS].decode(errors='replace')}")
            if about == parcel.UNKNOWN:
                place = self.places.get(client)  # it is asked for its hello once more
                for known in (client, *(() if place is None else (-1 - place.node,))):
                    self._greeted.pop(known, None)
            return None
        return data

    def _count(self, what: str, said: str = "", number: int = 1) -> None:
        self._counts[what] = self._counts.get(what, 0) + number
        if said:
            log.warning("%s", said := plain(said))
            self.said = [*self.said[-49:], said]

    # Flower

    def _message(self, about: str, data: bytes, node: int, seconds: float) -> Message:
        return Message(parcel.pack(about, data, self.piece), node, parcel.TYPE, ttl=seconds)

    def _push(self, messages: list[Message]) -> list[str]:
        return [sent for sent in self.grid.push_messages(messages) if sent] if messages else []

    def _pull(self, messages: list[str]) -> list[Message]:
        return list(self.grid.pull_messages(messages)) if messages else []


def read_names(path: Path) -> dict[str, int]:
    """{registered name or public key: client} of a JSON file."""
    try:
        found = json.loads(path.read_text())
        if not isinstance(found, dict) or not all(type(n) is int and n >= 0 for n in found.values()):
            raise ValueError("it is no object {name: number}")
        found = {_without_comment(name): number for name, number in found.items()}
        if len(set(found.values())) < len(found):
            raise ValueError("two names have one number")
    except (OSError, ValueError) as err:
        raise ConfigError(f"names: {path} does not say which client each registered name is ({err}).") from err
    return found


def _without_comment(name: str) -> str:
    """A public key as `_key` has it; names are left as they are."""
    words = name.split()
    return " ".join(words[:2]) if len(words) > 2 and words[0].startswith(("ssh-", "ecdsa-")) else name


def _key(node: Any) -> str:
    """A node's public key as `ssh-keygen` writes it, without the comment."""
    key = getattr(node, "public_key", b"")
    if not key:
        return ""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    read = serialization.load_pem_public_key if key.startswith(b"-----") else serialization.load_ssh_public_key
    try:
        known = read(key)
    except (ValueError, UnsupportedAlgorithm):  # of Flower's simulation: any bytes
        return ""
    return known.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
