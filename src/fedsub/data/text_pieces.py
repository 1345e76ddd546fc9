"""A text table some megabytes at a time: whole records behind the header, so that memory holds one piece.

Where a record ends is known without parsing: at a line end before which the number of quotes is even. Nothing is cut
beside a blank line, since a reader may treat one at the end of its input otherwise than one in the middle.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import IO

import polars as pl

UTF8 = ("utf-8", "utf-8-sig", "ascii")  # what polars reads as it stands
QUOTE, END, BLANK = ord('"'), b"\n", b"\r\n"


def pieces(file: IO[bytes], encoding: str, size: int) -> Iterator[bytes]:
    """The header with about ``size`` bytes of records each time, as UTF-8; at least once."""
    blocks = _blocks(file, encoding, size)
    held, header = b"", None
    while header is None:
        more = next(blocks, None)
        held += more or b""
        begin = len(held) - len(held.lstrip(b"\r\n"))
        end = _record_end(held, begin)
        if end or more is None:
            end = end or len(held)
            header, held = held[:end], held[end:]
    said = False
    for more in blocks:
        held += more
        if len(held) >= size and (end := _cut(held)):
            yield header + held[:end]
            held, said = held[end:], True
    while len(held) > size and (end := _cut(held[: size + 1])):  # what came with the header
        yield header + held[:end]
        held, said = held[end:], True
    if held or not said:
        yield header + held


def _blocks(file: IO[bytes], encoding: str, size: int) -> Iterator[bytes]:
    if codecs.lookup(encoding).name in UTF8:
        while block := file.read(size):
            yield block
        return
    decoder = codecs.getincrementaldecoder(encoding)()
    while block := file.read(size):
        yield decoder.decode(block).encode()
    yield decoder.decode(b"", final=True).encode()


def _record_end(held: bytes, begin: int) -> int:
    """The offset behind the first record that ends, 0 if none does."""
    end, quotes = held.find(END, begin), 0
    while end >= 0:
        quotes += held.count(b'"', begin, end)
        if quotes % 2 == 0:
            return end + 1
        begin, end = end, held.find(END, end + 1)
    return 0


def _cut(held: bytes) -> int:
    """The last offset at which a record ends and another begins, 0 if there is none."""
    end = held.rfind(END, 0, len(held) - 1)
    quotes = held.count(b'"', 0, end) if end > 0 else 0
    while end > 0:
        blank = held[end + 1] in BLANK or held[:end].endswith((b"\n", b"\n\r"))
        if quotes % 2 == 0 and not blank:
            return end + 1
        before = held.rfind(END, 0, end)
        quotes -= held.count(b'"', max(before, 0), end)
        end = before
    return 0


def common(kinds: list[pl.DataType | None]) -> pl.DataType:
    """The type of a column as polars finds it from all pieces at once; None: the piece has no value of it."""
    seen = {kind for kind in kinds if kind is not None}
    if len(seen) == 1:
        return seen.pop()
    if len(seen) == 2 and seen <= {pl.Int64(), pl.Int128(), pl.Float64()}:
        return pl.Float64() if pl.Float64() in seen else pl.Int128()
    return pl.String()


def schema_of(read: Iterator[pl.LazyFrame]) -> dict[str, pl.DataType]:
    """The types of all columns, of every piece read by itself."""
    found: dict[str, list[pl.DataType | None]] = {}
    for piece in read:
        schema = piece.collect_schema()
        words = [name for name, kind in schema.items() if kind == pl.String]
        # A column without any value counts as text; what other pieces say of it then decides.
        empty = piece.select(pl.col(words).is_null().all()).collect().row(0) if words else ()
        void = {name for name, nothing in zip(words, empty, strict=True) if nothing}
        for name, kind in schema.items():
            found.setdefault(name, []).append(None if name in void else kind)
    return {name: common(kinds) for name, kinds in found.items()}
