"""Lists that belong to samples, cut from one long array, and `Clients` from rows that are sorted by client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedsub.data.clients import Array, Clients, Column, Space
from fedsub.data.ingest import UNFILLED
from fedsub.data.renumber import assemble, concatenated


def ranges(name: str, values: Array, begin: Array, end: Array, *, space: str, longest: int | None = None) -> Column:
    """The list column whose list k is ``values[begin[k]:end[k]]``, of which the last ``longest`` are kept."""
    begin = begin if longest is None else np.maximum(begin, end - longest)
    counts = np.maximum(end - begin, 0)
    starts = np.concatenate([[0], np.cumsum(counts)])
    width = max(int(counts.max(initial=0)), 1)
    return Column(name, np.asarray(values)[concatenated(begin, counts)], space, starts, width)


def earlier_positives(owner: Array, label: Array) -> tuple[Array, Array, Array]:
    """(positive rows, begin, end): the positives of a row's client before it are ``positive[begin[k]:end[k]]``.

    Rows are sorted by client and, within one, by time.
    """
    positive = np.flatnonzero(label)
    before = np.concatenate([[0], np.cumsum(label != 0)])  # positives in rows 0 .. k-1
    first_row = np.flatnonzero(np.diff(owner, prepend=owner[:1] - 1))
    first = np.repeat(first_row, np.diff(np.append(first_row, len(owner))))
    return positive, before[first], before[:-1]


def clients_from(
    owner: Array, columns: Sequence[Column], sizes: Mapping[str, int], vocabulary: Mapping[str, Array] | None = None,
    *, padding: Sequence[str] = (), source: str = "",
) -> Clients:  # fmt: skip
    """`Clients` from columns of global table rows; ``owner`` (sorted) says whose each sample is.

    ``sizes`` are the rows of every space; the label column is called ``label``.
    """
    ids, first = np.unique(owner, return_index=True)
    offsets = np.append(first, len(owner)).astype(np.int64)
    spaces = [
        Space(
            name, size, tuple(c.name for c in columns if c.space == name), UNFILLED, UNFILLED, name in padding,
            (vocabulary or {}).get(name),
        )
        for name, size in sizes.items()
    ]  # fmt: skip
    return assemble(ids, offsets, columns, spaces, label="label", source=source)
