"""`Sides`: one population as several parties see it. Every sample is a client of its own, by the id that names it.

    id       gender  age      ←  one party            id       movie  history    label   ←  another
    10020    0       0                                10020    2      [1]        1
    20030    1       6                                20010    1      [3]        0

Rows need not be the same ones: `fedsub.vertical.intersect` finds those that two parties share without showing the
others, and `Sides.aligned` does so in a simulation, where one process holds everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from hashlib import blake2b

import numpy as np

from fedsub import rng
from fedsub.checks import check_decay, check_seed
from fedsub.data.clients import Array, Clients
from fedsub.data.split import select
from fedsub.errors import DataError, nearest


@dataclass(frozen=True, eq=False)
class Sides:
    """The parties' data by name. ``label_party`` names the one that has the label."""

    parties: Mapping[str, Clients]
    label_party: str

    def __post_init__(self) -> None:
        if self.label_party not in self.parties:
            raise DataError(f"There is no party {self.label_party!r}; {nearest(self.label_party, self.parties)}")
        if self.labelled.label is None:
            raise DataError(
                f"The data of {self.label_party!r} has no label; read it with label=, the column to predict."
            )
        for name, data in self.parties.items():
            if data.samples != len(data):
                raise DataError(
                    f"The data of {name!r} has {data.samples:,} samples and {len(data):,} ids; give every sample an id "
                    "of its own."
                )

    @property
    def labelled(self) -> Clients:
        return self.parties[self.label_party]

    @property
    def others(self) -> tuple[str, ...]:
        """The feature parties."""
        return tuple(name for name in self.parties if name != self.label_party)

    def aligned(self) -> Sides:
        """The samples that all parties have, by ascending id; the t-th is the same one at each."""
        shared = reduce(np.intersect1d, [data.client_ids for data in self.parties.values()])
        if not len(shared):
            raise DataError("The parties share no id; compare how ids are written on all sides.")
        return replace(self, parties={name: _of(data, shared) for name, data in self.parties.items()})

    def unaligned(self) -> Clients:
        """The label party's samples that at least one other party lacks."""
        own = self.labelled.client_ids
        everywhere = np.all([np.isin(own, self.parties[name].client_ids) for name in self.others], axis=0)
        if everywhere.all():
            raise DataError("All samples of the label party are at all other parties; none is unaligned.")
        return select(self.labelled, np.flatnonzero(~everywhere))

    def split(self, share: float, seed: int = 0) -> tuple[Sides, Sides]:
        """(train, test): ``share`` of the ids is held out, the same ones at every party."""
        cut = {name: held_out(data.client_ids, share, seed) for name, data in self.parties.items()}
        train, test = (
            replace(self, parties={n: select(d, np.flatnonzero(cut[n] == out)) for n, d in self.parties.items()})
            for out in (False, True)
        )
        return train, test


def held_out(ids: Array, share: float, seed: int = 0) -> Array:
    """Which samples are for testing, bool [n]: a function of seed and id, so that all parties choose the same."""
    check_decay("share", share, hint="the share of the samples that are held out", error=DataError)
    check_seed("seed", seed, error=DataError)
    if ids.dtype.kind not in "iu":
        digests = b"".join(blake2b(str(one).encode(), digest_size=8).digest() for one in ids.tolist())
        ids = np.frombuffer(digests, "<i8")
    return rng.uniform(rng.key(seed, rng.SPLIT, ids.astype(np.int64))) < share


def labels(clients: Clients) -> Array:
    """The label of every sample."""
    assert clients.label is not None
    return np.asarray(clients.columns[clients.label].values)


def _of(data: Clients, ids: Array) -> Clients:
    order = np.argsort(data.client_ids, kind="stable")
    return select(data, order[np.searchsorted(data.client_ids, ids, sorter=order)])
