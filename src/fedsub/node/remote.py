"""Clients behind channels of bytes: a transport that sees nothing but messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedsub.errors import WireError
from fedsub.method.groups import Cohort
from fedsub.round.channels import Channel
from fedsub.round.layout import Asked
from fedsub.round.letters import Letters
from fedsub.round.messages import Uplink
from fedsub.round.server import Opened, ServerHalf
from fedsub.round.transport import Answers

log = logging.getLogger("fedsub")


@dataclass
class Remote:
    """Reaches every client through its channel. One without a channel, or that does not answer as expected, is lost."""

    server: ServerHalf
    letters: Letters
    channels: Mapping[int, Channel]
    accepted: dict[int, int] = field(default_factory=dict)  # the last round of each client that entered the model
    refused: list[str] = field(default_factory=list)  # messages that were not taken, and why
    _asked: list[tuple[int, int]] = field(default_factory=list)  # bytes down and up of the invitations

    def rows(self, number: int, cohort: Cohort) -> dict[str, Asked]:
        """Invite everybody; one that does not answer holds nothing, and is lost later."""
        found: list[dict[str, np.ndarray] | None] = []
        self._asked = []
        for client, repeat in _draws(cohort):
            sent = self.letters.invite(number, client, repeat)
            data = self.reply(client, sent)
            self._asked.append((len(sent) * (client in self.channels), len(data or b"")))
            found.append(self._read(lambda d: self.letters.read_asked(d, number, client, repeat), client, data))  # noqa: B023
        spaces = self.letters.schema.spaces
        nothing = np.zeros(0, np.int64)
        rows = {s: [nothing if one is None else one[s] for one in found] for s in spaces}
        every = dict.fromkeys(self.server.population.tables.values())
        self._gone = {k for k, one in enumerate(found) if one is None}
        counts = {s: np.array([len(r) for r in rows[s]], np.int64) for s in spaces}
        none = Asked(nothing, np.zeros(len(cohort), np.int64))  # spaces whose tables all stay with the clients
        return {s: Asked(np.concatenate(rows[s]), counts[s]) if s in rows else none for s in every}

    def ask(self, opened: Opened) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        answers, down, up = self._exchange(opened)
        losses = [np.nan if one is None or not one.seen else float(one.seen["loss"][0]) for one in answers]
        return np.array(losses), down, up

    def exchange(self, opened: Opened) -> Answers:
        answers, down, up = self._exchange(opened)
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
        firsts = answers.who.clients[~answers.refused & (answers.who.repeats == 0)]
        self.accepted |= dict.fromkeys(firsts.tolist(), number)

    def _exchange(self, opened: Opened) -> tuple[list[Uplink | None], np.ndarray, np.ndarray]:
        """(every client's answer, bytes down, bytes up); one client after the other."""
        down, up = (np.array(side, np.int64) for side in zip(*self._asked, strict=True))
        weights = self.server.method.average.weight(self.server.population.sizes[opened.cohort.clients])
        answers: list[Uplink | None] = []
        for k, (client, _) in enumerate(_draws(opened.cohort)):
            if k in self._gone:
                answers.append(None)
                continue
            sent = self.letters.write_down(opened.downlink(slice(k, k + 1)), self.accepted.get(client, 0))
            data = self.reply(client, sent)
            down[k] += len(sent)
            up[k] += len(data or b"")
            counts = {space: int(rows.counts[k]) for space, rows in opened.layout.items()}
            who, weight = opened.cohort.take(np.array([k])), float(weights[k])
            answers.append(
                self._read(
                    lambda d: self.letters.read_up(d, opened.number, who, counts, opened.probe, weight),  # noqa: B023
                    client,
                    data,
                )
            )
        return answers, down, up

    def reply(self, client: int, data: bytes) -> bytes | None:
        if client not in self.channels:
            return None
        self.channels[client].send(data)
        return self.channels[client].receive()

    def _read(self, read, client: int, data: bytes | None):
        """A message as it should be, or None: what is wrong with it is noted, and its client is lost."""
        if data is None:
            return None
        try:
            return read(data)
        except WireError as err:
            self.refused.append(f"client {client}: {err}")
            log.warning("left out a message of client %s: %s", client, err)
            return None


def _draws(cohort: Cohort) -> list[tuple[int, int]]:
    return list(zip(cohort.clients.tolist(), cohort.repeats.tolist(), strict=True))
