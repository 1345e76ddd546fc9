"""Bad data is refused with the place, the value and the next step; never read wrongly in silence."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fedsub.data import Clients
from fedsub.errors import ColumnError, DataError

NAN, INF = float("nan"), float("inf")
USER = ["ann", "bob", "ann"]


def read(**columns):
    """A reader of three samples (owners ann, bob, ann) with the given columns and options."""
    options = {k: columns.pop(k) for k in list(columns) if k in ("ids", "label", "values", "sizes", "padding")}
    options.setdefault("ids", [name for name in columns if name not in ("y", "v")])
    return lambda: Clients.from_arrays(columns, USER, **options)


def labelled(y):
    return read(y=y, ids=[], label="y")


def valued(v):
    return read(v=v, ids=[], values=["v"])


PLACE = r"Column '{}', row 2, client 'ann': "

BAD_VALUES = {
    "null id": (read(i=["a", "b", None]), PLACE.format("i") + "None is not an id; drop the row"),
    "NaN id": (read(i=np.array([1, 2, NAN])), PLACE.format("i") + "nan is not an id"),
    "infinite id": (read(i=np.array([1, 2, INF])), PLACE.format("i") + "inf is not an id"),
    "null inside a list": (read(i=[[1], [], [2, None]]), PLACE.format("i") + "None is not an id"),
    "null instead of a list": (
        read(i=[[1], [], None]),
        PLACE.format("i") + "None is not a list; use an empty",
    ),
    "negative row": (
        read(i=[0, 1, -3], sizes={"i": 5}),
        PLACE.format("i") + r"-3 is negative, expected a row from 0 to 4; or drop sizes\['i'\]",
    ),
    "negative row in a matrix": (
        read(i=np.array([[1, 1], [1, 1], [1, -2]]), sizes={"i": 5}),
        "-2 is negative",
    ),
    "row past the table": (
        read(i=[0, 4, 5], sizes={"i": 5}),
        PLACE.format("i") + r"5 is past the table of 5 rows; raise sizes\['i'\]",
    ),
    "fractional row": (read(i=[0, 1, 0.5], sizes={"i": 5}), PLACE.format("i") + "0.5 is a fraction"),
    "fractional id": (read(i=[0, 1, 0.5]), PLACE.format("i") + "0.5 is a fraction"),
    "float id past 2**53": (read(i=[0.0, 1.0, 1e17]), PLACE.format("i") + r"1e\+17 is too large to be exact"),
    "id past int64": (
        read(i=np.array([0, 1, 2**63], np.uint64)),
        "exceeds int64; cast the column to strings",
    ),
    "reserved row in a list": (
        read(i=[[1], [2], [3, 0]], sizes={"i": 5}),
        PLACE.format("i") + r"0 is the row .* number from 1, or pass padding=\['i'\]",
    ),
    "strings as rows": (
        read(i=["0", "1", "2"], sizes={"i": 5}),
        "'i' holds strings, .* leave it out of sizes",
    ),
    "dates as ids": (
        read(i=np.array([0, 1, 2], "datetime64[D]")),
        "'i' holds Date, expected integers or str",
    ),
    "nested lists": (read(i=[[[1]], [[2]], [[3]]]), "'i' holds List.*expected plain lists"),
    "mixed types in a column": (read(i=["a", "b", 3]), "'i' mixes types"),
    "mixed types in a space": (
        read(i=["a", "b", "c"], j=[1, 2, 3], ids={"s": ["i", "j"]}),
        "Space 's' mixes types .'i' String, 'j' Int64.; cast",
    ),
    "three dimensions": (read(i=np.zeros((3, 2, 2), int)), "'i' has 3 dimensions, expected 1 or 2"),
    "null label": (labelled([0, 1, None]), PLACE.format("y") + "None is missing"),
    "NaN label": (labelled([0, 1, NAN]), PLACE.format("y") + "nan is not a finite number"),
    "rating as a label": (
        labelled([0, 1, 4]),
        PLACE.format("y") + r"4 is not a binary label.*label='y>=4'.*binary_label=False",
    ),
    "three names as a label": (
        labelled(["no", "yes", "why"]),
        "'y' holds 3 names .*expected two; choose one, .*'y==no'",
    ),
    "label with a width": (labelled(np.zeros((3, 2))), "Label 'y' holds lists"),
    "infinite value": (valued([0.0, 1.0, INF]), PLACE.format("v") + "inf is not a finite number"),
    "value past float32": (valued([0.0, 1.0, 1e39]), PLACE.format("v") + r"1e\+39 is not a finite number"),
    "ragged values": (
        valued([[1.0], [], [2.0]]),
        "'v' holds lists, expected a fixed width; cast it to pl.Array",
    ),
    "misspelt column": (read(item=[1, 2, 3], ids=["itme"]), "no column 'itme' .*did you mean 'item'"),
}


@pytest.mark.parametrize("case", BAD_VALUES)
def test_bad_values(case):
    build, words = BAD_VALUES[case]
    with pytest.raises(ColumnError, match=words):
        build()


ONE = {"u": [1, 2], "i": [1, 2]}

BAD_SHAPES = {
    "no rows": (lambda: Clients.from_arrays({"u": [], "i": []}, "u", ids=["i"]), "no rows"),
    "lengths": (
        lambda: Clients.from_arrays({"i": [1, 2]}, [0, 0, 1], ids=["i"]),
        "'client' has 3 .* 'i' has 2",
    ),
    "lengths of columns": (
        lambda: Clients.from_arrays({"i": [1, 2], "client": [1]}, [0, 1], ids=["i", "client"]),
        "'client' has 1 entries but 'i' has 2",
    ),
    "null client": (
        lambda: Clients.from_arrays({"u": [1, None], "i": [1, 2]}, "u", ids=["i"]),
        "'u', row 1: None",
    ),
    "fractional client": (
        lambda: Clients.from_arrays({"i": [1, 2]}, [0, 0.5], ids=["i"]),
        "0.5 is a fraction",
    ),
    "list client": (lambda: Clients.from_arrays({"i": [1, 2]}, [[0], [1]], ids=["i"]), "one id per sample"),
    "client and offsets": (lambda: Clients.from_arrays(ONE, "u", offsets=[0, 2], ids=["i"]), "exactly one"),
    "neither": (lambda: Clients.from_arrays(ONE, ids=["i"]), "exactly one"),
    "empty client": (
        lambda: Clients.from_arrays(ONE, offsets=[0, 1, 1, 2], ids=["i"]),
        "Client 1 has no samples",
    ),
    "falling offsets": (
        lambda: Clients.from_arrays(ONE, offsets=[0, 2, 1, 2], ids=["i"]),
        "fall from 2 to 1 at",
    ),
    "short offsets": (lambda: Clients.from_arrays(ONE, offsets=[0, 1], ids=["i"]), "0 to 1, expected 0 to 2"),
    "float offsets": (
        lambda: Clients.from_arrays(ONE, offsets=[0.0, 2.0], ids=["i"]),
        "clients . 1 integers",
    ),
    "id twice": (lambda: Clients.from_arrays(ONE, "u", ids=["i", "i"]), "twice"),
    "two roles": (lambda: Clients.from_arrays(ONE, "u", ids=["i"], values=["i"]), "'i' is used twice"),
    "two spaces": (lambda: Clients.from_arrays(ONE, "u", ids={"a": "i", "b": "i"}), "'i' is used twice"),
    "space like a column": (
        lambda: Clients.from_arrays({**ONE, "j": [1, 2]}, "u", ids={"i": "j", "b": "i"}),
        "name of a column that is not in it",
    ),
    "empty space": (lambda: Clients.from_arrays(ONE, "u", ids={"i": []}), "no columns"),
    "nothing named": (lambda: Clients.from_arrays(ONE, "u", ids=[]), "No columns were named"),
    "unknown size": (lambda: Clients.from_arrays(ONE, "u", ids=["i"], sizes={"j": 3}), "sizes names 'j'"),
    "unknown padding": (lambda: Clients.from_arrays(ONE, "u", ids=["i"], padding=["j"]), "padding names 'j'"),
    "size zero": (lambda: Clients.from_arrays(ONE, "u", ids=["i"], sizes={"i": 0}), r"sizes\['i'\] is 0"),
    "max_len zero": (lambda: Clients.from_arrays(ONE, "u", ids=["i"], max_len=0), "max_len is 0"),
    "unsigned falling offsets": (
        lambda: Clients.from_arrays(ONE, offsets=np.array([0, 2, 1, 2], np.uint64), ids=["i"]),
        "fall from 2 to 1 at client 1",
    ),
    "offset past int64": (
        lambda: Clients.from_arrays(ONE, offsets=np.array([0, 2**64 - 1, 2], np.uint64), ids=["i"]),
        "fall from",
    ),
    "ragged offsets": (lambda: Clients.from_arrays(ONE, offsets=[[0], [1, 2]], ids=["i"]), "clients . 1 integers"),
    "list as arrays": (lambda: Clients.from_arrays([1, 2], "u", ids=["i"]), "Got a list, expected a dict"),
    "dict as a frame": (lambda: Clients.from_frame(ONE, "u", ids=["i"]), "Got a dict.*from_arrays"),
    "array as a name": (
        lambda: Clients.from_frame(pl.DataFrame(ONE), [1, 2], ids=["i"]),  # pyright: ignore[reportArgumentType]
        "use from_arrays",
    ),
    "mixed pandas column": (
        lambda: Clients.from_frame(pd.DataFrame({"u": [1, 2], "i": ["a", 3]}), "u", ids=["i"]),
        "Give each column one type",
    ),
    "missing pandas column": (
        lambda: Clients.from_frame(pd.DataFrame(ONE), "user", ids=["i"]),
        "no column 'user' in the data; .*[Vv]alid: i, u",
    ),
}


@pytest.mark.parametrize("case", BAD_SHAPES)
def test_bad_shapes_and_options(case):
    build, words = BAD_SHAPES[case]
    with pytest.raises(DataError, match=words):
        build()


def test_the_first_bad_row_is_counted_in_the_table_as_given():
    frame = pl.DataFrame({"u": [9, 1, 9, 1], "i": [1, 2, None, None]})
    with pytest.raises(ColumnError, match="row 2, client 9"):
        Clients.from_frame(frame, "u", ids=["i"])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("absent.parquet", None, "There is no file .*absent.parquet"),
        ("t.xlsx", b"x", "ends in '.xlsx', expected .csv"),
        ("t.parquet", b"hello", "cannot be read as parquet.*damaged"),
        ("t.parquet", b"PAR1" + bytes(100) + b"PAR1", "cannot be read as parquet"),
        ("t.csv", b"", "cannot be read as csv.*empty"),
        ("t.csv", b"u,i\n1,2\n3,4,5\n", "cannot be read as csv"),
        ("t.csv", b"u,i\n", "no rows"),
        ("t.csv", b"u:i\n1:2\n", "no column 'u'.*u:i"),
        ("t.csv", b"u,i\n1,\n", "line 2, client 1: None is not an id"),
    ],
)
def test_bad_files(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        Clients.from_file(tmp_path / name, "u", ids=["i"])


def test_half_a_parquet_file_and_a_directory(tmp_path):
    pl.DataFrame({"u": range(1000), "i": range(1000)}).write_parquet(tmp_path / "t.parquet")
    content = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"t\.parquet cannot be read as parquet"):
        Clients.from_file(tmp_path / "t.parquet", "u", ids=["i"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"is a directory.*Clients\.open"):
        Clients.from_file(tmp_path / "empty", "u", ids=["i"])


BAD_OPTIONS = {
    "no ids": ({"ids": None}, "ids holds None, expected names of columns"),
    "number as id": ({"ids": [1]}, "ids holds 1, expected names"),
    "list as id": ({"ids": [["i"]]}, r"ids holds \['i'\], expected names"),
    "number as space": ({"ids": {1: ["i"]}}, "ids holds 1, expected names"),
    "number in a space": ({"ids": {"s": 3}}, r"ids\['s'\] holds 3"),
    "list as label": ({"label": ["i"]}, r"label is \['i'\], expected the name of one column"),
    "number as value": ({"values": [2]}, "values holds 2"),
    "number as padding": ({"padding": 2}, "padding holds 2"),
    "word for yes": ({"binary_label": "no"}, "binary_label is 'no', expected True or False"),
    "endless max_len": ({"max_len": 2**70}, "max_len is 1180"),
    "list as sizes": ({"sizes": [1]}, r"sizes is \[1\], expected the rows of each space"),
    "number as a key of sizes": ({"sizes": {3: 1}}, "sizes names 3, not a space"),
    "size past int64": ({"sizes": {"i": 2**70}}, r"sizes\['i'\] is 1180"),
    "negative size": ({"sizes": {"i": -1}}, r"sizes\['i'\] is -1"),
    "misspelt option": ({"lable": "i"}, "no option 'lable'; did you mean 'label'"),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_options_of_the_wrong_type(tmp_path, case):
    changes, words = BAD_OPTIONS[case]
    options = {"ids": ["i"]} | changes
    pl.DataFrame(ONE).write_csv(tmp_path / "one.csv")
    for build, source in (
        (Clients.from_arrays, ONE),
        (Clients.from_frame, pl.DataFrame(ONE)),
        (Clients.from_file, tmp_path / "one.csv"),
    ):
        with pytest.raises(DataError, match=words):
            build(source, "u", **options)


def test_none_means_no_values_and_no_padding():
    assert list(Clients.from_arrays(ONE, "u", ids=["i"], values=None, padding=None).columns) == ["i"]


def test_unsigned_offsets_work():
    assert Clients.from_arrays(ONE, offsets=np.array([0, 1, 2], np.uint64), ids=["i"]).sizes.tolist() == [1, 1]
    many = {"i": np.arange(200)}
    assert Clients.from_arrays(many, offsets=np.array([0, 100, 200], np.uint8), ids=["i"]).sizes.tolist() == [100, 100]


@pytest.mark.parametrize("path", ["x" * 5000 + ".csv", "a\0.csv", 3, None])
def test_paths_that_cannot_be(path):
    with pytest.raises(DataError, match="check the path"):
        Clients.from_file(path, "u", ids=["i"])


@pytest.mark.parametrize("column", [3, ["t"], None, "tt"])
@pytest.mark.parametrize("by", ["time", "last"])
def test_split_by_what_is_no_column(by, column):
    clients = Clients.from_arrays({**ONE, "t": [1, 2]}, [0, 0], ids=["i"], values=["t"])
    if (by, column) != ("last", None):
        with pytest.raises(DataError, match="column"):
            clients.split(by=by, column=column)


@pytest.mark.parametrize(("word", "problem"), [("x" * 50_000, "more than 1,000 char.*hash"), ("b\0", "NUL")])
def test_strings_that_numpy_cannot_hold(word, problem):
    for arrays in ({"u": [1, 1], "i": ["b", word]}, {"u": ["b", word], "i": [1, 2]}):
        with pytest.raises(ColumnError, match=f"row 1.*{problem}") as caught:
            Clients.from_arrays(arrays, "u", ids=["i"])
        assert len(str(caught.value)) < 400
    assert Clients.from_arrays({"i": ["b", "é" * 1000]}, [1, 1], ids=["i"]).size("i") == 2
