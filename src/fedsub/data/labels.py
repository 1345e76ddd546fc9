"""What is predicted: a column, or a comparison with one, such as ``rating>=4``.

    column  comparison  value            comparison: >=  <=  >  <  ==  !=
    rating  >=          4                a number
    verdict ==          spam             or a text, in quotes if it looks like a number

Nothing of it is executed: it is read by one pattern. A label that holds names is numbered in sorted order,
or as the classes of an Enum are.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection
from dataclasses import dataclass

import polars as pl

from fedsub.data.cells import missing
from fedsub.data.problems import short
from fedsub.data.texts import Pieces, Written, how_written, is_text
from fedsub.errors import ColumnError, DataError, nearest

PATTERN = re.compile(r"\s*(?P<column>.+?)\s*(?P<sign>>=|<=|==|!=|=|>|<)\s*(?P<value>.*?)\s*", re.DOTALL)
COMPARE = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
CLASSES = 1_000  # names of a label; more are a mistake


@dataclass(frozen=True)
class Rule:
    """``column sign value`` as a label: 1 where it holds, 0 where not, missing where the column is."""

    column: str
    sign: str
    value: float | str

    @property
    def name(self) -> str:
        """What the label is called, without spaces around the sign."""
        value = f"{self.value:g}" if isinstance(self.value, float) else self.value
        return f"{self.column}{self.sign}{value}"

    def of(self, flat: pl.Series, written: Written) -> pl.Series:
        """The label of every row."""
        entries = flat.cast(pl.String) if isinstance(self.value, str) else written.read(flat)
        return COMPARE[self.sign](entries, self.value).alias(self.name)

    def how_written(self, pieces: Pieces) -> Written:
        """How the column writes what is compared; refused if the comparison makes no sense for it."""
        if not isinstance(self.value, str):
            return how_written(pieces)
        met, seen = False, pl.Series(dtype=pl.String)
        for cells in pieces():
            kind = cells.flat.dtype
            if not isinstance(kind, pl.String | pl.Categorical | pl.Enum | pl.Boolean):
                raise ColumnError(
                    f"Label {self.name!r} compares with the text {self.value!r}, but column {self.column!r} holds "
                    f"{kind}; compare with a number."
                )
            words = cells.flat.cast(pl.String)
            if met or self.sign not in ("==", "!=") or (words == self.value).any():
                met = True
                continue
            seen = pl.concat([seen, words.drop_nulls().alias("")]).unique().sort().head(9)
        if not met:
            some = ", ".join(short.repr(word) for word in seen.head(8)) + (", …" if len(seen) > 8 else "")
            raise ColumnError(f"Label {self.name!r}: no row of {self.column!r} is {self.value!r}; it holds {some}.")
        return Written()


def rule_of(label: str | None, columns: Collection[str]) -> Rule | None:
    """The rule that a label is, or None for the name of a column; a column of that very name comes first."""
    if label is None or label in columns:
        return None
    found = PATTERN.fullmatch(label)
    if found is None:
        return None
    column, sign, value = found["column"], found["sign"], found["value"]
    if sign == "=" and value[:1] in ("<", ">") and len(value) > 1:
        raise DataError(f"label is {label!r}; write the sign the other way round, {column}{value[0]}={value[1:]}.")
    if sign == "=":
        raise DataError(f"label is {label!r}; to compare write two signs, {column}=={value}.")
    if not value or re.search(r"[<>=!]", value):
        raise DataError(f"label is {label!r}, expected a column, one comparison and a value, such as 'rating>=4'.")
    if column not in columns:
        raise ColumnError(
            f"There is no column {column!r} in the data, of the label {label!r}; {nearest(column, columns)}"
        )
    if value[0] == value[-1] and value[0] in "'\"" and len(value) > 1:
        return Rule(column, sign, value[1:-1])
    try:
        return Rule(column, sign, float(value))
    except ValueError:
        if sign not in ("==", "!="):
            raise DataError(f"label is {label!r}: {value!r} is no number; texts are compared by == or !=.") from None
        return Rule(column, sign, value)


def classes_of(pieces: Pieces, binary: bool) -> tuple[str, ...]:
    """The names that a label holds, sorted, or none if it holds numbers (or texts that mean numbers)."""
    label, kind, found = "", None, pl.Series(dtype=pl.String)
    for cells in pieces():
        label, kind = cells.flat.name, cells.flat.dtype
        if not is_text(kind):
            return ()
        words = texts_of(cells.flat)
        found = pl.concat([found, words.filter(~missing(words)).alias("")]).unique()
    names = found.sort().to_list()
    if isinstance(kind, pl.Enum) and names:  # their order was chosen
        names = kind.categories.to_list()
    if not names or 2 * sum(_is_number(name) for name in names) > len(names):
        return ()
    some = _some(names)
    if len(names) > CLASSES:
        raise ColumnError(
            f"Label {label!r} holds {len(names):,} different texts ({some}), expected numbers or classes."
        )
    if binary and len(names) > 2:
        raise ColumnError(
            f"Label {label!r} holds {len(names)} names ({some}), expected two; choose one, as in the label "
            f"{label + '==' + names[0]!r}, or pass binary_label=False (data.binary_label=false) for a model "
            "that gives a number for each class."
        )
    return tuple(names)


def said_of(label: str, names: tuple[str, ...]) -> str:
    """What is told of a label that holds names."""
    which = ", ".join(f"{name!r} is {i}" for i, name in enumerate(names[:8])) + (", …" if len(names) > 8 else "")
    return f"Label {label!r} holds names: {which}."


def _some(names: list[str]) -> str:
    return ", ".join(short.repr(name) for name in names[:8]) + (", …" if len(names) > 8 else "")


def texts_of(label: pl.Series) -> pl.Series:
    """The texts of a label without spaces around them."""
    return label.cast(pl.String).str.strip_chars() if label.dtype == pl.String else label.cast(pl.String)


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True
