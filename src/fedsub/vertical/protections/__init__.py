"""What the label party may do to gradients before a feature party sees them, and how a command line writes it.

norm          all rows as long as the longest
maxnorm       noise along each row, so that all are as long as the longest in the mean
iso:1         the same noise in all directions, as strong as the longest row
marvell:4     the noise that lets the two classes differ least, of four times their distance
mixup:0.6     rows mixed in pairs
project:0.5   rows turned towards their mean
mixup:0.6+project:0.5     one after the other
"""

from __future__ import annotations

from fedsub.errors import MethodError
from fedsub.method.spelling import Words, read_word
from fedsub.vertical.protection import Protection
from fedsub.vertical.protections.marvell import Marvell
from fedsub.vertical.protections.mixing import GradientMixup, GradientProjection
from fedsub.vertical.protections.norms import IsotropicNoise, MaxNormNoise, NormAlignment

WORDS: Words = {
    "norm": (NormAlignment, None), "maxnorm": (MaxNormNoise, None), "iso": (IsotropicNoise, float),
    "marvell": (Marvell, float), "mixup": (GradientMixup, float), "project": (GradientProjection, float),
}  # fmt: skip


def read_protections(text: str) -> tuple[Protection, ...]:
    """The protections that words mean, with a number each and "+" between them; "none" is nothing."""
    if not isinstance(text, str):
        raise MethodError(f"Protections are written like marvell:4 or mixup:0.6+project:0.5, got {text!r}.")
    if text.strip() in ("", "none"):
        return ()
    return tuple(read_word(one.strip(), WORDS, "protection", objects=False) for one in text.split("+"))


__all__ = [
    "WORDS",
    "GradientMixup",
    "GradientProjection",
    "IsotropicNoise",
    "Marvell",
    "MaxNormNoise",
    "NormAlignment",
    "read_protections",
]  # fmt: skip
