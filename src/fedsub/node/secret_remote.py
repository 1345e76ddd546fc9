"""The server's side of rounds over a secure sum, with clients behind channels of bytes.

Who does not answer has dropped out; at any stage of a sum the others go on, as `fedsub.secure` has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch

from fedsub.errors import DataError, MethodError, SecureSumError, WireError
from fedsub.method.codecs.wire import decode_rows, encode_rows
from fedsub.method.groups import Cohort
from fedsub.method.parts import SecureSum
from fedsub.node.remote import Remote
from fedsub.node.summing import Summing, as_tensor
from fedsub.round import wire
from fedsub.round.layout import Asked
from fedsub.round.schema import expected
from fedsub.round.secure.adding import Added
from fedsub.round.secure.attempts import Attempts, Counted, Planned
from fedsub.round.secure.opening import NOTHING_LEFT, Opening
from fedsub.round.secure.perturbed import times_named
from fedsub.round.secure.vector import Array
from fedsub.round.server import Opened
from fedsub.round.transport import Answers
from fedsub.secure import Registry


class SecretRemote(Opening):
    """Clients that `Remote` reaches, whose uplinks cannot be read. Whatever the part says, the protocol is played."""

    def __init__(self, remote: Remote, secure: SecureSum, known: Registry | None = None):
        if secure.rows == "clear":
            raise MethodError(f'Nodes play secure rounds with rows="union" or perturbed, got {secure.rows!r}.')
        super().__init__(remote.server, secure, remote.letters.run, fresh=True, signed=known is not None)
        self.remote, self.run, self.known = remote, remote.letters.run, known
        self.summing = Summing(remote, known)  # of this round
        self._counted: Counted | None = None
        self._named: dict[int, dict[str, Array]] = {}  # where rows are perturbed: client -> the rows it named

    def rows(self, number: int, cohort: Cohort) -> dict[str, Asked]:
        """The union of the rows of those who answer; or what each of them names of it."""
        spaces = self.server.schema.spaces
        none, self.summing = np.zeros(0, np.int64), Summing(self.remote, self.known)
        self._counted = Counted(none, {}, {}, none, none)
        if spaces and len(cohort) >= self.settings.fewest(len(cohort)):
            asking = self.asking(len(cohort))
            setting = self.settings.plan(number, cohort.clients, asking.segments)
            added = self.summing.added(setting, wire.COUNT_ROWS, {})
            if added.sums is not None:
                self._counted = Counted(np.array(added.clients), *asking.found(added.sums), none, none)
        elif not spaces:
            self._counted = Counted(cohort.clients, {}, {}, none, none)
        every = dict.fromkeys(self.server.population.tables.values())
        if self.secure.perturbs is not None:
            return self._names(number, cohort, every)
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

        recount = self._recount if self.secure.named else None
        attempts = Attempts(
            self.settings, opened.number, counted, self.ranges, add, recount, lambda counted, rules: 0
        )  # fmt: skip
        done = attempts.play(np.array(ready, np.int64), frozenset(), lambda setting, added, told: None)
        sums, measured, there, why = None, attempts.measured(), refusing, attempts.why
        if done is not None:
            try:
                sums, told = self.filled(opened, *done)
                measured |= told
                sums.refused, there = len(refusing), [*refusing, *done[1].clients]
                sums, why = (sums, why) if sums.numbers["weight"] else (None, NOTHING_LEFT)
            except SecureSumError as err:  # a client lied about itself: no reason to end the run
                why = str(err)
        came = np.flatnonzero(np.isin(cohort.clients, there))
        who = cohort.take(came)
        crossed = [self.summing.bytes.get(client, (0, 0)) for client in cohort.clients.tolist()]
        down, up = np.array(crossed, np.int64).reshape(-1, 2).T
        note = () if sums is not None else (f"round {opened.number} was left out: {why}",)
        return Answers(sums, who, came, np.isin(who.clients, refusing), {}, down, up, measured, note)

    def accept(self, number: int, answers: Answers) -> None:
        if answers.sums is not None:
            self.remote.accept(number, answers)

    def _union(self, counted: Counted) -> dict[str, torch.Tensor]:
        sizes = self.server.population.rows
        return {f"rows/{space}": as_tensor(encode_rows(rows, sizes[space])) for space, rows in counted.unions.items()}

    def _names(self, number: int, cohort: Cohort, every: Iterable[str]) -> dict[str, Asked]:
        """Tell the union to those whose rows are in it, and hear what they name; who does not answer is lost."""
        counted, self._named = self._counted, {}
        assert counted is not None
        people, tensors = counted.clients.tolist(), self._union(counted)
        sent = {client: self.summing.write(wire.NAME_ROWS, number, client, tensors) for client in people}
        for client, data in self.summing.replies(sent).items():
            named = self.remote.read(
                lambda d: self._read_named(d, number, client, counted.unions), client, data  # noqa: B023
            )  # fmt: skip
            if named is not None:
                self._named[client] = named
        self._counted = self._recount(np.array(sorted(self._named), np.int64))
        none = np.zeros(0, np.int64)
        each = [self._named.get(client, {}) for client in cohort.clients.tolist()]
        out = {}
        for space in every:
            rows = [one.get(space, none) for one in each]
            out[space] = Asked(np.concatenate(rows), np.array([len(some) for some in rows], np.int64))
        return out

    def _read_named(self, data: bytes, number: int, client: int, unions: dict[str, Array]) -> dict[str, Array]:
        message = wire.read(data, wire.NAME_ROWS)
        fields = expected(self.server.schema.rows(), {})
        wire.check(message, fields, run=self.run, round=number, client=client, flags=0)
        out = {}
        for space, union in unions.items():
            rows = message.tensors[f"rows/{space}"].numpy().tobytes()
            try:
                out[space] = union[decode_rows(rows, len(union))]
            except DataError as err:
                raise WireError(str(err)) from err
        return out

    def _recount(self, clients: Array) -> Counted:
        """How many of these clients named each row of the union."""
        assert self._counted is not None
        none, unions = np.zeros(0, np.int64), self._counted.unions
        rows = {s: [self._named[client][s] for client in clients.tolist()] for s in unions}
        counts = {s: times_named(union, np.concatenate([none, *rows[s]])) for s, union in unions.items()}
        return Counted(clients, unions, counts, none, none)

    def _trained(self, opened: Opened, counted: Counted) -> dict[int, int | None]:
        """Send everybody the union, or what it named of it; the flags of each answer, None if there is none."""
        letters = self.remote.letters
        tensors = {"heaviest": torch.tensor(self.ranges.heaviest).double()}
        if not self.secure.named:
            tensors |= self._union(counted)
        places = {client: place for place, client in enumerate(opened.cohort.clients.tolist())}
        sent = {}
        for client in counted.clients.tolist():
            at = places[client] if self.secure.named else 0
            down = replace(opened.downlink(slice(at, at + 1)), who=Cohort.of(np.array([client])))
            written = letters.write_down(down, int(self.remote.accepted[client]))
            told = {"down": as_tensor(written), **tensors}
            sent[client] = self.summing.write(wire.UNION, opened.number, client, told, self.remote.safe_for(client))
        return {
            client: self.remote.read(lambda d: self._flags(d, opened.number, client), client, data)  # noqa: B023
            for client, data in self.summing.replies(sent).items()
        }

    def _flags(self, data: bytes, number: int, client: int) -> int:
        message = wire.read(data)
        wire.check(message, {}, run=self.run, round=number, client=client)
        return message.flags
