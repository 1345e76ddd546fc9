"""A secure sum as a transport: uplinks are added without being seen.

A round of clients that do not tell their rows (rows="union"):

    1  count     who holds each row is counted in a secure sum over the whole table, one byte a row; the union is where
                 the count is not 0
    2  down      everybody is sent the union and its rows, and cuts its own submodel out of them
    3  train     as ever; who finds NaN or infinity leaves before it masks anything
    4  rows      those to which t = ``rows_threshold`` clients are sure to give: count ≥ t + missing + spare, where so
                 many of the counted are missing now and so many more may drop out
    5  up        the secure sum over these rows, dense parameters and numbers

Nobody is counted twice: counts of those who stayed, beside the counts of all, would show the rows of the others. A sum
that is given up is played again with fresh keys over fewer rows; nothing had been opened. With rows="clear" steps 1 and
2 are those of a round without this transport, and counts are exact.

Where clients perturb the rows they name, `fedsub.round.secure.perturbed` has the round.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from fedsub import rng
from fedsub.errors import MethodError, SecureSumError
from fedsub.method.codecs.wire import rows_size
from fedsub.method.groups import Cohort
from fedsub.method.parts import SecureSum
from fedsub.round import wire
from fedsub.round.here import Here
from fedsub.round.layout import Asked
from fedsub.round.secure.adding import Added, by_protocol, plainly
from fedsub.round.secure.attempts import Attempts, Counted, Planned
from fedsub.round.secure.box import Box
from fedsub.round.secure.opening import HEAVIEST, NOTHING_LEFT, Opening
from fedsub.round.secure.vector import Array
from fedsub.round.server import Opened, ServerHalf
from fedsub.round.transport import Answers
from fedsub.secure import Setting, sum_bytes


class Secure(Opening):
    """Clients in this process, as `Here` has them, whose uplinks nobody reads."""

    def __init__(self, here: Here, server: ServerHalf, secure: SecureSum):
        super().__init__(server, secure, server.seed, fresh=not secure.simulate)
        self.here = here
        self._asked: dict[str, Asked] = {}  # what clients hold
        self._counted: Counted | None = None

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
        counted, cohort = self._counted, opened.cohort
        own = opened if self.secure.named else opened.server.cut(opened, self._asked)
        if len(counted.clients) < len(cohort):  # nobody was counted, so nobody was sent anything
            none, everybody = np.zeros(len(cohort), np.int64), np.arange(len(cohort))
            left = f"round {opened.number} was left out: {len(cohort)} clients are too few for a secure sum"
            return Answers(None, cohort, everybody, none.astype(bool), {}, none, none, notes=(left,))
        down, up = counted.down + self._down(own, counted), counted.up.copy()
        some, stays = self.here.reached(own)
        box = Box(self.ranges, counted.unions, apart=not self.secure.simulate)
        refused = self._work(some, box)
        leaves = np.zeros(len(cohort), bool)
        leaves[stays[refused]] = True
        up += wire.length([])  # ready, or refusing
        recount = (lambda people: self._recount(cohort, people)) if self.secure.named else None

        def add(planned: Planned, lost: frozenset[int]) -> Added:
            if self.secure.simulate:
                attempts.check(planned, planned.setting)
                return plainly(planned.setting, lambda: box.sum(planned.rows), lost)
            return by_protocol(
                planned.setting, lambda client: box.vector(client, planned.rows), lost,
                lambda told: attempts.check(planned, told),
            )  # fmt: skip

        attempts = Attempts(self.settings, opened.number, counted, self.ranges, add, recount, self.chosen)

        def took(setting: Setting, added: Added, told: int) -> None:
            at = np.flatnonzero(np.isin(cohort.clients, setting.participants))
            places = np.array([setting.places[client] for client in cohort.clients[at].tolist()])
            down[at] += added.down[places] + told
            up[at] += added.up[places]

        lost = frozenset(np.setdiff1d(cohort.clients, some.cohort.clients).tolist())
        done = attempts.play(cohort.clients[~leaves], lost, took) if box.clients else None
        sums, measured, why = self.empty(opened, {}), attempts.measured(), attempts.why
        if done is not None:
            sums, told = self.filled(opened, *done)
            measured |= told
            done, why = (done, why) if sums.numbers["weight"] else (None, NOTHING_LEFT)
        sums.refused = int(refused.sum())
        skipped = done is None and bool(box.clients)  # if nobody delivered, `close` says so, as without a secure sum
        note = (f"round {opened.number} was left out: {why}",) if skipped else ()
        return Answers(None if skipped else sums, some.cohort, stays, refused, {}, down, up, measured, note)

    def accept(self, number: int, answers: Answers) -> None:
        if answers.sums is None:
            self.here.forget()
        else:
            self.here.accept(number, answers)

    def _work(self, some: Opened, box: Box) -> Array:
        """Have all clients of a round train and put what they give into the box; which of them refused themselves."""
        return self.here.work(some, partial(box.add, some))[0]

    # What is known of rows before training

    def _recount(self, cohort: Cohort, clients: Array) -> Counted:
        """How many of these clients named each row."""
        return self._seen(cohort, clients)

    def _seen(self, cohort: Cohort, clients: Array) -> Counted:
        """Counts of some of the cohort, of rows that are there to be read."""
        which, none = np.flatnonzero(np.isin(cohort.clients, clients)), np.zeros(len(cohort), np.int64)
        spaces = self.server.schema.spaces
        found = {s: np.unique(self._asked[s].take(which).rows, return_counts=True) for s in spaces}
        unions = {space: rows.astype(np.int64) for space, (rows, _) in found.items()}
        return Counted(cohort.clients[which], unions, {s: c for s, (_, c) in found.items()}, none, none.copy())

    def _count(self, number: int, cohort: Cohort) -> Counted:
        """What all hold together, by a secure sum: how many hold each row, or which are held."""
        spaces, asking = self.server.schema.spaces, self.asking(len(cohort))
        if len(cohort) < self.settings.fewest(len(cohort)):
            return self._seen(cohort, cohort.clients[:0])
        if not spaces:
            return self._seen(cohort, cohort.clients)
        setting = self.settings.plan(number, cohort.clients, asking.segments, least=len(cohort))
        envelope = wire.length([("setting", 1)])
        at = np.array([setting.places[client] for client in cohort.clients.tolist()])
        if self.secure.simulate:  # rows that nobody holds need no zeros
            down, up = sum_bytes(setting, np.ones(len(cohort), bool))
            seen = self._together(number, cohort)
            seen.down, seen.up = down[at] + envelope, up[at]
            return seen
        place = {client: np.array([k]) for k, client in enumerate(cohort.clients.tolist())}

        def vector(client: int) -> dict[str, Array]:
            held = {space: self._asked[space].take(place[client]).rows for space in spaces}
            return asking.values(held, self._words(number, client))

        added = by_protocol(setting, vector)
        if added.sums is None:
            raise SecureSumError(f"Round {number}: the rows could not be counted. {added.why}")
        unions, counts = asking.found(added.sums)
        return Counted(cohort.clients, unions, counts, added.down[at] + envelope, added.up[at])

    def _together(self, number: int, cohort: Cohort) -> Counted:
        """What the sum over all would say."""
        return self._seen(cohort, cohort.clients)

    def _words(self, number: int, client: int) -> Callable[[int], Array]:
        """Random words of a client for what it puts at its rows."""
        word = rng.key(self.here.half.seed, rng.UNITED, number, client)
        return lambda count: rng.mix(word + np.arange(count, dtype=np.uint64))

    # Bytes besides those of the protocol

    def _down(self, own: Opened, counted: Counted) -> Array:
        """An invitation and each client's own rows; or those of the union, with their names and the largest weight."""
        ledger, count = self.here.ledger, len(own.cohort)
        if self.secure.rows == "clear":
            return ledger.down({space: rows.counts for space, rows in own.layout.items()}, count)
        sizes, unions = self.server.population.rows, counted.unions
        wide = {space: np.full(count, len(unions.get(space, ())), np.int64) for space in own.layout}
        names = sum(rows_size(rows, sizes[space]) for space, rows in unions.items())
        return ledger.down(wide, count, invited=False) + self.told(("down", 1), ("heaviest", 0)) + HEAVIEST + names

    def _held(self, cohort: Cohort, space: str, rows: Array, clients: tuple[int, ...]) -> Array:
        """Σ a_i by row, from what everybody named."""
        which = np.flatnonzero(np.isin(cohort.clients, clients))
        some = self._asked[space].take(which)
        weights = self.server.method.average.weight(self.server.population.sizes[cohort.clients[which]])
        there = np.isin(some.rows, rows)
        at = np.searchsorted(rows, some.rows[there])
        return np.bincount(at, np.repeat(weights, some.counts)[there], len(rows))
