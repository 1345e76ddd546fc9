"""A mechanism beside the truth, on data where that is known: what it costs, and what is left of heat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedsub.data.clients import Clients
from fedsub.errors import DataError
from fedsub.privacy.heat.holdings import Holdings
from fedsub.privacy.heat.mechanism import PrivateHeat
from fedsub.privacy.heat.words import Array


@dataclass(frozen=True)
class Measured:
    """Over all spaces; padding rows are left out."""

    title: str
    epsilon_row: float  # one row of one space
    epsilon_client: float  # all rows of the client that holds most, in all spaces
    deviation: float  # the median, as the server knows it
    error: float  # root mean square over held rows, as it is
    resolvable: float  # heat that is as large as its standard deviation
    held: int
    below: int  # held rows colder than that
    low: int  # estimates of all rows below 1
    high: int  # and above the whole
    lost: float  # share of all heat that a bound on a client's rows leaves out
    upload: int  # bytes that a client sends
    whole: float
    exact: Array = field(repr=False)
    estimated: Array = field(repr=False)
    deviations: Array = field(repr=False)

    def plain(self) -> dict[str, float | int | str]:
        """Without the rows, as JSON values; an infinite ε is text."""
        out = {name: value for name, value in vars(self).items() if not isinstance(value, np.ndarray)}
        return {name: "unbounded" if value == float("inf") else value for name, value in out.items()}


def measure(mechanism: PrivateHeat, clients: Clients, *, weighted: bool = False, seed: int = 0) -> Measured:
    """Ask every client once about every space."""
    held = {name: Holdings.of(space, clients.sizes if weighted else None) for name, space in clients.spaces.items()}
    if not held:
        raise DataError("The data have no table, and so no heat; name id columns with --table.")
    found = {name: mechanism.estimate(some, seed) for name, some in held.items()}
    most = int(np.sum([some.space.counts for some in held.values()], axis=0).argmax())
    exact = _rows(held, {name: some.heat for name, some in held.items()})
    estimated = _rows(held, {name: one.heat for name, one in found.items()})
    deviations = _rows(held, {name: one.deviation for name, one in found.items()})
    whole, own, middle = next(iter(found.values())).whole, exact > 0, float(np.median(deviations))
    unsure = deviations > 0
    lost = sum(float(some.lost(mechanism.rows).sum()) for some in held.values() if mechanism.rows is not None)
    resolvable = middle if weighted else mechanism.resolvable(whole)
    return Measured(
        mechanism.title, mechanism.epsilon_row,
        sum(mechanism.epsilon_set(int(some.space.counts[most])) for some in held.values()),
        middle, float(np.sqrt(np.mean((estimated - exact)[own] ** 2))) if own.any() else 0.0, resolvable,
        int(own.sum()),
        int(np.count_nonzero(own & (exact < resolvable))),
        int(np.count_nonzero((estimated < 1) & unsure)),
        int(np.count_nonzero((estimated > whole) & unsure)), lost / float(max(exact.sum(), 1.0)),
        sum(mechanism.upload(some.size) for some in held.values()), whole,
        exact, estimated, deviations,
    )  # fmt: skip


def _rows(held: Mapping[str, Holdings], values: Mapping[str, Array]) -> Array:
    return np.concatenate([values[name][int(some.padded) :] for name, some in held.items()])
