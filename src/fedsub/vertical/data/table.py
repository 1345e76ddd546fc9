"""`PartyTable`: what one party knows of some samples; `Sides`: the tables of all parties of one population.

    ids      gender  age      ←  one party            ids      movie  history    label   ←  another
    1001193  0       0                                2001357  1337   [12, 9]    1
    2001357  1       6                                1001193  1104   [0, 0]     1

Rows are in no common order and not the same ones: `fedsub.vertical.intersect` finds those that two parties share
without showing the others, and `Sides.aligned` does so in a simulation, where one process holds everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from fedsub import rng
from fedsub.checks import check_decay, check_seed
from fedsub.errors import ColumnError, DataError, nearest

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class PartyTable:
    """Columns by sample, [n] or [n, width]. A column that stands in ``sizes`` holds rows of a table with so many.

    ``ids`` name the samples, none twice: whole numbers or text. ``label`` names the column that is predicted; only the
    label party has one.
    """

    ids: Array
    columns: Mapping[str, Array]
    sizes: Mapping[str, int] = field(default_factory=dict)
    label: str | None = None

    def __post_init__(self) -> None:
        if self.ids.ndim != 1 or self.ids.dtype.kind not in "iuUO":
            raise ColumnError(f"ids are {self.ids.dtype} {list(self.ids.shape)}, expected whole numbers or text, [n].")
        if len(np.unique(self.ids)) != len(self.ids):
            values, counts = np.unique(self.ids, return_counts=True)
            raise DataError(
                f"The id {values[counts.argmax() :].tolist()[0]!r} stands in more than one row; give every id once."
            )
        for name, values in self.columns.items():
            if len(values) != len(self.ids):
                raise ColumnError(f"Column {name!r} has {len(values):,} values for {len(self.ids):,} ids.")
        for name, size in self.sizes.items():
            values = self.column(name)
            if values.dtype.kind not in "iu" or (values.size and not 0 <= values.min() <= values.max() < size):
                raise ColumnError(
                    f"Column {name!r} is said to hold rows of a table of {size:,}, and holds {values.dtype} from "
                    f"{values.min()} to {values.max()}; expected whole numbers from 0 to {size - 1:,}."
                )
        if self.label is not None:
            self.column(self.label)

    def __len__(self) -> int:
        return len(self.ids)

    def column(self, name: str) -> Array:
        if name not in self.columns:
            raise ColumnError(f"There is no column {name!r} in this party's table; {nearest(name, self.columns)}")
        return self.columns[name]

    @property
    def labels(self) -> Array:
        if self.label is None:
            raise ColumnError("This party has no label; ask the label party's table.")
        return self.columns[self.label]

    def take(self, rows: Array) -> PartyTable:
        """These rows, in this order."""
        return replace(self, ids=self.ids[rows], columns={k: v[rows] for k, v in self.columns.items()})

    def batch(self, rows: Array) -> dict[str, Tensor]:
        """What a module is given: ids of tables as int64, all other columns as float32."""
        return {
            name: torch.from_numpy(np.ascontiguousarray(values[rows])).to(
                torch.int64 if name in self.sizes else torch.float32
            )
            for name, values in self.columns.items()
        }

    def held_out(self, share: float, seed: int = 0) -> Array:
        """Which rows are for testing, bool [n]: a function of seed and id, so that all parties choose the same."""
        check_decay("share", share, hint="the share of the samples that are held out", error=DataError)
        check_seed("seed", seed, error=DataError)
        return rng.uniform(rng.key(seed, rng.SPLIT, numbers(self.ids))) < share


@dataclass(frozen=True, eq=False)
class Sides:
    """One population as its parties see it, by name. ``label_party`` names the one that has the label."""

    parties: Mapping[str, PartyTable]
    label_party: str

    @property
    def labelled(self) -> PartyTable:
        return self.parties[self.label_party]

    @property
    def others(self) -> tuple[str, ...]:
        """The feature parties."""
        return tuple(name for name in self.parties if name != self.label_party)

    def aligned(self) -> Sides:
        """The samples that all parties have, in the order of the label party; row t is the same sample at each."""
        tables = list(self.parties.values())
        shared = reduce(lambda a, b: a[np.isin(a, b)], [t.ids for t in tables[1:]], tables[0].ids)
        if not len(shared):
            raise DataError("The parties share no id; compare how ids are written on all sides.")
        order = self.labelled.ids[np.isin(self.labelled.ids, shared)]
        return replace(self, parties={name: t.take(_rows(t.ids, order)) for name, t in self.parties.items()})

    def unaligned(self) -> PartyTable:
        """The label party's samples that at least one other party lacks."""
        everywhere = np.all([np.isin(self.labelled.ids, self.parties[name].ids) for name in self.others], axis=0)
        return self.labelled.take(np.flatnonzero(~everywhere))

    def split(self, share: float, seed: int = 0) -> tuple[Sides, Sides]:
        """(train, test): the ids that are held out are the same at every party."""
        cut = {name: t.held_out(share, seed) for name, t in self.parties.items()}
        parts = ({n: t.take(np.flatnonzero(cut[n] == test)) for n, t in self.parties.items()} for test in (False, True))
        train, test = (replace(self, parties=part) for part in parts)
        return train, test


def numbers(ids: Array) -> Array:
    """Ids as int64: themselves, or of text a digest."""
    if ids.dtype.kind in "iu":
        return ids.astype(np.int64)
    digests = b"".join(blake2b(str(one).encode(), digest_size=8).digest() for one in ids.tolist())
    return np.frombuffer(digests, "<i8").astype(np.int64)


def _rows(ids: Array, wanted: Array) -> Array:
    order = np.argsort(ids, kind="stable")
    return order[np.searchsorted(ids, wanted, sorter=order)]
