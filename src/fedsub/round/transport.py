"""What carries the messages of a round: the seam between the two halves.

A transport knows how to reach clients. It collects which rows they ask for, hands downlinks out, adds the uplinks in
cohort order and counts bytes. `fedsub.round.here.Here` reaches clients in this process; `fedsub.node` those in others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fedsub.method.groups import Cohort
from fedsub.round.layout import Asked
from fedsub.round.ledger import RoundReport, nobody
from fedsub.round.server import Opened, ServerHalf
from fedsub.round.sums import Sums


@dataclass(frozen=True)
class Answers:
    """What came back in a round."""

    sums: Sums | None  # None: nothing may be learnt of this round, and it leaves the model as it is
    who: Cohort  # the clients that answered, in cohort order
    came: np.ndarray  # their places in the cohort
    refused: np.ndarray  # bool, of those: they found NaN or infinity in what they would send
    seen: dict[str, np.ndarray]  # by client that answered: what the method declares to travel in the clear
    down: np.ndarray  # bytes, by client of the cohort
    up: np.ndarray
    measured: dict[str, float] = field(default_factory=dict)  # what the transport tells of the round, by name
    notes: tuple[str, ...] = ()  # and in sentences

    @property
    def delivered(self) -> np.ndarray:
        """The clients whose values were added."""
        return self.who.clients[~self.refused] if self.refused.any() else self.who.clients

    @property
    def loss(self) -> float:
        return self.sums.loss if self.sums is not None else float("nan")

    def lost(self, invited: int) -> np.ndarray:
        """The places in the cohort of those who never answered."""
        gone = np.ones(invited, bool)
        gone[self.came] = False
        return gone.nonzero()[0]

    @property
    def refusing(self) -> np.ndarray:
        return self.who.clients[self.refused]

    @property
    def told(self) -> dict[str, np.ndarray]:
        """``seen``, of those who delivered."""
        return {name: values[~self.refused] for name, values in self.seen.items()}


@dataclass
class Probes:
    """The questions of one round and what they cost; called by samplers."""

    server: ServerHalf
    transport: Transport
    number: int
    clients: np.ndarray = field(default_factory=nobody)
    down: np.ndarray = field(default_factory=nobody)
    up: np.ndarray = field(default_factory=nobody)

    @property
    def costs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Who was asked, bytes down and bytes up."""
        return self.clients, self.down, self.up

    def __call__(self, clients: np.ndarray, batch: bool) -> np.ndarray:
        """The clients' losses at the current model, on all their data or on one batch; NaN if it was not told."""
        cohort = Cohort.of(clients)
        opened = self.server.open(
            self.number, cohort, self.transport.rows(self.number, cohort), "batch" if batch else "all"
        )
        losses, down, up = self.transport.ask(opened)
        self.clients = np.concatenate([self.clients, clients])
        self.down, self.up = np.concatenate([self.down, down]), np.concatenate([self.up, up])
        return losses


class Transport(Protocol):
    def rows(self, number: int, cohort: Cohort) -> dict[str, Asked]:
        """Which rows the clients of a cohort ask for, by space."""
        ...

    def ask(self, opened: Opened) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(losses at what is sent, bytes down, bytes up), by client."""
        ...

    def exchange(self, opened: Opened) -> Answers:
        """Send the downlinks, add up what comes back."""
        ...

    def accept(self, number: int, answers: Answers) -> None:
        """The round entered the model, if it has sums: then clients may keep what they made in it."""
        ...


def play(server: ServerHalf, transport: Transport, number: int) -> RoundReport:
    """One round: choose, send, train, sum, average, step."""
    probes, told = Probes(server, transport, number), server.told.measured
    cohort = server.choose(number, probes)
    if not len(cohort):
        return RoundReport(
            cohort.clients, float("nan"), nobody(), nobody(), nobody(), nobody(), *probes.costs, measured=told
        )  # fmt: skip
    opened = server.open(number, cohort, transport.rows(number, cohort))
    answers = transport.exchange(opened)
    if answers.sums is None:
        server.skip()
    else:
        server.close(number, len(cohort), answers.sums)
        server.observe(number, answers.delivered, answers.told)
    transport.accept(number, answers)
    return RoundReport(
        cohort.clients, answers.loss, answers.down, answers.up, answers.lost(len(cohort)), answers.refusing,
        *probes.costs, measured=told | answers.measured, notes=answers.notes,
    )  # fmt: skip
