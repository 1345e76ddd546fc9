"""Private set intersection: exact, checked against sets and against the ladder of RFC 7748 written down again."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from fedsub.errors import DataError, WireError
from fedsub.round import wire
from fedsub.vertical import Alignment, align, intersect, piles
from fedsub.vertical.curve import Secret, hashed

P = 2**255 - 19
Tamper = Callable[[bytes], bytes]


def ladder(scalar: int, u: int) -> int:
    """RFC 7748 §5, with Python's integers: an independent account of X25519."""
    scalar = scalar & ~7 & (2**255 - 1) | 2**254
    x1, x2, z2, x3, z3 = u % P, 1, 0, u % P, 1
    for bit in reversed(range(255)):
        swap = scalar >> bit & 1
        if swap:
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb = d * a, c * b
        x3, z3 = (da + cb) ** 2 % P, x1 * (da - cb) ** 2 % P
        aa, bb = a * a, b * b
        e = aa - bb
        x2, z2 = aa * bb % P, e * (aa + 121665 * e) % P
        if swap:
            x2, z2, x3, z3 = x3, z3, x2, z2
    return x2 * pow(z2, P - 2, P) % P


def as_it_is(data: bytes) -> bytes:
    return data


@dataclass
class Piped:
    """One end of two queues; ``tamper`` changes what this end sends."""

    out: queue.Queue
    source: queue.Queue
    tamper: Tamper = as_it_is
    sent: int = 0

    def send(self, data: bytes) -> None:
        self.sent += len(data)
        self.out.put(self.tamper(data))

    def receive(self) -> bytes | None:
        return self.source.get(timeout=30)


def both(a: Any, b: Any, tamper: Tamper | None = None, **options: Any) -> list[Any]:
    """What either side returns or raises."""
    one, two = queue.Queue(), queue.Queue()
    ends = [Piped(one, two), Piped(two, one)]
    if tamper:
        ends[1].tamper = tamper
    out: list[Any] = [None, None]

    def side(number: int, ids: Any) -> None:
        try:
            out[number] = intersect(ids, ends[number], first=number == 0, **options)
        except (DataError, WireError) as err:
            out[number] = err
            ends[number].out.put(None)

    threads = [threading.Thread(target=side, args=(n, ids)) for n, ids in enumerate((a, b))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return out


def people(*numbers: int) -> list[str]:
    return [f"person-{n}" for n in numbers]


def test_points_are_multiplied_as_the_standard_says() -> None:
    secret = Secret()
    scalar = int.from_bytes(secret._key.private_bytes_raw(), "little")
    points = hashed(people(*range(12)))  # curve and twist, both are among them
    sides = {pow(u**3 + 486662 * u**2 + u, (P - 1) // 2, P) for u in _numbers(points)}
    assert sides == {1, P - 1}
    assert _numbers(secret.times(points)) == [ladder(scalar, u) for u in _numbers(points)]


def _numbers(points: np.ndarray) -> list[int]:
    return [int.from_bytes(p.tobytes(), "little") for p in points]


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_shared_ids_are_exactly_those_of_sets_and_in_one_order(batch: int) -> None:
    draw = np.random.default_rng(batch)
    a, b = people(*draw.permutation(60)[:35]), people(*draw.permutation(60)[:21])
    left, right = both(a, b, batch=batch)
    assert [a[r] for r in left.rows] == [b[r] for r in right.rows]
    assert set(a) & set(b) == {a[r] for r in left.rows}
    assert (left.shared, left.own, left.others) == (len(left.rows), 35, 21)


def test_only_the_number() -> None:
    left, right = both(people(*range(20)), people(*range(13, 40)), count_only=True, batch=8)
    assert left == Alignment(None, 7, 20, 27)
    assert right == Alignment(None, 7, 27, 20)


def test_numbers_and_their_text_are_the_same_id() -> None:
    left, right = both(np.array([7, 42, 3]), ["42", "8"])
    assert left.rows.tolist() == [1]
    assert right.rows.tolist() == [0]


def test_piles_on_disk_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piles, "PILE", 8)
    a, b = people(*range(150)), people(*range(100, 260))
    left, right = both(a, b, batch=32)
    assert {a[r] for r in left.rows} == set(a) & set(b)
    assert [a[r] for r in left.rows] == [b[r] for r in right.rows]
    assert both(a, b, batch=32, count_only=True)[1].shared == 50


def test_nothing_is_left_on_disk(tmp_path: Any) -> None:
    both(people(1, 2), people(2, 3), folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_is_sent_are_sorted_points_that_a_second_run_does_not_repeat() -> None:
    seen: list[np.ndarray] = []

    def look(data: bytes) -> bytes:
        message = wire.read(data)
        if message.kind == align.PSI_POINTS:
            seen.append(message.tensors["points"].numpy())
        return data

    for _ in range(2):
        both(people(*range(30)), people(*range(20, 50)), tamper=look)
    first, second = ([p.tobytes() for p in points] for points in seen)
    assert first == sorted(first)
    assert not set(first) & set(second)
    assert not set(first) & {p.tobytes() for p in hashed(people(*range(50)))}


def test_no_shared_id_says_what_to_compare() -> None:
    for error in both(people(1, 2, 3), people(4, 5)):
        assert isinstance(error, DataError)
        assert "share no id (" in str(error)
        assert "leading zeros" in str(error)


def test_an_id_twice_names_both_rows() -> None:
    error, _ = both([*people(1, 2, 3), "person-2"], people(4, 5))
    assert isinstance(error, DataError)
    assert "Rows 1 and 3 have the same id, 'person-2'" in str(error)


@pytest.mark.parametrize("bad", [None, 1.5, float("nan"), True])
def test_ids_that_are_none(bad: object) -> None:
    error, _ = both(["a", bad], people(4, 5))
    assert isinstance(error, DataError)
    assert "text or whole numbers" in str(error)


def test_no_ids_at_all() -> None:
    assert "no ids to align" in str(both([], people(1))[0])


def changed(kind: int, change: Callable[[np.ndarray], np.ndarray]) -> Tamper:
    """Another message in the place of every one of a kind, well formed."""

    def tamper(data: bytes) -> bytes:
        message = wire.read(data)
        if message.kind != kind:
            return data
        points = np.ascontiguousarray(change(message.tensors["points"].numpy().copy()))
        return wire.write(
            wire.Envelope(kind, message.round, message.client, tensors={"points": torch.from_numpy(points)})
        )

    return tamper


def low_order(points: np.ndarray) -> np.ndarray:
    points[0] = 0
    return points


def above(points: np.ndarray) -> np.ndarray:
    points[-1] = 255
    return points


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        (align.PSI_POINTS, low_order, "small order"),
        (align.PSI_POINTS, above, "no point of the curve"),
        (align.PSI_POINTS, lambda p: p[::-1], "not in order"),
        (align.PSI_POINTS, lambda p: np.repeat(p[:1], len(p), 0), "repeat"),
        (align.PSI_POINTS, lambda p: p[:-1], "points came as"),
        (align.PSI_DOUBLED, lambda p: np.repeat(p[:1], len(p), 0), "comes twice"),
        (align.PSI_DOUBLED, lambda p: hashed(range(len(p))), "Nothing of it may be used"),
    ],
)
def test_a_party_that_sends_something_else(kind: int, change: Any, said: str) -> None:
    error, _ = both(people(*range(9)), people(*range(6, 12)), tamper=changed(kind, change))
    assert isinstance(error, WireError)
    assert said in str(error)


def test_what_is_out_of_order_over_batches_or_in_a_small_one() -> None:
    first: list[np.ndarray] = []

    def again(points: np.ndarray) -> np.ndarray:
        first.append(points)
        return first[0][: len(points)]

    error, _ = both(people(*range(9)), people(*range(12)), tamper=changed(align.PSI_POINTS, again), batch=4)
    assert "repeat or are not in order" in str(error)
    error, _ = both(people(1, 2, 3), people(2, 5), tamper=changed(align.PSI_POINTS, lambda p: p[::-1]))
    assert "repeat or are not in order" in str(error)


def test_as_many_shared_ids_but_others() -> None:
    def another(data: bytes) -> bytes:
        message = wire.read(data)
        if message.kind != align.PSI_DONE:
            return data
        tensors = {**message.tensors, "seal": message.tensors["seal"] ^ 1}
        return wire.write(wire.Envelope(message.kind, message.round, message.client, tensors=tensors))

    error, _ = both(people(1, 2, 3), people(2, 5), tamper=another)
    assert isinstance(error, WireError)
    assert "This side finds 1 shared ids and the other 1, or others" in str(error)


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\n\r\n" * 9, os.urandom(300)])
def test_foreign_bytes(data: bytes) -> None:
    error, _ = both(people(1, 2), people(2), tamper=lambda _: data)
    assert isinstance(error, WireError)


def test_two_that_are_both_first() -> None:
    one, two = queue.Queue(), queue.Queue()
    two.put(wire.write(wire.Envelope(align.PSI_HELLO, 1, 1, tensors={})))
    with pytest.raises(WireError, match="must be first=True and the other"):
        intersect(people(1), Piped(one, two), first=True)


def test_other_settings_there() -> None:
    one, two = queue.Queue(), queue.Queue()
    said: list[Any] = []
    thread = threading.Thread(target=lambda: said.append(_refused(Piped(two, one), first=False, batch=9)))
    thread.start()
    said.append(_refused(Piped(one, two), first=True, batch=8))
    thread.join(30)
    assert all("give both the same" in text for text in said)


def _refused(end: Piped, **options: Any) -> str:
    with pytest.raises(WireError) as seen:
        intersect(people(1), end, **options)
    return str(seen.value)
