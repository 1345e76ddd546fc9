"""A table in a file, as it comes: which separator, which encoding, which columns, and where its lines are.

Polars reads the file. What it does not say is found here, with a few lines at the beginning of the file, or, when
something is wrong with the file, by one pass over its lines: how fields are separated, in which encoding they are
written, which names stand twice in the header, which lines are damaged, and in which line a row stands.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import polars as pl

from fedsub.data.frames import stream_of
from fedsub.data.objects import lines, scan_objects, schema_of_objects
from fedsub.data.problems import listed, short
from fedsub.data.text_pieces import UTF8, pieces, schema_of
from fedsub.errors import DataError

TEXT = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
LINES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")  # a JSON object a line
ARROW = (".arrow", ".feather", ".ipc")
TABLES = (*TEXT, ".parquet", ".pq", *LINES, *ARROW)
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
SAMPLE = 1 << 16  # bytes that are looked at to guess
MARKS = {  # byte order marks; UTF-32 begins like UTF-16, so it comes first
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def kind_of(path: str | os.PathLike[str]) -> str | None:
    """The ending that says how a table is written, one of `TABLES`."""
    name = Path(path).name.lower()
    return next((kind for kind in TABLES if name.endswith(kind)), None)


@dataclass(frozen=True)
class TableFile:
    """A file with one row per sample. ``separator`` and ``encoding`` are those of text, given or guessed.

    ``piece``: bytes of text that are read at a time, 0 for all at once; what comes of it is the same.
    """

    path: Path
    kind: str
    separator: str = ","
    encoding: str = "utf-8"
    piece: int = 0

    @classmethod
    def of(
        cls, path: str | os.PathLike[str], separator: str | None = None, encoding: str | None = None, piece: int = 0
    ) -> TableFile:
        file = existing(path)
        kind = kind_of(file)
        if kind is None:
            raise DataError(f"{file} ends in {file.suffix!r}, expected {', '.join(TABLES)}; convert the file.")
        if kind not in TEXT:
            if separator is not None or encoding is not None:
                raise DataError(f"{file} is no CSV, so separator and encoding have no meaning; leave them out.")
            return cls(file, kind, piece=piece if kind in LINES else 0)
        made = cls(file, kind, "\t" if kind.startswith(".tsv") else ",", piece=piece)
        made._check_text()
        made = replace(made, encoding=made._encoding(encoding))
        made = replace(made, separator=made._separator(separator))
        made._check_header()
        return made

    @property
    def names(self) -> list[str]:
        """The columns."""
        try:
            if self.piece and self.kind in TEXT:
                return self._scan_text(next(self._pieces())).collect_schema().names()
            return list(self.schema())
        except (pl.exceptions.PolarsError, OSError) as error:
            raise DataError(self.unreadable(error)) from error

    def schema(self) -> dict[str, pl.DataType]:
        """The columns with their types."""
        if self.piece and self.kind in TEXT:
            return schema_of(self._scan_text(piece) for piece in self._pieces())
        if self.piece:
            return schema_of_objects(scan_objects(piece) for piece in self._pieces())
        return dict(pl.read_ipc_stream(self.path, n_rows=0).schema if self.streamed else self.scan().collect_schema())

    @property
    def streamed(self) -> bool:
        """Whether it is an Arrow stream (what Hugging Face saves), which can only be read from its beginning."""
        if self.kind not in ARROW:
            return False
        with open(self.path, "rb") as file:
            return file.read(6) != b"ARROW1"

    @property
    def in_pieces(self) -> bool:
        """Whether `scans` is how to read it in bounded memory."""
        return self.kind in (*TEXT, *LINES) or self.streamed

    def scan(self, *, cut: bool = False, words: Sequence[str] = ()) -> pl.LazyFrame:
        """The table; ``cut`` reads lines that are too long as far as the header goes, ``words`` are columns of text."""
        if self.kind in LINES:
            with self._bytes() as file:
                return scan_objects(io.BytesIO(file.read()))
        if self.kind in ARROW:
            return pl.read_ipc_stream(self.path).lazy() if self.streamed else pl.scan_ipc(self.path, glob=False)
        if self.kind not in TEXT:
            return pl.scan_parquet(self.path, glob=False)
        return self._scan_text(self._source(), cut, dict.fromkeys(words, pl.String()))

    def scans(self, types: Mapping[str, pl.DataType], *, cut: bool = False) -> Iterator[pl.LazyFrame]:
        """The table piece by piece, if it is `in_pieces`; ``types`` are those of all of its columns."""
        if self.kind in ARROW:
            yield from stream_of(self.path)
            return
        for piece in self._pieces():
            yield self._scan_text(piece, cut, types) if self.kind in TEXT else scan_objects(piece, types)

    def _scan_text(
        self, source: Path | io.BytesIO, cut: bool = False, types: Mapping[str, pl.DataType] | None = None
    ) -> pl.LazyFrame:
        # The whole file decides the types: an id like "7a" may come after a million plain numbers.
        return pl.scan_csv(
            source,
            separator=self.separator,
            infer_schema_length=None,
            glob=False,
            truncate_ragged_lines=cut,
            with_column_names=lambda names: [_clean(name) for name in names],
            schema_overrides=types,
        )

    def _source(self) -> Path | io.BytesIO:
        """What polars can read: UTF-8, packed or not. Other encodings are rewritten in memory."""
        if codecs.lookup(self.encoding).name in UTF8:
            return self.path
        with self._bytes() as file, self._decoding():
            return io.BytesIO(file.read().decode(self.encoding).encode())

    def _pieces(self) -> Iterator[io.BytesIO]:
        """The same, so many bytes at a time."""
        with self._bytes() as file, self._decoding():
            some = pieces(file, self.encoding, self.piece) if self.kind in TEXT else lines(file, self.piece)
            yield from map(io.BytesIO, some)

    @contextmanager
    def _decoding(self) -> Iterator[None]:
        try:
            yield
        except UnicodeDecodeError as error:
            raise DataError(f"{self.path} cannot be read: {'; '.join(self.faults()) or error}.") from error

    def lines(self, rows: Sequence[int]) -> list[int]:
        """The lines, counted from 1, in which the given rows begin: a quoted field may go over several lines."""
        wanted, found = set(rows), {}
        last = max(wanted, default=-1)
        for row, (line, _) in enumerate(self._records(), start=-1):  # the header is row -1
            if row in wanted:
                found[row] = line
            if row >= last:
                break
        return [found.get(row, row + 2) for row in rows]

    def faults(self) -> list[str]:
        """What is wrong with lines as a whole, each kind in a sentence that names them."""
        if self.kind not in TEXT:
            return []
        undecodable = [n for n, line in enumerate(self._raw_lines(), 1) if not self._decodes(line)]
        if undecodable:
            return [
                f"{listed('line', undecodable)} cannot be read in the encoding {self.encoding}; name the one that the "
                "file was written in, such as --encoding cp1252 (Excel in western Europe), in Python encoding='cp1252'"
            ]
        header, longer, open_quote = None, {}, None
        for line, fields in self._records():
            if header is None:
                header = len(fields)
            elif len(fields) > header:
                longer.setdefault(len(fields), []).append(line)
            if fields and "\n" in fields[-1] and len(fields) < header:
                open_quote = line
        out = [
            f"{listed('line', lines)} {'has' if len(lines) == 1 else 'have'} {count} fields, the header has {header}; "
            "put fields that hold the separator into quotes, or name another --separator"
            for count, lines in longer.items()
        ]
        if not longer and open_quote is None:
            odd = [n for n, line in enumerate(self._raw_lines(), 1) if line.count(b'"') % 2]
            out += (
                [f'a quote (") stands within a text in {listed("line", odd)}; double it, or remove it'] if odd else []
            )
        if open_quote is not None and not longer:
            out.append(f'line {open_quote} opens a quote (") that does not end; close it or remove it')
        return out

    def unreadable(self, error: Exception) -> str:
        faults = "; ".join(self.faults())
        if faults:
            return f"{self.path} cannot be read as {self.kind[1:]}: {faults}."
        said = next(iter(str(error).splitlines()), type(error).__name__)
        return (
            f"{self.path} cannot be read as {self.kind[1:]}: {said}. "
            "It may be damaged, empty or of another format; write it again."
        )

    def first_line(self) -> str:
        """What tells a reader what the columns are called, and whether it was the right line and separator."""
        if self.kind not in TEXT:
            return ""
        line = next((line.strip() for line in self._sample() if line.strip()), "")
        only = "" if len(self.names) > 1 else " (one column: is the separator right? --separator)"
        return f"The first line of the file names the columns{only}: {short.repr(line)}."

    # ------------------------------------------------------------------ text

    def _bytes(self) -> IO[bytes]:
        with open(self.path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"  # whatever the name says
        return gzip.open(self.path, "rb") if packed else open(self.path, "rb")  # type: ignore[return-value]

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """(line in which it begins, fields) of the header and every row."""
        with self._bytes() as packed, io.TextIOWrapper(packed, self.encoding, errors="replace", newline="") as text:
            reader = csv.reader(text, delimiter=self.separator)
            begin = 1
            try:
                for fields in reader:
                    yield begin, fields
                    begin = reader.line_num + 1
            except csv.Error:  # a field of more than 128 KB
                return

    def _raw_lines(self) -> Iterator[bytes]:
        wide = codecs.lookup(self.encoding).name.startswith(("utf-16", "utf-32"))
        with self._bytes() as file:
            yield from [file.read()] if wide else file

    def _decodes(self, line: bytes) -> bool:
        try:
            line.decode(self.encoding)
        except UnicodeDecodeError:
            return False
        return True

    def _head(self) -> bytes:
        try:
            with self._bytes() as file:
                return file.read(SAMPLE)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{self.path} cannot be read: {error}; is it damaged? Write it again.") from error

    def _check_text(self) -> None:
        """Refuse what is no text at all, and text that polars would not see as lines."""
        head = self._head()
        if not head.strip():
            raise DataError(f"{self.path} cannot be read as {self.kind[1:]}: it is empty; write it again.")
        known = {b"PK\x03\x04": "an Excel or zip file", b"PAR1": "a Parquet file", b"\xd0\xcf\x11\xe0": "an Excel file"}
        for mark, what in known.items():
            if head.startswith(mark):
                raise DataError(f"{self.path} is {what}, not text; save it as CSV, or name it by its kind.")
        if b"\r" in head and b"\n" not in head:
            raise DataError(f"The lines of {self.path} end in carriage returns alone; save it with usual line ends.")

    def _encoding(self, given: str | None) -> str:
        if given is not None:
            try:
                "".encode(given)  # LookupError too for what is no encoding of text, such as "zip"
            except (LookupError, TypeError, ValueError) as error:
                raise DataError(
                    f"encoding is {short.repr(given)}, which Python does not know; write utf-8, cp1252, utf-16, …"
                ) from error
        head = self._head()
        seen = next((name for mark, name in MARKS.items() if head.startswith(mark)), None)
        if given is None or (seen == "utf-8-sig" and codecs.lookup(given).name == "utf-8"):
            return seen or _wide(head) or "utf-8"
        try:
            codecs.getincrementaldecoder(given)("replace").decode(head)
        except UnicodeError as error:  # UTF-16 without its mark
            raise DataError(f"{self.path} cannot be read in the encoding {given}: {error}; leave it out.") from error
        return given

    def _sample(self) -> list[str]:
        """Whole lines from the beginning of the file."""
        head = self._head()
        text = codecs.getincrementaldecoder(self.encoding)("replace").decode(head)
        lines = text.splitlines(keepends=True)
        return lines[:-1] if len(head) == SAMPLE and len(lines) > 1 else lines

    def _separator(self, given: str | None) -> str:
        """The given one, or the usual one of the file's ending, or the only other one that makes columns."""
        if given is not None:
            found = {"tab": "\t", "\\t": "\t"}.get(given, given) if isinstance(given, str) else given
            if not isinstance(found, str) or len(found) != 1 or not found.isascii() or found in '"\r\n':
                raise DataError(f"separator is {short.repr(given)}, expected one character, such as ';', '|' or 'tab'.")
            return found
        lines = self._sample()[:100]
        widths = {one: _widths(lines, one) for one in SEPARATORS}
        if not lines or next(iter(widths[self.separator]), 1) > 1:  # the header; 1,5 below it may be a number
            return self.separator
        clear = [one for one, seen in widths.items() if len(set(seen)) == 1 and seen[0] > 1]
        if len(clear) > 1:
            words = " or ".join(SEPARATORS[one] for one in clear)
            say = f"say which: --separator '{clear[0]}'"
            raise DataError(f"The columns of {self.path} may be separated by {words}; {say}.")
        return clear[0] if clear else self.separator

    def _check_header(self) -> None:
        header = next(csv.reader(self._sample(), delimiter=self.separator), [])
        header = [_clean(name.removeprefix("\ufeff")) for name in header]
        if any("\0" in name for name in header):
            raise DataError(f"{self.path} is no text: its first line holds NUL characters; save it as CSV.")
        if any("\ufffd" in name for name in header) and (faults := self.faults()):
            raise DataError(f"{self.path} cannot be read as {self.kind[1:]}: {'; '.join(faults)}.")
        twice = sorted({name for name in header if name and header.count(name) > 1})
        if twice:
            places = [str(i) for i, name in enumerate(header, 1) if name == twice[0]]
            more = f" So does {', '.join(map(repr, twice[1:]))}." if twice[1:] else ""
            raise DataError(
                f"{self.path}: the name {twice[0]!r} stands twice in the header (columns {', '.join(places)}), so it "
                f"is not clear which is meant. Rename one.{more}"
            )


def _clean(name: str) -> str:
    """A column's name without what stands around it: spaces, and quotes behind spaces."""
    name = name.strip()
    return name[1:-1] if len(name) > 1 and name[0] == name[-1] == '"' else name


def _wide(head: bytes) -> str | None:
    """UTF-16 without a mark: every other byte of western text is 0."""
    odd, even = head[1::2].count(0), head[0::2].count(0)
    half = len(head) // 2
    return "utf-16-le" if odd > 0.8 * half and not even else "utf-16-be" if even > 0.8 * half and not odd else None


def _widths(lines: list[str], separator: str) -> list[int]:
    """How many fields the lines have, blank ones left out."""
    try:
        return [len(fields) for fields in csv.reader(lines, delimiter=separator) if fields]
    except csv.Error:
        return []


def existing(path: str | os.PathLike[str]) -> Path:
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
