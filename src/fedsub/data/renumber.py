"""The one numbering per client that every way of building `Clients` goes through.

It takes columns whose ids are rows of the full tables, grouped by client, and goes space by space.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedsub.data.clients import Array, Clients, Column, Space
from fedsub.data.store import fingerprint

CHUNK = 1 << 22  # values renumbered at a time: bounds the memory for keys (a few times 32 MB)


def assemble(
    client_ids: Array,
    offsets: Array,
    columns: Sequence[Column],
    spaces: Sequence[Space],
    *,
    label: str | None,
    source: str = "",
    reading: Mapping[str, Any] | None = None,
) -> Clients:
    """`Clients` from columns whose ids are still global rows, grouped by client.

    ``spaces`` say size, padding and vocabulary; which rows each client holds is found here.
    """
    done = {c.name: c for c in columns}
    built: dict[str, Space] = {}
    for space in spaces:
        row_offsets, rows, local = renumber(
            offsets, [done[name] for name in space.columns], space.size, padding=space.padding
        )
        done.update((c.name, c) for c in local)
        built[space.name] = replace(space, row_offsets=row_offsets, rows=rows)
    clients = Clients(client_ids, offsets, done, built, label=label, source=source, reading=reading or {})
    return replace(clients, fingerprint=fingerprint(clients))


def renumber(
    offsets: Array, columns: Sequence[Column], size: int, *, padding: bool
) -> tuple[Array, Array, list[Column]]:
    """S(i) of every client for one space, as (row_offsets, rows), and its columns with local ids.

    A pair (client, row) becomes the key ``client * size + row``. Sorted distinct keys are all S(i) one
    after the other; the place of a key among them, less where its client begins, is the local id.
    """
    clients = len(offsets) - 1
    flat = [c.values.reshape(-1) for c in columns]
    bounds = [offsets * c.values[0].size if c.starts is None else c.starts[offsets] for c in columns]
    load = np.sum(bounds, axis=0)
    local = [np.empty(len(v), np.int32) for v in flat]
    counts = np.empty(clients, np.int64)
    rows: list[Array] = []
    begin = 0
    while begin < clients:
        end = int(np.searchsorted(load, load[begin] + CHUNK, side="right")) - 1
        end = min(max(end, begin + 1), begin + max((1 << 62) // size, 1), clients)
        base = np.arange(end - begin + 1, dtype=np.int64) * size
        cuts = [slice(b[begin], b[end]) for b in bounds]
        owners = [np.repeat(np.arange(end - begin), np.diff(b[begin : end + 1])) for b in bounds]
        keys = [base[o] + v[cut] for o, v, cut in zip(owners, flat, cuts, strict=True)]
        held = distinct(np.concatenate([*keys, base[:-1]] if padding else keys))
        first = np.searchsorted(held, base)
        counts[begin:end] = np.diff(first)
        for out, cut, owner, key in zip(local, cuts, owners, keys, strict=True):
            out[cut] = np.searchsorted(held, key) - first[owner]
        rows.append((held - np.repeat(base[:-1], counts[begin:end])).astype(_row_type(size)))
        begin = end
    numbered = [replace(c, values=new.reshape(c.values.shape)) for c, new in zip(columns, local, strict=True)]
    return np.concatenate([[0], np.cumsum(counts)]), np.concatenate(rows), numbered


def reorder(column: Column, samples: Array) -> Column:
    """The column with only the given samples, in the given order."""
    if column.starts is None:
        return replace(column, values=np.asarray(column.values[samples]))
    begin = np.asarray(column.starts[samples])
    lengths = column.starts[samples + 1] - begin
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return replace(column, values=np.asarray(column.values[concatenated(begin, lengths)]), starts=starts)


def concatenated(starts: Array, counts: Array) -> Array:
    """Indices of the ranges starts[k] : starts[k] + counts[k], one behind the other."""
    ends = np.cumsum(counts)
    shift = starts - (ends - counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(shift, counts)


def distinct(keys: Array) -> Array:
    """Sorted distinct keys. np.unique hashes integers first, which takes ten times as long on these."""
    keys.sort()
    return keys[np.concatenate([[True], keys[1:] != keys[:-1]])] if len(keys) else keys


def _row_type(size: int) -> type:
    return np.int32 if size < 2**31 else np.int64
