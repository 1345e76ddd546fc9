"""Every key is for one purpose, one protocol run, one pair of ends: nonces are constant, so no key may come twice."""

from itertools import combinations

import numpy as np
import pytest
from test_secure_refusals import Table

from fedsub.errors import SecureSumError
from fedsub.secure import keys, wire
from fedsub.secure.ciphers import Modern

VIEW, OTHER = bytes(32), bytes([1]) * 32
CIPHERS = Modern()


def all_different(*found: bytes) -> bool:
    return len(set(found)) == len(found)


def test_both_ends_have_the_same_keys_and_each_direction_its_own() -> None:
    (a, public_a), (b, public_b) = CIPHERS.pair(), CIPHERS.pair()
    low = keys.pair_keys(a, 3, public_a, 8, public_b, VIEW, CIPHERS)
    high = keys.pair_keys(b, 8, public_b, 3, public_a, VIEW, CIPHERS)
    assert (low.mask, low.tag, low.seal, low.open) == (high.mask, high.tag, high.open, high.seal)
    assert all_different(*low)
    elsewhere = [
        keys.pair_keys(a, 3, public_a, 8, public_b, OTHER, CIPHERS),
        keys.pair_keys(a, 3, public_a, 9, public_b, VIEW, CIPHERS),
        keys.pair_keys(a, 4, public_a, 8, public_b, VIEW, CIPHERS),
        keys.pair_keys(a, 9, public_a, 8, public_b, VIEW, CIPHERS),
    ]
    assert all_different(*low, *(key for one in elsewhere for key in one))


def test_what_is_made_of_a_clients_own_secrets() -> None:
    """One secret of 32 bytes in the place of both: even then nothing that is made of it for two purposes is equal."""
    secret = CIPHERS.random(32)
    made = [
        *(keys.own_mask(secret, client, view, CIPHERS) for client in (3, 8) for view in (VIEW, OTHER)),
        *(key for c in (3, 8) for v in (VIEW, OTHER) for key in keys.commitments(secret, secret, c, v, CIPHERS)),
        *(
            keys.locked(secret, client, np.zeros((1, 32), np.uint8), view, CIPHERS).tobytes()
            for client in (3, 8)
            for view in (VIEW, OTHER)
        ),
    ]
    assert all_different(*made)
    masks = np.arange(96, dtype=np.uint8).reshape(3, 32)
    hidden = keys.locked(secret, 3, masks, VIEW, CIPHERS)
    assert (hidden != masks).mean() > 0.9
    np.testing.assert_array_equal(keys.locked(secret, 3, hidden, VIEW, CIPHERS), masks)


def test_texts_that_are_bound_or_signed_are_told_apart() -> None:
    texts = [
        *(keys.shares_text(v, a, b) for v in (VIEW, OTHER) for a, b in ((3, 8), (8, 3), (3, 9))),
        *(keys.agree_text(v, client) for v in (VIEW, OTHER) for client in (3, 8)),
        *(keys.keys_text(v, c, public) for v in (VIEW, OTHER) for c in (3, 8) for public in (bytes(32), OTHER)),
    ]
    assert all_different(*texts)
    assert not any(a.startswith(b) or b.startswith(a) for a, b in combinations(texts, 2))


def test_its_own_key_in_a_neighbours_place_is_refused() -> None:
    table = Table().to(wire.ROSTER)
    note = wire.read(table.down[table.first], (wire.ROSTER,))
    body = bytearray(note.body)
    body[1:33] = bytes(wire.read(table.up[table.first], (wire.KEYS,)).body[:32])
    with pytest.raises(SecureSumError, match="same key"):
        table.clients[table.first].receive(wire.write(wire.ROSTER, 7, 3, table.first, note.view, bytes(body)))


def test_who_did_not_survive_cannot_vouch() -> None:
    """Four of seven open a sum: one of them is not on the list that it vouches for."""
    table = Table(7).to(wire.SURVIVORS)
    s, client = table.run.setting, table.clients[table.first]
    client.receive(table.survivors(table.first, 0, 1, 2, 3, 4, 5))
    told = []
    for place in (1, 2, 6):
        peer = table.clients[s.participants[place]]
        text = keys.agree_text(client.view, s.participants[place])
        told.append(CIPHERS.tag(peer.pairs[0].tag, text))
    agreed = np.packbits(np.isin(np.arange(7), (0, 1, 2, 6))).tobytes()
    with pytest.raises(SecureSumError, match="vouch for the list of survivors"):
        client.receive(wire.write(wire.AGREED, 7, 3, table.first, client.view, agreed, *told))


def test_a_client_of_a_sparse_graph_counts_its_own_holders() -> None:
    """Enough survivors of all, and one too few of those who hold its shares: its secrets could not be opened."""
    for holders, refused in ((2, False), (1, True)):
        table = Table(9, degree=4, threshold=3, least=5).to(wire.SURVIVORS)
        client = table.clients[table.first]
        near = client.near.tolist()
        stay = (0, *near[:holders], *(place for place in range(1, 9) if place not in near))
        assert len(stay) >= table.run.setting.least
        if refused:
            with pytest.raises(SecureSumError, match="too few are among the survivors"):
                client.receive(table.survivors(table.first, *stay))
        else:
            assert client.receive(table.survivors(table.first, *stay))
