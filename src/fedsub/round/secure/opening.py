"""What the server of secure rounds does with them, whatever carries the messages: from ring sums to its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from fedsub.errors import MethodError, SecureSumError
from fedsub.method.codecs.wire import rows_size
from fedsub.method.groups import Cohort
from fedsub.method.parts import SecureSum
from fedsub.round import wire
from fedsub.round.layout import SpaceRows
from fedsub.round.messages import UPDATE
from fedsub.round.schema import Schema
from fedsub.round.secure.adding import Added
from fedsub.round.secure.attempts import Counted, Planned, Settings
from fedsub.round.secure.vector import Array, Ranges
from fedsub.round.server import Opened, ServerHalf
from fedsub.round.sums import Sums
from fedsub.secure import RowRule
from fedsub.secure.union import Asking, Counting, Uniting

SPARE = HEAVIEST = 8  # bytes of these numbers in messages
NOTHING_LEFT = "no client had samples left whose rows came"


class Opening:
    """Ranges and settings of a run's sums; `filled` makes of an opened sum what `ServerHalf.close` takes."""

    def __init__(self, server: ServerHalf, secure: SecureSum, run: int, *, fresh: bool, signed: bool = False):
        self.server, self.secure = server, secure
        population, schema = server.population, server.schema
        secure.check_reports(schema.reports)
        weights = server.method.average.weight(population.sizes)
        held = server.method.average.needs_held
        self.ranges = Ranges.of(secure, schema, server.params, weights, server.seed, needs_held=held)
        self.settings = Settings(secure, run, fresh, signed)
        self._check(len(population))

    def _check(self, everybody: int) -> None:
        """Refuse before training what cannot work in a full round."""
        check_tables(self.secure, self.server.schema)
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
        note = (
            f"secure sum {how}; entries up to clip × largest weight = {scale.clip:g} in {s.levels} levels "
            f"{scale.step:.3g} apart; rows: {s.rows if s.perturbs is None else 'perturbed'}, of at least "
            f"{s.rows_threshold} contributors"
        )
        if s.perturbs is not None:
            cost = " and ".join(map(str, s.spends(len(self.server.schema.spaces))))
            note += f"; clients name rows by {s.perturbs.title}; for all rows of a client it costs {cost}"
        return note

    def asking(self, people: int) -> Asking:
        """How the rows of so many clients are learnt where they do not name them as they are."""
        return asking(self.secure, self.server.schema.spaces, self.server.population.rows, people)

    def told(self, *more: tuple[str, int]) -> int:
        """Bytes of an envelope with rows by space and ``more`` tensors (name, dimensions), without its values."""
        return wire.length([*[(f"rows/{space}", 1) for space in self.server.schema.spaces], *more])

    def chosen(self, counted: Counted, rules: Mapping[str, RowRule]) -> int:
        """Bytes that tell which rows are summed, as places in the union; where that is not known, as rows."""
        out = self.told(("setting", 1), ("spare", 0)) + SPARE
        for space, rule in rules.items():
            if self.secure.rows == "clear":  # then there is no union that all know
                out += rows_size(rule.rows, self.server.population.rows[space])
            else:
                union = counted.unions[space]
                out += rows_size(np.searchsorted(union, rule.rows), max(len(union), 1))
        return out

    def empty(self, opened: Opened, rows: Mapping[str, Array]) -> Sums:
        """Sums over these rows and no others: the rest stays as it is."""
        device, nothing = next(iter(self.server.params.values())).device, np.zeros(0, np.int64)
        none = torch.zeros(0, dtype=torch.int32, device=device)
        layout = {
            space: SpaceRows(none, nothing, nothing, torch.from_numpy(rows.get(space, nothing)).to(device), none)
            for space in opened.layout
        }
        return opened.server.sums(layout)

    def filled(self, opened: Opened, planned: Planned, added: Added) -> tuple[Sums, dict[str, float]]:
        """(the numbers that the ring sums stand for; how many entries were clipped, and more to be told)."""
        assert added.sums is not None
        sums = self.empty(opened, planned.rows)
        trees, numbers = self.ranges.read(added.sums, len(added.clients))
        for tree, values in trees.items():
            for name, value in values.items():
                total = sums.trees[tree][name]
                total.copy_(value.reshape(total.shape).to(total.device))
        clipped, idle = numbers.pop("clipped"), numbers.pop("idle", 0.0)
        if "loss" in numbers and idle < numbers["count"]:  # those of whose samples none are left have none
            numbers["loss"] *= numbers["count"] / (numbers["count"] - idle)
        sums.numbers = numbers
        if numbers["count"] != len(added.clients):
            raise SecureSumError(
                f"{len(added.clients)} clients were summed, and {numbers['count']:g} counted themselves."
            )
        for space, held in sums.held.items():  # only where rows are named
            if self.ranges.held:
                told = added.sums.get(f"held/{space}", np.zeros(0)).astype(np.float64)
            else:
                told = self._held(opened.cohort, space, planned.rows[space], added.clients)
            held.copy_(torch.from_numpy(told))
        return sums, {"clipped": clipped} | ({"idle": idle} if self.secure.perturbs is not None else {})

    def _held(self, cohort: Cohort, space: str, rows: Array, clients: tuple[int, ...]) -> Array:
        """Σ a_i by row over some clients: only where rows are named as they are."""
        raise NotImplementedError


def asking(secure: SecureSum, spaces: Sequence[str], sizes: Mapping[str, int], people: int) -> Asking:
    """Where clients then name rows themselves, the union is enough; otherwise rows of too few must be known."""
    rows = {space: sizes[space] for space in spaces}
    return Counting(rows, people) if secure.perturbs is None else Uniting(rows)


def check_tables(secure: SecureSum, schema: Schema, whole: Sequence[str] = ()) -> None:
    """Refuse tables whose rows cannot be perturbed; ``whole`` are those that the module uses whole."""
    if secure.perturbs is None:
        return
    if not schema.spaces:
        raise MethodError('No table of this model is sent, so that no rows are named; take rows="union".')
    for name in schema.private:
        if schema.tables.get(name) in schema.spaces:
            raise MethodError(
                f"The table {name!r} stays with the clients and shares its rows with one that is sent, of which only "
                'some rows come in a round of perturbed rows; take rows="union", or make all tables of '
                f"{schema.tables[name]!r} personal."
            )
    for name in whole:
        if schema.tables.get(name) in schema.spaces:
            raise MethodError(
                f"The module uses the table {name!r} whole, and in a round of perturbed rows a client is sent rows "
                'that are not its own; take rows="union".'
            )
