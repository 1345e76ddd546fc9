"""Clients that look at one thing after another and like what resembles what they liked before.

    logit of step t = base_t + pull · (share of the client's earlier clicks in the group of step t)

Groups are clusters or categories of items. The history of a step is the list of earlier clicks, so the
truth is a function of what a model with attention over the history sees.
"""

from __future__ import annotations

import numpy as np

from fedsub.data.clients import Array, Column
from fedsub.data.twins.draws import places, sigmoid

HOLDOUT = 0.2


def click(sizes: Array, base: Array, group: Array, pull: float, luck: Array, recent: int | None) -> tuple[Array, Array]:
    """(probability, label) of every step; ``recent`` clicks are remembered (None: all). ``luck`` is uniform.

    ``group`` counts from 0 within a client. Step t of all clients that have one is done at once.
    """
    order = np.argsort(-sizes, kind="stable")  # so that the clients that still go on are the first ones
    begin, lasting = (np.cumsum(sizes) - sizes)[order], sizes[order]
    probability, label = np.empty(len(base)), np.zeros(len(base), bool)
    liked = np.zeros((len(sizes), int(group.max(initial=0)) + 1), np.int32)
    clicks = np.zeros(len(sizes), np.int64)
    memory = np.zeros((len(sizes), recent or 1), np.int64)  # a ring of the groups of recent clicks
    goes_on = np.searchsorted(-lasting, -np.arange(int(lasting[0])))  # clients with more than t steps, by t
    for step, active in enumerate(goes_on):
        at = begin[:active] + step
        known = clicks[:active] if recent is None else np.minimum(clicks[:active], recent)
        seen = group[at]
        share = liked[np.arange(active), seen] / np.maximum(known, 1)
        probability[at] = chance = sigmoid(base[at] + pull * share)
        label[at] = hit = luck[at] < chance
        who = np.flatnonzero(hit)
        if recent is not None:
            place = clicks[who] % recent
            full = clicks[who] >= recent
            liked[who[full], memory[who[full], place[full]]] -= 1
            memory[who, place] = seen[who]
        liked[who, seen[who]] += 1
        clicks[who] += 1
    return probability, label


def holdout(sizes: Array) -> Column:
    """1 for the last 20 % (rounded down) of every client's samples."""
    kept = np.repeat(sizes - np.floor(HOLDOUT * sizes + 1e-9).astype(np.int64), sizes)
    return Column("holdout", (places(sizes) >= kept).astype(np.int64))
