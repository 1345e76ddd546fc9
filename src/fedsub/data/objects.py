"""Files with a JSON object a line (.jsonl, .ndjson), at once or some lines at a time."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import IO

import polars as pl


def scan_objects(source: io.BytesIO, types: Mapping[str, pl.DataType] | None = None) -> pl.LazyFrame:
    """The table; all of it decides the types, if they are not given."""
    return pl.scan_ndjson(source, schema=types, infer_schema_length=None)


def lines(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Whole lines, about ``size`` bytes each time."""
    held = b""
    while block := file.read(size):
        held += block
        if end := held.rfind(b"\n") + 1:
            yield held[:end]
            held = held[end:]
    if held.strip():
        yield held


def schema_of_objects(read: Iterator[pl.LazyFrame]) -> dict[str, pl.DataType]:
    """The types of all columns, of every piece read by itself: what polars finds in all of them at once."""
    found: dict[str, pl.DataType] = {}
    for piece in read:
        for name, kind in piece.collect_schema().items():
            found[name] = both(found[name], kind) if name in found else kind
    return found


def both(one: pl.DataType, other: pl.DataType) -> pl.DataType:
    """The type that holds both."""
    if one == other or other == pl.Null:
        return one
    if one == pl.Null:
        return other
    if isinstance(one, pl.List) and isinstance(other, pl.List):
        return pl.List(both(_made(one.inner), _made(other.inner)))
    if one.is_numeric() and other.is_numeric():
        return pl.Float64()
    if pl.String in (one, other) and not (one.is_nested() or other.is_nested()):
        return pl.String()
    raise pl.exceptions.SchemaError(f"some lines hold {one} and others {other}; write one type")


def _made(kind: object) -> pl.DataType:
    return kind() if isinstance(kind, type) else kind  # type: ignore[return-value]
