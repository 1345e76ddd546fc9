"""A table with one row per sample, piece by piece: what all of it decides, and what a piece of it gives.

    form = Form.of(plan, column)             # what only the whole says: classes of a label, how texts write numbers
    piece = read(table, owners, plan, form)  # the entries, checked; what is wrong or worth telling is in `found`
    found = piece.found + another.found
    found.settle(plan, form, …)              # the error or the notices of the whole table

A table in memory is one piece. One that is larger than memory is many; errors and notices are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from fedsub.data import notices
from fedsub.data.cells import NOT_BINARY, Cells, binary_remedy, label_column, missing, prenumbered, value_column
from fedsub.data.clients import Array, Column
from fedsub.data.labels import classes_of, said_of, texts_of
from fedsub.data.nulls import tell_dropped, tell_own, without_missing
from fedsub.data.plan import Plan
from fedsub.data.problems import ROWS, Places, Problem
from fedsub.data.texts import Written, how_written
from fedsub.errors import ColumnError, notice

# Where a problem was found, in the order in which all are told.
PREPARE, CLIENT, SPACE, LABEL, VALUE = range(5)
Section = tuple[int, int]
ColumnOf = Callable[[str], Iterable[Cells]]  # a column by its name, piece by piece


def check_client(name: str, kind: pl.DataType) -> None:
    if kind.is_nested():
        raise ColumnError(f"Client column {name!r} holds {kind}, expected one id per sample.")


@dataclass(frozen=True)
class Form:
    """What the whole table decides about how a piece is read."""

    classes: tuple[str, ...] = ()
    written: dict[str, Written] = field(default_factory=dict)  # of the label and the plain columns that can be read
    problems: dict[Section, tuple[object, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, column: ColumnOf) -> Form:
        form = cls()
        if plan.label is not None:
            with form._collected((PREPARE, 0)):
                label = plan.label
                if plan.rule is not None:
                    source = plan.rule.column
                    form.written[label] = plan.rule.how_written(lambda: column(source))
                elif classes := classes_of(lambda: column(label), plan.binary_label):
                    form = replace(form, classes=classes)
                    form.written[label] = Written()
                else:
                    form.written[label] = how_written(lambda: column(label))
        for i, name in enumerate(plan.values):
            with form._collected((PREPARE, 1 + i)):
                form.written[name] = how_written(lambda name=name: column(name))
        return form

    @contextmanager
    def _collected(self, section: Section) -> Iterator[None]:
        try:
            yield
        except ColumnError as error:
            self.problems[section] = error.problems

    def label(self, plan: Plan, flat: pl.Series) -> pl.Series:
        """The label of every row, as numbers."""
        assert plan.label is not None
        if plan.rule is not None:
            return plan.rule.of(flat, self.written[plan.label])
        if self.classes:
            return texts_of(flat).cast(pl.Enum(self.classes), strict=False).to_physical()
        return self.written[plan.label].read(flat)


@dataclass(frozen=True)
class Found:
    """What was found in a piece, or in several: counts, and all that is wrong."""

    rows: int = 0  # as given
    blank: int = 0
    kept: int = 0
    lacking: Counter[str] = field(default_factory=Counter)  # rows left out, by what they lacked
    own: Counter[str] = field(default_factory=Counter)  # missing ids, by column
    kinds: dict[str, str] = field(default_factory=dict)  # of id columns that have entries: "Int64" or "String"
    label: tuple[float, float] | None = None  # its least and its largest value
    problems: dict[Section, tuple[int, tuple[object, ...]]] = field(default_factory=dict)  # (stage, what is wrong)

    def __add__(self, later: Found) -> Found:
        problems = dict(self.problems)
        for section, told in later.problems.items():
            problems[section] = _joined(problems[section], told) if section in problems else told
        labels = [one for one in (self.label, later.label) if one is not None]
        return Found(
            self.rows + later.rows, self.blank + later.blank, self.kept + later.kept, self.lacking + later.lacking,
            self.own + later.own, {**self.kinds, **later.kinds},
            (min(low for low, _ in labels), max(high for _, high in labels)) if labels else None, problems,
        )  # fmt: skip

    def settle(self, client: str, plan: Plan, form: Form, label_values: Callable[[], Iterable[Array]]) -> None:
        """Raise for all that is wrong; ``label_values`` are those of the label, should it not be binary."""
        if self.blank:
            notice(f"Left out {self.blank:,} lines with nothing in the columns that are read.")
        if self.rows == self.blank:
            raise ColumnError("The data has no rows; expected one row per sample. Check the file or the filter.")
        if form.classes:
            assert plan.label is not None
            notice(said_of(plan.label, form.classes))
        told = {section: (0, problems) for section, problems in form.problems.items()}
        if len(told) < len(plan.names):  # else no column can be read, and nothing more is known of the rows
            if plan.nulls == "drop":
                counts = {name: self.lacking[name] for name in (client, *plan.names) if self.lacking[name]}
                tell_dropped(self.kept, self.rows - self.blank, counts)
            told |= self.problems
        for i, space in enumerate(plan.spaces):
            if (SPACE, i) not in told and (problem := self.mixed(plan, space)):
                told[SPACE, i] = (0, (problem,))
        problems: list[object] = []
        for _, (_, some) in sorted(told.items(), key=lambda item: item[0]):
            problems += [self._with_remedy(plan, one, label_values) for one in some]
        if problems:
            raise ColumnError(*problems)

    def tell(
        self, plan: Plan, classes: tuple[str, ...], used: Callable[[str], int], marked: Array | None,
        name: Callable[[int], tuple[str, int | str]],
    ) -> None:  # fmt: skip
        """Tell what is worth knowing of data that can be used.

        ``used`` says how many rows of a table the data know, ``marked`` are the marks of the first rows, and ``name``
        says what one of them is called.
        """
        for space, columns in plan.spaces.items():
            if space in plan.sizes:
                remedy = f"Leave {space!r} out of sizes to have the ids numbered."
                notices.of_rows(f"The table sizes[{space!r}]", plan.sizes[space], used(space), remedy)
            for column in columns:
                tell_own(column, self.own[column])
        if marked is not None:
            notices.of_duplicates(marked, name)
        if plan.label is not None and self.label is not None:
            notices.of_label(plan.label, classes, *self.label, self.kept)

    def kind(self, plan: Plan, space: str) -> pl.DataType:
        """Of the ids of a space; an empty column of lists has no kind of its own and goes along with the others."""
        kinds = [self.kinds[name] for name in plan.spaces[space] if name in self.kinds]
        return pl.String() if kinds[:1] == ["String"] else pl.Int64()

    def mixed(self, plan: Plan, space: str) -> str:
        """What is wrong with the types of a space's columns together, or ""."""
        kinds = {self.kinds[name]: name for name in plan.spaces[space] if name in self.kinds}
        if len(kinds) < 2 or space in plan.sizes:
            return ""
        seen = ", ".join(f"{column!r} {kind}" for kind, column in kinds.items())
        return f"Space {space!r} mixes types ({seen}); cast its columns to one type."

    @staticmethod
    def _with_remedy(plan: Plan, problem: object, label_values: Callable[[], Iterable[Array]]) -> object:
        if isinstance(problem, Problem) and problem.said == NOT_BINARY and plan.label is not None:
            return replace(problem, said=binary_remedy(plan.label, label_values))
        return problem


def _joined(
    one: tuple[int, tuple[object, ...]], other: tuple[int, tuple[object, ...]]
) -> tuple[int, tuple[object, ...]]:
    """What is told of two pieces: what fails an earlier check hides what fails a later one, as in a whole table."""
    if one[0] != other[0]:
        return min(one, other, key=lambda told: told[0])
    told: dict[object, object] = {}
    for problem in one[1] + other[1]:
        key = (problem.column, problem.said) if isinstance(problem, Problem) else problem
        before = told.get(key)
        told[key] = before + problem if isinstance(before, Problem) and isinstance(problem, Problem) else problem
    return one[0], tuple(told.values())


@dataclass(frozen=True)
class Member:
    """One id column: its entries as ids (Int64 or String), or already as rows of the table."""

    name: str
    ids: pl.Series | Array
    starts: Array | None
    width: int
    fixed: bool

    def column(self, space: str, rows: Array) -> Column:
        return Column(self.name, rows.reshape(-1, self.width) if self.fixed else rows, space, self.starts, self.width)


@dataclass(frozen=True)
class Piece:
    """What a piece of a table gives. Of columns with problems there is nothing."""

    owners: pl.Series | None
    members: dict[str, list[Member]]  # by space
    columns: dict[str, Column]  # label and plain values
    found: Found
    marks: Array | None  # of the first rows that are kept
    places: Places  # of the rows that are kept


def filled(table: pl.DataFrame, places: Places) -> tuple[pl.DataFrame, Places, int]:
    """Of a text file: without lines with nothing in the columns that are read, and how many those are."""
    if places.word != "line":
        return table, places, 0
    nothing = table.select(pl.all_horizontal(pl.all().is_null())).to_series()
    blank = int(nothing.sum())
    return (table.filter(~nothing), places.only(~nothing), blank) if blank else (table, places, 0)


def padded(plan: Plan, space: str, lists: bool) -> bool:
    """Whether row 0 of a space means "nothing here"."""
    return lists or space in plan.padding


def label_values(table: pl.DataFrame, owners: pl.Series, plan: Plan, form: Form, places: Places = ROWS) -> Array:
    """The label of a piece as numbers that need not be binary."""
    assert plan.label is not None
    piece = read(table, owners, replace(plan, binary_label=False), form, places)
    return piece.columns[plan.label].values if piece.found.kept else np.empty(0, np.float32)


def read(
    table: pl.DataFrame, owners: pl.Series, plan: Plan, form: Form, places: Places = ROWS, *, marked: int = 0,
    blank: int = 0,
) -> Piece:  # fmt: skip
    """One piece of a table, checked.

    ``marked`` rows of it get marks, by which equal ones are found; ``blank`` lines of it were left out before.
    """
    rows = len(owners) + blank
    told: dict[Section, tuple[int, tuple[object, ...]]] = {}

    @contextmanager
    def collected(section: Section) -> Iterator[None]:
        """Go on after a column that cannot be used, to find what is wrong with the others too."""
        try:
            yield
        except ColumnError as error:
            told[section] = (error.stage, error.problems)

    ready = [table[name] for columns in plan.spaces.values() for name in columns]
    if plan.label is not None and plan.label in form.written:
        ready.append(form.label(plan, table[plan.rule.column if plan.rule else plan.label]).alias(plan.label))
    ready += [form.written[name].read(table[name]).alias(name) for name in plan.values if name in form.written]
    lacking: dict[str, int] = {}
    if plan.nulls == "drop" and ready:
        whole, lacking = without_missing([owners, *ready])
        places, owners = places.only(whole), owners.filter(whole)
        ready = [series.filter(whole) for series in ready]
    given = {series.name: series for series in ready}
    if not len(owners):
        return Piece(None, {}, {}, Found(rows, blank, 0, Counter(lacking)), None, places)
    ids = None
    with collected((CLIENT, 0)):
        ids = Cells(owners, owners, "client", places).plain()
    members: dict[str, list[Member]] = {}
    own: Counter[str] = Counter()
    kinds: dict[str, str] = {}
    for i, (space, names) in enumerate(plan.spaces.items()):
        with collected((SPACE, i)):
            cells = []
            for stage, name in enumerate(names):
                with _at(stage):
                    cells.append(Cells.of(given[name], owners, plan.max_len, places))
            members[space] = _numbered(space, cells, plan, own, kinds)
    columns: dict[str, Column] = {}
    label = None
    if plan.label in given:
        with collected((LABEL, 0)):
            cells = Cells.of(given[plan.label], owners, places=places)
            column = label_column(cells, plan.binary_label, form.classes)
            columns[plan.label] = column
            label = (float(column.values.min()), float(column.values.max()))
    for i, name in enumerate(plan.values):
        if name in given:
            with collected((VALUE, i)):
                columns[name] = value_column(Cells.of(given[name], owners, places=places))
    found = Found(rows, blank, len(owners), Counter(lacking), own, kinds, label, told)
    some = [series.head(marked) for series in ready] if marked else []
    marks = notices.marks(owners.head(marked), some) if marked else None
    return Piece(ids, members, columns, found, marks, places)


@contextmanager
def _at(stage: int) -> Iterator[None]:
    """Errors count as of this stage, whatever the cells say: the members of a space are checked in turn."""
    try:
        yield
    except ColumnError as error:
        error.stage = stage
        raise


def _numbered(space: str, cells: list[Cells], plan: Plan, own: Counter[str], kinds: dict[str, str]) -> list[Member]:
    """The columns of a space, as ids or, with sizes, as rows of the table."""
    sized = space in plan.sizes
    pads = padded(plan, space, any(c.starts is not None for c in cells))
    take_own = plan.nulls == "own" and not sized
    plain, problems = [], []
    for one in cells:
        try:
            plain.append(one.plain(take_own))
        except ColumnError as error:
            problems.extend(error.problems)
    if problems:
        raise ColumnError(*problems, stage=len(cells))
    members = []
    for i, (one, ids) in enumerate(zip(cells, plain, strict=True)):
        if take_own:
            own[one.flat.name] += int(missing(one.flat).sum())
        if len(ids):
            kinds[one.flat.name] = "String" if ids.dtype == pl.String else "Int64"
        if sized:
            with _at(len(cells) + 1 + i):
                zero_ok = not pads or space in plan.padding
                ids = prenumbered(one, ids, int(plan.sizes[space]), space, zero_ok)
        members.append(Member(one.flat.name, ids, one.starts, one.width, one.fixed))
    return members
