"""Parts: what a method adds to every client's local work."""

from fedsub.parts.prox import Prox

__all__ = ["Prox"]
