"""Some values and where they belong: the largest, or random ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsub.checks import check_share
from fedsub.errors import MethodError
from fedsub.method.codecs.base import Codec, Coded, Segments, bit_bytes
from fedsub.method.codecs.wire import Reader, encode_rows, raw, row_id_bytes
from fedsub.method.slots import Method


@dataclass(frozen=True)
class TopK(Codec):
    """Send the k = max(1, ceil(share · d)) values of largest magnitude, the first ones among equals, and their places.

    With feedback (the default) what was not sent is kept and added to the client's next update; without, it is
    lost, and training need not converge. Per parameter k values in its own type, the places as differences or as
    a bitmap, whichever is shorter, and a byte that tells which.
    Stich et al., "Sparsified SGD with Memory", NeurIPS 2018.
    """

    share: float = 0.01
    feedback: bool = True

    @property
    def shrinks(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return not self.feedback

    def check(self, method: Method) -> None:
        super().check(method)
        check_share(f"share of {type(self).__name__}", self.share, hint="0.01 sends one value in a hundred")

    def compress(self, x: Segments) -> Coded:
        k = _how_many(x.sizes, self.share)
        if np.array_equal(k, x.sizes):  # all of it, as of a single bias: the bitmap is shortest
            places, values, sent, ids = np.arange(len(x.values)), x.values, x.values.copy(), 1 + bit_bytes(k)
            places -= np.repeat(x.starts, k)
        else:
            # The bits of |x| are ordered like |x|, and NaN comes out largest.
            bits = np.abs(x.values).view(np.int32 if x.values.itemsize == 4 else np.int64)
            at = _smallest(x, ~bits, k)
            places, values = at - np.repeat(x.starts, k), x.values[at]
            sent, ids = _only(x.values, at, values), row_id_bytes(np.concatenate([[0], np.cumsum(k)]), places, x.sizes)
        return Coded(sent, np.where(k > 0, ids + k * values.itemsize, 0), (places, values, x.sizes))

    def write(self, coded: Coded) -> bytes:
        places, values, sizes = coded.fields
        return encode_rows(places, int(sizes[0])) + raw(values) if len(places) else b""

    def read(self, reader: Reader, blank: Segments) -> np.ndarray:
        k = int(_how_many(blank.sizes, self.share)[0])
        if k:
            places = reader.rows(len(blank.values), k)
            blank.values[places] = reader.take(blank.values.dtype, k)
        return blank.values


@dataclass(frozen=True)
class RandomK(Codec):
    """Send k = max(1, ceil(share · d)) random values; the server finds their places from the client's seed.

    Without feedback the values are multiplied by d/k, so that what is decoded is the update on average. With
    feedback (the default) they are not, and the rest is kept for the next time. ``scale`` overrules the former.
    Per parameter k values in its own type, and 8 bytes for the seed.
    Stich et al., "Sparsified SGD with Memory", NeurIPS 2018.
    """

    share: float = 0.01
    feedback: bool = True
    scale: bool | None = None
    header = 8

    @property
    def shrinks(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return not self.feedback and self.scale is False

    def check(self, method: Method) -> None:
        super().check(method)
        check_share(f"share of {type(self).__name__}", self.share, hint="0.01 sends one value in a hundred")
        if self.scale is not None and not isinstance(self.scale, bool):
            raise MethodError(f"scale of RandomK is None (d/k without feedback), True or False, got {self.scale!r}.")
        if self.scale and self.feedback:
            raise MethodError(
                "RandomK(scale=True, feedback=True) sends more than it has, so the residual grows without bound; "
                "leave scale out, or set feedback=False."
            )

    def compress(self, x: Segments) -> Coded:
        k = _how_many(x.sizes, self.share)
        at = self._places(x, k)
        values = x.values[at]
        if not self.feedback if self.scale is None else self.scale:
            values = values * np.repeat(x.sizes / np.maximum(k, 1), k).astype(values.dtype)
        return Coded(_only(x.values, at, values), k * values.itemsize, (values,))

    def write(self, coded: Coded) -> bytes:
        return raw(coded.fields[0])

    def read(self, reader: Reader, blank: Segments) -> np.ndarray:
        at = self._places(blank, _how_many(blank.sizes, self.share))
        blank.values[at] = reader.take(blank.values.dtype, len(at))
        return blank.values

    def _places(self, x: Segments, k: np.ndarray) -> np.ndarray:
        return np.arange(len(x.values)) if np.array_equal(k, x.sizes) else _smallest(x, x.draws(), k)


def _how_many(sizes: np.ndarray, share: float) -> np.ndarray:
    # 0.07 · 100 is a hair above 7 in floating point, and means 7.
    return np.minimum(sizes, np.maximum(1, np.ceil(share * sizes * (1 - 1e-12)).astype(np.int64)))


def _only(values: np.ndarray, at: np.ndarray, kept: np.ndarray) -> np.ndarray:
    out = np.zeros_like(values)
    out[at] = kept
    return out


def _smallest(x: Segments, keys: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Where each client's k smallest keys are, ascending; of equal ones the first."""
    bound = x.spread(_kth(x, keys, k))
    at = np.flatnonzero(keys <= bound)
    if len(at) == k.sum():
        return at
    # Somebody has more than k: of those equal to the bound only as many as there is room for beside the smaller ones.
    edges = np.searchsorted(at, np.append(x.starts, len(keys)))
    owner = np.repeat(np.arange(len(k)), np.diff(edges))
    smaller = keys[at] < bound[at]
    seen = np.concatenate([[0], np.cumsum(smaller)])
    room = k - np.diff(seen[edges])
    equal = np.arange(1, len(at) + 1) - seen[1:]  # how many equal ones there are up to here
    rank = equal - (edges[:-1] - seen[edges[:-1]])[owner]
    return at[smaller | (rank <= room[owner])]


def _kth(x: Segments, keys: np.ndarray, k: np.ndarray) -> np.ndarray:
    """The k-th smallest key of each client."""
    if (x.sizes == x.sizes[0]).all():
        place = int(k[0]) - 1
        return np.partition(keys.reshape(len(k), -1), place, axis=1)[:, place]
    out = np.zeros(len(k), keys.dtype)
    keys = keys.copy()
    for i, (start, end, place) in enumerate(zip(x.starts.tolist(), x.ends.tolist(), (k - 1).tolist(), strict=True)):
        if place >= 0:
            own = keys[start:end]
            own.partition(place)
            out[i] = own[place]
    return out
