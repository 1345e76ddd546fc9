"""`Clients`: samples grouped by client, every id column already numbered by the client's own rows.

Client i owns the samples ``offsets[i]:offsets[i+1]`` of every column. A *space* is one numbering of
table rows; all columns that index the same table share one. Client i holds the rows

    S(i) = space.rows[space.row_offsets[i] : space.row_offsets[i+1]]        (sorted)

of that space, and an id column stores *positions in S(i)* (local ids), so that a client's columns
index its submodel directly and packing a cohort is gathers plus an offset. The global row of local
id j is S(i)[j].

    sample   client   item (global row)    S(i)          item as stored
    0        a        7                    a: [3, 7]     1
    1        a        3                                  0
    2        b        9                    b: [9]        0
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Never

import numpy as np

from fedsub.data.columns import Array, Column, Space, pad
from fedsub.errors import ColumnError, DataError, nearest

if TYPE_CHECKING:
    from fedsub.data.plan import Ids


@dataclass(frozen=True, eq=False)
class Clients:
    """The data of all clients. Build it with ``from_frame``, ``from_file``, ``from_arrays`` or ``open``."""

    client_ids: Array  # the original id of every client, [clients]
    offsets: Array  # int64 [clients + 1]
    columns: Mapping[str, Column]
    spaces: Mapping[str, Space]
    label: str | None = None
    fingerprint: str = ""
    source: str = ""
    reading: Mapping[str, Any] = field(default_factory=dict)  # how a table was read, for more of its kind

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def samples(self) -> int:
        return int(self.offsets[-1])

    @cached_property
    def sizes(self) -> Array:
        """Samples of every client, int64 [clients]."""
        return np.diff(self.offsets)

    @cached_property
    def largest(self) -> int:
        """Samples of the client that has the most; asked for in every round."""
        return int(self.sizes.max(initial=0))

    def __repr__(self) -> str:
        spaces = ", ".join(f"{s.name}: {s.size:,} rows" for s in self.spaces.values())
        return f"Clients({len(self):,} clients, {self.samples:,} samples; {spaces})"

    def column(self, name: str) -> Column:
        if not isinstance(name, str):
            raise ColumnError(f"A column is given by its name, got {name!r}; {nearest('', self.columns)}")
        if name not in self.columns:
            raise ColumnError(f"There is no column {name!r} in the data; {nearest(name, self.columns)}")
        return self.columns[name]

    def space_of(self, name: str) -> Space:
        """The space called ``name``, or the one that the column ``name`` indexes."""
        if isinstance(name, str) and name in self.spaces:
            return self.spaces[name]
        space = self.column(name).space
        if space is None:
            raise ColumnError(
                f"Column {name!r} holds plain values, not ids; give it as an id column when the data is read."
            )
        return self.spaces[space]

    def size(self, name: str) -> int:
        """Rows a table needs that is indexed by column (or space) ``name``."""
        return self.space_of(name).size

    def clients_of(self, samples: Array) -> Array:
        """The client that owns each sample."""
        return np.searchsorted(self.offsets, samples, side="right") - 1

    def gather(
        self, samples: Array, names: Iterable[str] | None = None, *, local: bool, owners: Array | None = None
    ) -> dict[str, Array]:
        """The given samples of every column: ids are local (of the owner's submodel) or global rows.

        ``samples`` may have any shape; arrays come back as ``samples.shape`` (+ width). Ids are int64,
        plain values keep their type. ``owners`` (the client of each sample) saves a search.
        """
        out: dict[str, Array] = {}
        flat = samples.reshape(-1)
        for name in names if names is not None else self.columns:
            col = self.column(name)
            if col.ragged:
                got, present = pad(col, flat)
            else:
                got, present = np.take(col.values, flat, axis=0), None
            if col.space is not None:
                got = got.astype(np.int64, copy=False)
                if not local:
                    if owners is None:
                        owners = self.clients_of(flat)
                    space = self.spaces[col.space]
                    base = space.row_offsets[:-1][owners.reshape(-1)]
                    got = space.rows[got + base.reshape(-1, *[1] * (got.ndim - 1))].astype(np.int64, copy=False)
                    if present is not None:
                        got[~present] = 0
            out[name] = got.reshape(*samples.shape, *got.shape[1:])
        return out

    # Construction, splitting and saving live in their own files, as functions on Clients.

    @classmethod
    def from_frame(
        cls,
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
        vocabulary: Any = None,
        grow: bool = False,
        nulls: str = "refuse",
        to: Any = None,
        memory: Any = None,
        workers: int | None = None,
        progress: Any = None,
        **unknown: Never,
    ) -> Clients:
        """From a polars or pandas frame, an Arrow or Hugging Face data set with one row per sample.

        client        names the column with the owner of each sample
        ids           id columns: ``["item", "genre"]``, or ``{"item": ["item", "history"]}`` to share a table
        label         column to predict: 0/1, names, any finite number with ``binary_label=False``; or "rating>=4"
        values        plain columns, such as times and features
        padding       spaces in which row 0 means "nothing here"; always so for those with lists
        max_len       keep at most this many ids of each list, the last ones
        sizes         ``{space: rows}`` for ids that are table rows already, 0 to rows - 1
        vocabulary    number ids as before: `numbered_by`; ``grow`` gives new ids rows behind the known ones
        nulls         missing entries: "refuse", "drop" their rows, or give ids a row of their "own"
        to            the directory to write in at most ``memory``: for data larger than memory, see `from_file`

        More in `fedsub.data.ingest.from_frame`.
        """
        from fedsub.data.ingest import from_frame

        made = from_frame(
            frame,
            client,
            ids=ids,
            label=label,
            values=values,
            binary_label=binary_label,
            padding=padding,
            max_len=max_len,
            sizes=sizes,
            nulls=nulls,
            to=_target(to, memory, workers, progress, vocabulary, grow),
            **unknown,
        )
        return _renumbered(made, vocabulary, grow)

    @classmethod
    def from_file(
        cls,
        path: Any,
        client: str,
        *,
        ids: Ids | None = None,
        label: str | None = None,
        values: Sequence[str] | None = (),
        binary_label: bool = True,
        padding: Sequence[str] | None = (),
        max_len: int | None = None,
        sizes: Mapping[str, int] | None = None,
        vocabulary: Any = None,
        grow: bool = False,
        nulls: str = "refuse",
        separator: str | None = None,
        encoding: str | None = None,
        to: Any = None,
        memory: Any = None,
        workers: int | None = None,
        progress: Any = None,
        **unknown: Never,
    ) -> Clients:
        """From a Parquet, CSV or TSV file (also .csv.gz), a folder or a list of such; ``client`` owns each sample.

        ids           id columns: ``["item", "genre"]``, or ``{"item": ["item", "history"]}`` to share a table
        label         column to predict: 0/1, names, any finite number with ``binary_label=False``; or "rating>=4"
        values        plain columns, such as times and features
        padding       spaces in which row 0 means "nothing here"; always so for those with lists
        max_len       keep at most this many ids of each list, the last ones
        sizes         ``{space: rows}`` for ids that are table rows already, 0 to rows - 1
        vocabulary    number ids as before: `numbered_by`; ``grow`` gives new ids rows behind the known ones
        nulls         missing entries: "refuse", "drop" their rows, or give ids a row of their "own"
        separator     of text: "," or ";" or "tab" …; guessed where it is clear, like
        encoding      "utf-8", "cp1252", "utf-16" …
        to            a directory: the data are written there as they are read, as `save` would, and opened
        memory        of the process at most, as "2GB"; data may be larger. Default: a quarter of the computer's
        workers       pieces that are read at a time; ``progress`` is called with (what, done, of how many)

        More in `fedsub.data.ingest.from_frame`.
        """
        from fedsub.data.ingest import from_file

        made = from_file(
            path,
            client,
            ids=ids,
            label=label,
            values=values,
            binary_label=binary_label,
            padding=padding,
            max_len=max_len,
            sizes=sizes,
            nulls=nulls,
            separator=separator,
            encoding=encoding,
            to=_target(to, memory, workers, progress, vocabulary, grow),
            **unknown,
        )
        return _renumbered(made, vocabulary, grow)

    @classmethod
    def from_arrays(
        cls,
        arrays: Any,
        client: Any = None,
        *,
        offsets: Any = None,
        ids: Ids | None = None,
        label: str | None = None,
        values: Sequence[str] | None = (),
        binary_label: bool = True,
        padding: Sequence[str] | None = (),
        max_len: int | None = None,
        sizes: Mapping[str, int] | None = None,
        vocabulary: Any = None,
        grow: bool = False,
        nulls: str = "refuse",
        **unknown: Never,
    ) -> Clients:
        """From a dict of arrays: 1-D, 2-D or lists of lists.

        client        a key of ``arrays``, or an array with the owner of each sample; or instead of it
        offsets       clients + 1 integers: client i owns samples ``offsets[i]`` to ``offsets[i+1] - 1``

        All else is as in `from_frame`.
        """
        from fedsub.data.ingest import from_arrays

        made = from_arrays(
            arrays,
            client,
            offsets=offsets,
            ids=ids,
            label=label,
            values=values,
            binary_label=binary_label,
            padding=padding,
            max_len=max_len,
            sizes=sizes,
            nulls=nulls,
            **unknown,
        )
        return _renumbered(made, vocabulary, grow)

    @classmethod
    def from_leaf(cls, path: Any, *, label: str | None = "y", **options: Any) -> Clients:
        """From a JSON file of the LEAF benchmark, or a folder of such; see `fedsub.data.leaf.from_leaf`.

        ``to``, ``memory``, ``workers`` and ``progress`` as in `from_file`.
        """
        from fedsub.data.leaf import from_leaf

        to = _target(*(options.pop(name, None) for name in ("to", "memory", "workers", "progress")))
        return _numbered(from_leaf, path, label=label, **options, **({} if to is None else {"to": to}))

    @classmethod
    def from_torch(
        cls, datasets: Any, *, names: Sequence[str] = ("x", "y"), label: str | None = "y", **options: Any
    ) -> Clients:
        """From a torch ``Dataset`` per client, {client: Dataset} or a list; see `fedsub.data.samples.from_torch`."""
        from fedsub.data.samples import from_torch

        return _numbered(from_torch, datasets, names=names, label=label, **options)

    @classmethod
    def open(cls, path, *, verify: bool | None = None) -> Clients:
        """Open, memory-mapped, a directory that `save` wrote and nobody changed; see `fedsub.data.store`."""
        from fedsub.data.store import open_clients

        return open_clients(path, verify=verify)

    def save(self, path) -> None:
        """Write a directory of plain arrays with a manifest; see `fedsub.data.store`."""
        from fedsub.data.store import save_clients

        save_clients(self, path)

    def split(
        self, train: float = 0.8, *, by: str = "random", column: str | None = None, seed: int = 0, feature: bool = False
    ):  # fmt: skip
        """(train, test) within every client; see `fedsub.data.split.split`."""
        from fedsub.data.split import split

        return split(self, train, by=by, column=column, seed=seed, feature=feature)

    def numbered_by(self, vocabulary: Any, *, grow: bool = False) -> Clients:
        """The same data with ids numbered as before; see `fedsub.data.align.numbered_by`."""
        from fedsub.data.align import numbered_by

        return numbered_by(self, vocabulary, grow=grow)

    def drop(self, *names: str) -> Clients:
        """The same data without some plain value columns; its fingerprint is that of the content that is left."""
        from fedsub.data.store import fingerprint

        for name in names:
            if self.column(name).space is not None or name == self.label:
                raise ColumnError(f"Column {name!r} holds ids or the label; only plain value columns can be dropped.")
        if not names:
            return self
        kept = replace(self, columns={n: c for n, c in self.columns.items() if n not in names})
        return replace(kept, fingerprint=fingerprint(kept))

    def pooled(self) -> Clients:
        """All data at one client, for centralised baselines."""
        from fedsub.data.split import pooled

        return pooled(self)


def _target(to: Any, memory: Any, workers: Any, progress: Any, vocabulary: Any = None, grow: bool = False) -> Any:
    """Where and how to write as the data are read; None to read them in memory."""
    if to is None:
        if memory is not None or workers is not None:
            raise DataError(
                "memory and workers are for data that are written as they are read; name a directory, to=…."
            )
        return None
    if vocabulary is not None or grow:
        raise DataError(
            "vocabulary and grow number data in memory; leave out to, or number what was written: numbered_by."
        )
    from fedsub.data.large.save import To

    return To.of(to, memory, workers, progress)


def _numbered(make: Any, data: Any, *, vocabulary: Any = None, grow: bool = False, **options: Any) -> Clients:
    return _renumbered(make(data, **options), vocabulary, grow)


def _renumbered(made: Clients, vocabulary: Any, grow: bool) -> Clients:
    if vocabulary is not None:
        return made.numbered_by(vocabulary, grow=grow)
    if grow:
        raise DataError("grow=True appends new ids to a vocabulary; name it: vocabulary=fedsub.load('runs/a').")
    return made
