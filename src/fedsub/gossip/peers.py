"""Whom nodes ask: R distinct peers, drawn for every node and segment by itself.

The draw is R. Floyd's: the t-th of R numbers below n is below n − R + t, and n − R + t itself if it was drawn before
(J. Bentley and R. Floyd, "A sample of brilliance", CACM 1987). All nodes are drawn at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsub import rng
from fedsub.gossip.graphs import Links


@dataclass(frozen=True)
class Pulls:
    """Node ``to[e]`` asks node ``of[e]`` for a segment; int64 [E], by segment, then by asking node."""

    to: np.ndarray
    of: np.ndarray
    segment: np.ndarray

    def __len__(self) -> int:
        return len(self.to)


def distinct(bounds: np.ndarray, count: int, words: np.ndarray) -> np.ndarray:
    """``count`` distinct numbers below each of ``bounds``, sorted, int64 [n, count]; all there are and −1 if fewer.

    Each is drawn by a random word of its own.
    """
    out = np.full((len(bounds), count), -1, np.int64)
    taken = np.minimum(bounds, count)
    for turn in range(count):
        now = np.flatnonzero(turn < taken)
        last = bounds[now] - taken[now] + turn
        with np.errstate(over="ignore"):
            drawn = rng.below(rng.mix(words[now] + np.uint64(turn)), last + 1)
        again = (out[now, :turn] == drawn[:, None]).any(1)
        out[now, turn] = np.where(again, last, drawn)
    out[out < 0] = np.iinfo(np.int64).max
    out.sort(1)
    out[out == np.iinfo(np.int64).max] = -1
    return out


def drawn(nodes: np.ndarray, links: Links | None, peers: int, segments: int, *, seed: int, round: int) -> Pulls:
    """R random peers of every node and segment, of its neighbours or (``links`` None) of all ``nodes``, sorted."""
    place = np.tile(np.arange(len(nodes)), segments)
    segment = np.repeat(np.arange(segments), len(nodes))
    words = rng.key(seed, rng.PEERS, round, segment, nodes[place])
    bounds = np.full(len(nodes), len(nodes) - 1) if links is None else links.degrees[nodes]
    chosen = distinct(bounds[place], min(peers, int(bounds.max(initial=0))), words)
    which, turn = np.nonzero(chosen >= 0)
    found = chosen[which, turn]
    if links is None:
        of = nodes[found + (found >= place[which])]  # of the others
    else:
        of = links.ends[links.starts[nodes[place[which]]] + found]
    return Pulls(nodes[place[which]], of, segment[which])


def neighbours(links: Links) -> Pulls:
    """Everybody asks all its neighbours."""
    return Pulls(links.owners, links.ends, np.zeros(len(links.ends), np.int64))
