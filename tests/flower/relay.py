"""`Relay`: stands before a SuperLink and counts what crosses one node's connections, under TLS."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Counted:
    """Bytes both ways, questions that were answered, and connections."""

    up: int = 0
    down: int = 0
    requests: int = 0
    connections: int = 0

    def __sub__(self, other: Counted) -> Counted:
        return Counted(
            self.up - other.up, self.down - other.down, self.requests - other.requests,
            self.connections - other.connections,
        )  # fmt: skip


class Relay:
    """Passes every byte on. In HTTP/1.1 a connection's sides take turns, so that a turn of the node is a request; its
    first is TLS's own, and the second begins with the end of the handshake."""

    def __init__(self, port: int):
        self.to, self.counted = port, Counted()
        self._lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self.listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                return
            self._add(connections=1, requests=-1)
            turn = threading.Event()  # whether it is the node's
            turn.set()
            threading.Thread(target=self._pass, args=(near, far, "up", turn), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, "down", turn), daemon=True).start()

    def _add(self, **more: int) -> None:
        with self._lock:
            now = self.counted
            self.counted = Counted(**{name: getattr(now, name) + more.get(name, 0) for name in vars(now)})

    def _pass(self, source: socket.socket, to: socket.socket, side: str, turn: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                begins = side == "up" and turn.is_set()
                turn.clear() if side == "up" else turn.set()
                self._add(**{side: len(data)}, requests=int(begins))
                to.sendall(data)
        for one in (source, to):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def after(log: Path, relays: Sequence[Relay], rounds: tuple[int, int]) -> tuple[list[Counted], float]:
    """What crossed each relay, and the seconds, from the end of one round to that of another."""
    seen: list[tuple[list[Counted], float]] = []
    until = time.monotonic() + 1800
    while len(seen) < 2:
        done = log.read_bytes().count(b"\n") if log.exists() else 0
        if done >= rounds[len(seen)]:
            seen.append(([relay.counted for relay in relays], time.monotonic()))
        assert time.monotonic() < until, f"{log} has {done} rounds"
        time.sleep(0.01)
    (first, begun), (last, ended) = seen
    return [now - then for now, then in zip(last, first, strict=True)], ended - begun
