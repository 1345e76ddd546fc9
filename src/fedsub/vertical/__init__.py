"""Learning between parties that know different things about the same people.

`intersect` finds the ids that two parties share, and tells neither of the others. `PartyTable` is what one party
knows of some samples, `Sides` the tables of all of them in a simulation.
"""

from fedsub.vertical.align import Alignment, intersect
from fedsub.vertical.data import AdsWorld, PartyTable, Sides, expected_auc, movielens_sides
from fedsub.vertical.protection import Draws, Protection

__all__ = [
    "AdsWorld", "Alignment", "Draws", "PartyTable", "Protection", "Sides", "expected_auc", "intersect",
    "movielens_sides",
]  # fmt: skip
