"""Learning between parties that know different things about the same people.

`intersect` finds the ids that two parties share, and tells neither of the others. `run` trains a split model: feature
parties send activations of their bottoms, the label party sends the gradients back.
"""

from fedsub.vertical.align import Alignment, intersect
from fedsub.vertical.link import PartyLost, Remote
from fedsub.vertical.party import FeatureHalf, Party
from fedsub.vertical.protection import Draws, Protection
from fedsub.vertical.run import LabelParty, Outcome, run
from fedsub.vertical.split import Joined

__all__ = [
    "Alignment",
    "Draws",
    "FeatureHalf",
    "Joined",
    "LabelParty",
    "Outcome",
    "Party",
    "PartyLost",
    "Protection",
    "Remote",
    "intersect",
    "run",
]
