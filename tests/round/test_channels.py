"""Whole messages over TCP, whatever the other side does: cut, lie about lengths, fall silent, be somebody else."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from certificates import Authority

from fedsub.errors import WireError
from fedsub.round.channels import Listener, Tcp, client_tls, connect, server_tls

HOST = "127.0.0.1"


def background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener(most=1 << 20, timeout=0.3, wait=5) as listening:
        yield listening


def accepted(listener: Listener) -> Tcp:
    channel = listener.accept(5)
    assert channel is not None
    return channel


def raw(listener: Listener) -> tuple[socket.socket, Tcp]:
    """A bare socket, and the channel at its other end."""
    bare = socket.create_connection((HOST, listener.port))
    return bare, accepted(listener)


def test_messages_cross_as_they_are(listener: Listener) -> None:
    draw, sizes = np.random.default_rng(0), [1, 7, 65_537, 1 << 20]
    said = [draw.bytes(size) for size in sizes]
    with connect(HOST, listener.port, wait=5) as here, accepted(listener) as there:

        def back() -> None:
            while (data := there.receive()) is not None:
                there.send(data[::-1])

        thread = background(back)
        for data in said:
            here.send(data)
            assert here.receive() == data[::-1]
        here.close()
        thread.join(5)
        assert not thread.is_alive()
        assert there.closed == "ended the connection"


def test_a_frame_is_its_length_and_its_bytes(listener: Listener) -> None:
    bare, channel = raw(listener)
    bare.sendall(struct.pack("<Q", 3) + b"abc" + struct.pack("<Q", 0) + struct.pack("<Q", 1) + b"d")
    assert [channel.receive() for _ in range(3)] == [b"abc", None, b"d"]  # a frame of length 0: no answer comes
    assert not channel.closed
    channel.send(b"xy")
    assert bare.recv(100) == struct.pack("<Q", 2) + b"xy"


@pytest.mark.parametrize("sent", [b"", b"\x05", struct.pack("<Q", 5), struct.pack("<Q", 5) + b"abcd"])
def test_a_frame_that_ends_early_is_no_message(sent: bytes, listener: Listener) -> None:
    bare, channel = raw(listener)
    bare.sendall(sent)
    bare.close()
    assert channel.receive() is None
    expected = {0: "connection", 1: "after 1 of 8 bytes", 8: "after 0 of 5 bytes", 12: "after 4 of 5 bytes"}
    assert channel.closed.endswith(expected[len(sent)])
    channel.send(b"to nobody")  # no error: receive tells
    assert channel.receive() is None


@pytest.mark.parametrize("sent", [b"\x05", struct.pack("<Q", 5) + b"abcd"])
def test_silence_in_the_middle_of_a_message_ends_it(sent: bytes, listener: Listener) -> None:
    bare, channel = raw(listener)
    bare.sendall(sent)
    begun = time.monotonic()
    assert channel.receive() is None
    assert 0.2 < time.monotonic() - begun < 3
    assert "silent for 0.3 s" in channel.closed
    assert bare.recv(1) == b""  # the connection is gone: what comes too late reaches nobody


def test_a_pause_between_messages_is_no_silence(listener: Listener) -> None:
    bare, channel = raw(listener)
    later = threading.Timer(0.8, lambda: bare.sendall(struct.pack("<Q", 1) + b"!"))
    later.start()
    assert channel.receive() == b"!"  # after more than the timeout, and less than `wait`
    channel.wait = 0.2
    assert channel.receive() is None
    assert channel.closed == "sent nothing for 0.2 s"


@pytest.mark.parametrize("size", [(1 << 20) + 1, 1 << 40, (1 << 64) - 1])
def test_a_length_that_is_too_large_is_refused(size: int, listener: Listener) -> None:
    bare, channel = raw(listener)
    bare.sendall(struct.pack("<Q", size) + b"abc")
    with pytest.raises(WireError, match=f"{size:,} bytes, and this channel takes up to 1,048,576"):
        channel.receive()
    assert channel.receive() is None


def test_memory_is_taken_as_bytes_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A length that is allowed and not there costs its sender's bytes, not the announced ones."""
    asked: list[int] = []

    class Watched(bytearray):
        def __iadd__(self, other: bytes) -> Watched:  # type: ignore[override]
            asked.append(len(other))
            return super().__iadd__(other)  # type: ignore[return-value]

    monkeypatch.setattr("fedsub.round.channels.bytearray", Watched, raising=False)
    with Listener(timeout=0.3, wait=5) as listening:
        bare, channel = raw(listening)
        bare.sendall(struct.pack("<Q", 1 << 30) + bytes(5000))
        assert channel.receive() is None
    assert sum(asked) <= 5000 + 8


def test_too_large_a_message_is_not_sent(listener: Listener) -> None:
    with connect(HOST, listener.port, most=10) as here, pytest.raises(WireError, match="has 11 bytes"):
        here.send(bytes(11))


def test_a_close_wakes_who_waits(listener: Listener) -> None:
    _, channel = raw(listener)
    channel.wait = None
    found: list[bytes | None] = [b"waiting"]
    thread = background(lambda: found.__setitem__(0, channel.receive()))
    time.sleep(0.1)
    channel.close()
    thread.join(5)
    assert found == [None]
    assert channel.closed == "was closed here"


def test_nobody_is_there() -> None:
    with Listener() as gone:
        port = gone.port
    with pytest.raises(WireError, match="Cannot reach"):
        connect(HOST, port)
    with Listener() as there, pytest.raises(WireError, match="Take a free port"):
        Listener(port=there.port)
    assert Listener().accept(0.05) is None


# TLS


def tls_pair(folder: Path, *, server: str = HOST, clients: bool = True) -> tuple[Authority, Listener]:
    authority = Authority(folder)
    certificate, key = authority.issue("server", server)
    context = server_tls(certificate, key, clients=authority.file if clients else None)
    return authority, Listener(tls=context, timeout=2, wait=5)


def echo(listener: Listener, told: list[str]) -> threading.Thread:
    """Answers one peer with its own words; keeps its name, or why there was none."""

    def work() -> None:
        channel = accepted(listener)
        try:
            told.append(channel.name)
            while (data := channel.receive()) is not None:
                channel.send(data)
        except WireError as err:
            told.append(str(err))
        finally:
            channel.close()

    return background(work)


def test_tls_with_certificates_on_both_sides(tmp_path: Path) -> None:
    authority, listener = tls_pair(tmp_path)
    told: list[str] = []
    with listener:
        thread = echo(listener, told)
        certificate, key = authority.issue("7")
        with connect(HOST, listener.port, tls=client_tls(authority.file, certificate=certificate, key=key)) as here:
            assert here.name == "server"
            for size in (1, 100_000):
                here.send(bytes(size))
                assert here.receive() == bytes(size)
        thread.join(5)
    assert told == ["7"]


def test_what_crosses_is_encrypted(tmp_path: Path) -> None:
    """A wire tap between the two sees none of the words."""
    authority, listener = tls_pair(tmp_path, clients=False)
    seen = bytearray()
    with listener, socket.create_server((HOST, 0)) as tap:
        echo(listener, [])

        def carry(source: socket.socket, to: socket.socket) -> None:
            while piece := source.recv(65_536):
                seen.extend(piece)
                to.sendall(piece)

        def tapped() -> None:
            near, _ = tap.accept()
            far = socket.create_connection((HOST, listener.port))
            background(lambda: carry(near, far))
            carry(far, near)

        background(tapped)
        with connect(HOST, tap.getsockname()[1], tls=client_tls(authority.file)) as here:
            here.send(b"fsub" * 500)
            assert here.receive() == b"fsub" * 500
    assert len(seen) > 4000
    assert b"fsub" not in seen


def test_a_server_of_another_authority_is_refused(tmp_path: Path) -> None:
    _, listener = tls_pair(tmp_path / "theirs")
    ours, told = Authority(tmp_path / "ours"), []
    with listener:
        thread = echo(listener, told)
        with pytest.raises(WireError, match="signed by the authority"):
            connect(HOST, listener.port, tls=client_tls(ours.file))
        thread.join(5)
    assert "TLS was not agreed on" in told[0]


def test_a_certificate_for_another_host_is_refused(tmp_path: Path) -> None:
    authority, listener = tls_pair(tmp_path, server="10.0.0.9", clients=False)
    with listener:
        echo(listener, [])
        with pytest.raises(WireError, match="names the host"):
            connect(HOST, listener.port, tls=client_tls(authority.file))


@pytest.mark.parametrize("who", ["nobody", "a stranger"])
def test_a_client_without_a_good_certificate_is_refused(who: str, tmp_path: Path) -> None:
    authority, listener = tls_pair(tmp_path / "ours")
    told: list[str] = []
    certificate, key = Authority(tmp_path / "theirs", "stranger").issue("7") if who == "a stranger" else (None, None)
    with listener:
        thread = echo(listener, told)
        with connect(HOST, listener.port, tls=client_tls(authority.file, certificate=certificate, key=key)) as here:
            here.send(b"let me in")
            assert here.receive() is None  # in TLS 1.3 a client learns of it with the first answer
            assert here.closed
        thread.join(5)
    assert "TLS was not agreed on" in told[0]


def test_plain_bytes_do_not_pass_where_tls_is_wanted(tmp_path: Path) -> None:
    _, listener = tls_pair(tmp_path)
    told: list[str] = []
    with listener:
        thread = echo(listener, told)
        with connect(HOST, listener.port) as here:
            here.send(b"plain")
            assert here.receive() is None
        thread.join(5)
    assert "TLS was not agreed on" in told[0]


def test_a_silent_peer_does_not_hold_up_the_next(tmp_path: Path) -> None:
    """One that connects and never begins TLS: the listener goes on at once, and its channel gives up by itself."""
    authority, listener = tls_pair(tmp_path, clients=False)
    with listener:
        silent = socket.create_connection((HOST, listener.port))
        stuck = accepted(listener)
        stuck._socket.settimeout(0.3)
        thread = echo(listener, [])
        with connect(HOST, listener.port, tls=client_tls(authority.file)) as here:
            here.send(b"quick")
            assert here.receive() == b"quick"
        assert stuck.receive() is None
        assert "silent" in stuck.closed
        thread.join(5)
        silent.close()


def test_files_that_are_no_certificates(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    authority = Authority(tmp_path)
    certificate, _ = authority.issue("server")
    _, other = authority.issue("other")
    with pytest.raises(WireError, match="no certificate with its key"):
        server_tls(certificate, other)
    with pytest.raises(WireError, match="holds no certificate of an authority"):
        client_tls(tmp_path / "empty.pem")
    with pytest.raises(WireError, match=r"absent\.pem"):
        client_tls(tmp_path / "absent.pem")
