"""The options of reading, checked: which column of a table plays which part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from fedsub.checks import is_whole
from fedsub.data.labels import Rule, rule_of
from fedsub.data.nulls import POLICIES
from fedsub.data.problems import short
from fedsub.errors import DataError, nearest

Ids = Sequence[str] | Mapping[str, str | Sequence[str]]
LARGEST = 1 << 62  # rows of a table: (client, row) pairs are numbered in int64


@dataclass(frozen=True)
class Plan:
    """The options, checked: which column plays which part."""

    spaces: dict[str, tuple[str, ...]]
    label: str | None
    values: tuple[str, ...]
    binary_label: bool
    padding: tuple[str, ...]
    max_len: int | None
    sizes: dict[str, int]
    nulls: str
    rule: Rule | None = None  # what makes the label, if it is no column of the table

    @property
    def names(self) -> list[str]:
        ids = [name for columns in self.spaces.values() for name in columns]
        return [*ids, *([self.label] if self.label is not None else []), *self.values]

    @property
    def sources(self) -> list[str]:
        """The columns that the table must have."""
        names = self.names
        return (
            names
            if self.rule is None
            else list(dict.fromkeys(self.rule.column if n == self.label else n for n in names))
        )

    def resolved(self, present: Iterable[str]) -> Plan:
        """With the label's comparison read, if the label is no column."""
        rule = rule_of(self.label, [p for p in present if isinstance(p, str)])
        return self if rule is None else replace(self, label=rule.name, rule=rule)

    @classmethod
    def of(
        cls, ids, label=None, values=(), binary_label=True, padding=(), max_len=None, sizes=None, nulls="refuse"
    ) -> Plan:
        spaces = _spaces(ids)
        if nulls not in POLICIES:
            raise DataError(f"nulls is {short.repr(nulls)}; {nearest(str(nulls), POLICIES)}")
        _check_kinds(label, binary_label, max_len, sizes)
        values = _words("values", () if values is None else values)
        padding = _words("padding", () if padding is None else padding)
        plan = cls(spaces, label, values, bool(binary_label), padding, max_len, dict(sizes or {}), nulls)
        names = plan.names
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise DataError(f"Column {twice[0]!r} is used twice in ids, label and values; give it one role.")
        for space, columns in spaces.items():
            if not columns:
                raise DataError(f"ids: space {space!r} has no columns; name at least one.")
            if space in names and space not in columns:
                raise DataError(f"ids: space {space!r} has the name of a column that is not in it; rename the space.")
        if not names:
            raise DataError("No columns were named; give at least ids=[...] or values=[...].")
        for option, keys in (("padding", plan.padding), ("sizes", plan.sizes)):
            for key in keys:
                if key not in spaces:
                    raise DataError(f"{option} names {key!r}, not a space of ids; {nearest(str(key), spaces)}")
        for space, size in plan.sizes.items():
            if not _whole(size, LARGEST):
                raise DataError(f"sizes[{space!r}] is {short.repr(size)}, expected a number of rows, 1 to 2**62.")
        return plan


OPTIONS = tuple(field.name for field in fields(Plan) if field.name not in ("spaces", "rule"))  # besides ids


def refuse_unknown(unknown: Iterable[str], *more: str) -> None:
    for name in unknown:
        raise DataError(f"There is no option {name!r}; {nearest(name, ('ids', *OPTIONS, *more))}")


def _spaces(ids: Any) -> dict[str, tuple[str, ...]]:
    """{space: its columns} of the option ids."""
    if ids is None:
        raise DataError("ids holds None, expected names of columns, such as ['item', 'genre']; without any: ids=[].")
    if not isinstance(ids, Mapping):
        names = _words("ids", ids)
        if len(set(names)) < len(names):
            raise DataError(f"ids names a column twice: {list(names)}; give every column once.")
        return {name: (name,) for name in names}
    return {space: _words(f"ids[{space!r}]", ids[space]) for space in _words("ids", ids)}


def _check_kinds(label: Any, binary_label: Any, max_len: Any, sizes: Any) -> None:
    if label is not None and not isinstance(label, str):
        raise DataError(f"label is {short.repr(label)}, expected the name of one column, such as 'click', or None.")
    check_unicode("label", label or "")
    if not isinstance(binary_label, bool | np.bool_):
        raise DataError(f"binary_label is {short.repr(binary_label)}, expected True or False.")
    if max_len is not None and not _whole(max_len, 1 << 31):
        raise DataError(f"max_len is {short.repr(max_len)}, expected a length of 1 or more, or None for all.")
    if sizes is not None and not isinstance(sizes, Mapping):
        raise DataError(f"sizes is {short.repr(sizes)}, expected the rows of each space, such as {{'item': 1000}}.")


def check_unicode(option: str, word: str) -> None:
    """A lone half of a surrogate pair, as names that are no UTF-8 come from a command line, can be written nowhere."""
    try:
        word.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{option} holds the name {word!a}, which is not valid Unicode; rename the column.") from error


def _whole(number: Any, largest: int) -> bool:
    return is_whole(number) and 1 <= int(number) <= largest


def _words(option: str, names: Any) -> tuple[str, ...]:
    """One name or several, as a tuple."""
    words = (names,) if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
    for word in words:
        if not isinstance(word, str):
            raise DataError(f"{option} holds {short.repr(word)}, expected names of columns, such as ['item', 'genre'].")
        check_unicode(option, word)
    return words
