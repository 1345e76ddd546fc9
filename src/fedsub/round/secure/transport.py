"""A secure sum as a transport: uplinks are added without being seen.

A round of clients that do not tell their rows (rows="union"):

    1  count     who holds each row is counted in a secure sum over the whole table, one byte a row; the union is where
                 the count is not 0
    2  down      everybody is sent the union and its rows, and cuts its own submodel out of them
    3  train     as ever; who finds NaN or infinity leaves before it masks anything
    4  rows      those to which t = ``rows_threshold`` clients are sure to give: count ≥ t + missing + spare, where so
                 many of the counted are missing now and so many more may drop out
    5  up        the secure sum over these rows, dense parameters and numbers

A private union that tells no counts (`fedsub.secure.private_union`) takes four bytes a row, and the rule of rows needs
counts over the union all the same: the server would learn as much, in one sum more.

Nobody is counted twice: counts of those who stayed, beside the counts of all, would show the rows of the others. A sum
that is given up is played again with fresh keys over fewer rows; nothing had been opened. With rows="clear" steps 1 and
2 are those of a round without this transport, and counts are exact.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from fedsub.errors import MethodError, SecureSumError
from fedsub.method.codecs.wire import rows_size
from fedsub.method.groups import Cohort
from fedsub.method.parts import SecureSum
from fedsub.round import wire
from fedsub.round.here import Here
from fedsub.round.layout import Asked, SpaceRows
from fedsub.round.messages import UPDATE
from fedsub.round.schema import Length
from fedsub.round.secure.adding import Added, by_protocol
from fedsub.round.secure.attempts import Attempts, Counted, Planned, Settings
from fedsub.round.secure.box import Box
from fedsub.round.secure.vector import Array, Ranges
from fedsub.round.server import Opened, ServerHalf
from fedsub.round.sums import Sums
from fedsub.round.transport import Answers
from fedsub.secure import RowRule, Segment, Setting, sum_bytes
from fedsub.secure.union import count_values


class Secure:
    """Clients in this process, as `Here` has them, whose uplinks nobody reads."""

    def __init__(self, here: Here, server: ServerHalf, secure: SecureSum):
        self.here, self.server, self.secure = here, server, secure
        population, schema = server.population, server.schema
        secure.check_reports(schema.reports)
        weights = server.method.average.weight(population.sizes)
        self.ranges = Ranges.of(secure, schema, server.params, weights, here.half.seed)
        self.settings = Settings(secure, here.half.seed)
        self._check(len(population))
        self._rows_told = Length(schema.rows())
        self._asked: dict[str, Asked] = {}
        self._counted: Counted | None = None

    def _check(self, everybody: int) -> None:
        """Refuse before training what cannot work in a full round."""
        share = 1.0 if self.server.sampler.may_be_empty else self.server.method.sampler.share(everybody)
        most = max(round(share * everybody), 2)
        self.ranges.prove(most)
        if most < (fewest := self.settings.fewest(most)):
            raise MethodError(f"A round has up to {most} clients, and SecureSum opens no sum of fewer than {fewest}.")

    @property
    def note(self) -> str:
        """Which way sums are made, for the record of the run."""
        s, scale = self.secure, self.ranges.quantisers[UPDATE]
        how = "simulated: the same whole numbers are added without ciphers" if s.simulate else (
            "played: every message of the protocol is written, carried and read"
        )  # fmt: skip
        return (
            f"secure sum {how}; entries up to clip × largest weight = {scale.clip:g} in {s.levels} levels "
            f"{scale.step:.3g} apart; rows: {s.rows}, of at least {s.rows_threshold} contributors"
        )

    def rows(self, number: int, cohort: Cohort) -> dict[str, Asked]:
        """The rows that are sent: each client's own where they are named; otherwise the union, as if one asked."""
        self._asked = self.here.rows(number, cohort)
        if self.secure.rows == "clear":
            self._counted = self._seen(cohort, cohort.clients)
            self._counted.up += self.here.ledger.asked(cohort, self._asked)
            return self._asked
        self._counted = self._count(number, cohort)
        none = np.zeros(0, np.int64)
        unions = {space: self._counted.unions.get(space, none) for space in self._asked}
        return {space: Asked(rows, np.array([len(rows)], np.int64)) for space, rows in unions.items()}

    def ask(self, opened: Opened) -> tuple[Array, Array, Array]:
        raise MethodError("No client tells its loss in rounds over a secure sum; choose clients by chance.")

    def exchange(self, opened: Opened) -> Answers:
        assert self._counted is not None
        counted, cohort, own = self._counted, opened.cohort, opened.server.cut(opened, self._asked)
        if len(counted.clients) < len(cohort):  # nobody was counted, so nobody was sent anything
            none, everybody = np.zeros(len(cohort), np.int64), np.arange(len(cohort))
            left = f"round {opened.number} was left out: {len(cohort)} clients are too few for a secure sum"
            return Answers(None, cohort, everybody, none.astype(bool), {}, none, none, notes=(left,))
        down, up = counted.down + self._down(own, counted), counted.up.copy()
        some, stays = self.here.reached(own)
        box = Box(self.ranges, counted.unions, some, apart=not self.secure.simulate)
        refused, _, seen = self.here.work(some, box.add)
        leaves = np.zeros(len(cohort), bool)
        leaves[stays[refused]] = True
        up[leaves] += wire.length([])
        recount = (lambda people: self._seen(cohort, people)) if self.secure.rows == "clear" else None
        attempts = Attempts(self.settings, opened.number, counted, box, recount, self._chosen)

        def took(setting: Setting, added: Added, told: int) -> None:
            at = np.flatnonzero(np.isin(cohort.clients, setting.participants))
            places = np.array([setting.places[client] for client in cohort.clients[at].tolist()])
            down[at] += added.down[places] + told
            up[at] += added.up[places]

        lost = frozenset(np.setdiff1d(cohort.clients, some.cohort.clients).tolist())
        done = attempts.play(cohort.clients[~leaves], lost, took) if box.clients else None
        sums, measured = self._empty(opened, {}), attempts.measured()
        if done is not None:
            sums, measured["clipped"] = self._filled(opened, *done)
        sums.refused = int(refused.sum())
        skipped = done is None and bool(box.clients)  # if nobody delivered, `close` says so, as without a secure sum
        note = (f"round {opened.number} was left out: {attempts.why}",) if skipped else ()
        return Answers(None if skipped else sums, some.cohort, stays, refused, seen, down, up, measured, note)

    def accept(self, number: int, answers: Answers) -> None:
        if answers.sums is None:
            self.here.forget()
        else:
            self.here.accept(number, answers)

    # What is known of rows before training

    def _seen(self, cohort: Cohort, clients: Array) -> Counted:
        """Counts of some of the cohort, of rows that are there to be read."""
        which, none = np.flatnonzero(np.isin(cohort.clients, clients)), np.zeros(len(cohort), np.int64)
        spaces = self.server.schema.spaces
        found = {s: np.unique(self._asked[s].take(which).rows, return_counts=True) for s in spaces}
        unions = {space: rows.astype(np.int64) for space, (rows, _) in found.items()}
        return Counted(cohort.clients[which], unions, {s: c for s, (_, c) in found.items()}, none, none.copy())

    def _count(self, number: int, cohort: Cohort) -> Counted:
        """Counts by a secure sum."""
        spaces, sizes = self.server.schema.spaces, self.server.population.rows
        seen = self._seen(cohort, cohort.clients)
        if len(cohort) < self.settings.fewest(len(cohort)):
            return self._seen(cohort, cohort.clients[:0])
        if not spaces:
            return seen
        bits = next(bits for bits in (8, 16, 32, 64) if len(cohort) < 2**bits)
        segments = tuple(Segment(space, sizes[space], bits, most=1) for space in spaces)
        setting = self.settings.plan(number, cohort.clients, segments, least=len(cohort))
        at = np.array([setting.places[client] for client in cohort.clients.tolist()])
        if self.secure.simulate:  # rows that nobody holds need no zeros
            down, up = sum_bytes(setting, np.ones(len(cohort), bool))
            seen.down, seen.up = down[at], up[at]
            return seen
        place = {client: np.array([k]) for k, client in enumerate(cohort.clients.tolist())}

        def vector(client: int) -> dict[str, Array]:
            return {s: count_values(self._asked[s].take(place[client]).rows, sizes[s], bits) for s in spaces}

        added = by_protocol(setting, vector)
        if added.sums is None:
            raise SecureSumError(f"Round {number}: the rows could not be counted. {added.why}")
        unions = {space: added.sums[space].nonzero()[0] for space in spaces}
        counts = {space: added.sums[space][unions[space]].astype(np.int64) for space in spaces}
        return Counted(cohort.clients, unions, counts, added.down[at], added.up[at])

    # Bytes besides those of the protocol

    def _down(self, own: Opened, counted: Counted) -> Array:
        """The invitation, and the rows: each client's own, or those of the union with their names."""
        ledger, count = self.here.ledger, len(own.cohort)
        if self.secure.rows == "clear":
            return ledger.down({space: rows.counts for space, rows in own.layout.items()}, count)
        sizes, unions = self.server.population.rows, counted.unions
        names = sum(rows_size(rows, sizes[space]) for space, rows in unions.items())
        wide = {space: np.full(count, len(unions.get(space, ())), np.int64) for space in own.layout}
        return ledger.down(wide, count) + (self._rows_told.fixed + names if unions else 0)

    def _chosen(self, counted: Counted, rules: Mapping[str, RowRule]) -> int:
        """Which rows are summed, as places in the union; where a client does not know that, as rows of the table."""
        out = self._rows_told.fixed if rules else 0
        for space, rule in rules.items():
            if self.secure.rows == "clear":
                out += rows_size(rule.rows, self.server.population.rows[space])
            else:
                union = counted.unions[space]
                out += rows_size(np.searchsorted(union, rule.rows), len(union))
        return out

    # From ring sums to the server's

    def _empty(self, opened: Opened, rows: Mapping[str, Array]) -> Sums:
        """Sums over these rows and no others: the rest stays as it is."""
        device, nothing = next(iter(self.server.params.values())).device, np.zeros(0, np.int64)
        none = torch.zeros(0, dtype=torch.int32, device=device)
        layout = {
            space: SpaceRows(none, nothing, nothing, torch.from_numpy(rows.get(space, nothing)).to(device), none)
            for space in opened.layout
        }
        return opened.server.sums(layout)

    def _filled(self, opened: Opened, planned: Planned, added: Added) -> tuple[Sums, float]:
        """(the numbers that the ring sums stand for, how many entries were clipped)."""
        assert added.sums is not None
        sums = self._empty(opened, planned.rows)
        trees, numbers = self.ranges.read(added.sums, len(added.clients))
        for tree, values in trees.items():
            for name, value in values.items():
                total = sums.trees[tree][name]
                total.copy_(value.reshape(total.shape).to(total.device))
        clipped = numbers.pop("clipped")
        sums.numbers = numbers
        if numbers["count"] != len(added.clients):
            raise SecureSumError(
                f"{len(added.clients)} clients were summed, and {numbers['count']:g} counted themselves."
            )
        for space, held in sums.held.items():  # only where rows are named
            held.copy_(torch.from_numpy(self._held(opened.cohort, space, planned.rows[space], added.clients)))
        return sums, clipped

    def _held(self, cohort: Cohort, space: str, rows: Array, clients: tuple[int, ...]) -> Array:
        """Σ a_i by row, from what everybody named."""
        which = np.flatnonzero(np.isin(cohort.clients, clients))
        some = self._asked[space].take(which)
        weights = self.server.method.average.weight(self.server.population.sizes[cohort.clients[which]])
        there = np.isin(some.rows, rows)
        at = np.searchsorted(rows, some.rows[there])
        return np.bincount(at, np.repeat(weights, some.counts)[there], len(rows))
