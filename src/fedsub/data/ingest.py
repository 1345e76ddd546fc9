"""From a table with one row per sample to `Clients`: check, number the ids, group by client.

    from_frame(frame, "user", ids={"item": ["item", "history"]}, label="click", values=["time"])

Every check happens on the table as given, so a message can name the row as the user sees it (counted
from 0) and its client. Numbering per client is `fedsub.data.renumber.assemble`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Never

import numpy as np
import polars as pl

from fedsub.checks import is_whole
from fedsub.data.cells import Cells, encode, label_column, prenumbered, short, value_column
from fedsub.data.clients import Clients, Column, Space
from fedsub.data.renumber import assemble, reorder
from fedsub.errors import ColumnError, DataError, MissingExtra, nearest

Ids = Sequence[str] | Mapping[str, str | Sequence[str]]
LARGEST = 1 << 62  # rows of a table: (client, row) pairs are numbered in int64
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
    **unknown: Never,
) -> Clients:
    """`Clients` from a polars (also lazy), pandas or Arrow frame with one row per sample.

    client        column with the owner of each sample
    ids           id columns: ``["item", "genre"]``, each with a table of its own, or
                  ``{"item": ["item", "history"]}`` where columns share the table (the *space*) "item".
                  A column holds one id per sample, a fixed number (Array) or lists of any length (List)
    label         column to predict: 0/1, or any finite number with ``binary_label=False``
    values        plain columns; integers stay int64 (times), all else becomes float32
    padding       spaces in which row 0 means "nothing here"; always so for those with lists
    max_len       keep at most this many ids of each list, the last ones (histories end with the newest)
    sizes         ``{space: rows}`` for ids that are table rows already, 0 to rows - 1. All other ids may be
                  any strings or integers and are numbered in sorted order, kept in ``Space.vocabulary``

    Rows keep their order within a client; clients are ordered by their id.
    """
    _refuse(unknown)
    plan = _Plan.of(ids, label, values, binary_label, padding, max_len, sizes)
    if not isinstance(client, str):
        raise DataError(f"client must name a column, got {client!r}; for an array of owners use from_arrays.")
    table = _table(frame, [client, *plan.names])
    return _build(table.select(plan.names), table[client], plan)


def from_file(path: str | os.PathLike[str], client: str, **options: Any) -> Clients:
    """`from_frame` of a Parquet (.parquet, .pq), CSV or TSV file; only the columns in use are read."""
    file = _file(path)
    kind = file.suffix.lower()
    if kind not in (".parquet", ".pq", ".csv", ".tsv"):
        raise DataError(f"{file} ends in {kind!r}, expected .parquet, .pq, .csv or .tsv; convert the file.")
    try:
        if kind in (".parquet", ".pq"):
            lazy = pl.scan_parquet(file, glob=False)
        else:
            # The whole file decides the types: an id like "7a" may come after a million plain numbers.
            comma = "," if kind == ".csv" else "\t"
            lazy = pl.scan_csv(file, separator=comma, infer_schema_length=None, glob=False)
        return replace(from_frame(lazy, client, **options), source=str(file))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(
            f"{file} cannot be read as {kind[1:]}: {_brief(error)}. "
            "It may be damaged, empty or of another format; write it again."
        ) from error


def _file(path: str | os.PathLike[str]) -> Path:
    try:
        file = Path(path)
        folder, found = file.is_dir(), file.exists()
    except (OSError, ValueError, TypeError) as error:  # too long, or not a path at all
        raise DataError(f"{short.repr(path)} is not the path of a file: {error}; check the path.") from error
    if folder:
        raise DataError(f"{file} is a directory; for one written by Clients.save() use Clients.open().")
    if not found:
        raise DataError(f"There is no file {file}; check the path.")
    return file


def from_arrays(
    arrays: Mapping[str, Any], client: Any = None, *, offsets: Any = None, ids: Ids | None = None, **options: Any
) -> Clients:
    """`from_frame` of arrays: 1-D, 2-D (fixed width) or a list of lists (any length).

    ``client`` is a key of ``arrays`` or an array with the owner of each sample. Without it, ``offsets``
    (clients + 1 increasing integers) says that client i owns samples ``offsets[i]`` to ``offsets[i+1] - 1``.
    """
    _refuse({name for name in options if name not in OPTIONS}, "offsets")
    plan = _Plan.of(ids, **options)
    if not (hasattr(arrays, "keys") and hasattr(arrays, "__getitem__")):
        raise DataError(f"Got a {type(arrays).__name__}, expected a dict of arrays; for a frame use from_frame.")
    if (client is None) == (offsets is None):
        raise DataError("Give either client (a key or an array of owners) or offsets, exactly one of them.")
    _require(plan.names + ([client] if isinstance(client, str) else []), arrays)
    series = {name: _series(name, arrays[name]) for name in plan.names}
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
    return _build(pl.DataFrame(list(series.values())), owners, plan)


@dataclass(frozen=True)
class _Plan:
    """The options, checked: which column plays which part."""

    spaces: dict[str, tuple[str, ...]]
    label: str | None
    values: tuple[str, ...]
    binary_label: bool
    padding: tuple[str, ...]
    max_len: int | None
    sizes: dict[str, int]

    @property
    def names(self) -> list[str]:
        ids = [name for columns in self.spaces.values() for name in columns]
        return [*ids, *([self.label] if self.label is not None else []), *self.values]

    @classmethod
    def of(cls, ids, label=None, values=(), binary_label=True, padding=(), max_len=None, sizes=None) -> _Plan:
        spaces = _spaces(ids)
        _check_kinds(label, binary_label, max_len, sizes)
        values = _words("values", () if values is None else values)
        padding = _words("padding", () if padding is None else padding)
        plan = cls(spaces, label, values, bool(binary_label), padding, max_len, dict(sizes or {}))
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


OPTIONS = tuple(field.name for field in fields(_Plan) if field.name != "spaces")  # besides ids


def _refuse(unknown: Iterable[str], *more: str) -> None:
    for name in unknown:
        raise DataError(f"There is no option {name!r}; {nearest(name, ('ids', *OPTIONS, *more))}")


def _spaces(ids: Any) -> dict[str, tuple[str, ...]]:
    """{space: its columns} of the option ids."""
    if not isinstance(ids, Mapping):
        names = _words("ids", ids)
        if len(set(names)) < len(names):
            raise DataError(f"ids names a column twice: {list(names)}; give every column once.")
        return {name: (name,) for name in names}
    return {space: _words(f"ids[{space!r}]", ids[space]) for space in _words("ids", ids)}


def _check_kinds(label: Any, binary_label: Any, max_len: Any, sizes: Any) -> None:
    if label is not None and not isinstance(label, str):
        raise DataError(f"label is {short.repr(label)}, expected the name of one column, such as 'click', or None.")
    if not isinstance(binary_label, bool | np.bool_):
        raise DataError(f"binary_label is {short.repr(binary_label)}, expected True or False.")
    if max_len is not None and not _whole(max_len, 1 << 31):
        raise DataError(f"max_len is {short.repr(max_len)}, expected a length of 1 or more, or None for all.")
    if sizes is not None and not isinstance(sizes, Mapping):
        raise DataError(f"sizes is {short.repr(sizes)}, expected the rows of each space, such as {{'item': 1000}}.")


def _whole(number: Any, largest: int) -> bool:
    return is_whole(number) and 1 <= int(number) <= largest


def _words(option: str, names: Any) -> tuple[str, ...]:
    """One name or several, as a tuple."""
    words = (names,) if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
    for word in words:
        if not isinstance(word, str):
            raise DataError(f"{option} holds {short.repr(word)}, expected names of columns, such as ['item', 'genre'].")
    return words


# ---------------------------------------------------------------------- any input -> polars


def _table(frame: Any, names: list[str]) -> pl.DataFrame:
    """The named columns of any supported frame. pandas and Arrow are recognised without importing them."""
    names = list(dict.fromkeys(names))
    if isinstance(frame, pl.LazyFrame):
        _require(names, frame.collect_schema().names())
        return frame.select(names).collect()
    if isinstance(frame, pl.DataFrame):
        _require(names, frame.columns)
        return frame.select(names)
    pandas = type(frame).__module__.split(".")[0] == "pandas" and hasattr(frame, "columns")
    if not pandas and not hasattr(frame, "__arrow_c_stream__"):
        raise DataError(
            f"Got a {type(frame).__name__}, expected a polars or pandas DataFrame or an Arrow table; "
            "for a dict of arrays use from_arrays, for a path from_file."
        )
    if pandas:
        _require(names, [c for c in frame.columns if isinstance(c, str)])
    try:
        frame = pl.from_pandas(frame[names]) if pandas else pl.DataFrame(frame)
    except ImportError as error:
        raise MissingExtra(f"This frame needs pyarrow: pip install 'fedsub[frames]' ({error}).") from error
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"The frame cannot be read: {_brief(error)}. Give each column one type.") from error
    return _table(frame, names)


def _brief(error: Exception) -> str:
    """The first line of a polars message; the rest is context for polars users."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _require(names: list[str], present: Iterable[str]) -> None:
    present = list(present)
    for name in names:
        if name not in present:
            words = [p for p in present if isinstance(p, str)]
            raise ColumnError(f"There is no column {name!r} in the data; {nearest(name, words)}")


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
        raise ColumnError(f"Column {name!r} mixes types or shapes: {_brief(error)}. Give it one type.") from error


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


def _build(table: pl.DataFrame, owners: pl.Series, plan: _Plan) -> Clients:
    if not len(owners):
        raise DataError("The data has no rows; expected one row per sample. Check the file or the filter.")
    if owners.dtype.is_nested():
        raise ColumnError(f"Client column {owners.name!r} holds {owners.dtype}, expected one id per sample.")
    (client_ids, (codes,)) = encode([Cells(owners, owners, "client").plain()])
    order = np.argsort(codes, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=len(client_ids)))])
    columns: dict[str, Column] = {}
    spaces: list[Space] = []
    for name, members in plan.spaces.items():
        space, numbered = _space(name, [Cells.of(table[m], owners, plan.max_len) for m in members], plan)
        spaces.append(space)
        columns.update((c.name, c) for c in numbered)
    if plan.label is not None:
        columns[plan.label] = label_column(Cells.of(table[plan.label], owners), plan.binary_label)
    for name in plan.values:
        columns[name] = value_column(Cells.of(table[name], owners))
    grouped = [reorder(columns[name], order) for name in plan.names]
    return assemble(client_ids, offsets, grouped, spaces, label=plan.label)


def _space(name: str, members: list[Cells], plan: _Plan) -> tuple[Space, list[Column]]:
    """One space and its columns as rows of the full table."""
    lists = [m for m in members if m.starts is not None]
    padded = bool(lists) or name in plan.padding
    plain = [m.plain() for m in members]
    if name in plan.sizes:
        size, vocabulary = int(plan.sizes[name]), None
        zero_ok = not padded or name in plan.padding
        rows = [prenumbered(m, p, size, name, zero_ok) for m, p in zip(members, plain, strict=True)]
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
