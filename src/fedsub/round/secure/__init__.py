"""Rounds over a secure sum: `transport` is the round, `perturbed` that of clients that perturb what they name, `vector`
what a client gives, `adding` the two ways to add it."""

from fedsub.method.parts import SecureSum
from fedsub.round.here import Here
from fedsub.round.secure.perturbed import Perturbed
from fedsub.round.secure.transport import Secure
from fedsub.round.server import ServerHalf


def secured(here: Here, server: ServerHalf, secure: SecureSum) -> Secure:
    """The transport of a method with this part."""
    return (Secure if secure.perturbs is None else Perturbed)(here, server, secure)


__all__ = ["Perturbed", "Secure", "secured"]
