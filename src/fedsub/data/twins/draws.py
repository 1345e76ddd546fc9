"""Draws of the twins, all from counters: a client's draws are a function of (seed, purpose, client, place).

So a block of clients can be made on its own, and how clients are cut into blocks changes nothing
(`fedsub.rng`). What is small, such as the size of every client, comes from an ordinary generator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedsub import rng
from fedsub.data.clients import Array

Accept = Callable[[Array, Array, Array], Array]  # (client, row, uniform number) of every draw -> keep it?


def client_keys(seed: int, purpose: int, begin: int, end: int) -> Array:
    """One word per client begin … end - 1, from which its draws for one purpose follow."""
    return rng.key(rng.TWIN, seed, purpose, np.arange(begin, end))


def uniforms(keys: Array, counts: Array) -> Array:
    """``counts[i]`` numbers in [0, 1) for client i, all clients one behind the other."""
    return rng.uniform(_words(keys, np.repeat(np.arange(len(keys)), counts), places(counts)))


def places(counts: Array) -> Array:
    """0 … counts[i] - 1 for every i, one behind the other."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)


def shuffled(keys: Array, owner: Array, tags: Array) -> Array:
    """The order that shuffles every client's entries; ``owner`` rises and ``tags`` differ within a client."""
    words = rng.mix(_words(keys, owner, tags))
    # Stable, so that even two equal words could not let the result depend on the block.
    return np.argsort((owner.astype(np.uint64) << np.uint64(44)) | (words >> np.uint64(20)), kind="stable")


@dataclass(frozen=True)
class Given:
    """Pairs (client, row) that are decided beforehand, sorted by client."""

    client: Array
    row: Array

    @classmethod
    def of(cls, client: Array, row: Array) -> Given:
        order = np.argsort(client, kind="stable")
        return cls(client[order], row[order])

    def within(self, begin: int, end: int) -> tuple[Array, Array]:
        """The pairs of clients begin … end - 1, counted from ``begin``."""
        low, high = np.searchsorted(self.client, [begin, end])
        return self.client[low:high] - begin, self.row[low:high]


def anywhere(draw: np.random.Generator, sizes: Array, rows: Array) -> Given:
    """A client for each of ``rows``, in proportion to ``sizes``; nobody gets more rows than its size."""
    ends = np.cumsum(sizes)
    place = draw.choice(int(ends[-1]), len(rows), replace=False)
    return Given.of(np.searchsorted(ends, place, side="right"), rows)


def distinct(
    keys: Array, counts: Array, weights: Array, given: tuple[Array, Array], accept: Accept | None = None
) -> tuple[Array, Array]:
    """``counts[i]`` different rows for client i by weight, shuffled within a client, as (client, row) pairs.

    Rows are drawn one after another *with* replacement and repeats are dropped, which is drawing in
    proportion to weight *without* replacement; ``given`` pairs come first, and ``accept`` may refuse
    a draw. Work is in proportion to the draws, not to clients x rows. ``weights`` are cumulated, up to 1.
    """
    tries = counts + counts // 2 + 8
    todo, found = np.arange(len(counts)), []
    while len(todo):
        owner, row, enough = _first_distinct(keys, todo, tries[todo], counts[todo], weights, given, accept)
        found.append(np.stack([owner, row]))
        todo = todo[~enough]
        tries[todo] *= 3  # all draws are repeated, and more follow: the outcome does not depend on how many
    owner, row = np.concatenate(found, axis=1)
    order = np.argsort(owner, kind="stable")
    owner, row = owner[order], row[order]
    return owner, row[shuffled(keys, owner, row)]


def _first_distinct(
    keys: Array,
    todo: Array,
    tries: Array,
    counts: Array,
    weights: Array,
    given: tuple[Array, Array],
    accept: Accept | None,
) -> tuple[Array, Array, Array]:
    """One attempt of `distinct` for the clients ``todo``: pairs of those that got enough, and who did."""
    index, place = np.repeat(np.arange(len(todo)), tries), places(tries)
    words = _words(keys, todo[index], place)
    row = np.minimum(np.searchsorted(weights, rng.uniform(words), side="right"), len(weights) - 1)
    if accept is not None:
        keep = accept(todo[index], row, rng.uniform(rng.mix(words)))
        index, place, row = index[keep], place[keep], row[keep]
    mine = np.isin(given[0], todo)
    first, fixed = np.searchsorted(todo, given[0][mine]), given[1][mine]
    ahead = np.bincount(first, minlength=len(todo))
    most = int(ahead.max(initial=0))
    index, row = np.concatenate([first, index]), np.concatenate([fixed, row])
    place = np.concatenate([places(ahead), place + most])
    # (client, row, place) as one number: sorting numbers is several times faster than sorting by columns.
    rows, length = len(weights), most + int(tries.max())
    assert len(todo) * rows * length < 1 << 63, "blocks of this size cannot be numbered; use smaller ones"
    pair, place = np.divmod(np.sort((index * rows + row) * length + place), length)
    keep = np.concatenate([[True], pair[1:] != pair[:-1]])
    index, row = np.divmod(pair[keep], rows)
    inner = np.sort((index * length + place[keep]) * rows + row)
    index, row = inner // (rows * length), inner % rows
    have = np.bincount(index, minlength=len(todo))
    enough = have >= counts
    chosen = (places(have) < np.repeat(counts, have)) & enough[index]
    return todo[index[chosen]], row[chosen], enough


def _words(keys: Array, owner: Array, place: Array) -> Array:
    return rng.mix(keys[owner] + place.astype(np.uint64))


def sizes(draw: np.random.Generator, clients: int, samples: int, *, least: int, most: int, spread: float) -> Array:
    """Log-normal numbers of samples between ``least`` and ``most`` that sum to ``samples`` exactly."""
    shape = draw.lognormal(0.0, spread, clients)
    low, high = 0.0, samples / shape.min()
    for _ in range(60):  # the clipped total grows with the factor, so halve the interval
        factor = (low + high) / 2
        total = np.clip(np.floor(shape * factor), least, most).sum()
        low, high = (factor, high) if total <= samples else (low, factor)
    found = np.clip(np.floor(shape * low), least, most).astype(np.int64)
    while short := samples - int(found.sum()):  # the few that rounding left over
        room = np.flatnonzero(found < most)
        found[draw.permutation(room)[:short]] += 1
    return found


def shares(weights: Array, total: int) -> Array:
    """``total`` split in proportion, in whole numbers (largest remainders first)."""
    exact = weights * (total / weights.sum())
    counts = np.floor(exact).astype(np.int64)
    short = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:short]] += 1
    return counts


def cumulated(weights: Array) -> Array:
    """Running totals of the weights, divided by the last."""
    totals = np.cumsum(weights, dtype=np.float64)
    return totals / totals[-1]


def sigmoid(logits: Array) -> Array:
    return 1 / (1 + np.exp(-logits))


def intercept(share_of: Callable[[float], float], share: float) -> float:
    """The intercept at which ``share_of(intercept)``, which rises, is ``share``."""
    low, high = -12.0, 12.0
    for _ in range(14):  # a thousandth, on the scale of logits
        middle = (low + high) / 2
        low, high = (middle, high) if share_of(middle) < share else (low, middle)
    return (low + high) / 2
