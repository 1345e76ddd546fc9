"""Fewer bits per value: rounding at random to the levels of one byte."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsub.method.codecs.base import Codec, Coded, Segments
from fedsub.method.codecs.wire import Reader, raw

_HALF = np.uint64(32)


@dataclass(frozen=True)
class Int8(Codec):
    """Send q = floor(x/s + u) in one byte, decoded as q · s, with s = max|x|/127 and u uniform in [0, 1).

    E q · s = x: no bias, and an error below s. Per parameter of d values d bytes, and s in the parameter's type.
    With 255 levels and the largest value in place of the norm this is the quantiser of Alistarh et al., "QSGD:
    Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS 2017.
    """

    feedback: bool = False

    def compress(self, x: Segments) -> Coded:
        kind = x.values.dtype
        top = x.reduce(np.maximum, np.abs(x.values)).astype(np.float64)
        step = (top / 127).astype(kind)
        step = np.where(step.astype(np.float64) * 127 < top, np.nextafter(step, kind.type(np.inf)), step)  # |q| ≤ 127
        # 32 bits of chance: 127 + u is then below 128 in floating point as well.
        level = (x.draws() >> _HALF).astype(np.float64)
        level *= 2.0**-32
        with np.errstate(invalid="ignore"):  # of NaN and infinity, which the step hands on
            level += x.values / x.spread(np.where(step == 0, 1.0, step.astype(np.float64)))
            q = np.floor(level, out=level).astype(np.int8)
            sent = q * x.spread(step)
        return Coded(sent, np.where(x.sizes > 0, x.sizes + kind.itemsize, 0), (q, step))

    def write(self, coded: Coded) -> bytes:
        q, step = coded.fields
        return raw(step) + raw(q) if len(q) else b""

    def read(self, reader: Reader, blank: Segments) -> np.ndarray:
        if not len(blank.values):
            return blank.values
        step = reader.take(blank.values.dtype, 1)
        return reader.take(np.int8, len(blank.values)) * step
