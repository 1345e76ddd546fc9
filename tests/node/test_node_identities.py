"""Registered identities between nodes: on wherever they are registered, and what a server in the middle cannot do."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from node.processes import SEED, data, objective
from node.test_secret_nodes import COMMON, ROUNDS, SIZES, Channel, population

import fedsub as fs
from fedsub.errors import DataError, MethodError, NoUsableClient, SecureSumError, WireError
from fedsub.node import Node, Served, hand_out, serve
from fedsub.privacy.heat import CentralHistogram, PrivateHeat, RandomizedResponse, SecureCount
from fedsub.round.secure.attempts import Settings
from fedsub.secure import Identity, Registry, Segment, Setting, sum_bytes
from fedsub.secure import wire as sums
from fedsub.secure.ciphers import KEY, SIGNATURE, Modern


def method(heat: PrivateHeat | None = None, **options: Any) -> fs.Method:
    return fs.methods.fedsubavg(weighting="clients", heat=heat, secure=fs.SecureSum(0.5, **options), **COMMON)


def nodes(
    folder: Path, how: fs.Method, *, identities: bool = True, kind: type[Channel] = Channel
) -> dict[int, Channel]:
    found = hand_out(data(), folder / "data", identities=identities)
    return {n: kind(Node(at, objective, how, n, folder / f"memory-{n}")) for n, at in found.items()}


def served(channels: Mapping[int, Channel], how: fs.Method, identities: Any, rounds: int = ROUNDS) -> Served:
    params = {n: p.detach().clone() for n, p in objective(SIZES).module.named_parameters()}
    return serve(how, params, population(), channels, rounds=rounds, seed=SEED, identities=identities)


@pytest.mark.parametrize("options", [{}, {"spare": 1}, {"adversarial": 0.1, "dropping": 0.1}])
def test_the_same_model_and_the_signatures_bytes(options: dict[str, Any], tmp_path: Path) -> None:
    """Bit for bit the simulation, and its bytes but for signatures, in rounds and for heat by a secure sum."""
    how = method(SecureCount(), **options)
    channels = nodes(tmp_path, how)
    found = served(channels, how, tmp_path / "data/identities.json")
    simulated = fs.run(how, objective(SIZES), data(), rounds=ROUNDS, seed=SEED, engine="serial")
    for parameter, value in simulated.params.items():
        assert torch.equal(found.params[parameter], value), parameter
    assert found.refused == []
    sparse: dict[str, Any] = {"adversarial": 0.1, "dropping": 0.1} if "adversarial" in options else {}
    setting = Setting.plan(1, 1, range(5), (Segment("v", 3, 8, 1),), **sparse)
    plain, signed = (sum_bytes(setting, np.ones(5, bool), signed=signed) for signed in (False, True))
    more = [int((signed[side] - plain[side]).sum()) for side in (0, 1)]
    for report, record in zip(found.reports, simulated.history[1:], strict=True):
        sums_played = 2 + int(record["given_up"])
        assert report.total_down - record["down"] == sums_played * more[0]
        assert report.total_up - record["up"] == sums_played * more[1]
    degree = setting.degree
    assert more == [5 * (KEY * (5 - degree) + SIGNATURE * (degree + 5)), 5 * 2 * SIGNATURE]
    crossed = sum(len(d) for c in channels.values() for d in c.crossed)
    assert sum(r.total_down + r.total_up for r in found.reports) + sum(found.asked) == crossed


class Quiet(Channel):
    """The node is elsewhere: what it makes of a welcome is not the server's matter."""

    def send(self, data: bytes) -> None:
        with suppress(WireError):
            super().send(data)


def test_both_sides_have_the_same_identities_or_none(tmp_path: Path) -> None:
    how = method()
    channels = nodes(tmp_path, how)
    known = Registry.open(tmp_path / "data/identities.json")
    plain = nodes(tmp_path / "plain", how, identities=False)
    with pytest.raises(NoUsableClient, match=r"the server has registered identities.*the client has none"):
        served({n: Quiet(channel.node) for n, channel in plain.items()}, how, known)
    with pytest.raises(MethodError, match="1 of 8 clients have no registered identity, the first is 7"):
        served(plain, how, Registry({c: known[c] for c in range(7)}))
    mixed = {n: Quiet((plain if n in (1, 4) else channels)[n].node) for n in channels}
    left = served(mixed, how, known, rounds=1)
    assert set(left.left_out) == {1, 4}


def test_where_nothing_is_added_in_secret_nobody_signs(tmp_path: Path) -> None:
    """Keys beside the data are no hindrance to rounds in the clear, with or without a registry at the server."""
    how = fs.methods.fedsubavg(heat=RandomizedResponse(3.0), **COMMON)
    for registry in (None, tmp_path / "data/identities.json"):
        assert served(nodes(tmp_path, how), how, registry, rounds=1).left_out == {}
    trusted = fs.methods.fedsubavg(heat=CentralHistogram(1.0, rows=5, most_samples=9), **COMMON)
    assert served(nodes(tmp_path, trusted), trusted, None, rounds=1).left_out == {}


def test_a_key_that_is_not_registered_is_refused_before_a_run(tmp_path: Path) -> None:
    found = hand_out(data(), tmp_path / "data", identities=True)
    with pytest.raises(MethodError, match="client 3 does not fit the public key"):
        Node(found[2], objective, method(), 3, tmp_path / "memory")
    given = Identity.find(found[2])
    (found[2] / "identity.key").unlink()
    with pytest.raises(DataError, match="Restore it"):
        Node(found[2], objective, method(), 2, tmp_path / "memory")
    assert Node(found[2], objective, method(), 2, tmp_path / "memory", identity=given).identity is given
    assert not hasattr(fs.Clients.open(found[1], verify=True), "identity")


class Swapping(Channel):
    """A server that passes on a key of its own making for everybody's first neighbour."""

    def send(self, data: bytes) -> None:
        if data[:4] == sums.MAGIC and sums.HEAD.unpack_from(data)[2] == sums.ROSTER:
            note = sums.read(data, (sums.ROSTER,))
            body, listed = bytearray(note.body), 1
            at = listed + KEY * (int(np.unpackbits(np.frombuffer(bytes(body[:1]), np.uint8)).sum()) - 1)
            body[at : at + KEY] = Modern().pair()[1]
            data = sums.write(note.stage, note.run, note.round, note.client, note.view, bytes(body))
        super().send(data)


def test_a_server_in_the_middle_learns_nothing(tmp_path: Path) -> None:
    """It swaps a key in every roster: no honest client goes on, and the heat is not counted, nor a round played."""
    how = method(SecureCount())
    channels = nodes(tmp_path, how, kind=Swapping)
    with pytest.raises(NoUsableClient, match="0 clients are left"):
        served(channels, how, tmp_path / "data/identities.json")
    sent = [up for c in channels.values() for up in c.crossed[1::2]]
    assert not any(up and sums.HEAD.unpack_from(up)[2] > sums.KEYS for up in sent)
    how = method()
    channels = nodes(tmp_path / "rounds", how, kind=Swapping)
    found = served(channels, how, tmp_path / "rounds/data/identities.json")
    assert all(len(report.lost) == len(report.clients) for report in found.reports)


@pytest.mark.parametrize("identities", [False, True])
def test_a_node_takes_no_graph_or_least_of_a_servers_choosing(identities: bool, tmp_path: Path) -> None:
    """Degree, threshold and least follow from the node's own method; a server that wants fewer is refused."""
    part, people = fs.SecureSum(0.5), np.arange(12)
    segments = (Segment("item", 40, 8, 1), Segment("slot", 6, 8, 1))
    own = Settings(part, 1, signed=identities)
    fine = own.plan(1, people, segments)
    own.check(fine)
    for odd in (replace(fine, degree=4, threshold=3), replace(fine, threshold=8, least=8)):
        with pytest.raises(SecureSumError, match=r"by this client's method it has 11, 7 and at least 7"):
            own.check(odd)
    colluding = Settings(fs.SecureSum(0.5, adversarial=0.3, dropping=0.0), 1, signed=identities)
    least = 8 if identities else colluding.plan(1, people, segments).threshold
    assert colluding.fewest(12) == least
    if identities:  # two lists could each be signed by 7 of 12, three of whom collude
        with pytest.raises(SecureSumError, match="and at least 8"):
            colluding.check(replace(colluding.plan(1, people, segments), least=7))
