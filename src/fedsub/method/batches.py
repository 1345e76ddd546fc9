"""Which samples a client trains on in a round: step by step, a pure function of (seed, round, client).

Batches are visited in passes over the client's data. The last batch of a pass is what is left (never
topped up), and passes follow each other until the steps are done, so every client does its steps,
however little data it has. Drawn with replacement, every batch is full.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from fedsub import rng
from fedsub.checks import check_positive, check_whole
from fedsub.data.clients import Clients
from fedsub.errors import MethodError
from fedsub.method.groups import Cohort
from fedsub.method.slots import Local

ORDERS = ("shuffled", "ordered", "replacement")

# Sorting packs (pass, random, position) into one 64-bit word; longer clients are drawn one by one.
_POSITION_BITS, _RANDOM_BITS = 13, 36
MOST = (1 << 31) - 1  # steps, passes and samples of a batch
_PLACE = 24  # bytes at least that a sample of a batch takes while it is drawn: its place, its turn, its weight
_LONG = 1 << _POSITION_BITS
_BLOCK = 1 << (64 - _POSITION_BITS - _RANDOM_BITS)


@dataclass(frozen=True)
class Batches:
    """samples [K, steps, B] (indices into the columns of ``clients``) and weights of the same shape.

    Weights of one step sum to 1 over its real samples and are 0 for padding (a padded place repeats a
    sample of the same client). ``steps`` [K] is how many steps each client does, ``sizes`` [K] how many samples it has.
    """

    samples: np.ndarray
    weights: np.ndarray
    steps: np.ndarray
    sizes: np.ndarray
    clients: Clients

    def take(self, which: np.ndarray | slice, steps: slice = slice(None)) -> Batches:
        """Those of some clients, and of some steps."""
        samples = self.samples[which, steps]
        shorter = np.minimum(self.steps[which], samples.shape[1])
        return Batches(samples, self.weights[which, steps], shorter, self.sizes[which], self.clients)


def draw(
    clients: Clients,
    cohort: Cohort,
    local: Local,
    *,
    round: int,
    seed: int,
    at: np.ndarray | None = None,
    left: Clients | None = None,
    dtype: type = np.float32,
) -> Batches:
    """The batches of one round for every client of the cohort.

    ``at`` is where each stands in ``clients``, if that is not its number. Weights are of the model's type ``dtype``.
    ``left``: what is left of the samples of these clients, where only some of their rows came (`fedsub.data.narrowed`);
    ``at`` is where each stands there, and has some.
    """
    at = cohort.clients if at is None else at
    there = clients if left is None else left
    sizes = there.sizes[at]
    size = _width(clients, int(sizes.max()), local)
    per_pass = -(-sizes // size)
    if local.local_epochs is not None:
        steps = local.local_epochs * per_pass
    else:
        assert local.local_steps is not None
        steps = np.full(len(sizes), local.local_steps, np.int64)
    step = np.arange(int(steps.max()))
    turn, begin = np.divmod(step, per_pass[:, None])  # which pass, and the batch within it, [K, steps]
    begin *= size
    real = np.minimum(sizes[:, None] - begin, size)  # how many places of a batch hold a sample, [K, steps]
    if local.batches == "replacement" and local.batch_size is not None:
        real[:] = size  # without passes there is no rest
    if local.local_epochs is not None:
        real *= step < steps[:, None]
    place = begin[:, :, None] + np.arange(size)  # position within the pass
    words = cohort.words(seed, rng.BATCH, round)
    if local.batches == "replacement":
        # Whole local data as one batch counts by the client's own size: who else takes part must not matter.
        drawn = sizes[:, None, None] if local.batch_size is None else size
        tick = (step[:, None] * drawn + np.arange(size)).astype(np.uint64)
        with np.errstate(over="ignore"):
            place = rng.below(rng.mix(words[:, None, None] + tick), sizes[:, None, None])
    else:
        place = np.minimum(place, sizes[:, None, None] - 1)
        if local.batches == "shuffled":
            place = _shuffle(place, turn, sizes, words, int(step.size) * size)
    if int(real.min()) == size:
        weights = np.full(place.shape, 1.0 / size, dtype)
    else:
        weights = (1.0 / np.maximum(real, 1)).astype(dtype)[:, :, None] * (np.arange(size) < real[:, :, None])
    return Batches(there.offsets[at][:, None, None] + place, weights, steps, sizes, there)


def check_work(clients: Clients, local: Local, cohort: int) -> None:
    """Refuse local work whose batches do not fit into this machine's memory, before anything is computed."""
    largest = int(clients.sizes.max(initial=1))
    size = _width(clients, largest, local)
    steps = local.local_steps if local.local_epochs is None else local.local_epochs * -(-largest // size)
    assert steps is not None
    needed, there = cohort * steps * size * _PLACE, memory()
    if needed > there:
        what = "local_steps" if local.local_epochs is None else "local_epochs"
        raise MethodError(
            f"{what}={getattr(local, what):,} with batches of {size:,} are {steps * size:,} samples for a client and "
            f"round: to draw them for {cohort:,} clients takes {needed / 1e9:,.0f} GB, and this machine has "
            f"{there / 1e9:,.0f} GB; lower {what}, batch_size or clients_per_round."
        )


def memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _width(clients: Clients, longest: int, local: Local) -> int:
    """Places of a batch: no more than the largest client can fill.

    For whole local data as one batch, it is the cohort's longest, rounded up to one of a few sizes: engines
    prepare for each width that they meet.
    """
    most = clients.largest
    if local.batch_size is not None:
        return local.batch_size if local.batches == "replacement" else min(local.batch_size, most)
    step = max(1, 1 << max(0, longest.bit_length() - 3))
    return min(most, -(-longest // step) * step)


def _shuffle(place: np.ndarray, turn: np.ndarray, sizes: np.ndarray, words: np.ndarray, most: int) -> np.ndarray:
    """Replace positions by a random permutation of each pass: place [K, steps, B], turn [K, steps]."""
    short = np.flatnonzero(sizes < _LONG)
    if len(short) == len(sizes):
        return _shuffle_short(place, turn, sizes, words)
    out = np.empty_like(place)
    if len(short):
        out[short] = _shuffle_short(place[short], turn[short], sizes[short], words[short])
    for k in np.setdiff1d(np.arange(len(sizes)), short):
        for t in range(int(turn[k, -1]) + 1):
            need = min(int(sizes[k]), most)
            now = turn[k] == t
            chosen = rng.first_of_permutation(int(sizes[k]), need, rng.key(words[k].view(np.int64), t))
            out[k, now] = chosen[place[k, now]]
    return out


def _shuffle_short(place: np.ndarray, turn: np.ndarray, sizes: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The same for clients whose permutations are sorted together."""
    passes = turn[:, -1] + 1
    first_pair = np.cumsum(passes) - passes
    pair_client = np.repeat(np.arange(len(sizes)), passes)
    pair_turn = np.arange(len(pair_client)) - first_pair[pair_client]
    pair_sizes = sizes[pair_client]
    order = _permutations(pair_sizes, rng.key(words[pair_client].view(np.int64), pair_turn))
    starts = np.cumsum(pair_sizes) - pair_sizes
    begin = starts[first_pair[:, None] + turn]
    return order.take(begin[:, :, None] + place)


def _permutations(lengths: np.ndarray, words: np.ndarray) -> np.ndarray:
    """A random permutation of range(n) for every n of ``lengths``, laid one behind the other."""
    parts = []
    for low in range(0, len(lengths), _BLOCK):
        n = lengths[low : low + _BLOCK]
        ends = np.cumsum(n)
        position = np.arange(int(ends[-1]))
        position -= np.repeat(ends - n, n)
        position = position.view(np.uint64)
        with np.errstate(over="ignore"):
            packed = rng.mix(np.repeat(words[low : low + _BLOCK], n) + position)
        # In place: this is most of what it takes to draw the batches of a round.
        packed >>= np.uint64(64 - _RANDOM_BITS)
        packed <<= np.uint64(_POSITION_BITS)
        packed |= position
        packed |= np.repeat(np.arange(len(n), dtype=np.uint64) << np.uint64(_POSITION_BITS + _RANDOM_BITS), n)
        packed.sort()
        packed &= np.uint64(_LONG - 1)
        parts.append(packed.view(np.int64))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def check_local(local: Local) -> None:
    """Refuse local work that cannot be done."""
    check_positive("lr", local.lr)
    for name in ("local_steps", "local_epochs", "batch_size"):
        if (value := getattr(local, name)) is not None:
            check_whole(name, value, 1, MOST)
    if (local.local_steps is None) == (local.local_epochs is None):
        raise MethodError("Give either local_steps or local_epochs, not both and not neither.")
    if local.batches not in ORDERS:
        raise MethodError(f"batches must be one of {', '.join(ORDERS)}; got {local.batches!r}.")
