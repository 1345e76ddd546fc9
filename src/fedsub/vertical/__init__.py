"""Learning between parties that know different things about the same people.

`intersect` finds the ids that two parties share, and tells neither of the others. `Sides` are the data of all
parties in a simulation.
"""

from fedsub.vertical.align import Alignment, intersect
from fedsub.vertical.data import AdsWorld, Sides, expected_auc, held_out, movielens_sides
from fedsub.vertical.protection import Draws, Protection
from fedsub.vertical.protections import (
    GradientMixup,
    GradientProjection,
    IsotropicNoise,
    Marvell,
    MaxNormNoise,
    NormAlignment,
    read_protections,
)

__all__ = [
    "AdsWorld", "Alignment", "Draws", "GradientMixup", "GradientProjection", "IsotropicNoise", "Marvell",
    "MaxNormNoise", "NormAlignment", "Protection", "Sides", "expected_auc", "held_out", "intersect", "movielens_sides",
    "read_protections",
]  # fmt: skip
