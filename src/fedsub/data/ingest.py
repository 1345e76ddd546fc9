"""From a table with one row per sample to `Clients`: check, number the ids, group by client.

    from_frame(frame, "user", ids={"item": ["item", "history"]}, label="click", values=["time"])

Every check happens on the table as given, so a message can name the row as the user sees it (counted
from 0, in a text file its line) and its client; all problems come in one message. Numbering per client is
`fedsub.data.renumber.assemble`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Never

import numpy as np
import polars as pl

from fedsub.data import notices
from fedsub.data.cells import ROWS, Cells, Places, encode, label_column, missing, prenumbered, value_column
from fedsub.data.clients import Clients, Column, Space
from fedsub.data.frames import brief, columns_of
from fedsub.data.labels import classes_of, texts_of
from fedsub.data.nulls import count_own, drop_missing
from fedsub.data.plan import OPTIONS, Ids, Plan, check_unicode, refuse_unknown
from fedsub.data.reading import TEXT, TableFile
from fedsub.data.renumber import assemble, reorder
from fedsub.errors import ColumnError, DataError, nearest, notice

UNFILLED = np.empty(0, np.int64)  # rows of a space before the clients are numbered


def from_frame(
    frame: Any,
    client: str,
    *,
    ids: Ids | None = None,
    label: str | None = None,
    values: Sequence[str] | None = (),
    binary_label: bool = True,
    padding: Sequence[str] | None = (),
    max_len: int | None = None,
    sizes: Mapping[str, int] | None = None,
    nulls: str = "refuse",
    **unknown: Never,
) -> Clients:
    """`Clients` from a polars (also lazy) or pandas frame, an Arrow table or data set, or one of Hugging Face.

    It has one row per sample.

    client        column with the owner of each sample
    ids           id columns: ``["item", "genre"]``, each with a table of its own, or
                  ``{"item": ["item", "history"]}`` where columns share the table (the *space*) "item".
                  A column holds one id per sample, a fixed number (Array) or lists of any length (List)
    label         column to predict: 0/1, or any finite number with ``binary_label=False``; a comparison such as
                  ``"rating>=4"``; or class names, numbered in sorted order (`fedsub.data.labels`)
    values        plain columns; integers and times stay int64, all else becomes float32
    padding       spaces in which row 0 means "nothing here"; always so for those with lists
    max_len       keep at most this many ids of each list, the last ones (histories end with the newest)
    sizes         ``{space: rows}`` for ids that are table rows already, 0 to rows - 1. All other ids may be
                  any strings or integers and are numbered in sorted order, kept in ``Space.vocabulary``
    nulls         what becomes of missing entries: "refuse", "drop" their rows, or give ids a row of their "own"

    Rows keep their order within a client; clients are ordered by their id.
    """
    refuse_unknown(unknown)
    plan = Plan.of(ids, label, values, binary_label, padding, max_len, sizes, nulls)
    return _from_table(frame, client, plan, ROWS)


def from_file(
    path: str | os.PathLike[str],
    client: str,
    *,
    separator: str | None = None,
    encoding: str | None = None,
    **options: Any,
) -> Clients:
    """`from_frame` of a Parquet (.parquet, .pq), CSV or TSV file (also .gz); only the columns in use are read.

    ``separator`` and ``encoding`` of text are guessed where they are clear. All problems of a file are told at once,
    by line.
    """
    refuse_unknown((name for name in options if name not in ("ids", *OPTIONS)), "separator", "encoding")
    file = TableFile.of(path, separator, encoding)
    plan = Plan.of(options.pop("ids", None), **options)
    places = Places(file.lines) if file.kind in TEXT else ROWS
    try:
        made = _from_table(file.scan(), client, plan, places)
        text = {"separator": separator, "encoding": encoding}
        given = {name: value for name, value in text.items() if value is not None}
        return replace(made, source=str(file.path), reading={**made.reading, **given})
    except ColumnError as error:
        *said, last = error.problems
        unknown = last.startswith("There is no column") and "did you mean" not in last
        more = f" {file.first_line()}" if unknown and file.kind in TEXT else ""
        raise ColumnError(*said, last + more, where=str(file.path)) from error
    except (pl.exceptions.PolarsError, OSError) as error:
        problems = [file.unreadable(error)]
        if file.faults():  # what else is wrong is told along with it
            with suppress(pl.exceptions.PolarsError, OSError), _collected(problems):
                _from_table(file.scan(cut=True), client, plan, places)
        raise ColumnError(*problems) from error


def as_table(frame: Any) -> pl.DataFrame:
    """Any supported frame, or a dict of arrays, as it is."""
    if isinstance(frame, Mapping):
        return pl.DataFrame([_series(str(name), data) for name, data in frame.items()])
    names, fetch = columns_of(frame)
    return fetch(names)


def from_arrays(
    arrays: Mapping[str, Any], client: Any = None, *, offsets: Any = None, ids: Ids | None = None, **options: Any
) -> Clients:
    """`from_frame` of arrays: 1-D, 2-D (fixed width) or a list of lists (any length).

    ``client`` is a key of ``arrays`` or an array with the owner of each sample. Without it, ``offsets``
    (clients + 1 increasing integers) says that client i owns samples ``offsets[i]`` to ``offsets[i+1] - 1``.
    """
    refuse_unknown({name for name in options if name not in OPTIONS}, "offsets")
    plan = Plan.of(ids, **options)
    if not (hasattr(arrays, "keys") and hasattr(arrays, "__getitem__")):
        raise DataError(f"Got a {type(arrays).__name__}, expected a dict of arrays; for a frame use from_frame.")
    if (client is None) == (offsets is None):
        raise DataError("Give either client (a key or an array of owners) or offsets, exactly one of them.")
    plan = plan.resolved(arrays.keys())
    _require(plan.sources + ([client] if isinstance(client, str) else []), arrays)
    series = {name: _series(name, arrays[name]) for name in plan.sources}
    length = len(next(iter(series.values())))
    if offsets is not None:
        owners = _owners(offsets, length)
    else:
        owners = _series(client, arrays[client]) if isinstance(client, str) else _series("client", client)
    for one in (owners, *series.values()):
        if len(one) != length:
            raise DataError(
                f"Column {one.name!r} has {len(one):,} entries but {next(iter(series))!r} has {length:,}; "
                "every array needs one entry per sample."
            )
    reading = {"client": client} if isinstance(client, str) else {}
    return replace(_build(pl.DataFrame(list(series.values())), owners, plan, ROWS), reading=reading)


# ---------------------------------------------------------------------- any input -> polars


def _from_table(frame: Any, client: Any, plan: Plan, places: Places) -> Clients:
    if not isinstance(client, str):
        raise DataError(f"client must name a column, got {client!r}; for an array of owners use from_arrays.")
    check_unicode("client", client)
    present, fetch = columns_of(frame)
    plan = plan.resolved(present)
    names = list(dict.fromkeys([client, *plan.sources]))
    _require(names, present)
    # Of a line that is too long polars sees that only if the last column is read, too.
    table = fetch(list(dict.fromkeys([*names, present[-1]]))).select(names) if places.lines else fetch(names)
    if places.lines is not None and (blank := table.select(pl.all_horizontal(pl.all().is_null())).to_series()).any():
        table, places = table.filter(~blank), places.only(~blank)
        notice(f"Left out {int(blank.sum()):,} lines with nothing in the columns that are read.")
    reading = {"client": client, **({"max_len": plan.max_len} if plan.max_len is not None else {})}
    return replace(_build(table.select(plan.sources), table[client], plan, places), reading=reading)


def _require(names: list[str], present: Iterable[str]) -> None:
    present = list(present)
    words = [p for p in present if isinstance(p, str)]
    lacking = [f"There is no column {n!r} in the data; {nearest(n, words)}" for n in names if n not in present]
    if lacking:
        raise ColumnError(*lacking)


def _series(name: str, data: Any) -> pl.Series:
    if not isinstance(data, list | tuple | pl.Series):
        data = np.asarray(data)
        if data.ndim not in (1, 2):
            raise ColumnError(f"Column {name!r} has {data.ndim} dimensions, expected 1 or 2.")
        data = data.tolist() if data.dtype == object else data
    try:
        if isinstance(data, list | tuple) and any(isinstance(x, float) for x in data):
            # Python lists may mix 1 and 0.5, which polars takes for a mistake.
            data = [float(x) if isinstance(x, int) else x for x in data]
        return pl.Series(name, data)
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
        raise ColumnError(f"Column {name!r} mixes types or shapes: {brief(error)}. Give it one type.") from error


def _owners(offsets: Any, length: int) -> pl.Series:
    try:
        cuts = np.asarray(offsets)
    except ValueError:  # lists of several lengths
        cuts = np.empty(0)
    if cuts.ndim != 1 or len(cuts) < 2 or not np.issubdtype(cuts.dtype, np.integer):
        raise DataError("offsets must be clients + 1 integers, such as [0, 3, 5] for two clients.")
    # Unsigned integers wrap around in a difference; what exceeds int64 is too large either way.
    cuts = np.minimum(cuts.astype(np.uint64), np.uint64(2**63 - 1)).astype(np.int64) if cuts.dtype.kind == "u" else cuts
    if cuts[0] != 0 or cuts[-1] != length:
        raise DataError(f"offsets run from {cuts[0]} to {cuts[-1]}, expected 0 to {length} (the samples).")
    if (falls := cuts[1:] < cuts[:-1]).any():
        at = int(np.argmax(falls))
        raise DataError(f"offsets fall from {cuts[at]} to {cuts[at + 1]} at client {at}; they must rise.")
    sizes = np.diff(cuts.astype(np.int64))
    if (sizes == 0).any():
        at = int(np.argmax(sizes == 0))
        raise DataError(f"Client {at} has no samples (offsets {cuts[at]}, {cuts[at + 1]}); leave it out.")
    return pl.Series("client", np.repeat(np.arange(len(sizes)), sizes))


# ---------------------------------------------------------------------- polars -> Clients


def _build(table: pl.DataFrame, owners: pl.Series, plan: Plan, places: Places) -> Clients:
    if not len(owners):
        raise ColumnError("The data has no rows; expected one row per sample. Check the file or the filter.")
    if owners.dtype.is_nested():
        raise ColumnError(f"Client column {owners.name!r} holds {owners.dtype}, expected one id per sample.")
    problems: list[str] = []
    table, classes = _prepared(table, owners, plan, places, problems)
    if not table.width:
        raise ColumnError(*problems)
    if plan.nulls == "drop":
        whole = drop_missing([owners, *table])
        places = places.only(whole)
        table, owners = table.filter(whole), owners.filter(whole)
    codes, client_ids = np.zeros(0, np.int64), UNFILLED
    with _collected(problems):
        (client_ids, (codes,)) = encode([Cells(owners, owners, "client", places).plain()])
    columns: dict[str, Column] = {}
    spaces: list[Space] = []
    for name, members in plan.spaces.items():
        with _collected(problems):
            space, numbered = _space(name, [Cells.of(table[m], owners, plan.max_len, places) for m in members], plan)
            spaces.append(space)
            columns.update((c.name, c) for c in numbered)
    if plan.label is not None and plan.label in table.columns:
        with _collected(problems):
            cells = Cells.of(table[plan.label], owners, places=places)
            columns[plan.label] = label_column(cells, plan.binary_label, classes)
    for name in plan.values:
        if name in table.columns:
            with _collected(problems):
                columns[name] = value_column(Cells.of(table[name], owners, places=places))
    if problems:
        raise ColumnError(*problems)
    notices.of_duplicates(owners, table.get_columns(), places)
    if plan.label is not None:
        notices.of_label(columns[plan.label])
    order = np.argsort(codes, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=len(client_ids)))])
    grouped = [reorder(columns[name], order) for name in plan.names]
    return assemble(client_ids, offsets, grouped, spaces, label=plan.label)


@contextmanager
def _collected(problems: list[str]) -> Iterator[None]:
    """Go on after a column that cannot be used, to tell what is wrong with the others too."""
    try:
        yield
    except ColumnError as error:
        problems.extend(error.problems)


def _prepared(
    table: pl.DataFrame, owners: pl.Series, plan: Plan, places: Places, problems: list[str]
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """The table with label and plain values as numbers (those that cannot be are left out), and the label's classes."""
    done = [table[name] for name in plan.names if name in table.columns and name not in (plan.label, *plan.values)]
    classes: tuple[str, ...] = ()
    if plan.label is not None:
        with _collected(problems):
            cells = Cells(table[plan.rule.column if plan.rule else plan.label], owners, places=places)
            classes = () if plan.rule else classes_of(cells, plan.binary_label)
            if plan.rule:
                done.append(plan.rule.of(cells))
            elif classes:
                done.append(texts_of(cells.flat).cast(pl.Enum(classes), strict=False).to_physical())
            else:
                done.append(cells.numbers())
    for name in plan.values:
        with _collected(problems):
            done.append(Cells(table[name], owners, places=places).numbers())
    return pl.DataFrame([series.alias(series.name) for series in done]), classes


def _space(name: str, members: list[Cells], plan: Plan) -> tuple[Space, list[Column]]:
    """One space and its columns as rows of the full table."""
    lists = [m for m in members if m.starts is not None]
    padded = bool(lists) or name in plan.padding
    own = plan.nulls == "own" and name not in plan.sizes
    plain, problems = [], []
    for member in members:
        with _collected(problems):
            plain.append(member.plain(own))
    if problems:
        raise ColumnError(*problems)
    for member in members if own else ():
        count_own(member.flat.name, int(missing(member.flat).sum()))
    if name in plan.sizes:
        size, vocabulary = int(plan.sizes[name]), None
        zero_ok = not padded or name in plan.padding
        rows = [prenumbered(m, p, size, name, zero_ok) for m, p in zip(members, plain, strict=True)]
        remedy = f"Leave {name!r} out of sizes to have the ids numbered."
        notices.of_rows(f"The table sizes[{name!r}]", size, len(np.unique(np.concatenate(rows))), remedy)
    else:
        # An empty List column has no type of its own; it goes along with the others.
        kinds = {p.dtype: p.name for p in plain if len(p)}
        if len(kinds) > 1:
            seen = ", ".join(f"{column!r} {kind}" for kind, column in kinds.items())
            raise ColumnError(f"Space {name!r} mixes types ({seen}); cast its columns to one type.")
        kind = next(iter(kinds), pl.Int64())
        vocabulary, rows = encode([p.cast(kind) for p in plain])
        if padded:
            nothing = np.zeros(1, vocabulary.dtype)
            vocabulary, rows = np.concatenate([nothing, vocabulary]), [r + 1 for r in rows]
        size = max(len(vocabulary), 1)
    columns = [
        Column(m.flat.name, r.reshape(-1, m.width) if m.fixed else r, name, m.starts, m.width)
        for m, r in zip(members, rows, strict=True)
    ]
    names = tuple(c.name for c in columns)
    return Space(name, size, names, UNFILLED, UNFILLED, padded, vocabulary), columns
