"""One bit per value: signs, with and without error feedback."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedsub.errors import MethodError
from fedsub.method.codecs.base import Codec, Coded, Segments, bit_bytes
from fedsub.method.codecs.wire import Reader, raw
from fedsub.method.part import Total
from fedsub.method.slots import Method
from fedsub.trees import Tree

_TOP_BIT = np.uint64(63)


@dataclass(frozen=True)
class Sign(Codec):
    """Send sign(update) and move by the majority's sign: X ← X + δ sign(Σ_i a_i sign(Δ_i)).

    δ is the server's rate, Add(lr=δ); a tie moves nothing. One bit has no room for 0. A client holds rows that
    its steps did not touch, and if their zeros were written as +1 all such rows would drift upwards, so a zero is
    written as +1 or −1 by a fair coin of the client and the round. ceil(d/8) bytes per parameter of d values.

    Signs of noisy gradients may lead away from the minimum for ever; `ErrorFeedbackSign` repairs that.
    Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018, and "signSGD with
    Majority Vote is Communication Efficient and Fault Tolerant", ICLR 2019.
    """

    feedback: bool = field(default=False, init=False, repr=False)
    rowwise: ClassVar[bool] = True
    votes: ClassVar[bool] = True

    def check(self, method: Method) -> None:
        if method.average.corrects:
            raise MethodError(
                f"Sign moves by the sign of the average, which {type(method.average).__name__}' positive coefficient "
                "per row cannot change, so its correction would be lost; use ErrorFeedbackSign(), or "
                "average=OverClients() to vote."
            )

    def compress(self, x: Segments) -> Coded:
        sent = np.sign(x.values)
        _toss(sent, x, np.ones(1, sent.dtype))
        return Coded(sent, bit_bytes(x.sizes), ())

    def write(self, coded: Coded) -> bytes:
        return _pack(coded)

    def read(self, reader: Reader, blank: Segments) -> np.ndarray:
        return _signed(reader, np.ones_like(blank.values))

    def combine(self, mean: dict[str, Tree], total: Total, state: dict[str, Tree], round: int) -> None:
        mean["update"] = {name: value.sign() for name, value in mean["update"].items()}


@dataclass(frozen=True)
class ErrorFeedbackSign(Codec):
    """Send (‖p‖₁/d) sign(p) of p = update + residual, and keep the rest as residual.

    ‖C(p) − p‖² = (1 − δ)‖p‖² with δ = ‖p‖₁²/(d‖p‖₂²) in [1/d, 1]. One bit has no room for 0: a zero is decoded as
    +‖p‖₁/d or −‖p‖₁/d, by a fair coin of the client and the round, and the residual takes it back; with that the
    identity holds for p with zeros too (with sign(0) = 0 it would not). p = 0 is decoded as 0. ceil(d/8) bytes per
    parameter of d values, and its scale in the parameter's type.

    Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
    """

    feedback: bool = field(default=True, init=False, repr=False)

    def compress(self, x: Segments) -> Coded:
        norms = x.reduce(np.add, np.abs(x.values, dtype=np.float64))
        scale = (norms / np.maximum(x.sizes, 1)).astype(x.values.dtype)
        sent = np.copysign(x.spread(scale), x.values)
        _toss(sent, x, scale)
        size = np.where(x.sizes > 0, bit_bytes(x.sizes) + scale.itemsize, 0)
        return Coded(sent, size, (scale,))

    def write(self, coded: Coded) -> bytes:
        return raw(coded.fields[0]) + _pack(coded) if len(coded.sent) else b""

    def read(self, reader: Reader, blank: Segments) -> np.ndarray:
        if not len(blank.values):
            return blank.values
        scale = reader.take(blank.values.dtype, 1)
        return _signed(reader, blank.spread(scale))


def _toss(sent: np.ndarray, x: Segments, scale: np.ndarray) -> None:
    """Where x is 0, a fair coin decides the sign of what is sent: always + would let rows without gradient drift."""
    zeros = np.flatnonzero(x.values == 0)
    if len(zeros):
        size = scale if len(scale) == 1 else scale[x.owners[zeros]]
        sent[zeros] = (1 - 2 * (x.draws(zeros) >> _TOP_BIT).astype(np.int8)) * size


def _signed(reader: Reader, size: np.ndarray) -> np.ndarray:
    return np.where(reader.bits(len(size)), -size, size)


def _pack(coded: Coded) -> bytes:
    return np.packbits(np.signbit(coded.sent), bitorder="little").tobytes()
