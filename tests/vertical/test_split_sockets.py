"""Parties behind sockets with TLS: the same bits as in one process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from certificates import Authority
from sides import OPTIONS, world
from split_trained import central, gap, played

from fedsub import vertical
from fedsub.errors import RunError, WireError
from fedsub.round.channels import Listener, client_tls, connect, server_tls
from fedsub.vertical.link import PartyLost
from fedsub.vertical.serve import Server


@contextmanager
def served(
    half: vertical.FeatureHalf, authority: Authority, only: str | None = None
) -> Iterator[tuple[int, list[str], threading.Thread]]:
    """(port, what it told, its thread) of a party that only takes a label party with a certificate."""
    certificate, key = authority.issue(half.party.name)
    listener = Listener(tls=server_tls(certificate, key, clients=authority.file), timeout=10)
    told: list[str] = []
    server = Server(half, listener, told.append, only)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield listener.port, told, thread
    finally:
        server._over.set()
        thread.join(20)
        assert not thread.is_alive()


def remote(name: str, port: int, authority: Authority) -> vertical.Remote:
    certificate, key = authority.issue("label")
    tls = client_tls(authority.file, certificate=certificate, key=key)
    return vertical.Remote(name, "127.0.0.1", port, tls, patience=5, wait=20)


@pytest.mark.parametrize("parties", [1, 2])
def test_the_same_bits_over_tls(parties: int, tmp_path: Path) -> None:
    side, others = world(parties)
    halves = [vertical.FeatureHalf(party) for party in others]
    authority = Authority(tmp_path / "keys")
    with served(halves[0], authority) as (port, told, thread):
        lines = [remote("shop", port, authority)]
        if parties == 2:
            with served(halves[1], authority) as (second, _, _):
                found = vertical.run(side, [*lines, remote("paper", second, authority)], **OPTIONS)
        else:
            found = vertical.run(side, lines, **OPTIONS)
        thread.join(20)
        assert not thread.is_alive()  # it ends by itself
        assert told[0] == "joined by label"
    here = played(parties)
    assert all(torch.equal(v, here.result.params[n]) for n, v in found.result.params.items())
    for half in halves:
        own = dict(here.bottoms[half.party.name].named_parameters())
        assert all(torch.equal(v, own[n]) for n, v in half.params.items())
    assert found.result.history == here.result.history
    assert gap(here, central(parties)) < 1e-12


def test_strangers_do_not_hold_up_a_run(tmp_path: Path) -> None:
    """One of another authority, one that is silent, one that sends bytes: nobody gets in, and the run goes on."""
    side, others = world(1)
    authority, other = Authority(tmp_path / "keys"), Authority(tmp_path / "other")
    with served(vertical.FeatureHalf(others[0]), authority) as (port, told, _):
        silent, loud = (socket.create_connection(("127.0.0.1", port)) for _ in range(2))
        with silent, loud:
            loud.sendall(b"GET / HTTP/1.1\r\n\r\n" * 20)
            certificate, key = other.issue("label")
            tls = client_tls(authority.file, certificate=certificate, key=key)
            with connect("127.0.0.1", port, tls=tls) as stranger:
                stranger.send(b"let me in")
                assert stranger.receive() is None
            found = vertical.run(side, [remote("shop", port, authority)], **OPTIONS)
    here = played(1).result.params
    assert all(torch.equal(v, here[n]) for n, v in found.result.params.items())
    assert [said for said in told if said.startswith("joined")] == ["joined by label"]


def test_another_party_is_not_the_label_party(tmp_path: Path) -> None:
    """Its certificate is of the same authority; what counts is the name in it."""
    side, others = world(1)
    authority = Authority(tmp_path / "keys")
    half = vertical.FeatureHalf(others[0])
    with served(half, authority, "publisher") as (port, told, _):
        with pytest.raises(WireError, match=r"It refuses: shop takes publisher for its label party, and nobody else"):
            vertical.run(side, [remote("shop", port, authority)], **OPTIONS)
        assert told == ["refused label: only publisher may join"] * 3
    assert half.refused == 3


def test_certificates_that_do_not_fit_are_named(tmp_path: Path) -> None:
    """One that this side does not trust ends the run at once; one that the other does not take, when it is told so."""
    side, others = world(1)
    authority, other = Authority(tmp_path / "keys"), Authority(tmp_path / "other")
    with served(vertical.FeatureHalf(others[0]), authority) as (port, _, _):
        mistrusts = client_tls(other.file, certificate=authority.issue("label")[0], key=authority.issue("label")[1])
        before = time.monotonic()
        with pytest.raises(RunError, match=r"shop is there, but not to be trusted\. TLS was not agreed on"):
            vertical.run(side, [vertical.Remote("shop", "127.0.0.1", port, mistrusts, patience=60)], **OPTIONS)
        assert time.monotonic() - before < 30  # it does not wait for another certificate
        certificate, key = other.issue("label")
        strange = client_tls(authority.file, certificate=certificate, key=key)
        with pytest.raises(PartyLost, match=r"shop is lost: it .*; see whether it takes this side's certificate"):
            vertical.run(side, [vertical.Remote("shop", "127.0.0.1", port, strange, patience=5)], **OPTIONS)


def test_protected_with_a_secret_the_bits_are_those_of_one_process(tmp_path: Path) -> None:
    protected = {"protections": (vertical.Marvell(2.0),), "secret": "0123456789abcdef" * 4}
    side, others = world(1, **protected)
    authority = Authority(tmp_path / "keys")
    half = vertical.FeatureHalf(others[0])
    with served(half, authority) as (port, _, _):
        found = vertical.run(side, [remote("shop", port, authority)], **OPTIONS)
    side, others = world(1, **protected)
    here = vertical.run(side, others, **OPTIONS)
    assert all(torch.equal(v, here.result.params[n]) for n, v in found.result.params.items())
    own = dict(here.bottoms["shop"].named_parameters())
    assert all(torch.equal(v, own[n]) for n, v in half.params.items())
    other = vertical.run(world(1)[0], world(1)[1], **OPTIONS)
    assert any(not torch.equal(v, own[n]) for n, v in other.bottoms["shop"].named_parameters())
