"""Codecs: the compressors, their residuals, their bytes, and that nobody's result depends on the group."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedsub as fs
from fedsub.errors import DataError, MethodError
from fedsub.method.codecs import Codec, ErrorFeedbackSign, Int8, RandomK, Sign, TopK
from fedsub.method.codecs.wire import decode_rows, encode_rows, row_id_bytes, rows_size
from fedsub.method.groups import Group
from fedsub.method.part import Message, Total, Work
from fedsub.trees import Tree

CODECS: list[Codec] = [
    Sign(), ErrorFeedbackSign(), TopK(0.3), TopK(0.02, feedback=False), RandomK(0.3), RandomK(0.1, feedback=False),
    RandomK(0.5, feedback=False, scale=False), Int8(), Int8(feedback=True),
]  # fmt: skip
EVERY = pytest.mark.parametrize("codec", CODECS, ids=repr)
TABLES = ("wide", "narrow")


def send(codec: Codec, update: Tree, residual: Tree | None = None, *, group: Group | None = None, words: Any = None):
    """What the server decodes, the new residual and the bytes."""
    residual = {n: torch.zeros_like(v) for n, v in update.items()} if residual is None else residual
    message = Message({"update": update})
    work = Work(0, 0, 0.1, update, group or Group(1, False), client={codec.key: {"residual": residual}})
    work.words = np.array([7], np.uint64) if words is None else np.asarray(words, np.uint64)
    codec.finish(message, update, work)
    assert message.encoded is not None
    assert message.encoded.dtype == np.int64
    return message.trees["update"], work.client[codec.key]["residual"], message.encoded.tolist()


def send_one(codec: Codec, values: Tensor, residual: Tensor | None = None, word: int = 7) -> tuple[Tensor, Tensor]:
    sent, kept, _ = send(codec, {"w": values}, None if residual is None else {"w": residual}, words=[word])
    return sent["w"], kept["w"]


def client(draw: np.random.Generator, rows: int, dtype: torch.dtype = torch.float32, zeros: float = 0.2) -> Tree:
    shapes = {"wide": (rows, 3), "narrow": (max(rows - 2, 0), 1), "dense": (2, 5), "scalar": ()}
    tree = {}
    for name, shape in shapes.items():
        values = draw.normal(size=shape) * 10.0 ** draw.integers(-3, 3)
        values = np.where(draw.random(shape) < zeros, 0, values)
        tree[name] = torch.from_numpy(np.asarray(values)).to(dtype)
    return tree


def stack(trees: list[Tree]) -> tuple[Tree, Group]:
    joined = {n: (torch.cat if n in TABLES else torch.stack)([t[n] for t in trees]) for n in trees[0]}
    return joined, Group(len(trees), True, {n: torch.tensor([len(t[n]) for t in trees]) for n in TABLES})


def unstack(tree: Tree, group: Group) -> list[Tree]:
    cut = {n: v.split(group.counts[n].tolist()) if n in TABLES else v.unbind() for n, v in tree.items()}
    return [{n: cut[n][i] for n in tree} for i in range(group.count)]


def same(a: Tree, b: Tree) -> bool:
    """Equal bit for bit, and of the same type and shape."""
    return all(
        x.dtype == y.dtype and x.shape == y.shape and x.numpy().tobytes() == y.numpy().tobytes()
        for x, y in ((a[n].contiguous(), b[n].contiguous()) for n in a | b)
    )


# --- the checks of the papers -------------------------------------------------------------------------------------


def test_error_feedback_follows_sgd():
    """x − e takes exactly the steps of plain SGD."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=draw, dtype=torch.float64)
    plain, e = x.clone(), torch.zeros_like(x)
    for _ in range(200):
        step = -0.1 * (x - 1 + torch.randn(x.shape, generator=draw, dtype=torch.float64))
        sent, e = send_one(ErrorFeedbackSign(), step, e)
        x, plain = x + sent, plain + step
        torch.testing.assert_close(x + e, plain, rtol=0, atol=1e-12)  # here e is what x has yet to receive


@pytest.mark.parametrize("zeros", [0, 3])
def test_scaled_sign_identity(zeros: int):
    """‖C(p) − p‖² = (1 − δ)‖p‖², also with zeros, since they are written as +1."""
    p = torch.randn(11, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    p[:zeros] = 0
    sent, residual = send_one(ErrorFeedbackSign(), p)
    delta = float(p.abs().sum() ** 2 / (len(p) * (p**2).sum()))
    assert 1 / len(p) <= delta <= 1
    assert float((sent - p).square().sum()) == pytest.approx((1 - delta) * float((p**2).sum()), rel=1e-12)
    assert torch.equal(residual, p - sent)
    assert torch.equal(sent[:zeros].abs(), sent.abs()[:1].expand(zeros))  # a coin decides the sign, not the size
    naive = p.abs().mean() * p.sign()  # sign(0) = 0 would break it
    assert (float((naive - p).square().sum()) == pytest.approx(float((sent - p).square().sum()))) == (zeros == 0)


def test_scaled_sign_in_one_dimension_and_at_zero():
    for value in (0.3, -7.5, 0.0):
        sent, residual = send_one(ErrorFeedbackSign(), torch.tensor(value, dtype=torch.float64))
        assert float(sent) == value
        assert float(residual) == 0
    sent, _ = send_one(ErrorFeedbackSign(), torch.zeros(9))
    assert sent.tolist() == [0] * 9


def test_counter_example_a():
    """f = x/4 with g = 4 (¼) or −1 (¾): signs climb to the maximiser +1, feedback descends to −1."""
    gradients = torch.tensor([4.0, -1, -1, -1], dtype=torch.float64)
    moved = [float(send_one(Sign(), -g)[0]) for g in gradients]
    assert np.mean(moved) == 0.5
    assert float(gradients.mean()) == 0.25
    draw = torch.Generator().manual_seed(3)
    x, y, e = (torch.zeros((), dtype=torch.float64) for _ in range(3))
    path = []
    for _ in range(4000):
        g = gradients[torch.randint(4, (1,), generator=draw)[0]]
        x = (x + 0.01 * send_one(Sign(), -g)[0]).clamp(-1, 1)
        sent, e = send_one(ErrorFeedbackSign(), -0.01 * g, e)
        y = (y + sent).clamp(-1, 1)
        path.append((float(x), float(y)))
    ends = np.mean(path[2000:], 0)
    assert ends[0] > 0.95
    assert ends[1] < -0.8


def test_counter_example_b():
    """Least squares in two dimensions: f stays at 8ε² or above by signs, scaled or not; feedback goes to 0."""
    eps, rate = 0.5, 0.05
    a = torch.tensor([[1 + eps, -1 + eps], [-1 + eps, 1 + eps]], dtype=torch.float64)
    draw = torch.Generator().manual_seed(0)
    which = torch.randint(2, (5000,), generator=draw).tolist()

    def path(codec: Codec, feedback: bool, scale: float) -> tuple[float, float]:
        x, e, lowest = torch.ones(2, dtype=torch.float64), None, math.inf
        for t, i in enumerate(which):
            pace = rate / math.sqrt(t + 1) if isinstance(codec, Sign) else 1.0
            sent, e = send_one(codec, -rate * 2 * (a[i] @ x) * a[i], e if feedback else None)
            x = x + pace * scale * sent
            lowest = min(lowest, float((a @ x).square().sum()))
        return lowest, float((a @ x).square().sum())

    floor = 8 * eps**2 * (1 - 1e-12)
    assert path(Sign(), False, 1.0)[0] >= floor
    assert path(ErrorFeedbackSign(), False, 1.0)[0] >= floor
    assert path(ErrorFeedbackSign(), True, 1.0)[1] < 1e-100


# --- one codec after the other ------------------------------------------------------------------------------------


def test_majority_vote():
    votes = [torch.tensor(v) for v in ([3.0, -1, 2, -5], [0.1, -9, -2, -1], [-7.0, 8, 0.5, -1], [1.0, -1, -3, -1])]
    sent = [send_one(Sign(), v)[0] for v in votes]
    assert torch.equal(torch.stack(sent), torch.stack(votes).sign())
    mean = {"update": {"w": torch.stack(sent).mean(0)}}
    Sign().combine(mean, Total({}, {}, {}, 4.0, 4), {}, 0)
    assert mean["update"]["w"].tolist() == [1, -1, 0, -1]


def test_sign_of_zero_is_a_fair_coin():
    x = torch.zeros(4000)
    x[:2] = torch.tensor([5.0, -5])
    first, again, other = send_one(Sign(), x)[0], send_one(Sign(), x)[0], send_one(Sign(), x, word=8)[0]
    assert first[:2].tolist() == other[:2].tolist() == [1, -1]
    assert set(first.tolist()) == {1, -1}
    assert abs(float(first.mean())) < 4 / math.sqrt(4000)
    assert torch.equal(first, again)
    assert abs(float((first * other).mean())) < 4 / math.sqrt(4000)


def test_parameters_draw_apart():
    sent, _, _ = send(Sign(), {"ab": torch.zeros(4000), "ba": torch.zeros(4000)})
    assert abs(float((sent["ab"] * sent["ba"]).mean())) < 4 / math.sqrt(4000)


def test_top_k_keeps_the_largest():
    x = torch.tensor([1.0, -4, 2, -2, 0.5, 2, 0, 3])
    assert send_one(TopK(0.5), x)[0].tolist() == [0, -4, 2, -2, 0, 0, 0, 3]  # of the three 2s the first two
    assert send_one(TopK(0.001), x)[0].tolist() == [0, -4, 0, 0, 0, 0, 0, 0]
    assert torch.equal(send_one(TopK(1), x)[0], x)
    draw = torch.randn(1000, generator=torch.Generator().manual_seed(2))
    sent, rest = send_one(TopK(0.07), draw)
    assert int((sent != 0).sum()) == 70  # 0.07 · 1000 is a hair above 70 in floating point
    assert float(sent[sent != 0].abs().min()) >= float(rest.abs().max())


def test_top_k_bytes():
    x = torch.zeros(1000)
    x[torch.tensor([3, 200, 999])] = torch.tensor([1.0, 2, 3])
    kept = TopK(0.003, feedback=False)
    assert send(kept, {"w": x})[2] == [1 + 3 * 4 + 1 + 2 + 2]  # 3; 196 and 798 left out, two bytes each
    assert send(kept, {"w": x.double()})[2] == [1 + 3 * 8 + 1 + 2 + 2]
    assert send(TopK(0.5), {"w": x})[2] == [1 + 500 * 4 + 125]  # by then a bitmap is shorter
    assert send(kept, {"w": torch.zeros(0, 3)})[2] == [0]


def test_sizes_of_the_others():
    values = {"w": torch.ones(17), "v": torch.ones(8, 2), "none": torch.zeros(0, 4)}
    assert send(Sign(), values)[2] == [3 + 2]
    assert send(ErrorFeedbackSign(), values)[2] == [3 + 4 + 2 + 4]
    assert send(ErrorFeedbackSign(), {n: v.double() for n, v in values.items()})[2] == [3 + 8 + 2 + 8]
    assert send(RandomK(0.25), values)[2] == [(5 + 4) * 4 + 8]
    assert send(Int8(), values)[2] == [17 + 4 + 16 + 4]


def _many(codec: Codec, x: Tensor, rounds: int) -> Tensor:
    """The same update from many clients, [rounds, …]: that is the same as many rounds."""
    stacked = {"w": x.expand(rounds, *x.shape)}
    words = np.random.default_rng(0).integers(0, 2**63, rounds)
    return send(codec, stacked, group=Group(rounds, True), words=words)[0]["w"]


def test_random_k_is_unbiased_without_feedback():
    x = torch.linspace(-3, 4, 30, dtype=torch.float64)
    rounds, k = 20_000, 6
    sent = _many(RandomK(0.2, feedback=False), x, rounds)
    assert ((sent != 0).sum(1) == k).all()
    deviation = x.abs() * math.sqrt((len(x) / k - 1) / rounds)
    assert ((sent.mean(0) - x).abs() <= 4 * deviation).all()
    plain = _many(RandomK(0.2, feedback=False, scale=False), x, 100)
    assert torch.equal(plain[plain != 0], x.expand_as(plain)[plain != 0])


def test_int8_is_unbiased_and_within_one_level():
    x = torch.linspace(-3, 4, 30, dtype=torch.float64)
    rounds, step = 20_000, 4 / 127
    sent = _many(Int8(), x, rounds)
    assert ((sent - x).abs() <= step * (1 + 1e-12)).all()
    assert ((sent.mean(0) - x).abs() <= 4 * step / 2 / math.sqrt(rounds)).all()
    assert torch.unique((sent / step).round()).abs().max() <= 127


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20), st.integers(0, 9))
def test_int8_of_anything(values: list[float], word: int):
    x = torch.tensor(values, dtype=torch.float32) / 2  # the largest float32 has no level above it
    sent, _ = send_one(Int8(), x, word=word)
    top = float(x.abs().max())
    level = max(top / 127, 1.5e-45)
    assert float((sent.double() - x.double()).abs().max()) <= level * (1 + 1e-6)


def test_int8_of_the_smallest_numbers():
    """Where max|x|/127 has no digits left the step is rounded up; rounded down, a byte would overflow."""
    x = torch.tensor([190.0, -190, 60, 0]) * 2.0**-149
    sent, _ = send_one(Int8(), x)
    assert ((sent - x).abs() <= 2 * 2.0**-149).all()


# --- residuals, groups and bytes ----------------------------------------------------------------------------------


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


# --- row ids ------------------------------------------------------------------------------------------------------


@given(st.integers(1, 3_000_000).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), max_size=60))))
def test_row_ids_round_trip(case: tuple[int, set[int]]):
    size, held = case
    rows = np.array(sorted(held), np.int64)
    data = encode_rows(rows, size)
    assert np.array_equal(decode_rows(data, size), rows)
    assert len(data) == rows_size(rows, size) <= 1 + (size + 7) // 8


def test_row_ids_of_many_clients():
    draw = np.random.default_rng(0)
    size = 5000
    lists = [np.sort(draw.choice(size, n, replace=False)) for n in (0, 1, 3, 5000, 700, 0, 80, 2500)]
    offsets = np.concatenate([[0], np.cumsum([len(r) for r in lists])])
    found = row_id_bytes(offsets, np.concatenate(lists).astype(np.int32), size)
    assert found.dtype == np.int64
    assert found.tolist() == [len(encode_rows(r, size)) for r in lists]
    assert found[0] == 1
    assert found[3] == 1 + 625
    assert row_id_bytes(np.array([0]), np.array([], np.int64), size).tolist() == []


def test_known_row_id_bytes():
    assert encode_rows(np.array([0, 1, 130]), 10_000) == bytes([0, 0, 0, 128, 1])
    assert encode_rows(np.arange(8), 16) == bytes([1, 255, 0])
    for damaged in (bytes([2, 0]), bytes([0, 200, 1]), bytes([1, 255, 0, 0]), b""):
        with pytest.raises(DataError):
            decode_rows(damaged, 16)


# --- arguments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codec", "words"),
    [
        (TopK(0), "above 0 and at most 1"), (TopK(1.5), "got 1.5"), (TopK(math.nan), "finite"),
        (TopK("some"), "finite number"), (TopK(True), "finite number"), (RandomK(-1), "share of RandomK"),  # type: ignore[arg-type]
        (TopK(feedback=1), "True or False"), (Int8(feedback="yes"), "feedback of Int8"),  # type: ignore[arg-type]
        (RandomK(scale=2), "got 2"), (RandomK(scale=True), "without bound"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_bad_arguments(codec: Codec, words: str):
    with pytest.raises(MethodError, match=words):
        codec.check(_method())


def _method(average: Any = None) -> Any:
    return SimpleNamespace(average=average, sampler=fs.Uniform(3))


def test_good_arguments():
    for codec in CODECS:
        codec.check(_method())
        assert codec.codec
        assert codec.client_slots == (("residual",) if codec.feedback else ())


def test_sign_refuses_a_correction_that_it_would_lose():
    from fedsub.method.average import OverClients, OverHolders, OverSampledHolders

    for lost in (OverHolders(), OverHolders(temper=0.5), OverHolders(temper=0, groups={"*": {"temper": 1.0}})):
        with pytest.raises(MethodError, match=r"ErrorFeedbackSign\(\)"):
            Sign().check(_method(lost))
        ErrorFeedbackSign().check(_method(lost))
    for fine in (OverClients(), OverSampledHolders(), OverHolders(temper=0), OverHolders(max_coef=1)):
        Sign().check(_method(fine))


def test_other_types_are_refused():
    with pytest.raises(MethodError, match=r"w is torch\.bfloat16"):
        send_one(Int8(), torch.ones(3, dtype=torch.bfloat16))
