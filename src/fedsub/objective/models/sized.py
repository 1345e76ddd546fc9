"""A built-in model where nobody has the data: only how many rows its tables need."""

from __future__ import annotations

from collections.abc import Mapping

from fedsub.data.clients import Clients
from fedsub.objective.recipe import shell


def shape(sizes: Mapping[str, int], columns: Mapping[str, str], lists: Mapping[str, int], label: str) -> Clients:
    """Data of nobody with columns of these spaces, and a label of 0 or 1. Where there are lists, row 0 is no id."""
    spaces: dict[str, dict[str, object]] = {}
    for name, size in sizes.items():
        named = [column for column, space in columns.items() if space == name]
        spaces[name] = {"size": int(size), "columns": named, "padding": any(column in lists for column in named)}
    kinds: dict[str, dict[str, object]] = {
        column: {"space": space, "ragged": column in lists, "width": lists.get(column, 1), "shape": [], "dtype": "<i4"}
        for column, space in columns.items()
    }
    kinds[label] = {"space": None, "ragged": False, "width": 1, "shape": [], "dtype": "<f4"}
    return shell({"label": label, "largest_label": 1.0, "spaces": spaces, "columns": kinds})
