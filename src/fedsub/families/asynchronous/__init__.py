"""Asynchronous rounds: clients train at once on models of different age, and the server steps when some have answered.

staleness   what an update that is late still counts for
queue       who trains until when, on a simulated clock
flight      what clients have computed and the server has not yet added
method      `Asynchronous`: a composition of slots, played so
trainer     its rounds
"""

from typing import TYPE_CHECKING

from fedsub.families.asynchronous.staleness import Constant, Hinge, Polynomial, Staleness

if TYPE_CHECKING:
    from fedsub.families.asynchronous.method import Asynchronous

__all__ = ["Asynchronous", "Constant", "Hinge", "Polynomial", "Staleness"]


def __getattr__(name: str):
    """The method needs all of a round, so it is imported at first use."""
    if name != "Asynchronous":
        raise AttributeError(f"module 'fedsub.families.asynchronous' has no attribute {name!r}")
    from fedsub.families.asynchronous.method import Asynchronous

    return Asynchronous
