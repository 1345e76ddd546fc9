"""Learning between parties that know different things about the same people.

`intersect` finds the ids that two parties share, and tells neither of the others.
"""

from fedsub.vertical.align import Alignment, intersect
from fedsub.vertical.protection import Draws, Protection

__all__ = ["Alignment", "Draws", "Protection", "intersect"]
