"""Learning between parties that know different things about the same people.

`intersect` finds the ids that two parties share, and tells neither of the others. `run` trains a split model: feature
parties send activations of their bottoms, the label party sends the gradients back. `Sides` are the data of all
parties in a simulation.
"""

from fedsub.vertical.align import Alignment, intersect
from fedsub.vertical.attacks import Attacked, attack
from fedsub.vertical.data import AdsWorld, Sides, expected_auc, held_out, movielens_sides
from fedsub.vertical.joined import Distilled, Joined, OwnHead, Students
from fedsub.vertical.link import PartyLost, Remote
from fedsub.vertical.party import FeatureHalf, Party
from fedsub.vertical.predict import predict
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
from fedsub.vertical.run import LabelParty, Outcome, run

__all__ = [
    "AdsWorld", "Alignment", "Attacked", "Distilled", "Draws", "FeatureHalf", "GradientMixup", "GradientProjection",
    "IsotropicNoise", "Joined", "LabelParty", "Marvell", "MaxNormNoise", "NormAlignment", "Outcome", "OwnHead",
    "Party", "PartyLost", "Protection", "Remote", "Sides", "Students", "attack", "expected_auc", "held_out",
    "intersect", "movielens_sides", "predict", "read_protections", "run",
]  # fmt: skip
