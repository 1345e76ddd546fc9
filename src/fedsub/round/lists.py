"""Lists of items: for whom, with which positives, and which items must stay out of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsub import rng
from fedsub.data.clients import Clients
from fedsub.round.filling import Filling
from fedsub.round.ranking import Ranking

Array = np.ndarray


@dataclass(frozen=True)
class Lists:
    """Of each list its client (a position in the split) and a sample that stands for its context, grouped by context.

    ``owner`` and ``positive`` are pairs (list, item). The items of ``out`` of a client, seen in training or liked, are
    no negatives of its lists. ``drawn`` [lists, candidates] are the negatives, −1 where there are no more; None: all.
    """

    client: Array
    sample: Array
    context: Array  # equal where lists show the model the same besides the item
    owner: Array
    positive: Array
    who: Array  # the clients that were looked at, also those without positives
    out: Array
    out_offsets: Array  # of each of ``who``
    drawn: Array | None
    repeated: int  # positives that had been seen in training

    def __len__(self) -> int:
        return len(self.client)

    @property
    def clients(self) -> int:
        """How many clients have a list."""
        return len(np.unique(self.client))

    def out_of(self, lists: Array) -> tuple[Array, Array]:
        """(place in ``lists``, item) of all that is no negative."""
        at = np.searchsorted(self.who, self.client[lists])
        counts = self.out_offsets[at + 1] - self.out_offsets[at]
        return np.repeat(np.arange(len(lists)), counts), self.out[_ranges(self.out_offsets[at], counts)]

    def positives_of(self, first: int, end: int) -> tuple[Array, Array, Array]:
        """(which, list from ``first`` on, item) of the positives of the lists ``first`` to ``end`` − 1."""
        low, high = np.searchsorted(self.owner, [first, end])
        return np.arange(low, high), self.owner[low:high] - first, self.positive[low:high]


def make(
    plan: Ranking, least: float | None, split: str, data: Clients, population: Clients, filling: Filling,
    count: int | None, label: str | None,
) -> Lists:  # fmt: skip
    """The lists of ``count`` clients of a split, or all; ``least`` is the smallest label of a positive."""
    items = len(filling.known)
    who = _chosen(plan, split, data, count)
    samples = _ranges(data.offsets[:-1][who], data.sizes[who])
    owner = np.repeat(np.arange(len(who)), data.sizes[who])
    if least is not None and label is not None:
        keep = data.gather(samples, (label,), local=False)[label] >= least
        samples, owner = samples[keep], owner[keep]
    item = data.gather(samples, (plan.item,), local=False)[plan.item]
    real = filling.known[item]
    samples, owner, item = samples[real], owner[real], item[real]
    seen = _seen(plan.item, data.client_ids[who], population, items) if plan.exclude_seen else np.zeros(0, np.int64)
    new = ~_among(owner * items + item, seen)
    repeated = len(_distinct((owner * items + item)[~new]))
    samples, owner, item = samples[new], owner[new], item[new]
    context = _codes(data.gather(samples, filling.context(label), local=False), len(samples))
    _, first, of = np.unique(context * max(1, len(who)) + owner, return_index=True, return_inverse=True)
    pairs = _distinct(of * items + item)  # an item that is liked twice counts once
    out = _distinct(np.concatenate([seen, owner * items + item]))
    offsets = np.searchsorted(out, np.arange(len(who) + 1) * items)
    drawn = None
    if plan.candidates is not None:
        rows = [out[offsets[w] : offsets[w + 1]] % items for w in owner[first]]
        drawn = _drawn(plan, split, who[owner[first]], rows, np.flatnonzero(filling.known))
    return Lists(
        who[owner[first]], samples[first], context[first], pairs // items, pairs % items, who, out % items, offsets,
        drawn, repeated,
    )  # fmt: skip


def _chosen(plan: Ranking, split: str, data: Clients, count: int | None) -> Array:
    able = np.flatnonzero(data.sizes > 0)
    if count is None or count >= len(able):
        return able
    word = rng.key(rng.RANKED, plan.seed, len(split), *split.encode())
    return able[rng.some_of(len(able), count, word)]


def _seen(item: str, ids: Array, population: Clients, items: int) -> Array:
    """Sorted keys client · items + item of what these clients have in the training data."""
    order = np.argsort(population.client_ids, kind="stable")
    there = population.client_ids[order]
    at = np.minimum(np.searchsorted(there, ids), max(0, len(there) - 1))
    found = there[at] == ids if len(there) else np.zeros(len(ids), bool)
    place = order[at[found]]
    samples = _ranges(population.offsets[:-1][place], population.sizes[place])
    owner = np.repeat(np.flatnonzero(found), population.sizes[place])
    return _distinct(owner * items + population.gather(samples, (item,), local=False)[item])


def _drawn(plan: Ranking, split: str, clients: Array, out: list[Array], items: Array) -> Array:
    """Negatives of every list, drawn without replacement: a function of split, client and which of its lists it is."""
    assert plan.candidates is not None
    found = np.full((len(clients), plan.candidates), -1, np.int64)
    turn: dict[int, int] = {}
    for row, (client, hidden) in enumerate(zip(clients.tolist(), out, strict=True)):
        number = turn[client] = turn.get(client, -1) + 1
        word = rng.key(rng.NEGATIVE, plan.seed, len(split), *split.encode(), client, number)
        # So many of a permutation hold enough that are not hidden.
        count = min(len(items), plan.candidates + len(hidden))
        drawn = items[rng.first_of_permutation(len(items), count, word)]
        drawn = drawn[~_among(drawn, hidden)][: plan.candidates]
        found[row, : len(drawn)] = drawn
    return found


def _codes(arrays: dict[str, Array], count: int) -> Array:
    """One number a sample, equal where all columns are."""
    code = np.zeros(count, np.int64)
    for values in arrays.values() if count else ():
        flat = values.reshape(count, -1)
        _, one = np.unique(flat[:, 0] if flat.shape[1] == 1 else flat, axis=0, return_inverse=True)
        _, code = np.unique(code * (int(one.max(initial=0)) + 1) + one.reshape(-1), return_inverse=True)
    return code


def _distinct(keys: Array) -> Array:
    """Sorted, without repetitions; np.unique, by hashing, takes ten times as long on so many."""
    found = np.sort(keys)
    return found[np.r_[True, found[1:] != found[:-1]]] if len(found) else found


def _among(keys: Array, known: Array) -> Array:
    """Which of the keys are among sorted ones."""
    if not len(known):
        return np.zeros(len(keys), bool)
    return known[np.minimum(np.searchsorted(known, keys), len(known) - 1)] == keys


def _ranges(starts: Array, counts: Array) -> Array:
    """The numbers starts[0], starts[0]+1, …, then those from starts[1] on: ``counts`` of each."""
    ends = np.cumsum(counts)
    return np.repeat(starts - ends + counts, counts) + np.arange(int(ends[-1]) if len(ends) else 0)
