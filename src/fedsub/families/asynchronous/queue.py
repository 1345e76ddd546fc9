"""Who trains until when: the events of an asynchronous run, in the order of a simulated clock.

Nothing is computed here and nothing is random but by counters, so that the queue is a function of the seed, the
devices and the bytes. At one moment all arrivals come before anybody begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf

import numpy as np

from fedsub import rng
from fedsub.errors import NoUsableClient

WAIT = 60.0  # seconds after which a server looks again that found nobody
WAITS = 100_000  # so often at most: more than two months
LOOKS = 20  # blocks of candidates that are looked through before a place stays empty for now


@dataclass(frozen=True)
class Costs:
    """What it takes some clients to train, by client."""

    seconds: np.ndarray  # from being asked to having answered
    down: np.ndarray  # bytes
    asked: np.ndarray  # bytes up that name rows
    lost: np.ndarray  # bool: never answers


@dataclass(frozen=True)
class Flight:
    """A client that trains."""

    client: int
    round: int  # it has the model that ``round`` − 1 steps had made
    ends: float
    down: int
    asked: int
    lost: bool


@dataclass(frozen=True)
class Due:
    """What ends with a server step: flights in the order of clients' numbers."""

    arrived: list[Flight]  # the buffer
    lost: list[Flight]  # did not answer
    late: list[Flight]  # given up by the server


class Queue:
    """``able``: numbers of the clients that may be asked; ``cost(round, clients)``: what it takes them to train.

    ``there(clients, clock)``: which of them can be reached. ``at_once``: a client that is done is followed by another
    at the same moment; otherwise places are filled after a step. Whoever waits in the buffer is not asked again before
    the step that takes its update, so that a client trains on a model once and reads what it has kept.
    """

    def __init__(
        self, able: np.ndarray, cost: Callable[[int, np.ndarray], Costs], *, buffer: int, concurrency: int, seed: int,
        at_once: bool = True, most_stale: int | None = None, deadline: float | None = None, overhead: float = 0.0,
        there: Callable[[np.ndarray, float], np.ndarray] | None = None,
    ):  # fmt: skip
        self.able, self.cost, self.there, self.seed = able, cost, there, seed
        self.buffer, self.concurrency, self.at_once = buffer, concurrency, at_once
        self.most_stale, self.overhead = most_stale, overhead
        self.deadline = inf if deadline is None else deadline
        self.clock = 0.0
        self.flights: dict[int, Flight] = {}  # by client
        self._heap: list[tuple[float, int]] = []
        self._block: list[int] = []  # candidates of a round, the next one last
        self._blocks = 0

    def put(self, clock: float, flights: Iterable[Flight]) -> None:
        """Begin with these flights at this moment."""
        self.clock, self.flights = clock, {flight.client: flight for flight in flights}
        self._heap = [(flight.ends, flight.client) for flight in self.flights.values()]
        heapify(self._heap)

    def step(self, number: int) -> Due:
        """Let time pass until the server makes step ``number``."""
        self._block, self._blocks = [], 0
        arrived: list[Flight] = []
        lost: list[Flight] = []
        waiting: set[int] = set()  # clients of those two
        until, begun, waits = self.clock + self.deadline, False, 0
        while len(arrived) < self.buffer:
            due = bool(self._heap) and self._heap[0][0] <= self.clock
            if not due and (self.at_once or not begun):
                self._begin(number, waiting)
                begun = True
            if not self._heap and arrived:
                break
            if not self._heap:
                if lost or waits == WAITS:
                    raise NoUsableClient(
                        f"Step {number}: {len(lost)} clients were asked and none answered; ask more at once, or look "
                        "at lost and at when the devices can be reached."
                    )
                self.clock, begun, waits = self.clock + WAIT, False, waits + 1
                continue
            if arrived and self._heap[0][0] > until:
                self.clock = until
                break
            ends, client = heappop(self._heap)
            self.clock = max(self.clock, ends)
            flight = self.flights.pop(client)
            (lost if flight.lost else arrived).append(flight)
            waiting.add(client)
        late = self._give_up(number)
        self.clock += self.overhead
        return Due(*(sorted(some, key=lambda flight: flight.client) for some in (arrived, lost, late)))

    def _give_up(self, number: int) -> list[Flight]:
        """Those whose updates would be too stale at the next step."""
        if self.most_stale is None:
            return []
        late = [flight for flight in self.flights.values() if number + 1 - flight.round > self.most_stale]
        if late:
            gone = {flight.client for flight in late}
            self.put(self.clock, [flight for flight in self.flights.values() if flight.client not in gone])
        return late

    def _begin(self, number: int, waiting: set[int]) -> None:
        """Fill the places that are free."""
        free = self.concurrency - len(self.flights)
        if free <= 0:
            return
        chosen: dict[int, None] = {}
        for _ in range(LOOKS):
            self._choose(number, free, waiting, chosen)
            if len(chosen) == free or len(self.flights) + len(waiting) + len(chosen) >= len(self.able):
                break
        if not chosen:
            return
        clients = np.sort(np.array([*chosen], np.int64))
        costs = self.cost(number, clients)
        ends = self.clock + costs.seconds
        for k, client in enumerate(clients.tolist()):
            self.flights[client] = Flight(
                client, number, float(ends[k]), int(costs.down[k]), int(costs.asked[k]), bool(costs.lost[k])
            )
            heappush(self._heap, (float(ends[k]), client))

    def _choose(self, number: int, free: int, waiting: set[int], chosen: dict[int, None]) -> None:
        """Up to ``free`` of the next candidates of a round; a block is a random order of as many as may be needed.

        The first block of a round is what `fedsub.sampling.Uniform` draws in it, if nobody is busy.
        """
        if not self._block:
            size = min(len(self.able), free + len(self.flights) + len(waiting))
            word = rng.key(self.seed, rng.COHORT, number, *([self._blocks] if self._blocks else ()))
            drawn = self.able[rng.first_of_permutation(len(self.able), size, word)]
            self._block, self._blocks = drawn[::-1].tolist(), self._blocks + 1
        while self._block and len(chosen) < free:
            client = self._block.pop()
            busy = client in self.flights or client in waiting or client in chosen
            if not busy and self._reached(client):
                chosen[client] = None

    def _reached(self, client: int) -> bool:
        return self.there is None or bool(self.there(np.array([client]), self.clock)[0])
