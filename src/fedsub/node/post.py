"""`Post`: letters to many clients at once, and what comes back until time is up; the seam to whatever carries bytes.

A server sends all that it has to say, gathers what comes in any order, and adds it in the order of the cohort, so that
who is fast changes no bit. `Channels` is a post over a `Channel` to each client; `fedsub.flower` has one over Flower.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Protocol

from fedsub.errors import WireError
from fedsub.round.channels import Channel

Letter = tuple[int, bytes]  # to which client


class Post(Protocol):
    def hellos(self) -> Mapping[int, bytes | None]:
        """The first messages of clients that are new, or began anew, since the last call; None: it said nothing."""
        ...

    def gone(self) -> Collection[int]:
        """Clients that cannot be reached any more; one that is back says hello again."""
        ...

    def tell(self, letters: Iterable[Letter]) -> None:
        """Send what is not answered."""
        ...

    def exchange(self, letters: Iterable[Letter]) -> list[bytes | None]:
        """Send all, and wait until all is answered or time is up; the answer to each letter, None if none came.

        Several letters may go to one client. A client that nobody has heard of answers nothing.
        """
        ...

    def news(self) -> Mapping[str, int]:
        """What happened on the way, counted since the last call, by name; such as letters answered too late."""
        ...


class Channels:
    """A post over one channel to each client, by number.

    ``deadline``: seconds that an exchange may take; None: each channel decides how long it waits (`Tcp.wait`). A client
    whose answer came too late gets nothing until that answer is here, and it is dropped. ``channels`` may be changed
    between rounds: a client behind a new channel says hello again.
    """

    def __init__(self, channels: Mapping[int, Channel], *, deadline: float | None = None):
        self.channels, self.deadline = channels, deadline
        self._known: dict[int, Channel] = {}
        self._readers: dict[int, _Reader] = {}
        self._news: dict[str, int] = {}

    def hellos(self) -> dict[int, bytes | None]:
        new = [client for client, channel in self.channels.items() if self._known.get(client) is not channel]
        for client in new:
            self._known[client] = self.channels[client]
            self._readers.pop(client, None)
        return dict(zip(new, self._receive(new), strict=True))

    def gone(self) -> tuple[int, ...]:
        return ()

    def tell(self, letters: Iterable[Letter]) -> None:
        for client, data in letters:
            self._send(client, data)

    def exchange(self, letters: Iterable[Letter]) -> list[bytes | None]:
        """Another letter for the same client waits for the answer to the one before: both sides could be writing."""
        waiting = list(letters)
        out: list[bytes | None] = [None] * len(waiting)
        places = list(range(len(waiting)))
        while places:
            first = {waiting[place][0]: place for place in reversed(places)}
            sent = [place for place in sorted(first.values()) if self._send(*waiting[place])]
            for place, answer in zip(sent, self._receive([waiting[place][0] for place in sent]), strict=True):
                out[place] = answer
            done = set(first.values())
            places = [place for place in places if place not in done]
        return out

    def news(self) -> dict[str, int]:
        found, self._news = self._news, {}
        return found

    def _send(self, client: int, data: bytes) -> bool:
        channel = self._known.get(client)
        if channel is None or (client in self._readers and not self._readers[client].idle):
            return False
        channel.send(data)
        return True

    def _receive(self, clients: list[int]) -> list[bytes | None]:
        """The next message of each of these clients."""
        if self.deadline is None:
            return [_next(self._known[client]) for client in clients]
        until = time.monotonic() + self.deadline
        readers = [self._readers.setdefault(client, _Reader(self._known[client])) for client in clients]
        for reader in readers:
            reader.ask()
        out: list[bytes | None] = []
        for reader in readers:
            found, came = reader.wait(until)
            self._news["late"] = self._news.get("late", 0) + (not came)
            out.append(found)
        return out


class _Reader:
    """A thread that waits for the messages of one channel; what comes after the deadline is thrown away."""

    def __init__(self, channel: Channel):
        self._channel = channel
        self._wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._found: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._owed = 0  # messages that were asked for and are not here
        threading.Thread(target=self._run, daemon=True).start()

    def ask(self) -> None:
        self._owed += 1
        self._wanted.put(True)

    def wait(self, until: float) -> tuple[bytes | None, bool]:
        """(the message, whether it came in time)."""
        with suppress(queue.Empty):
            found = self._found.get(timeout=max(0.0, until - time.monotonic()))
            self._owed -= 1
            return found, True
        return None, False

    @property
    def idle(self) -> bool:
        with suppress(queue.Empty):
            while self._owed:
                self._found.get_nowait()
                self._owed -= 1
        return not self._owed

    def _run(self) -> None:
        while self._wanted.get():
            self._found.put(_next(self._channel))


def plain(said: str) -> str:
    """What may hold a client's own words, for logs and files: one line of at most `WORDS` characters."""
    shown = "".join(c if c.isprintable() else " " for c in said[:WORDS])
    return shown + " …" * (len(said) > WORDS)


WORDS = 500  # characters


def _next(channel: Channel) -> bytes | None:
    with suppress(WireError):  # a peer that announced what nobody takes: its connection was ended
        return channel.receive()
    return None
