"""Data of many clients: reading, splitting, saving; and dense features for convex problems (`fedsub.data.convex`)."""

from typing import TYPE_CHECKING

from fedsub.data.clients import Clients, Column, Space

if TYPE_CHECKING:
    from fedsub.data.convex import Planted, bundled, divide, generate_least_squares, generate_logistic, libsvm

__all__ = [
    "Clients",
    "Column",
    "Planted",
    "Space",
    "bundled",
    "divide",
    "generate_least_squares",
    "generate_logistic",
    "libsvm",
]


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module 'fedsub.data' has no attribute {name!r}")
    from fedsub.data import convex

    return getattr(convex, name)
