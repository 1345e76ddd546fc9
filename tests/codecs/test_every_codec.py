"""What holds for every codec: residuals, groups that change nothing, the wire, damage."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sending import CODECS, EVERY, client, same, send, send_one, stack, unstack

from fedsub.errors import DataError
from fedsub.method.codecs import Codec, RandomK, Sign


@EVERY
def test_what_is_not_sent_is_kept(codec: Codec):
    draw = np.random.default_rng(4)
    update, old = client(draw, 30, torch.float64), client(draw, 30, torch.float64)
    given_update = {n: v.clone() for n, v in update.items()}
    sent, new, _ = send(codec, update, old)
    assert same(update, given_update)
    if codec.client_slots:
        for n in sent:
            torch.testing.assert_close(sent[n] + new[n], update[n] + old[n], rtol=1e-15, atol=1e-15)
    else:
        assert new is old
        assert same(sent, send(codec, update)[0])


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_groups_change_nothing(codec: Codec, dtype: torch.dtype):
    """Alone, in pairs, all together or in another order: the same bits, residuals and bytes."""
    draw = np.random.default_rng(5)
    rows = [17, 0, 1, 4000, 2, 50, 0, 333]
    updates, olds = [client(draw, r, dtype) for r in rows], [client(draw, r, dtype) for r in rows]
    updates[5]["wide"].zero_()
    olds[5]["wide"].zero_()
    words = draw.integers(0, 2**63, len(rows)).astype(np.uint64)
    alone = [send(codec, u, r, words=words[i : i + 1]) for i, (u, r) in enumerate(zip(updates, olds, strict=True))]
    for groups in ([range(8)], [[0, 1], [2], [3, 4], [5, 6, 7]], [[7, 3, 1, 0], [6, 5, 4, 2]], [[6, 1], [3]]):
        for members in groups:
            update, group = stack([updates[i] for i in members])
            old, _ = stack([olds[i] for i in members])
            sent, new, size = send(codec, update, old, group=group, words=words[list(members)])
            together = zip(members, unstack(sent, group), unstack(new, group), size, strict=True)
            for i, own, kept, number in together:
                assert same(own, alone[i][0])
                assert same(kept, alone[i][1])
                assert [number] == alone[i][2]


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(CODECS), st.integers(0, 2**32), st.lists(st.integers(0, 60), min_size=1, max_size=4),
    st.sampled_from([torch.float32, torch.float64]), st.sampled_from([0.0, 0.3, 0.98]),
)  # fmt: skip
def test_the_wire_carries_what_is_simulated(codec: Codec, seed: int, rows: list[int], dtype: Any, zeros: float):
    draw = np.random.default_rng(seed)
    updates = [client(draw, r, dtype, zeros) for r in rows]
    olds = [client(draw, r, dtype, zeros) for r in rows]
    words = draw.integers(0, 2**63, len(rows)).astype(np.uint64)
    update, group = stack(updates)
    sent, _, sizes = send(codec, update, stack(olds)[0], group=group, words=words)
    for i, own in enumerate(unstack(sent, group)):
        p = {n: v + olds[i][n] for n, v in updates[i].items()} if codec.feedback else updates[i]
        data = codec.encode(p, int(words[i]))
        assert len(data) == sizes[i]
        assert same(codec.decode(data, updates[i]), own)


@EVERY
def test_unusable_updates_stay_visible(codec: Codec):
    for bad in (math.nan, math.inf, -math.inf):
        sent, _ = send_one(codec, torch.tensor([1.0, bad, -2, 0.5]))
        hidden = isinstance(codec, RandomK) or (isinstance(codec, Sign) and math.isinf(bad))
        assert hidden or not torch.isfinite(sent).all()


@EVERY
def test_damaged_messages_are_refused(codec: Codec):
    tree = client(np.random.default_rng(0), 9)
    data = codec.encode(tree, 3)
    with pytest.raises(DataError, match="ends after"):
        codec.decode(data[:-1], tree)
    with pytest.raises(DataError, match="1 bytes after"):
        codec.decode(data + b"\0", tree)
