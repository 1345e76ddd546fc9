"""The server's side of rounds over a secure sum, with clients behind channels of bytes.

Who does not answer has dropped out; at any stage of a sum the others go on, as `fedsub.secure` has it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedsub.errors import MethodError
from fedsub.method.codecs.wire import encode_rows
from fedsub.method.groups import Cohort
from fedsub.method.parts import SecureSum
from fedsub.node.remote import Remote
from fedsub.node.summing import Summing, as_tensor
from fedsub.round import wire
from fedsub.round.layout import Asked
from fedsub.round.secure.adding import Added
from fedsub.round.secure.attempts import Attempts, Counted, Planned
from fedsub.round.secure.opening import Opening
from fedsub.round.secure.vector import Array
from fedsub.round.server import Opened
from fedsub.round.transport import Answers
from fedsub.secure import Registry, Segment


class SecretRemote(Opening):
    """Clients that `Remote` reaches, whose uplinks cannot be read. Whatever the part says, the protocol is played."""

    def __init__(self, remote: Remote, secure: SecureSum, known: Registry | None = None):
        if secure.rows != "union":
            raise MethodError(f'Nodes play secure rounds with rows="union" alone, got {secure.rows!r}.')
        super().__init__(remote.server, secure, remote.letters.run, fresh=True, signed=known is not None)
        self.remote, self.run, self.known = remote, remote.letters.run, known
        self.summing = Summing(remote, known)  # of this round
        self._counted: Counted | None = None

    def rows(self, number: int, cohort: Cohort) -> dict[str, Asked]:
        """The union of the rows of those who answer."""
        spaces, sizes = self.server.schema.spaces, self.server.population.rows
        none, self.summing = np.zeros(0, np.int64), Summing(self.remote, self.known)
        self._counted = Counted(none, {}, {}, none, none)
        if spaces and len(cohort) >= self.settings.fewest(len(cohort)):
            bits = next(bits for bits in (8, 16, 32, 64) if len(cohort) < 2**bits)
            segments = tuple(Segment(space, sizes[space], bits, most=1) for space in spaces)
            setting = self.settings.plan(number, cohort.clients, segments)
            added = self.summing.added(setting, wire.COUNT_ROWS, {})
            if added.sums is not None:
                unions = {space: added.sums[space].nonzero()[0] for space in spaces}
                counts = {space: added.sums[space][unions[space]].astype(np.int64) for space in spaces}
                self._counted = Counted(np.array(added.clients), unions, counts, none, none)
        elif not spaces:
            self._counted = Counted(cohort.clients, {}, {}, none, none)
        every = dict.fromkeys(self.server.population.tables.values())
        unions = {space: self._counted.unions.get(space, none) for space in every}
        return {space: Asked(rows, np.array([len(rows)], np.int64)) for space, rows in unions.items()}

    def ask(self, opened: Opened) -> tuple[Array, Array, Array]:
        raise MethodError("No client tells its loss in rounds over a secure sum; choose clients by chance.")

    def exchange(self, opened: Opened) -> Answers:
        counted, cohort = self._counted, opened.cohort
        assert counted is not None
        ready, refusing = [], []
        for client, answer in self._trained(opened, counted).items():
            if answer is not None:
                (refusing if answer == wire.REFUSED else ready).append(client)

        def add(planned: Planned, lost: frozenset[int]) -> Added:
            spare = next(iter(planned.rules.values())).spare if planned.rules else 0
            tensors = {"spare": torch.tensor(spare)}
            for space, rule in planned.rules.items():
                union = counted.unions[space]
                places = np.searchsorted(union, rule.rows)
                tensors[f"rows/{space}"] = as_tensor(encode_rows(places, max(len(union), 1)))
            return self.summing.added(planned.setting, wire.ADD_UP, tensors)

        attempts = Attempts(
            self.settings, opened.number, counted, self.ranges, add, None, lambda counted, rules: 0
        )  # fmt: skip
        done = attempts.play(np.array(ready, np.int64), frozenset(), lambda setting, added, told: None)
        sums, measured, there = None, attempts.measured(), refusing
        if done is not None:
            sums, measured["clipped"] = self.filled(opened, *done)
            sums.refused, there = len(refusing), [*refusing, *done[1].clients]
        came = np.flatnonzero(np.isin(cohort.clients, there))
        who = cohort.take(came)
        crossed = [self.summing.bytes.get(client, (0, 0)) for client in cohort.clients.tolist()]
        down, up = np.array(crossed, np.int64).reshape(-1, 2).T
        note = () if sums is not None else (f"round {opened.number} was left out: {attempts.why}",)
        return Answers(sums, who, came, np.isin(who.clients, refusing), {}, down, up, measured, note)

    def accept(self, number: int, answers: Answers) -> None:
        if answers.sums is not None:
            self.remote.accept(number, answers)

    def _trained(self, opened: Opened, counted: Counted) -> dict[int, int | None]:
        """Send everybody the union; the flags of each answer, None if there is none."""
        letters = self.remote.letters
        tensors = {"heaviest": torch.tensor(self.ranges.heaviest).double()}
        for space, union in counted.unions.items():
            tensors[f"rows/{space}"] = as_tensor(encode_rows(union, self.server.population.rows[space]))
        sent = {}
        for client in counted.clients.tolist():
            down = replace(opened.downlink(slice(0, 1)), who=Cohort.of(np.array([client])))
            written = letters.write_down(down, int(self.remote.accepted[client]))
            told = {"down": as_tensor(written), **tensors}
            sent[client] = self.summing.write(wire.UNION, opened.number, client, told)
        return {
            client: self.remote.read(lambda d: self._flags(d, opened.number, client), client, data)  # noqa: B023
            for client, data in self.summing.replies(sent).items()
        }

    def _flags(self, data: bytes, number: int, client: int) -> int:
        message = wire.read(data)
        wire.check(message, {}, run=self.run, round=number, client=client)
        return message.flags
