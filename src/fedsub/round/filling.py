"""A sample with another item: which of its columns change with the item, and how.

A module may read more than the item. What stands beside it in a sample is repeated for every item of a list, except

    columns that go with the item       the genre of a movie: in the data, an item has always the same value
    crosses of an item with a column    gender × movie, numbered gender · movies + movie, or movie · genders + gender

Both are found in the data, of which every sample must agree; an item that has no sample there is in no list if some
column goes with it. Any other column that tells the item is refused: it would stand beside items that it contradicts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedsub.data.clients import Clients
from fedsub.errors import ConfigError, nearest

Array = np.ndarray
TOGETHER = 1 << 20  # samples that are looked at at once


@dataclass(frozen=True)
class Cross:
    """id = ``times`` · other + ``by`` · item."""

    other: str
    times: int
    by: int


@dataclass(frozen=True)
class Filling:
    """How the columns of a sample follow from a sample of the data and an item."""

    item: str
    known: Array  # bool [items]: which can be put into a sample
    repeated: tuple[str, ...]
    follows: dict[str, Array] = field(default_factory=dict, repr=False)  # column -> its value for every item
    crosses: dict[str, Cross] = field(default_factory=dict)

    @classmethod
    def find(cls, item: str, columns: tuple[str, ...], parts: list[Clients]) -> Filling:
        """Look into the data, ``parts`` that number ids alike. ``columns`` is what the model reads."""
        first = parts[0]
        column = first.column(item)
        space = first.space_of(item)
        if column.ragged or column.values.ndim > 1:
            raise ConfigError(
                f"Ranking is of one item a sample, and column {item!r} holds several; "
                f"{nearest(item, [n for n, c in first.columns.items() if c.space and n != item])}"
            )
        others = [n for n in columns if n != item]
        search = _Search(item, space.size, others, parts)
        for part in parts:
            search.look(part)
        search.conclude()
        if (name := search.contradicts()) is not None:
            raise ConfigError(
                f"Ranking by {item!r} puts other items into samples, and column {name!r} of the model tells the item "
                f"that was there; leave it out of the model, or number it as another id column times {space.size:,} "
                f"plus the row of {item!r}."
            )
        known = np.ones(space.size, bool)
        if search.follows:
            known &= search.seen
        if space.padding:
            known[0] = False
        changed = {*search.follows, *search.crosses}
        return cls(item, known, tuple(n for n in others if n not in changed), search.follows, search.crosses)

    def context(self, label: str | None) -> tuple[str, ...]:
        """What a model sees besides the item and what follows from it."""
        names = (*self.repeated, *(cross.other for cross in self.crosses.values()))
        return tuple(n for n in dict.fromkeys(names) if n != label)

    def arrays(self, data: Clients, samples: Array, items: Array) -> dict[str, Array]:
        """The columns of ``samples`` [u] with ``items`` [u, b] in their place; [u, b, …]."""
        others = {cross.other for cross in self.crosses.values()}
        found = data.gather(samples, tuple(dict.fromkeys((*self.repeated, *others))), local=False)
        out = {self.item: items}
        for name, cross in self.crosses.items():
            out[name] = cross.times * found[cross.other][:, None] + cross.by * items
        for name, table in self.follows.items():
            out[name] = table[items]
        for name in self.repeated:
            values = found[name]
            wide = np.broadcast_to(values[:, None], (*items.shape, *values.shape[1:]))
            out[name] = np.ascontiguousarray(wide)
        return out

    @property
    def sentence(self) -> str:
        """What changes with the item, for the events of a run; "" if nothing else does."""
        said = [f"{name} goes with it" for name in self.follows]
        said += [
            f"{name} is {c.times:,} × {c.other} + {'' if c.by == 1 else f'{c.by:,} × '}{self.item}"
            for name, c in self.crosses.items()
        ]
        return f"ranking by {self.item}: " + ", ".join(said) if said else ""


class _Search:
    """Columns that may still follow from the item, or be a cross of it, as sample after sample is looked at."""

    def __init__(self, item: str, size: int, others: list[str], parts: list[Clients]):
        self.item, self.seen = item, np.zeros(size, bool)
        first = parts[0]
        single = [n for n in first.columns if n != item and _single(first, n)]
        self.crosses: dict[str, Cross] = {}
        self._tried = {
            (name, other): [Cross(other, size, 1), Cross(other, 1, first.size(other))]
            for name in single if name in others for other in single if name != other
        }  # fmt: skip
        self._item_of = {n: np.full(first.size(n), -1, np.int64) for n in single if n in others}
        self.follows: dict[str, Array] = {}
        self._open, self._samples, self._varies = list(others), 0, set[str]()

    def look(self, part: Clients) -> None:
        for low in range(0, part.samples, TOGETHER):
            some = np.arange(low, min(low + TOGETHER, part.samples))
            arrays = part.gather(some, (self.item, *self._needed()), local=False)
            self._compare(arrays)

    def _needed(self) -> list[str]:
        return list(dict.fromkeys([*self._open, *self._item_of, *(n for pair in self._tried for n in pair)]))

    def _compare(self, arrays: dict[str, Array]) -> None:
        items = arrays[self.item]
        self._samples += len(items)
        for (name, other), forms in list(self._tried.items()):
            left = [f for f in forms if np.array_equal(arrays[name], f.times * arrays[other] + f.by * items)]
            self._tried[name, other] = left
            if not left:
                del self._tried[name, other]
        for name in list(self._open):
            values = arrays[name]
            table = self.follows.setdefault(name, np.zeros((len(self.seen), *values.shape[1:]), values.dtype))
            if table.shape[1:] != values.shape[1:]:
                self._drop(name)
                continue
            new = ~self.seen[items]
            table[items[new]] = values[new]
            if len(values) and (values != values[0]).any():
                self._varies.add(name)
            if not np.array_equal(table[items], values):
                self._drop(name)
        self.seen[items] = True
        for name, item_of in list(self._item_of.items()):
            ids = arrays[name]
            new = item_of[ids] < 0
            item_of[ids[new]] = items[new]
            if not np.array_equal(item_of[ids], items):
                del self._item_of[name]

    def _drop(self, name: str) -> None:
        self._open.remove(name)
        self.follows.pop(name, None)

    def conclude(self) -> None:
        """Items that occur once show nothing; what never varies need not change."""
        enough = self._samples >= 2 * int(self.seen.sum())
        self.follows = {n: table for n, table in self.follows.items() if enough and n in self._varies}
        self.crosses = {n: forms[0] for (n, _), forms in self._tried.items() if enough and n not in self.follows}

    def contradicts(self) -> str | None:
        """A column that tells the item and does not follow from it; values that occur once show nothing."""
        for name, item_of in self._item_of.items():
            if self._samples >= 2 * int((item_of >= 0).sum()) and name not in {*self.follows, *self.crosses}:
                return name
        return None


def _single(clients: Clients, name: str) -> bool:
    column = clients.columns[name]
    return column.space is not None and not column.ragged and column.values.ndim == 1
