"""Rounds over a secure sum: `transport` is the round, `vector` what a client gives, `adding` the two ways to add it."""

from fedsub.round.secure.transport import Secure

__all__ = ["Secure"]
