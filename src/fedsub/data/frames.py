"""Any frame, to polars: names of its columns, and what gets some of them. No library is imported for it.

polars         DataFrame, LazyFrame
pandas         DataFrame
Arrow          what hands out Arrow data (tables, record batches), and pyarrow data sets
Hugging Face   datasets.Dataset; columns of class labels come with their names, in their order
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl

from fedsub.errors import DataError, lacking

BATCHES = 1 << 18  # rows of an Arrow stream that are read at a time
Fetch = Callable[[list[str]], pl.DataFrame]


def columns_of(frame: Any) -> tuple[list[str], Fetch]:
    """The names of any supported frame's columns, and what gets some of them."""
    if isinstance(frame, pl.LazyFrame):
        return frame.collect_schema().names(), lambda names: frame.select(names).collect()
    if isinstance(frame, pl.DataFrame):
        return frame.columns, lambda names: frame.select(names)
    pandas = type(frame).__module__.split(".")[0] == "pandas" and hasattr(frame, "columns")
    if pandas:
        present = [c for c in frame.columns if isinstance(c, str)]
        return present, lambda names: converted(lambda: pl.from_pandas(frame[names]))
    home = type(frame).__module__.split(".")[0]
    if home == "datasets":
        return _hugging_face(frame)
    if home == "pyarrow" and hasattr(frame, "to_table"):
        return frame.schema.names, lambda names: converted(lambda: pl.DataFrame(frame.to_table(columns=names)))
    if not hasattr(frame, "__arrow_c_stream__"):
        raise DataError(
            f"Got a {type(frame).__name__}, expected a frame: polars, pandas, Arrow, or a Hugging Face Dataset; for a "
            "dict of arrays use from_arrays, for a path from_file, for torch data sets from_torch."
        )
    return columns_of(converted(lambda: pl.DataFrame(frame)))


def slices_of(frame: Any, names: list[str], rows: int) -> Iterator[pl.DataFrame]:
    """Some columns of any supported frame but a lazy one of polars, so many rows at a time."""
    home = type(frame).__module__.split(".")[0]
    present, fetch = columns_of(frame)
    if home == "datasets":
        for begin in range(0, len(frame), rows):
            part = frame.select(range(begin, min(begin + rows, len(frame))))
            yield _hugging_face(part)[1](names)
    elif home == "pyarrow" and hasattr(frame, "to_table") and hasattr(frame, "to_batches"):
        for batch in frame.to_batches(columns=names, batch_size=rows):
            if batch.num_rows:
                yield converted(lambda batch=batch: pl.DataFrame(batch))
    else:
        whole = fetch([name for name in names if name in present])
        for begin in range(0, len(whole), rows):
            yield whole[begin : begin + rows]


def stream_of(path: Path) -> Iterator[pl.LazyFrame]:
    """A file with an Arrow stream, some batches at a time."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise lacking("pyarrow, which reads Arrow streams in pieces,", "frames") from error
    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
        held: list[Any] = []
        for batch in reader:
            held.append(batch)
            if sum(one.num_rows for one in held) >= BATCHES:
                yield pl.DataFrame(pa.Table.from_batches(held)).lazy()
                held = []
        yield pl.DataFrame(pa.Table.from_batches(held, reader.schema)).lazy()


def _hugging_face(data: Any) -> tuple[list[str], Fetch]:
    """Of a `datasets.Dataset`; class labels as the names that they stand for."""
    if isinstance(data, dict):
        parts = ", ".join(map(repr, data))
        raise DataError(
            f"Got a {type(data).__name__} of {parts}; choose one part, as in data[{next(iter(data), '')!r}]."
        )
    if not hasattr(data, "with_format") or not hasattr(data, "__len__"):
        raise DataError(
            f"Got a {type(data).__name__}, which is streamed, expected all rows; load it without streaming=True, or "
            "collect a part: datasets.Dataset.from_list(list(data.take(100_000)))."
        )

    def fetch(names: list[str]) -> pl.DataFrame:
        table = converted(lambda: pl.DataFrame(data.select_columns(names).with_format("arrow")[:]))
        for name in names:
            words = getattr(data.features[name], "names", None)
            if isinstance(words, list) and table[name].dtype.is_integer():
                named = table[name].replace_strict(dict(enumerate(words)), default=None, return_dtype=pl.Enum(words))
                table = table.with_columns(named.alias(name))
        return table

    return list(data.column_names), fetch


def converted(convert: Callable[[], pl.DataFrame]) -> pl.DataFrame:
    try:
        return convert()
    except ImportError as error:
        raise lacking("pyarrow, which this frame needs,", "frames") from error
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"The frame cannot be read: {brief(error)}. Give each column one type.") from error


def brief(error: Exception) -> str:
    """The first line of a polars message; the rest is context for polars users."""
    return next(iter(str(error).splitlines()), type(error).__name__)
