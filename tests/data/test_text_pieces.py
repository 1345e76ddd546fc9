"""Text read in pieces is text read at once: the same types, the same rows, wherever it is cut."""

from __future__ import annotations

import io

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsub.data.text_pieces import pieces, schema_of

VALUES = [
    "1",
    "-5",
    "007",
    "1.5",
    "nan",
    "true",
    "abc",
    "",
    '""',
    '"1"',
    "2020-01-01",
    " 3",
    '"a\nb"',
    '"x,""y"',
    "99999999999",
]
COLUMNS = st.lists(st.sampled_from(VALUES), min_size=1, max_size=3, unique=True)


def scan(text: bytes, **options) -> pl.LazyFrame:
    return pl.scan_csv(io.BytesIO(text), infer_schema_length=None, **options)


@settings(max_examples=200, deadline=None)
@given(COLUMNS, st.data(), st.sampled_from(["\n", "\r\n"]), st.sampled_from(["", "\n", "\n\n"]), st.integers(1, 80))
def test_pieces_are_the_whole(values, data, end, last, size):
    count = data.draw(st.integers(1, 15))
    column = data.draw(st.lists(st.sampled_from(values), min_size=count, max_size=count))
    text = ("a,b" + end + end.join(f"{value},{row}" for row, value in enumerate(column)) + last).encode()
    found = list(pieces(io.BytesIO(text), "utf-8", size))
    header = len("a,b" + end)
    assert found[0][:header] + b"".join(piece[header:] for piece in found) == text
    whole = scan(text)
    schema = schema_of(map(scan, found))
    assert schema == dict(whole.collect_schema())
    read = pl.concat([scan(piece, schema_overrides=schema).collect() for piece in found])
    assert read.equals(whole.collect(), null_equal=True)
    if size < 5 and not any("\n" in value for value in column):
        assert len(found) == count  # it really cuts


def test_other_encodings_are_cut_between_characters():
    text = "name,n\n" + "".join(f"å{i}é,{i}\n" for i in range(30))
    for encoding in ("utf-16", "cp1252", "utf-8-sig"):
        found = list(pieces(io.BytesIO(text.encode(encoding)), encoding, 33))
        read = pl.concat([scan(piece).collect() for piece in found])
        assert len(found) > 5
        assert read["name"].to_list() == [f"å{i}é" for i in range(30)]
