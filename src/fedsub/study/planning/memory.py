"""What every process of a run holds in memory, in bytes by what it is for.

What is kept of a row is not written down here a second time: the keeper of a round is made for a model of two rows and
for one of three, and the difference is what a row costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedsub.round.keeper import Keeper
from fedsub.round.prepare import Trainer
from fedsub.study.planning.constants import Constants
from fedsub.study.planning.counted import Counts
from fedsub.study.planning.scaled import Scaled

COPIES = 6  # of a cohort's rows: sent, trained, their gradient, the update, its sum and the mean
COUNTING = 16  # bytes a row while heat is counted: the count, and N divided by it
PLACE, MARK = 4, 1  # bytes a row: its place in the cohort, whether it moved
DIRECTORY = 40  # bytes of a touched row of a lazy table: its number and where it lies, in a hash table half full
HELD = 40  # bytes of a row that somebody holds, while its heat is counted by sorting
GROWTH = 2  # a lazy table grows by doubling
OF_CLIENT, OF_SPACE = 24, 24  # bytes a client, and a client and space: sizes, offsets, who may be drawn, lengths of ids

Bytes = dict[str, float]


@dataclass(frozen=True)
class PerRow:
    """Bytes of one row of a space, over all tables that it numbers."""

    values: float
    server: float  # what the server's rule remembers
    parts: float  # what parts keep at the server
    heat: float

    @property
    def kept(self) -> float:
        return self.values + self.server + self.parts + self.heat


def per_row(trainer: Trainer, space: str) -> PerRow:
    """Found by asking for a model with two rows of the space, and for one with three."""
    two, three = (_sizes(trainer, space, rows) for rows in (2, 3))
    values, server, parts = (b - a for a, b in zip(two, three, strict=True))
    tables = [name for name, own in trainer.problem.tables.items() if own.name == space]
    width = max(trainer.params[name].element_size() for name in tables)
    return PerRow(values, server, parts, width if trainer.method.average.corrects else 0)


def _sizes(trainer: Trainer, space: str, rows: int) -> tuple[int, int, int]:
    params = {
        name: torch.empty((rows if name in trainer.problem.tables and trainer.problem.tables[name].name == space else 1,
                           *value.shape[1:]), dtype=value.dtype)
        for name, value in trainer.params.items()
    }  # fmt: skip
    server = trainer.server
    keeper = Keeper(trainer.method.parts, server.rule, lambda: server.average, params, server.population.tables)
    slots = sum(_nbytes(tree) for slots in keeper.slots.values() for tree in slots.values())
    return _nbytes(params), _nbytes(keeper.state), slots


def _nbytes(tree: dict[str, torch.Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in tree.values())


def tables(trainer: Trainer, scaled: Scaled, *, copies: int = 2) -> Bytes:
    """Dense tables with all that goes with their rows. ``copies``: the module's own and the one that is trained."""
    out: Bytes = dict.fromkeys(("tables", "server's rule", "parts", "heat", "scratch"), 0.0)
    for space, rows in scaled.rows.items():
        one = per_row(trainer, space)
        out["tables"] += copies * one.values * rows
        # A rule that moves rows later than they were sent is evaluated on a copy that is up to date.
        out["server's rule"] += one.server * rows
        if trainer.server.rule.lazy:
            out["scratch"] += (one.values + one.server) * rows
        out["parts"] += one.parts * rows
        out["heat"] += (one.heat + (COUNTING if one.heat else 0)) * rows
        out["scratch"] += (PLACE + MARK) * rows
    return out


def lazy_tables(trainer: Trainer, scaled: Scaled, rounds: int) -> Bytes:
    """Tables of which only what was touched takes memory."""
    out: Bytes = dict.fromkeys(("touched rows", "directory", "heat"), 0.0)
    for space in scaled.rows:
        touched, one = scaled.touched(space, rounds), per_row(trainer, space)
        out["touched rows"] += GROWTH * (one.values + one.server + one.parts) * touched
        out["directory"] += GROWTH * DIRECTORY * touched
        out["heat"] += HELD * scaled.reached(space, scaled.clients) if one.heat else 0.0
    return out


def arena(trainer: Trainer, scaled: Scaled) -> float:
    """The rows of a cohort, once."""
    values = sum(per_row(trainer, space).values * scaled.held(space) for space in scaled.rows)
    return scaled.cohort * values


def driver(trainer: Trainer, scaled: Scaled, counts: Counts, rounds: int, constants: Constants) -> Bytes:
    """All but the tables: the process, what is known of every client, and a round at its worst moment."""
    shared = set(trainer.problem.tables)
    dense = sum(v.numel() * v.element_size() for n, v in trainer.params.items() if n not in shared)
    kept = sum(v.numel() * v.element_size() for v in trainer.memory.tensors.values()) / len(trainer.problem.clients)
    who = scaled.clients if trainer.method.keeper is not None else scaled.took_part(rounds)
    return {
        "process": constants.base,
        "dense parameters": 4.0 * dense,
        "clients": scaled.clients * (OF_CLIENT + OF_SPACE * len(scaled.rows)),
        "client memory": kept * who,
        "round": COPIES * arena(trainer, scaled) + counts.step_bytes,
    }


def worker(trainer: Trainer, scaled: Scaled, counts: Counts, workers: int, constants: Constants) -> Bytes:
    """A worker's process and its share of a round; the clients' data is mapped and belongs to nobody."""
    share = COPIES * arena(trainer, scaled) / workers + counts.step_bytes
    return {"process": constants.base, "round": share}


def shard(trainer: Trainer, scaled: Scaled, shards: int, constants: Constants) -> Bytes:
    """A shard's process and its rows: no second copy, no evaluation."""
    rows = sum((per_row(trainer, space).kept + PLACE + MARK) * rows for space, rows in scaled.rows.items())
    return {"process": constants.base, "rows": rows / shards}
