"""`Channel`: bytes to one peer and back; and the channel over TCP, with TLS if it is asked for.

A frame is the length of a message and the message:

    length u64, little-endian | that many bytes

A frame of length 0 says that no answer comes: its reader does not have to wait until time is up. No length is believed:
one above ``most`` ends the connection, and memory is taken as bytes arrive, not as they are announced. A peer that is
gone, ends in the middle of a frame or is silent for too long gives None, and `Tcp.closed` says why; a connection that
was given up is never read again, so that no late message is taken for another. Frames say nothing of who writes them:
that is what certificates are for (`server_tls`, `client_tls`).
"""

from __future__ import annotations

import math
import os
import selectors
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, Self

from fedsub.errors import WireError

MOST = 1 << 30  # bytes of a message, unless told otherwise
TIMEOUT = 60.0  # seconds of silence in the middle of a message, and until a connection is there
_LENGTH = struct.Struct("<Q")
_PIECE = 1 << 20


class Channel(Protocol):
    """Bytes to one peer and back; whole messages, in order."""

    def send(self, data: bytes) -> None:
        """To a peer that is gone: nothing happens, and `receive` tells."""
        ...

    def receive(self) -> bytes | None:
        """The next message; None: the peer does not answer."""
        ...


class _OverError(Exception):
    """A connection that cannot go on; its text is kept in `Tcp.closed`."""


class Tcp:
    """A channel over a connected socket. Sending and receiving take turns; any thread may `close` it.

    ``wait``: how many seconds `receive` waits for a message to begin; None: as long as the connection lasts.
    """

    def __init__(
        self, connection: socket.socket, *, most: int = MOST, timeout: float = TIMEOUT, wait: float | None = None
    ):  # fmt: skip
        self._socket, self.most, self.timeout, self.wait = connection, most, timeout, wait
        self.closed = ""  # why nothing can be sent or received any more
        self._turn = threading.RLock()
        self._greeted = not isinstance(connection, ssl.SSLSocket)
        connection.settimeout(timeout)
        _keep_alive(connection)

    def send(self, data: bytes) -> None:
        if len(data) > self.most:
            raise WireError(f"A message has {len(data):,} bytes, and this channel carries up to {self.most:,}.")
        self._take_turn(lambda: self._write(data))

    def receive(self) -> bytes | None:
        return self._take_turn(self._message) or None

    def greet(self) -> None:
        """Agree on TLS now; else the first message does, so that no peer holds up who accepts others."""
        self._take_turn(lambda: None)

    def _take_turn(self, work: Callable[[], bytes | None]) -> bytes | None:
        with self._turn:
            try:
                if not self.closed:
                    self._greet()
                    return work()
            except TimeoutError:
                self.close(f"was silent for {self.timeout:g} s in the middle of a message")
            except (_OverError, OSError) as err:
                self.close(str(err) if isinstance(err, _OverError) else f"is gone: {err}")
            finally:
                if self.closed:
                    self._socket.close()
        return None

    def _write(self, data: bytes) -> None:
        self._socket.sendall(_LENGTH.pack(len(data)))
        self._socket.sendall(data)

    def _message(self) -> bytes:
        (size,) = _LENGTH.unpack(self._fill(self._first(), _LENGTH.size))
        if size > self.most:
            self.close(f"announced a message of {size:,} bytes")
            raise WireError(
                f"A peer announced a message of {size:,} bytes, and this channel takes up to {self.most:,}: the "
                "connection was ended. Raise `most` on this side if such messages are meant."
            )
        return self._fill(b"", size)

    def _first(self) -> bytes:
        """What comes first of the next frame. TLS has frames of its own: what arrives need not be for us."""
        until = math.inf if self.wait is None else time.monotonic() + self.wait
        while self._arrives(until - time.monotonic()):
            try:
                first = self._socket.recv(_LENGTH.size)
            except TimeoutError:
                continue
            if not first:
                raise _OverError("ended the connection")
            return first
        raise _OverError(f"sent nothing for {self.wait:g} s")

    def _arrives(self, seconds: float) -> bool:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            return bool(selector.select(None if seconds == math.inf else max(seconds, 0)))

    def _fill(self, first: bytes, size: int) -> bytes:
        """Exactly that many bytes, of which some are here."""
        found = bytearray(first)
        while len(found) < size:
            piece = self._socket.recv(min(size - len(found), _PIECE))
            if not piece:
                raise _OverError(f"ended the connection after {len(found):,} of {size:,} bytes")
            found += piece
        return bytes(found)

    def _greet(self) -> None:
        if self._greeted:
            return
        assert isinstance(self._socket, ssl.SSLSocket)
        try:
            self._socket.do_handshake()
        except ssl.SSLError as err:
            self.close(f"TLS was not agreed on: {err}")
            raise WireError(
                f"TLS was not agreed on ({err}); see that both sides use it, that the certificate is signed by the "
                "authority that the other side was given, and that it names the host."
            ) from err
        self._greeted = True

    @property
    def name(self) -> str:
        """Who the peer's certificate says it is (its common name); empty where none was asked for."""
        self.greet()
        if not isinstance(self._socket, ssl.SSLSocket) or self.closed:
            return ""
        told: Any = (self._socket.getpeercert() or {}).get("subject", ())
        return next((value for entry in told for key, value in entry if key == "commonName"), "")

    def close(self, why: str = "was closed here") -> None:
        if self.closed:
            return
        self.closed = why
        with suppress(OSError):  # the peer was faster
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # wakes a thread that reads, and it closes
        if self._turn.acquire(blocking=False):
            self._socket.close()
            self._turn.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _keep_alive(connection: socket.socket) -> None:
    """A peer whose machine is gone without a word is noticed after two minutes."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):  # Linux and macOS have not the same ones
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class Listener:
    """Waits for peers at an address; port 0 takes a free one, which `port` then tells."""

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, *, tls: ssl.SSLContext | None = None, most: int = MOST,
        timeout: float = TIMEOUT, wait: float | None = None,
    ):  # fmt: skip
        self.tls, self.most, self.timeout, self.wait = tls, most, timeout, wait
        try:
            self._socket = socket.create_server((host, port), backlog=512)
        except (OSError, OverflowError) as err:
            raise WireError(
                f"Cannot wait for peers at {host}:{port}: {err}. Take a free port of this machine."
            ) from err
        self.port: int = self._socket.getsockname()[1]

    def accept(self, seconds: float | None = None) -> Tcp | None:
        """The next peer; None if none came within so many seconds, or this was closed."""
        while True:
            try:
                self._socket.settimeout(seconds)
                connection, _ = self._socket.accept()
            except OSError:
                return None
            try:
                if self.tls is not None:
                    connection = self.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
                return Tcp(connection, most=self.most, timeout=self.timeout, wait=self.wait)
            except OSError:  # it was gone before it was greeted
                connection.close()

    def close(self) -> None:
        with suppress(OSError):  # not every system has that for a socket that listens
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that accepts
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(
    host: str, port: int, *, tls: ssl.SSLContext | None = None, most: int = MOST, timeout: float = TIMEOUT,
    wait: float | None = None,
) -> Tcp:  # fmt: skip
    """A channel to a listener, or WireError. With TLS the other side's certificate must name ``host``."""
    try:
        connection = socket.create_connection((host, port), timeout)
        if tls is not None:
            connection = tls.wrap_socket(connection, server_hostname=host, do_handshake_on_connect=False)
    except (OSError, OverflowError) as err:
        raise WireError(f"Cannot reach {host}:{port} ({err}); see that the other side listens there.") from err
    channel = Tcp(connection, most=most, timeout=timeout, wait=wait)
    channel.greet()
    if channel.closed:
        raise WireError(f"{host}:{port} {channel.closed} before TLS was agreed on; see that it uses TLS too.")
    return channel


Path = str | os.PathLike[str]


def server_tls(certificate: Path, key: Path, *, clients: Path | None = None) -> ssl.SSLContext:
    """For a listener: its certificate and key (PEM), and the authority that clients' certificates must be signed by."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load(context, certificate, key)
    if clients is not None:
        _trust(context, clients)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_tls(authority: Path, *, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """For `connect`: the authority that signs the other side's certificate, and one's own certificate and key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _trust(context, authority)
    if certificate is not None:
        _load(context, certificate, key)
    return context


def _load(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    try:
        context.load_cert_chain(certificate, key)
    except OSError as err:  # SSLError is one
        raise WireError(f"{certificate} and {key} are no certificate with its key in PEM: {err}.") from err


def _trust(context: ssl.SSLContext, authority: Path) -> None:
    try:
        context.load_verify_locations(authority)
    except OSError as err:
        raise WireError(f"{authority} holds no certificate of an authority in PEM: {err}.") from err
