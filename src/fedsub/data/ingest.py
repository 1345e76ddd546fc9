"""From a table with one row per sample to `Clients`: check, number the ids, group by client.

    from_frame(frame, "user", ids={"item": ["item", "history"]}, label="click", values=["time"])

Every check happens on the table as given, so a message can name the row as the user sees it (counted
from 0, in a text file its line) and its client; all problems come in one message. Numbering per client is
`fedsub.data.renumber.assemble`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Never, TypeVar

import numpy as np
import polars as pl

from fedsub.data import notices
from fedsub.data.cells import Cells, encode
from fedsub.data.clients import Clients, Space
from fedsub.data.frames import Fetch, brief, columns_of
from fedsub.data.pieces import Form, check_client, filled, label_values, padded, read
from fedsub.data.plan import OPTIONS, Ids, Plan, check_unicode, refuse_unknown
from fedsub.data.problems import ROWS, Places
from fedsub.data.renumber import assemble, reorder
from fedsub.data.tables import Tables, Unreadable
from fedsub.errors import ColumnError, DataError, nearest

if TYPE_CHECKING:
    from fedsub.data.large.save import To

T = TypeVar("T")
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
    to: To | None = None,
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

    to            write to disk in bounded memory (`fedsub.data.large`), and open what was written

    Rows keep their order within a client; clients are ordered by their id.
    """
    refuse_unknown(unknown)
    plan = Plan.of(ids, label, values, binary_label, padding, max_len, sizes, nulls)
    present, fetch = columns_of(frame)
    if to is not None:
        from fedsub.data.large.save import save_frame  # which builds on this module

        return save_frame(frame, present, client, plan, to)
    return _from_table(present, fetch, client, plan, ROWS)


def from_file(
    path: str | os.PathLike[str],
    client: str,
    *,
    separator: str | None = None,
    encoding: str | None = None,
    to: To | None = None,
    **options: Any,
) -> Clients:
    """`from_frame` of a Parquet, CSV, TSV, Arrow or JSON lines file (text also .gz); only the columns in use are kept.

    A folder, a pattern such as "log/*.parquet" or a list of files is one table (`fedsub.data.tables`); one in an
    object store ("s3://…") is copied first (`fedsub.data.remote`).

    ``separator`` and ``encoding`` of text are guessed where they are clear. All problems of a file are told at once,
    by line.
    """
    refuse_unknown((name for name in options if name not in ("ids", *OPTIONS)), "separator", "encoding")
    plan = Plan.of(options.pop("ids", None), **options)
    if to is not None:
        from fedsub.data.large.save import save_files  # which builds on this module

        return save_files(lambda place: Tables.of(path, separator, encoding, place, to.text), client, plan, to)
    with TemporaryDirectory() as place:
        tables = Tables.of(path, separator, encoding, Path(place))
        made = told_of(
            tables, lambda cut: _from_table(tables.names, partial(tables.fetch, cut=cut), client, plan, tables.places)
        )
    text = {"separator": separator, "encoding": encoding}
    given = {name: value for name, value in text.items() if value is not None}
    return replace(made, source=tables.path, reading={**made.reading, **given})


def told_of(tables: Tables, attempt: Callable[[bool], T]) -> T:
    """What ``attempt`` makes of files; what is wrong with them is told with their names.

    If a file cannot be read, ``attempt(True)`` reads lines that are too long as far as the header goes, to tell what
    else is wrong.
    """
    try:
        return attempt(False)
    except ColumnError as error:
        *before, last = error.problems
        last = str(last)
        unknown = last.startswith("There is no column") and "did you mean" not in last
        more = f" {tables.first_line()}" if unknown and tables.text else ""
        raise ColumnError(*before, last + more, where=tables.path) from error
    except Unreadable as error:
        problems: list[object] = [error.file.unreadable(error.reason)]
        if error.file.faults():
            try:
                with suppress(Unreadable):
                    attempt(True)
            except ColumnError as more:
                problems.extend(more.problems)
        raise ColumnError(*problems) from error.reason


def as_table(frame: Any) -> pl.DataFrame:
    """Any supported frame, or a dict of arrays, as it is."""
    if isinstance(frame, Mapping):
        return pl.DataFrame([series(str(name), data) for name, data in frame.items()])
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
    columns = {name: series(name, arrays[name]) for name in plan.sources}
    length = len(next(iter(columns.values())))
    if offsets is not None:
        owners = _owners(offsets, length)
    else:
        owners = series(client, arrays[client]) if isinstance(client, str) else series("client", client)
    for one in (owners, *columns.values()):
        if len(one) != length:
            raise DataError(
                f"Column {one.name!r} has {len(one):,} entries but {next(iter(columns))!r} has {length:,}; "
                "every array needs one entry per sample."
            )
    reading = {"client": client} if isinstance(client, str) else {}
    return replace(_build(pl.DataFrame(list(columns.values())), owners, plan, ROWS), reading=reading)


# ---------------------------------------------------------------------- any input -> polars


def _from_table(present: list[str], fetch: Fetch, client: Any, plan: Plan, places: Places) -> Clients:
    plan, names = planned(present, client, plan)
    table, places, blank = filled(fetch(names), places)
    reading = {"client": client, **({"max_len": plan.max_len} if plan.max_len is not None else {})}
    return replace(_build(table.select(plan.sources), table[client], plan, places, blank), reading=reading)


def planned(present: list[str], client: Any, plan: Plan) -> tuple[Plan, list[str]]:
    """The plan for the columns that are there, and those that it needs."""
    if not isinstance(client, str):
        raise DataError(f"client must name a column, got {client!r}; for an array of owners use from_arrays.")
    check_unicode("client", client)
    plan = plan.resolved(present)
    names = list(dict.fromkeys([client, *plan.sources]))
    _require(names, present)
    return plan, names


def _require(names: list[str], present: Iterable[str]) -> None:
    present = list(present)
    words = [p for p in present if isinstance(p, str)]
    lacking = [f"There is no column {n!r} in the data; {nearest(n, words)}" for n in names if n not in present]
    if lacking:
        raise ColumnError(*lacking)


def series(name: str, data: Any) -> pl.Series:
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


def _build(table: pl.DataFrame, owners: pl.Series, plan: Plan, places: Places, blank: int = 0) -> Clients:
    """`Clients` of a table that is in memory: one piece (`fedsub.data.pieces`)."""
    if len(owners):
        check_client(owners.name, owners.dtype)
    form = Form.of(plan, lambda name: [Cells(table[name], owners, places=places)]) if len(owners) else Form()
    piece = read(table, owners, plan, form, places, marked=notices.LOOKED_AT, blank=blank)
    found = piece.found
    found.settle(owners.name, plan, form, lambda: [label_values(table, owners, plan, form, places)])
    assert piece.owners is not None
    client_ids, (codes,) = encode([piece.owners])
    columns, spaces, used = dict(piece.columns), [], {}
    for name, members in piece.members.items():
        if name in plan.sizes:
            size, vocabulary, rows = int(plan.sizes[name]), None, [np.asarray(m.ids) for m in members]
            used[name] = len(np.unique(np.concatenate(rows)))
        else:
            kind = found.kind(plan, name)
            size = 0
            vocabulary, rows = encode([pl.Series(m.ids).cast(kind) for m in members])
        padding = padded(plan, name, any(m.starts is not None for m in members))
        if vocabulary is not None:
            if padding:
                vocabulary, rows = np.concatenate([np.zeros(1, vocabulary.dtype), vocabulary]), [r + 1 for r in rows]
            size = max(len(vocabulary), 1)
        columns.update((m.name, m.column(name, r)) for m, r in zip(members, rows, strict=True))
        spaces.append(Space(name, size, tuple(m.name for m in members), UNFILLED, UNFILLED, padding, vocabulary))
    found.tell(plan, form.classes, used.__getitem__, piece.marks, piece.places.name)
    order = np.argsort(codes, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=len(client_ids)))])
    grouped = [reorder(columns[name], order) for name in plan.names]
    return assemble(client_ids, offsets, grouped, spaces, label=plan.label)
