"""Averaging one vector over K workers: through a parameter server, or around a ring.

Counted are values (parameters); times the bytes of one they are a volume.

    parameter server   K·N to the server and K·N back: all of it passes one node
    ring all-reduce    2 (K − 1) N / K sent by each worker, below 2 N whatever K is; 2 (K − 1) N in total
    gossip             R·N received by each worker, in S segments from R peers each; no exact mean, but for R = K − 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedsub.checks import check_number, check_positive, check_whole
from fedsub.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Collective:
    """What one averaging costs. ``sent`` and ``received`` are values by worker."""

    name: str
    workers: int
    parameters: int
    sent: np.ndarray
    received: np.ndarray
    server: int  # values through the server, in and out; 0 without one
    steps: int  # messages that wait for each other: the factor on the latency
    serial: int  # values that cross the busiest link one after another

    @property
    def total(self) -> int:
        """All values that cross a wire, each counted once."""
        return int(self.sent.sum()) + self.server // 2

    def seconds(self, bandwidth: float, latency: float, bytes_per_parameter: int = 4) -> float:
        """steps · α + serial · bytes / bandwidth, with bytes/s of one link and α seconds a message."""
        size = check_whole("bytes_per_parameter", bytes_per_parameter, 1, error=ConfigError)
        speed = check_positive("bandwidth", bandwidth, error=ConfigError)
        wait = check_number("latency", latency, least=0, error=ConfigError)
        return self.steps * wait + self.serial * size / speed


def parameter_server(workers: int, parameters: int) -> Collective:
    """Each of K workers sends N values to one server and gets N back.

    The server receives K·N and sends K·N; latency 2 α. Its link is the busiest: 2 K·N values pass it.
    """
    k, n = _checked(workers, parameters)
    each = np.full(k, n, np.int64)
    return Collective("parameter server", k, n, each, each, server=2 * k * n, steps=2, serial=2 * k * n)


def ring_all_reduce(workers: int, parameters: int) -> Collective:
    """K chunks go round: K − 1 steps of scatter-reduce and K − 1 of all-gather, one chunk each.

    Worker k sends 2 N − c[k+1] − c[k+2] values (indices modulo K), where c are the sizes of the chunks,
    which differ by at most one: 2 (K − 1) N / K if K divides N, within two roundings of it otherwise. In
    total 2 (K − 1) N; latency 2 (K − 1) α; one worker has nobody to send to.
    """
    k, n = _checked(workers, parameters)
    chunks = chunk_sizes(k, n)
    sent = 2 * n - np.roll(chunks, -1) - np.roll(chunks, -2)
    steps = 2 * (k - 1)
    received = np.roll(sent, 1)  # from the worker before
    return Collective("ring all-reduce", k, n, sent, received, server=0, steps=steps, serial=steps * int(chunks[0]))


@dataclass(frozen=True, eq=False)
class GossipRound:
    """What a round of gossip costs a worker that asks R peers for each of S segments. Values, as in `Collective`.

    The expected values that a worker sends are those that it receives; who is asked is drawn at random.
    """

    workers: int
    parameters: int
    peers: int  # R, no more than there are
    sizes: np.ndarray  # of the segments

    @property
    def received(self) -> int:
        """R·N, however many segments there are."""
        return self.peers * int(self.sizes.sum())

    @property
    def links(self) -> int:
        """S·R, where no peer is asked for two segments."""
        return self.peers * len(self.sizes)

    @property
    def per_link(self) -> float:
        """N / S on average; segments differ by one value at most."""
        return float(self.sizes.mean())

    @property
    def total(self) -> int:
        """All values that cross a wire, each counted once."""
        return self.workers * self.received

    def seconds(self, bandwidth: float, latency: float, bytes_per_parameter: int = 4) -> float:
        """2 α for the question and its answer, and R·N values in and as many out, one after the other."""
        size = check_whole("bytes_per_parameter", bytes_per_parameter, 1, error=ConfigError)
        speed = check_positive("bandwidth", bandwidth, error=ConfigError)
        wait = check_number("latency", latency, least=0, error=ConfigError)
        return (2 * wait if self.received else 0.0) + 2 * self.received * size / speed


def gossip_round(workers: int, parameters: int, *, segments: int = 1, peers: int = 1) -> GossipRound:
    """Each of K workers receives every segment of N values from R peers of that segment's own."""
    k, n = _checked(workers, parameters)
    asked = min(check_whole("peers", peers, 0, error=ConfigError), k - 1)
    return GossipRound(k, n, asked, chunk_sizes(check_whole("segments", segments, 1, error=ConfigError), n))


class Ring(NamedTuple):
    """The outcome of `simulate_ring`: the vector each worker ends with, values sent by each, and steps."""

    results: list[np.ndarray]
    sent: np.ndarray
    steps: int


def simulate_ring(vectors: Sequence[np.ndarray]) -> Ring:
    """Run the ring on integer vectors, one per worker, and count what is sent.

    Step s of scatter-reduce: worker k sends chunk k − s, its neighbour adds it; then worker k has chunk
    k + 1 complete. Step s of all-gather: worker k sends chunk k + 1 − s, its neighbour replaces its own.
    Integers make the sum exact in any order, so every result equals the sum of the vectors.
    """
    own = _integers(vectors)
    k, n = len(own), len(own[0])
    ends = np.cumsum(chunk_sizes(k, n))
    chunks = [slice(end - size, end) for end, size in zip(ends, chunk_sizes(k, n), strict=True)]
    sent, steps = np.zeros(k, np.int64), 0
    for first, adds in ((0, True), (1, False)):
        for step in range(k - 1):
            at = [chunks[(worker + first - step) % k] for worker in range(k)]
            messages = [own[worker][at[worker]].copy() for worker in range(k)]  # all are sent at once
            for worker, message in enumerate(messages):
                target = own[(worker + 1) % k][at[worker]]
                target[:] = target + message if adds else message
                sent[worker] += len(message)
            steps += 1
    return Ring(own, sent, steps)


def chunk_sizes(workers: int, parameters: int) -> np.ndarray:
    """N values in K chunks whose sizes differ by at most one, the longer ones first."""
    return parameters // workers + (np.arange(workers) < parameters % workers).astype(np.int64)


def _checked(workers: int, parameters: int) -> tuple[int, int]:
    k = check_whole("workers", workers, 1, error=ConfigError)
    return k, check_whole("parameters", parameters, 0, error=ConfigError)


def _integers(vectors: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Copies as 64-bit integers, whose sum does not overflow."""
    found = [np.asarray(v) for v in vectors]
    if not found:
        raise ConfigError("There are no vectors, expected one per worker; give at least one.")
    for i, v in enumerate(found):
        if v.ndim != 1 or v.dtype.kind not in "iu" or len(v) != len(found[0]):
            raise ConfigError(
                f"Vector {i} has shape {v.shape} and type {v.dtype}, expected ({len(found[0])},) whole numbers like "
                "the first; the ring is simulated on integers of equal length, so scale and round first."
            )
    largest = sum(max(abs(int(v.min())), abs(int(v.max()))) for v in found if len(v))
    if largest >= 2**63:
        raise ConfigError(f"The sums may reach {largest}, expected below 2^63; give smaller numbers.")
    return [v.astype(np.int64) for v in found]
