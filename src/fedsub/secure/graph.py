"""Who masks with whom: a random regular graph, so that a client's cost grows with log n instead of n.

SecAgg+ (Bell, Bonawitz, Gascón, Lepoint, Raykova, 2020). The clients are put on a ring in random order, and each is
joined to the k/2 next on either side (a Harary graph). With all joined to all it is the protocol of Bonawitz et al.
(2017), which few clients use anyway.

`degree_and_threshold` finds the smallest even k, and the smallest threshold t for it, such that with up to A = ⌊an⌋
adversarial and D = ⌊dn⌋ dropping clients, at random places of the ring,

    disconnected   n(n−k−1)/2 · C(A+D, k) / C(n, k)                < 2^−(bits+1)
                   (two breaks of k/2 neighbours in a row each, all of them gone; a union bound)
    broken         P[ more than t−1 of a client's k neighbours are adversarial ]  ≤ 2^−(bits+1) / n
    stuck          P[ fewer than t of its k neighbours survive ]                  ≤ 2^−failing / n

where neighbours are hypergeometric: drawn from n with A adversarial, or with ⌈(1−d)n⌉ surviving. These are the bounds
of the parameter finder that the authors' group published (federated-compute, `graph_parameter_finder.cc`), and the
tests compare with its table. Against a server that lies, 2t must exceed k plus the adversarial neighbours.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from fedsub import rng
from fedsub.errors import MethodError
from fedsub.secure.ring import Array

_SMALL = 1e-14  # keeps the rounding of a rate times n from going the insecure way


@lru_cache(64)
def degree_and_threshold(
    clients: int,
    adversarial: float,
    dropping: float,
    bits: int = 40,
    *,
    failing: int = 20,
    lying: bool = False,
    majority: bool = False,
) -> tuple[int, int] | None:
    """(degree, threshold), or None where only the complete graph will do.

    ``bits``: the chance that something leaks stays below 2^−bits; ``failing``: the chance of an abort below 2^−failing.
    ``lying``: hold also against a server that tells clients different things; ``majority``: t is more than half of a
    client's k neighbours and itself, whatever the rates, so that no two disjoint groups of holders reach it.
    """
    if clients < 2:
        raise MethodError(f"A secure sum takes at least 2 clients, got {clients}.")
    if not (adversarial >= 0 and dropping >= 0 and adversarial + (2 if lying else 1) * dropping <= 0.9):
        needed = "adversarial + 2 dropping" if lying else "adversarial + dropping"
        raise MethodError(
            f"Rates must not be negative, and {needed} at most 0.9; got {adversarial} and {dropping}: no threshold "
            "lies between those who may collude and those who stay."
        )
    bad = math.floor((adversarial + _SMALL) * clients)
    gone = math.floor((dropping + _SMALL) * clients)
    stay = math.ceil((1 - dropping - _SMALL) * clients)
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, clients + 1)))])
    limit = -(bits + 1) * math.log(2)
    for degree in range(2, clients - 1, 2):
        if _disconnected(logs, clients, bad + gone, degree) >= limit:
            continue
        few = _least_with_tail(_hypergeometric(logs, clients, bad, degree), 2.0 ** -(bits + 1) / clients)
        reached = np.cumsum(_hypergeometric(logs, clients, stay, degree))
        most = int(np.searchsorted(reached, 2.0**-failing / clients, side="left"))
        if lying:
            few = math.ceil((few + degree - 1.25) / 2)
        if majority:
            few = max(few, degree // 2)
        if most > few:
            return degree, max(few + 1, 2)
    return None


def _disconnected(logs: Array, clients: int, removed: int, degree: int) -> float:
    """The logarithm of the bound on a graph that falls apart."""
    if degree > removed:
        return -math.inf
    pairs = math.log(clients) + math.log(clients - degree - 1) - math.log(2)
    return pairs + float(logs[removed] + logs[clients - degree] - logs[clients] - logs[removed - degree])


def _hypergeometric(logs: Array, total: int, marked: int, drawn: int) -> Array:
    """P[x of ``drawn`` are marked] for x = 0 … drawn."""
    x = np.arange(drawn + 1)
    possible = (x <= marked) & (drawn - x <= total - marked)
    out, x = np.zeros(drawn + 1), x[possible]
    out[possible] = np.exp(
        logs[marked] - logs[x] - logs[marked - x]
        + logs[total - marked] - logs[drawn - x] - logs[total - marked - drawn + x]
        - (logs[total] - logs[drawn] - logs[total - drawn])
    )  # fmt: skip
    return out


def _least_with_tail(chances: Array, bound: float) -> int:
    """The smallest x with P[X > x] below the bound."""
    above = np.cumsum(chances[::-1])[::-1]  # P[X ≥ x]
    return int((above >= bound).sum()) - 1


class Ring:
    """Who is next to whom among ``count`` clients; all are, where ``degree`` reaches that far."""

    def __init__(self, count: int, degree: int, seed: bytes):
        self.count, self.degree, self.complete = count, degree, degree >= count - 1
        if self.complete:
            return
        if degree < 2 or degree % 2:
            raise MethodError(f"A ring gives every client an even number of neighbours, at least 2; got {degree}.")
        word = rng.key(*np.frombuffer(seed[:32], "<i8").tolist())
        with np.errstate(over="ignore"):
            self.order = np.argsort(rng.mix(word + np.arange(count, dtype=np.uint64)), kind="stable")
        self.place = np.empty(count, np.int64)
        self.place[self.order] = np.arange(count)
        self.steps = np.concatenate([np.arange(-(degree // 2), 0), np.arange(1, degree // 2 + 1)])

    def of(self, client: int) -> Array:
        """The sorted neighbours of a client."""
        if self.complete:
            return np.delete(np.arange(self.count), client)
        return np.sort(self.order[(self.place[client] + self.steps) % self.count])
