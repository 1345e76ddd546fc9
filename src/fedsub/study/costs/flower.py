"""What Flower adds to fedsub's messages at a resident node's socket, TLS included.

An exchange is a message to the node and its answer. Every object of both travels in a request of its own, signed:

    requests  = exchanges · 3 + objects down + objects up          (3: the question that finds the message, its receipt,
                                                                    the announcement of the answer)
    objects   = 3 per message, and in pieces 4 + 2 ⌈bytes / piece⌉ (`fedsub.flower.parcel`)
    added     = exchanges · EXCHANGE + objects above 3 per message · OBJECT + TLS · payload + looks · LOOK

A look is a question for work that finds none: after half of the time that the node waits (`fedsub.flower.resident`),
but after ``poll`` seconds at least and ``idle`` at most; then after 1.5 times as many, up to ``idle``. The constants
were measured with flwr 1.41.0 (experiments/flower_rounds.py); stock SuperNodes were not.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedsub.errors import ConfigError

PIECE = 4 << 20  # bytes in which a longer message is cut, unless the app's `piece` says otherwise
EXCHANGES = 1  # of a round: an invitation with a task; a client's first round has two
IN_ONE, IN_PIECES = 3, 4  # objects of a message; in pieces, besides two for each
ASKED = 3  # requests of an exchange besides those for objects
TRIP = 0.03  # seconds of a request, of which only the number of looks depends
SLOWER = 1.5  # each pause between two looks is so many times the one before


@dataclass(frozen=True)
class Bytes:
    """At a node's socket: ``down`` to the node, ``up`` from it."""

    down: float
    up: float

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(self.down + other.down, self.up + other.up)

    def __mul__(self, by: float) -> Bytes:
        return Bytes(self.down * by, self.up * by)


EXCHANGE = Bytes(2580.0, 9600.0)
OBJECT = Bytes(320.0, 1110.0)
LOOK = Bytes(150.0, 881.0)
TLS = 22 / 16384  # of the payload: the head and tag of a record


def objects(size: float, piece: int = PIECE) -> int:
    """Objects that Flower sends for one message of ``size`` bytes."""
    return IN_ONE if size <= piece else IN_PIECES + 2 * -int(-size // piece)


def looks(
    seconds: float, requests: int = 0, *, exchanges: int = EXCHANGES, poll: float = 0.1, idle: float = 1.0
) -> int:
    """Questions for work that find none, in a round of so many seconds with ``requests`` others and ``exchanges``."""
    found, wait = 0, max(0.0, seconds - requests * TRIP) / exchanges
    at, pause = 0.0, min(idle, max(poll, wait / 2))
    while (at := at + pause + TRIP) <= wait:
        found += 1
        if pause == idle:
            return exchanges * (found + int((wait - at) / (idle + TRIP)))
        pause = min(idle, SLOWER * pause)
    return exchanges * found


@dataclass(frozen=True)
class Socket:
    """A round of one node: the messages, and what carries them. ``looks`` of ``fixed`` are those of waiting."""

    payload: Bytes
    fixed: Bytes
    requests: int
    looks: int

    @property
    def total(self) -> Bytes:
        return self.payload + self.fixed


def at_socket(
    down: float, up: float, *, exchanges: int = EXCHANGES, piece: int = PIECE, seconds: float = 0.0, poll: float = 0.1,
    idle: float = 1.0,
) -> Socket:  # fmt: skip
    """Bytes of a round whose messages, by fedsub's ledger, have ``down`` and ``up`` bytes.

    The last exchange carries what is large; the others' messages are taken to be of one piece. ``seconds``: how long
    the round takes, in which the node goes on asking for work; 0: without those questions.
    """
    if min(down, up, seconds) < 0 or exchanges < 1 or piece < 1 or poll <= 0 or idle < poll:
        raise ConfigError(
            f"Bytes of a round were asked for with down={down:g}, up={up:g}, exchanges={exchanges}, piece={piece}, "
            f"seconds={seconds:g}, poll={poll:g}, idle={idle:g}; all are 0 or more, exchanges, piece and poll above 0, "
            "and idle at least poll."
        )
    payload = Bytes(down, up)
    more = objects(down, piece) + objects(up, piece) - 2 * IN_ONE
    requests = exchanges * (ASKED + 2 * IN_ONE) + more
    waiting = looks(seconds, requests, exchanges=exchanges, poll=poll, idle=idle)
    fixed = EXCHANGE * exchanges + OBJECT * more + payload * TLS + LOOK * waiting
    return Socket(payload, fixed, requests, waiting)
