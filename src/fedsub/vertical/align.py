"""Private set intersection by elliptic-curve Diffie–Hellman: which ids do two parties share?

    A                                          B
    h(x) → a·h(x), sorted            ⇄         h(y) → b·h(y), sorted
    a·(b·h(y))                       ⇄         b·(a·h(x))          in the order they came
    x is shared where b·a·h(x) is among the a·b·h(y)

(C. Meadows, "A more efficient cryptographic matchmaking protocol", IEEE S&P 1986; B. Huberman, M. Franklin, T. Hogg,
"Enhancing privacy and trust in electronic communities", EC 1999.) Each side multiplies its own ids and the other's, two
multiplications per id; everything else costs little beside that.

What each side learns: the number of the other's ids; which of its own are shared (``count_only``: only how many, since
doubled points then come back sorted, and nobody can tell whose they are); and one bit of the hash of each id that is
not shared, in an order that says nothing (`fedsub.vertical.curve`). That holds for parties that keep to the protocol.
One that lies about which ids it has asks for ids that it does not hold, and one that mixes up its answers has the other
side find the wrong rows: no intersection of this kind can tell.

In memory are one batch and one pile (`fedsub.vertical.piles`), the ids as the caller has them, and what is shared.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsub.checks import check_whole
from fedsub.errors import ConfigError, DataError, WireError
from fedsub.round import wire
from fedsub.round.channels import Channel
from fedsub.vertical.curve import SIZE, Secret, hashed
from fedsub.vertical.piles import Piles, repeated, words

PSI_HELLO, PSI_POINTS, PSI_DOUBLED, PSI_DONE = range(40, 44)  # kinds of messages
BATCH = 1 << 13
Array = np.ndarray
Told = Callable[[int, int], None]  # (points done, points of all)


@dataclass(frozen=True)
class Alignment:
    """What one side learned. Entry t of ``rows`` is its row of the t-th shared id; t means the same id at both.

    ``rows`` is None where only the number was asked for.
    """

    rows: Array | None
    shared: int
    own: int
    others: int


def intersect(
    ids: Sequence[Any] | Array,
    channel: Channel,
    *,
    first: bool,
    count_only: bool = False,
    folder: str | Path | None = None,
    batch: int = BATCH,
    progress: Told = lambda done, total: None,
) -> Alignment:
    """The ids that this side and the one behind ``channel`` share. One of the two is ``first``: it sends, then hears.

    ``ids`` are text or whole numbers, none twice. ``folder`` is where piles are kept meanwhile; by default the system's
    folder for temporary files. ``progress`` hears of multiplications.
    """
    check_whole("batch", batch, 1, error=ConfigError)
    if not len(ids):
        raise DataError("There are no ids to align; give those of this party's rows.")
    talk = _Talk(channel, first)
    with tempfile.TemporaryDirectory(prefix="fedsub-align-", dir=folder) as where:
        return _Side(ids, talk, count_only, Path(where), batch, progress).run()


@dataclass
class _Talk:
    """Messages in step: whoever is first sends and then hears, the other the other way round."""

    channel: Channel
    first: bool
    step: int = 0

    def swap(self, kind: int, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self.step += 1
        data = wire.write(wire.Envelope(kind, self.step, int(self.first), tensors=tensors))
        if self.first:
            self.channel.send(data)
        came = self.channel.receive()
        if came is None:
            why = getattr(self.channel, "closed", "") or "does not answer"
            if self.step == 1:
                raise WireError(
                    f"The other party {why}, before it said anything; see what it reports, and whether it takes this "
                    "side's certificate."
                )
            raise WireError(f"The other party {why}, in the middle of the alignment; begin it again on both sides.")
        message = wire.read(came, kind)
        if (message.round, message.client) != (self.step, int(not self.first)):
            raise WireError(
                f"Expected step {self.step} of the other side, got step {message.round} of side {message.client}; one "
                "of the two must be first=True and the other first=False, and both begin anew."
            )
        if not self.first:
            self.channel.send(data)
        return message.tensors


class _Side:
    def __init__(self, ids: Any, talk: _Talk, count_only: bool, folder: Path, batch: int, progress: Told):
        self.ids, self.talk, self.count_only = ids, talk, count_only
        self.folder, self.batch, self.progress = folder, batch, progress
        self.secret, self.done, self.others = Secret(), 0, 0

    def run(self) -> Alignment:
        self.others = self._hello()
        own, order = self._blinded()
        most = max(len(self.ids), self.others)
        ours, theirs = Piles(self.folder, "ours", most), Piles(self.folder, "theirs", most)
        back = ours if not self.count_only else None
        before = np.zeros((0, SIZE), np.uint8)
        for begin in range(0, most, self.batch):
            sent = np.array(own[begin : begin + self.batch])
            came = self._swap(PSI_POINTS, sent, min(self.batch, max(0, self.others - begin)))
            before = self._ascending(before, came)
            doubled = self._times(came)
            theirs.add(doubled)
            if back is not None:
                answer = self._swap(PSI_DOUBLED, doubled, len(sent))
                back.add(answer, order[begin : begin + self.batch])
        if self.count_only:
            self._swap_sorted(theirs, ours, most)
        rows, shared, seal = _match(ours, theirs)
        ours.close()
        theirs.close()
        self._agree(shared, seal)
        return Alignment(None if self.count_only else rows, shared, len(self.ids), self.others)

    def _hello(self) -> int:
        wanted = {"ids": torch.tensor(len(self.ids)), "batch": torch.tensor(self.batch)}
        said = self.talk.swap(PSI_HELLO, {**wanted, "count_only": torch.tensor(self.count_only)})
        number: tuple[torch.dtype, tuple[int | None, ...]] = (torch.int64, ())
        wire.check(
            wire.Envelope(PSI_HELLO, 1, 0, tensors=said),
            {"ids": number, "batch": number, "count_only": (torch.bool, ())},
        )
        if bool(said["count_only"]) != self.count_only or int(said["batch"]) != self.batch:
            raise WireError(
                f"This side runs batch={self.batch}, count_only={self.count_only}, the other "
                f"batch={int(said['batch'])}, count_only={bool(said['count_only'])}; give both the same."
            )
        if int(said["ids"]) < 1:
            raise WireError(f"The other party says that it has {int(said['ids'])} ids; it needs at least one.")
        return int(said["ids"])

    def _blinded(self) -> tuple[Array, Array]:
        """This side's blinded ids in ascending order, and the row of each, both in files."""
        count = len(self.ids)
        piles = Piles(self.folder, "own", count)
        for begin in range(0, count, self.batch):
            some = self.ids[begin : begin + self.batch]
            piles.add(self._times(hashed(some)), np.arange(begin, begin + len(some)))
        points = np.memmap(self.folder / "points", np.uint8, "w+", shape=(count, SIZE))
        order = np.memmap(self.folder / "order", np.int64, "w+", shape=(count,))
        at = 0
        for records in piles.sorted():
            twice = repeated(records["point"])
            if len(twice):
                a, b = sorted(int(r) for r in records["row"][[twice[0] - 1, twice[0]]])
                raise DataError(f"Rows {a} and {b} have the same id, {self.ids[a]!r}; give every id once.")
            points[at : at + len(records)] = records["point"]
            order[at : at + len(records)] = records["row"]
            at += len(records)
        piles.close()
        return points, order

    def _times(self, points: Array) -> Array:
        out = self.secret.times(points)
        self.done += len(points)
        self.progress(self.done, len(self.ids) + self.others)
        return out

    def _swap(self, kind: int, points: Array, expected: int) -> Array:
        said = self.talk.swap(kind, {"points": torch.from_numpy(np.array(points))})
        head = wire.Envelope(kind, self.talk.step, 0, tensors=said)
        wire.check(head, {"points": (torch.uint8, (expected, SIZE))})
        came = said["points"].numpy()
        if (came[:, -1] > 0x7F).any():
            raise WireError("A blinded id is no point of the curve; the other side runs something else.")
        return came

    def _ascending(self, before: Array, came: Array) -> Array:
        """Refuse points that come twice or out of order; returns the last one."""
        chain = words(np.concatenate([before, came])) if len(came) else np.zeros((0, 4), np.uint64)
        if len(chain) > 1:
            differs = chain[1:] != chain[:-1]
            first = differs.argmax(1)
            at = np.arange(len(first))
            if not (differs.any(1) & (chain[1:][at, first] > chain[:-1][at, first])).all():
                raise WireError("The other party's blinded ids repeat or are not in order; it sends something else.")
        return came[-1:] if len(came) else before

    def _swap_sorted(self, theirs: Piles, ours: Piles, most: int) -> None:
        """Give the doubled points back in ascending order, which no longer tells whose they are."""
        sending = _cut(theirs, self.batch)
        for begin in range(0, most, self.batch):
            expected = min(self.batch, max(0, len(self.ids) - begin))
            ours.add(self._swap(PSI_DOUBLED, next(sending, np.zeros((0, SIZE), np.uint8)), expected))

    def _agree(self, shared: int, seal: bytes) -> None:
        mine = {"shared": torch.tensor(shared), "seal": torch.from_numpy(np.frombuffer(seal, np.uint8).copy())}
        said = self.talk.swap(PSI_DONE, mine)
        head = wire.Envelope(PSI_DONE, self.talk.step, 0, tensors=said)
        wire.check(head, {"shared": (torch.int64, ()), "seal": (torch.uint8, (len(seal),))})
        if int(said["shared"]) != shared or not torch.equal(said["seal"], mine["seal"]):
            raise WireError(
                f"This side finds {shared:,} shared ids and the other {int(said['shared']):,}, or others; what was "
                "sent was not what the protocol asks for. Nothing of it may be used."
            )
        if not shared:
            raise DataError(
                f"The parties share no id ({len(self.ids):,} here, {self.others:,} there). Compare how ids are written "
                "on both sides: case, blanks, leading zeros, hashes."
            )


def _cut(piles: Piles, batch: int) -> Iterator[Array]:
    """Sorted points in pieces of ``batch``; the last may be shorter."""
    rest = np.zeros((0, SIZE), np.uint8)
    for records in piles.sorted():
        rest = np.concatenate([rest, records["point"]])
        while len(rest) >= batch:
            yield rest[:batch]
            rest = rest[batch:]
    if len(rest):
        yield rest


def _match(ours: Piles, theirs: Piles) -> tuple[Array, int, bytes]:
    """(this side's rows of what is shared, how many they are, a digest of the doubled points), in their order."""
    rows: list[Array] = []
    seal = blake2b(digest_size=16)
    for mine, other in zip(ours.sorted(), theirs.sorted(), strict=True):
        for side in (mine, other):
            if len(repeated(side["point"])):
                raise WireError("A doubled point comes twice; the other side does not multiply what it was sent.")
        both = np.isin(_keys(mine), _keys(other))
        rows.append(mine["row"][both])
        seal.update(mine["point"][both].tobytes())
    found = np.concatenate(rows).astype(np.int64)
    return found, len(found), seal.digest()


def _keys(records: Array) -> Array:
    """Points as single values that compare as a whole."""
    return np.ascontiguousarray(records["point"]).view(f"V{SIZE}").reshape(-1)
