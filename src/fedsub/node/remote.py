"""Clients behind a post of letters: a transport that sees nothing but messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch

from fedsub.errors import WireError
from fedsub.method.groups import Cohort
from fedsub.node.known import KnownRows, Rows
from fedsub.node.post import Letter, Post, plain
from fedsub.round.layout import Asked
from fedsub.round.letters import Letters
from fedsub.round.messages import Uplink
from fedsub.round.server import Opened, ServerHalf
from fedsub.round.transport import Answers

T = TypeVar("T")

log = logging.getLogger("fedsub")


@dataclass
class Replies:
    """The answer to each of some letters, and the bytes that crossed with each."""

    answers: list[bytes | None]
    down: np.ndarray
    up: np.ndarray


@dataclass
class Remote:
    """Reaches clients by post. One that has not joined, or that does not answer as expected, is lost.

    ``again`` is asked when nobody of a cohort answered: whether to put the round to the same clients once more, from
    the invitation on; without it such a round ends the run. ``accepted`` is the last round of each client that entered
    the model; it may come back to ``safe``, so that clients keep what they kept since.
    """

    server: ServerHalf
    letters: Letters
    post: Post
    joined: set[int]
    accepted: torch.Tensor  # int64 [N]
    safe: torch.Tensor | None = None  # that of the last checkpoint; None: there are none
    refused: list[str] = field(default_factory=list)  # messages that were not taken, and why
    again: Callable[[], bool] | None = None
    known: KnownRows = field(default_factory=KnownRows)
    _asked: Replies = field(init=False)  # the invitations
    _gone: set[int] = field(init=False)  # the places in the cohort of those who did not answer them
    _later: dict[int, tuple[bytes, Rows]] = field(init=False)  # by place: invitations that travel with the task

    def __post_init__(self) -> None:
        none = np.zeros(0, np.int64)
        self._asked, self._gone, self._later = Replies([], none, none), set(), {}

    def send(self, letters: Iterable[Letter]) -> Replies:
        """Letters to clients, all at once; nothing goes to those who have not joined."""
        down: list[int] = []
        there: list[bool] = []

        def reachable() -> Iterable[Letter]:
            for client, data in letters:
                there.append(client in self.joined)
                down.append(len(data) * there[-1])
                if there[-1]:
                    yield client, data

        came = iter(self.post.exchange(reachable()))
        answers = [next(came) if one else None for one in there]
        up = [len(data or b"") for data in answers]
        return Replies(answers, np.array(down, np.int64), np.array(up, np.int64))

    def rows(self, number: int, cohort: Cohort) -> dict[str, Asked]:
        """Invite everybody; one that does not answer holds nothing, and is lost later.

        Of a client that has named its rows since it joined they are known: its invitation travels with its task, and
        what it then answers is compared (`_same_rows`). So such a client has one exchange of messages in a round.
        """
        draws = _draws(cohort)
        letters = [self.letters.invite(number, client, repeat, self.safe_for(client)) for client, repeat in draws]
        known = [self.known.of(client) for client, _ in draws]
        self._later = {k: (letters[k], rows) for k, rows in enumerate(known) if rows is not None}
        now = [k for k, rows in enumerate(known) if rows is None]
        asked = self.send((draws[k][0], letters[k]) for k in now)
        self._asked = Replies([], *np.zeros((2, len(draws)), np.int64))
        self._asked.down[now], self._asked.up[now] = asked.down, asked.up
        for k, data in zip(now, asked.answers, strict=True):
            known[k] = self._read_asked(number, *draws[k], data)
            self.known.learn(draws[k][0], known[k])
        spaces = self.letters.schema.spaces
        nothing = np.zeros(0, np.int64)
        rows = {s: [nothing if one is None else one[s] for one in known] for s in spaces}
        every = dict.fromkeys(self.server.population.tables.values())
        self._gone = {k for k, one in enumerate(known) if one is None}
        counts = {s: np.array([len(r) for r in rows[s]], np.int64) for s in spaces}
        none = Asked(nothing, np.zeros(len(cohort), np.int64))  # spaces whose tables all stay with the clients
        return {s: Asked(np.concatenate(rows[s]), counts[s]) if s in rows else none for s in every}

    def _read_asked(self, number: int, client: int, repeat: int, data: bytes | None) -> Rows | None:
        return self.read(lambda d: self.letters.read_asked(d, number, client, repeat), client, data)

    def _same_rows(
        self, number: int, client: int, repeat: int, data: bytes | None, known: Mapping[str, np.ndarray]
    ) -> bool:
        """Whether a client still holds the rows that its task was made for."""
        said = self._read_asked(number, client, repeat, data)
        if said is None or all(np.array_equal(rows, known[space]) for space, rows in said.items()):
            return said is not None
        self.refuse(client, WireError("it names other rows than before, not those of its task; it is asked anew"))
        return False

    def safe_for(self, client: int) -> int:
        return int((self.accepted if self.safe is None else self.safe)[client])

    def ask(self, opened: Opened) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        answers, down, up = self._exchange(opened)
        losses = [np.nan if one is None or not one.seen else float(one.seen["loss"][0]) for one in answers]
        return np.array(losses), down, up

    def exchange(self, opened: Opened) -> Answers:
        answers, down, up = self._exchange(opened)
        while not any(answers) and self.again is not None:
            if not self.again():
                note = f"round {opened.number} was left out: none of {len(opened.cohort)} clients answered"
                nobody = opened.cohort.take(np.zeros(0, np.int64))
                return Answers(None, nobody, np.zeros(0, np.int64), np.zeros(0, bool), {}, down, up, notes=(note,))
            rows = self.rows(opened.number, opened.cohort)
            opened = self.server.open(opened.number, opened.cohort, rows, opened.probe)
            answers, more_down, more_up = self._exchange(opened)
            down, up = down + more_down, up + more_up
        came = np.array([k for k, one in enumerate(answers) if one is not None], np.int64)
        some = self.server.narrow(opened, came) if len(came) < len(answers) else opened
        sums = self.server.sums(some.layout)
        there = [one for one in answers if one is not None]
        for k, uplink in enumerate(there):
            sums.add(uplink, slice(k, k + 1))
        refused = np.array([bool(one.refused[0]) for one in there], bool)
        seen = {
            name: np.array([np.nan if one.refused[0] else one.seen[name][0] for one in there])
            for name in self.letters.schema.reports
        }
        return Answers(sums, some.cohort, came, refused, seen, down, up)

    def accept(self, number: int, answers: Answers) -> None:
        if answers.sums is not None:
            firsts = answers.who.clients[~answers.refused & (answers.who.repeats == 0)]
            self.accepted[torch.from_numpy(firsts.astype(np.int64))] = number

    def _exchange(self, opened: Opened) -> tuple[list[Uplink | None], np.ndarray, np.ndarray]:
        """(every client's answer, bytes down, bytes up); all are sent their task before any answer is waited for."""
        draws, gone = _draws(opened.cohort), self._gone
        places = [k for k in range(len(draws)) if k not in gone]
        weights = self.server.method.average.weight(self.server.population.sizes[opened.cohort.clients])

        def tasks() -> Iterable[Letter]:
            for k in places:
                client = draws[k][0]
                if k in self._later:
                    yield client, self._later[k][0]
                down = opened.downlink(slice(k, k + 1))
                yield client, self.letters.write_down(down, int(self.accepted[client]))

        found = self.send(tasks())
        down, up = self._asked.down.copy(), self._asked.up.copy()
        answers: list[Uplink | None] = [None] * len(draws)
        at = 0
        for k in places:
            later = self._later.get(k)
            till = at + 1 + (later is not None)
            data = found.answers[till - 1]
            down[k] += found.down[at:till].sum()
            up[k] += found.up[at:till].sum()
            same = later is None or self._same_rows(opened.number, *draws[k], found.answers[at], later[1])
            at = till
            counts = {space: int(rows.counts[k]) for space, rows in opened.layout.items()}
            who, weight = opened.cohort.take(np.array([k])), float(weights[k])
            if same:
                answers[k] = self.read(
                    lambda d: self.letters.read_up(d, opened.number, who, counts, opened.probe, weight),  # noqa: B023
                    draws[k][0],
                    data,
                )
            if answers[k] is None:  # it is lost; in its next round it is asked for its rows before it gets a task
                self.known.forget(draws[k][0])
        return answers, down, up

    def read(self, read: Callable[[bytes], T], client: int, data: bytes | None) -> T | None:
        """A message as it should be, or None: what is wrong with it is noted, and its client is lost."""
        if data is None:
            return None
        try:
            return read(data)
        except WireError as err:
            self.refuse(client, err)
            return None

    def refuse(self, client: int, why: Exception) -> None:
        said = plain(f"client {client}: {why}")
        self.refused.append(said)
        log.warning("left out a message of %s", said)


def _draws(cohort: Cohort) -> list[tuple[int, int]]:
    return list(zip(cohort.clients.tolist(), cohort.repeats.tolist(), strict=True))
