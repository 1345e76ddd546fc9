"""What all who take part in one secure sum agree on, before the first message."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise

import numpy as np

from fedsub.checks import check_whole
from fedsub.errors import MethodError, WireError
from fedsub.secure.graph import Ring, degree_and_threshold
from fedsub.secure.ring import MOST_BYTES, Array, Segment
from fedsub.secure.shamir import MOST_HOLDERS

SESSION = 16
_HEAD = struct.Struct("<4sBQQ16sIIIIII")  # … participants, segments, degree, threshold, least, bytes of the context
_SEGMENT = struct.Struct("<BBQQ")  # bytes of the name, bits, length, most + 1, or 0 where values wrap
_MAGIC, _VERSION = b"fset", 1
_MOST_CLIENTS = 2**24


@dataclass(frozen=True)
class Setting:
    """One secure sum. Its digest enters every key, so that clients with different settings share no key at all.

    ``threshold`` t: how many of the shares of a client's secrets open them; they lie with its ``degree`` neighbours and
    itself. ``least``: a list with fewer survivors is opened by nobody. ``session`` is fresh for every run of the
    protocol: a round that is played again is another session. ``context``: bytes of the caller that all must share, as
    the digest of the rows that are summed.
    """

    run: int
    round: int
    participants: tuple[int, ...]
    segments: tuple[Segment, ...]
    threshold: int
    degree: int
    least: int
    session: bytes
    context: bytes = b""

    @staticmethod
    def plan(
        run: int, round: int, participants: Sequence[int], segments: Sequence[Segment], *, adversarial: float = 0.0,
        dropping: float = 0.0, degree: int | None = None, threshold: int | None = None, least: int | None = None,
        context: bytes = b"",
    ) -> Setting:  # fmt: skip
        """A setting with a fresh session.

        With rates of clients that collude with the server or drop out, the degree and the threshold are those of
        `degree_and_threshold`; without, or where there are too few clients for it, all are neighbours and a majority
        of all is the threshold.
        """
        people = tuple(sorted(check_whole("The number of a participant", p) for p in participants))
        count = len(people)
        if degree is None and threshold is None and (adversarial or dropping) and count >= 4:
            found = degree_and_threshold(count, adversarial, dropping, majority=True)
            if found is not None:
                degree, threshold = found
        degree = max(count - 1, 1) if degree is None else min(degree, max(count - 1, 1))
        threshold = (degree + 1) // 2 + 1 if threshold is None else threshold
        least = max(count // 2 + 1, threshold) if least is None else least
        return Setting(
            run, round, people, tuple(segments), threshold, degree, least, os.urandom(SESSION), context
        )  # fmt: skip

    def __post_init__(self) -> None:
        people, count = self.participants, len(self.participants)
        for name in ("run", "round"):
            check_whole(f"{name} of a secure sum", getattr(self, name), 0, 2**64 - 1)
        for name in ("threshold", "degree", "least"):
            check_whole(f"{name} of a secure sum", getattr(self, name))
        if count < 2:
            raise MethodError(f"A secure sum takes at least 2 clients, got {count}: the sum of one is its value.")
        if count > _MOST_CLIENTS or min(people) < 0 or max(people) >= 2**64:
            raise MethodError(f"A secure sum takes up to {_MOST_CLIENTS} clients with numbers from 0 to 2^64 − 1.")
        if any(a >= b for a, b in pairwise(people)):
            raise MethodError("A secure sum names every participant once, in ascending order.")
        if not self.segments or len({s.name for s in self.segments}) < len(self.segments):
            raise MethodError("A secure sum takes at least one segment, each with a name of its own.")
        if self.nbytes > MOST_BYTES:
            raise MethodError(
                f"A secure sum takes up to {MOST_BYTES} bytes, this one has {self.nbytes}; split it over several."
            )
        for segment in self.segments:
            segment.prove(count)
        complete = self.degree == count - 1
        if not complete and not (2 <= self.degree < count - 1 and self.degree % 2 == 0):
            raise MethodError(f"The degree must be even and from 2, or {count - 1} for all; got {self.degree}.")
        if not (self.degree + 1 < 2 * self.threshold and self.threshold <= self.degree + 1 <= MOST_HOLDERS):
            raise MethodError(
                f"The threshold must be more than half of the {self.degree + 1} who hold a client's shares, and at "
                f"most all of them; got {self.threshold}: fewer could be told two stories."
            )
        if not max(2, self.threshold) <= self.least <= count:
            raise MethodError(
                f"least must be from {max(2, self.threshold)}, the threshold, to the {count} who take part; "
                f"got {self.least}."
            )
        if len(self.session) != SESSION:
            raise MethodError(f"A session has {SESSION} bytes, got {len(self.session)}.")

    def write(self) -> bytes:
        head = _HEAD.pack(
            _MAGIC, _VERSION, self.run, self.round, self.session, len(self.participants), len(self.segments),
            self.degree, self.threshold, self.least, len(self.context),
        )  # fmt: skip
        parts = [head, self.context, np.array(self.participants, "<u8").tobytes()]
        for s in self.segments:
            name = s.name.encode()
            parts += [_SEGMENT.pack(len(name), s.bits, s.length, 0 if s.most is None else s.most + 1), name]
        return b"".join(parts)

    @staticmethod
    def read(data: bytes) -> Setting:
        """A written setting, or WireError; every length is checked before memory is taken."""
        if len(data) < _HEAD.size or data[:4] != _MAGIC:
            raise WireError("These bytes are no setting of a secure sum.")
        _, version, run, round, session, count, segments, degree, threshold, least, size = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise WireError(f"The setting is of version {version}, this fedsub reads {_VERSION}; install the same.")
        at = _HEAD.size + size
        if at + 8 * count + segments * _SEGMENT.size > len(data):
            raise WireError(f"A setting announces {count} clients and {segments} segments, and ends in the middle.")
        context = bytes(data[_HEAD.size : at])
        people = tuple(np.frombuffer(data, "<u8", count, at).tolist())
        at += 8 * count
        found = []
        try:
            for _ in range(segments):
                length, bits, values, most = _SEGMENT.unpack_from(data, at)
                at += _SEGMENT.size
                name = bytes(data[at : at + length]).decode()
                at += length
                found.append(Segment(name, values, bits, most - 1 if most else None))
            if at != len(data):
                raise WireError(f"A setting of {at} bytes came in {len(data)}.")
            return Setting(run, round, people, tuple(found), threshold, degree, least, session, context)
        except (struct.error, UnicodeDecodeError, MethodError) as err:
            raise WireError(f"The setting of a secure sum does not hold: {err}") from err

    @cached_property
    def digest(self) -> bytes:
        return blake2b(self.write(), digest_size=32, person=b"fedsub setting").digest()

    @cached_property
    def places(self) -> dict[int, int]:
        """A participant's place among them."""
        return {client: place for place, client in enumerate(self.participants)}

    @property
    def nbytes(self) -> int:
        """Of the vector that is summed."""
        return sum(s.nbytes for s in self.segments)

    def neighbours(self, present: Array, place: int) -> Array:
        """The sorted neighbours, as places, of a place that is present."""
        at = present.nonzero()[0]
        return at[self._ring(present).of(int(np.searchsorted(at, place)))]

    def neighbourhoods(self, present: Array) -> dict[int, Array]:
        """`neighbours` of every place that is present."""
        at, ring = present.nonzero()[0], self._ring(present)
        return {place: at[ring.of(i)] for i, place in enumerate(at.tolist())}

    def _ring(self, present: Array) -> Ring:
        return Ring(int(present.sum()), self.degree, self.digest)


def one_more(view: bytes, present: Array, publics: bytes = b"") -> bytes:
    """What a party knows after a list of clients: a digest of all it knew, of that list, and of the keys of all on it
    where they are told."""
    return blake2b(view + np.packbits(present).tobytes() + publics, digest_size=32, person=b"fedsub view").digest()
