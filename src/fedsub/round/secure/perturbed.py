"""A round of clients that perturb the rows they name (Niu et al., "Billion-Scale Federated Learning on Mobile Clients:
A Submodel Design with Tunable Privacy", MobiCom 2020).

    1  union     which rows somebody holds is learnt by a private union, four bytes a row; how many do is not
    2  names     everybody is sent the union and names rows of it, in the clear: some that it does not hold, and not all
                 that it holds (`fedsub.round.secure.naming`)
    3  down      the rows that it named
    4  train     on the samples whose rows came (`fedsub.data.narrowed`); rows that it does not hold it puts aside
    5  up        the secure sum over the rows that ``rows_threshold`` clients named. Who named a row and does not hold
                 it adds 0; so does who has no samples left, and answers all the same

Steps are weighted by the samples that are left, so that the mean is over those that were trained on. Say every sample
names r rows that may be missing, each of which comes with the chance p5. Then a sample is left with the chance p5^r,
whatever row one looks at, and after one step on all of them

    E Σ_i ñ_i Δ_i = p5^r Σ_i w_i Δ_i     E Σ_i ñ_i = p5^r Σ_i w_i

row by row, where ñ_i of the w_i samples are left: the quotient needs no factor, and FedSubAvg's W/W_m stays as it is.
Divided by p5, "because a holder comes with the chance p5", it would be too large by 1/p5: a client that lost rows
trains the more on those that are left.
"""

from __future__ import annotations

import numpy as np

from fedsub.method.codecs.wire import row_id_bytes, rows_size
from fedsub.method.groups import Cohort
from fedsub.method.parts import SecureSum
from fedsub.round import wire
from fedsub.round.here import Here
from fedsub.round.layout import Asked
from fedsub.round.messages import Uplink
from fedsub.round.secure.attempts import Counted
from fedsub.round.secure.box import Box
from fedsub.round.secure.naming import names
from fedsub.round.secure.opening import HEAVIEST, check_tables
from fedsub.round.secure.transport import Secure
from fedsub.round.secure.vector import Array
from fedsub.round.server import Opened, ServerHalf
from fedsub.secure.union import Uniting


class Perturbed(Secure):
    """Clients in this process that name rows at random."""

    def __init__(self, here: Here, server: ServerHalf, secure: SecureSum):
        super().__init__(here, server, secure)
        check_tables(secure, server.schema, here.half.problem.objective.whole)
        self._named: dict[str, Asked] = {}
        self._unions: dict[str, Array] = {}

    def rows(self, number: int, cohort: Cohort) -> dict[str, Asked]:
        """Everybody is told the union, and says which of its rows it wants."""
        self._asked, sizes = self.here.rows(number, cohort), self.server.population.rows
        united, response, half = self._count(number, cohort), self.secure.perturbs, self.here.half
        assert response is not None
        self._unions = united.unions
        named = names(response, cohort, united.unions, half.problem.spaces, number, half.seed)
        self._named = {**self._asked, **named}  # of tables that stay with the clients all rows are there
        self._counted = self._recount(cohort, united.clients)
        if len(united.clients) and united.unions:
            union = sum(rows_size(rows, sizes[space]) for space, rows in united.unions.items())
            self._counted.down = united.down + self.told() + union
            self._counted.up = united.up + self.told()
            for space, one in named.items():
                at, edges = np.searchsorted(united.unions[space], one.rows), np.cumsum(np.append(0, one.counts))
                self._counted.up += row_id_bytes(edges, at, max(len(united.unions[space]), 1))
        return self._named

    def _recount(self, cohort: Cohort, clients: Array) -> Counted:
        which, none = np.flatnonzero(np.isin(cohort.clients, clients)), np.zeros(len(cohort), np.int64)
        counts = {
            space: times_named(union, self._named[space].take(which).rows) for space, union in self._unions.items()
        }
        return Counted(cohort.clients[which], self._unions, counts, none, none.copy())

    def _together(self, number: int, cohort: Cohort) -> Counted:
        """Where the sum of what clients put at their rows is not 0."""
        seen, sizes = self._seen(cohort, cohort.clients), self.server.population.rows
        uniting = Uniting({space: sizes[space] for space in self.server.schema.spaces})
        totals = {s.name: np.zeros(len(seen.unions[s.name]), s.dtype) for s in uniting.segments}
        for k, client in enumerate(cohort.clients.tolist()):
            held = {space: self._asked[space].take(np.array([k])).rows for space in totals}
            for space, drawn in uniting.drawn(held, self._words(number, client)).items():
                totals[space][np.searchsorted(seen.unions[space], held[space])] += drawn
        seen.unions = {space: union[totals[space] != 0] for space, union in seen.unions.items()}
        return seen

    def _work(self, some: Opened, box: Box) -> Array:
        refused, half = np.zeros(len(some.cohort), bool), self.here.half
        mine = half.narrowed(some.cohort, {space: some.asked[space] for space in self._unions})
        left = np.flatnonzero(mine.clients.sizes)
        if len(left):
            busy, own = some.server.narrow(some, left), mine.take(left)

            def add(uplink: Uplink, where: slice) -> None:
                box.add(busy, uplink, where, own.held_by(where))

            refused[left] = self.here.work(busy, add, own)[0]
        for k in np.flatnonzero(mine.clients.sizes == 0).tolist():
            one = slice(k, k + 1)
            held = mine.held_by(one)
            uplink = half.rest(half.put_aside(some.downlink(one), held), self.here.memory)
            box.add(some, uplink, one, held)
        return refused

    def _down(self, own: Opened, counted: Counted) -> Array:
        counts = {space: rows.counts for space, rows in own.layout.items()}
        more = wire.length([("down", 1), ("heaviest", 0)]) + HEAVIEST
        return self.here.ledger.down(counts, len(own.cohort), invited=False) + more


def times_named(union: Array, rows: Array) -> Array:
    """How many clients named each row of the union."""
    return np.bincount(np.searchsorted(union, rows), minlength=len(union)).astype(np.int64)
