"""In which share of its samples a client names each of its rows."""

from __future__ import annotations

import numpy as np

from fedsub.data.clients import Array, Clients, Space
from fedsub.data.renumber import concatenated, distinct


def frequency(clients: Clients, space: Space, at: Array) -> Array:
    """φ_im of some clients, their rows one behind the other; float64 [Σ |S(i)|].

    A sample that names a row twice, in one column or in two, names it. A row that no sample of the client names,
    as padding, has 0.
    """
    sizes, held = clients.sizes[at], space.counts[at]
    samples = concatenated(clients.offsets[at], sizes)
    order = np.arange(len(samples))
    base = np.repeat(np.cumsum(held) - held, sizes)  # where the rows of a sample's client begin
    pairs = []
    for name in space.columns:
        column = clients.column(name)
        if column.starts is None:
            ids = np.take(column.values, samples, axis=0).reshape(len(samples), -1)
            pairs.append((np.repeat(order, ids.shape[1]), (ids + base[:, None]).ravel()))
        else:
            begin = column.starts[samples]
            lengths = np.minimum(column.starts[samples + 1] - begin, column.width)
            ids = column.values[concatenated(begin, lengths)]
            pairs.append((np.repeat(order, lengths), ids + np.repeat(base, lengths)))
    total = int(held.sum())
    sample, row = (np.concatenate([pair[k] for pair in pairs]) for k in (0, 1))
    named = distinct(sample.astype(np.int64) * max(total, 1) + row) % max(total, 1)
    counted = np.bincount(named, minlength=total)[:total] / np.repeat(np.maximum(sizes, 1), held)
    if space.padding:
        counted[(np.cumsum(held) - held)[held > 0]] = 0.0
    return counted
