"""Files as they come: labels by comparison or name, missing entries, separators, encodings, all that is wrong."""

from __future__ import annotations

import gzip
import warnings

import numpy as np
import polars as pl
import pytest

from fedsub.data import Clients
from fedsub.errors import ColumnError, DataError, DataNotice

RATINGS = "user,item,rating,price\nann,a,5,1.5\nann,b,3,2\nbob,a,4,0\nbob,c,1,7\n"


def write(tmp_path, content: str | bytes, name: str = "r.csv"):
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return tmp_path / name


def quietly(*arguments, **options) -> Clients:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        return Clients.from_file(*arguments, **options)


def label_of(clients: Clients) -> list[float]:
    return clients.column(clients.label or "").values.tolist()


def words(clients: Clients, space: str) -> list:
    return np.asarray(clients.spaces[space].vocabulary).tolist()


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("rating>=4", [1, 0, 1, 0]),
        (" rating > 4 ", [1, 0, 0, 0]),
        ("rating<=3", [0, 1, 0, 1]),
        ("rating < 3.5", [0, 1, 0, 1]),
        ("rating==1", [0, 0, 0, 1]),
        ("rating!=1", [1, 1, 1, 0]),
        ("item==a", [1, 0, 1, 0]),
        ("item!='c'", [1, 1, 1, 0]),
    ],
)
def test_a_comparison_as_label(tmp_path, label, expected):
    clients = Clients.from_file(write(tmp_path, RATINGS), "user", ids=["item"], label=label, values=["rating"])
    assert label_of(clients) == expected
    assert clients.label == label.replace(" ", "").replace("'", "")
    assert clients.column("rating").values.tolist() == [5, 3, 4, 1]  # the column itself is still there


def test_a_column_with_the_name_of_a_comparison_comes_first():
    clients = Clients.from_arrays({"u": [1, 2], "i": [1, 2], "r>=4": [0, 1], "r": [5, 5]}, "u", ids=["i"], label="r>=4")
    assert label_of(clients) == [0, 1]


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("rating=4", "write two signs, rating==4"),
        ("ratng>=4", "no column 'ratng' .*did you mean 'rating'"),
        ("rating>=", "expected a column, one comparison and a value"),
        ("1<rating<4", "expected a column, one comparison and a value"),
        ("rating>=four", "'four' is no number"),
        ("item==z", "no row of 'item' is 'z'; it holds 'a', 'b', 'c'"),
        ("rating=='good'", "compares with the text 'good', but column 'rating' holds Int64"),
        ("__import__('os').getcwd()", "no column"),
    ],
)
def test_comparisons_that_cannot_be(tmp_path, label, said):
    with pytest.raises(DataError, match=said):
        Clients.from_file(write(tmp_path, RATINGS), "user", ids=["item"], label=label)


def test_names_as_labels(tmp_path):
    file = write(tmp_path, "u,i,y\n1,a,spam\n1,b,ham\n2,c,ham\n")
    with pytest.warns(DataNotice, match="'ham' is 0, 'spam' is 1"):
        clients = Clients.from_file(file, "u", ids=["i"], label="y")
    assert label_of(clients) == [1, 0, 0]
    clients.save(tmp_path / "saved")
    train, _ = Clients.open(tmp_path / "saved").split(0.5, by="ending")
    assert train.column("y").classes == ("ham", "spam")
    three = write(tmp_path, "u,i,y\n1,a,red\n1,b,blue\n2,c,green\n", "three.csv")
    assert label_of(quietly(three, "u", ids=["i"], label="y", binary_label=False)) == [2, 0, 1]


GAPS = "user,item,rating\nann,a,5\nann,,3\n,b,1\nbob,a,NA\nbob,c,1\n"


def test_missing_entries(tmp_path):
    file = write(tmp_path, GAPS)
    with pytest.raises(ColumnError) as refused:
        Clients.from_file(file, "user", ids=["item"], label="rating>=4")
    said = str(refused.value)
    assert "3 problems" in said
    assert "Client column 'user', line 4" in said
    assert "'item', line 3, client 'ann'" in said
    assert "'rating>=4', line 5, client 'bob'" in said
    with pytest.warns(
        DataNotice, match="Dropped 3 of 5 rows .* 1 without 'user', 1 without 'item', 1 without 'rating>=4'"
    ):
        clients = Clients.from_file(file, "user", ids=["item"], label="rating>=4", nulls="drop")
    assert clients.samples == 2
    assert label_of(clients) == [1, 0]
    whole = write(tmp_path, "user,item,n\nann,a,1\nann,,\nbob,,3\n", "own.csv")
    for column, missing in (("item", "(missing)"), ("n", -(2**63))):
        with pytest.warns(DataNotice, match="missing ids of"):
            clients = Clients.from_file(whole, "user", ids=[column], nulls="own")
        assert missing in words(clients, column)
        assert clients.samples == 3
    with pytest.raises(ColumnError, match="line 3, client 'ann': None is missing, expected a number"):
        quietly(whole, "user", ids=["item"], values=["n"], nulls="own")
    with pytest.raises(DataError, match="nulls='drop' leaves no row of 2: 2 without 'i'"):
        Clients.from_arrays({"i": [None, None]}, [0, 1], ids=["i"], nulls="drop")
    with pytest.raises(DataError, match="did you mean 'drop'"):
        Clients.from_file(file, "user", ids=["item"], nulls="dropp")


def test_missing_entries_in_lists():
    lists = {"i": [[1, None], [2], None]}
    with pytest.warns(DataNotice, match="Dropped 2 of 3 rows"):
        clients = Clients.from_arrays(lists, [0, 0, 1], ids=["i"], nulls="drop")
    assert clients.samples == 1


@pytest.mark.parametrize("separator", [";", "\t", "|", ","])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_separators_and_encodings_are_guessed(tmp_path, separator, encoding):
    text = '"user";"item";"rating"\nänn;"a b";5\nbob;b;1\n'.replace(";", separator)
    clients = Clients.from_file(write(tmp_path, text.encode(encoding)), "user", ids=["item"], label="rating>=4")
    assert clients.client_ids.tolist() == ["bob", "änn"]
    assert label_of(clients) == [0, 1]
    assert words(clients, "item") == ["a b", "b"]


def test_a_packed_file_and_a_decimal_comma(tmp_path):
    file = write(tmp_path, gzip.compress(b"user;item;price\n1;a;1,5\n2;b;12\n"), "r.csv.gz")
    clients = Clients.from_file(file, "user", ids=["item"], values=["price"])
    assert clients.column("price").values.tolist() == [1.5, 12]


def test_times_as_text_can_order(tmp_path):
    file = write(tmp_path, "u,i,t\n1,a,2020-01-03 10:00\n1,b,2020-01-01\n1,c,2020-01-02\n")
    _, test = Clients.from_file(file, "u", ids=["i"], values=["t"]).split(by="last", column="t")
    kept = test.gather(np.arange(1), ["i"], local=False)["i"]
    assert [words(test, "i")[row] for row in kept] == ["a"]


def test_an_encoding_that_is_not_clear_is_asked_for(tmp_path):
    file = write(tmp_path, "user,item\nann,a\nbob,café\n".encode("cp1252"))
    with pytest.raises(DataError, match=r"line 3 cannot be read in the encoding utf-8.*--encoding cp1252"):
        Clients.from_file(file, "user", ids=["item"])
    clients = Clients.from_file(file, "user", ids=["item"], encoding="cp1252")
    assert words(clients, "item") == ["a", "café"]
    with pytest.raises(DataError, match="encoding is 'klingon'"):
        Clients.from_file(file, "user", ids=["item"], encoding="klingon")
    with pytest.raises(DataError, match="separator is ';;'"):
        Clients.from_file(file, "user", ids=["item"], separator=";;")
    both = write(tmp_path, "a;b|c\n1;2|3\n", "both.csv")
    with pytest.raises(DataError, match="semicolons or bars; say which"):
        Clients.from_file(both, "a", ids=["b"])
    assert Clients.from_file(both, "a", ids=["b|c"], separator=";").samples == 1


def test_a_name_twice_in_the_header_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"'item' stands twice in the header \(columns 2, 4\)"):
        Clients.from_file(write(tmp_path, "user,item,y,item\n1,a,0,b\n"), "user", ids=["item"], label="y")


def test_all_problems_at_once_by_line(tmp_path):
    text = 'user,item,rating,price\nann,"a\nb",5,1\nann,,3,cheap\nbob,a,x,2\nbob,c,1,7,9\n,d,2,8\n'
    with pytest.raises(DataError) as refused:
        Clients.from_file(write(tmp_path, text), "user", ids=["item"], label="rating>=4", values=["price"])
    said = str(refused.value)
    assert "line 6 has 5 fields, the header has 4" in said
    assert "Client column 'user', line 7: None" in said
    assert "Column 'item', line 4" in said
    assert "Column 'rating', line 5, client 'bob': 'x' is not a number" in said
    assert "Column 'price', line 4, client 'ann': 'cheap' is not a number" in said
    many = "u,i\n" + "1,\n" * 20
    with pytest.raises(ColumnError, match=r"line 2, .*\(also lines 3, 4, 5, 6, 7 and 14 more\)"):
        Clients.from_file(write(tmp_path, many), "u", ids=["i"])
    with pytest.raises(ColumnError, match=r"(?s)no column 'x'.*no column 'z'"):
        Clients.from_file(write(tmp_path, RATINGS), "user", ids=["x"], label="z")


def test_a_name_that_is_no_unicode():
    with pytest.raises(DataError, match=r"'\\ud800', which is not valid Unicode"):
        Clients.from_arrays({"a": [1]}, [0], ids=["\ud800"])
    with pytest.raises(DataError, match="not valid Unicode"):
        Clients.from_frame(pl.DataFrame({"a": [1], "u": [1]}), "\ud800", ids=["a"])


def test_a_column_that_only_splits_is_no_feature():
    """Fed to the model, a time in seconds gave a cross-entropy of 5e15."""
    from fedsub.objective.models import make_objective

    def features(part: Clients) -> list[str]:
        return [c for c in ("t", "x") if c in make_objective(part, "lr").module.value_names]  # type: ignore[operator]

    data = {"u": [0, 0, 1, 1], "i": [1, 2, 1, 2], "y": [0, 1, 1, 0], "t": [1_600_000_000 + k for k in range(4)]}
    clients = Clients.from_arrays({**data, "x": [0.1, 0.2, 0.3, 0.4]}, "u", ids=["i"], label="y", values=["t", "x"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for by in ("time", "last", "ending"):
            for part in clients.split(0.5, by=by, column="t"):
                assert features(part) == ["x"]
    part, _ = clients.split(0.5, by="time", column="t", feature=True)
    with pytest.warns(DataNotice, match=r"feature 't' has values up to 1\.6e\+09, as a time has them"):
        assert features(part) == ["t", "x"]
    large = Clients.from_arrays({**data, "x": [1e20, 0, 0, 0]}, "u", ids=["i"], label="y", values=["x"])
    with pytest.warns(DataNotice, match=r"feature 'x' has values up to 1e\+20: gradient steps on it will explode"):
        make_objective(large, "embedding")


def test_numbers_as_labels_are_learned_by_the_squared_error():
    from fedsub import losses, methods, run
    from fedsub.errors import ObjectiveError
    from fedsub.objective.models import make_objective
    from fedsub.objective.problem import Problem

    data = {"u": [0, 0, 1, 1], "item": [1, 2, 1, 2], "y": [1.0, 5.0, 2.0, 4.5]}
    clients = Clients.from_arrays(data, "u", ids=["item"], label="y", binary_label=False)
    for kind in ("lr", "embedding", "user-item"):
        assert make_objective(clients, kind).loss == losses.squared("y")
    result = run(methods.fedavg(lr=0.3, clients_per_round=2), make_objective(clients, "lr"), clients, rounds=30)
    assert result.history[0]["train.loss"] == pytest.approx(0.5 * (1 + 25 + 4 + 4.5**2) / 4)  # from 0
    best = 0.5 * (0.5**2 + 0.25**2 + 0.5**2 + 0.25**2) / 4  # an item's mean: 1.5 and 4.75
    assert result.history[-1]["train.loss"] == pytest.approx(best, rel=0.05)
    with pytest.raises(ObjectiveError, match="needs labels 0 and 1, but column 'y' holds"):
        Problem.bind(make_objective(clients, "lr", loss="binary"), clients)


def test_what_is_worth_knowing(tmp_path):
    def told(text: str, **options) -> list[str]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            Clients.from_file(write(tmp_path, text), "u", ids=["i"], **options)
        return [str(w.message) for w in seen]

    assert told("u,i,y\n1,a,0\n1,b,1\n", label="y") == []
    (twice,) = told("u,i,y\n1,a,0\n2,a,0\n1,b,1\n1,a,0\n1,a,0\n", label="y")
    assert twice.startswith("2 of 5 rows are equal to an earlier row of the same client")
    assert "(the first: line 5)" in twice
    (constant,) = told("u,i,r\n1,a,2\n1,b,1\n", label="r>=4")
    assert constant.startswith("Label 'r>=4' is 0 in all 2 rows")
    (large,) = told("u,i\n1,3\n1,4\n", sizes={"i": 5_000})
    assert "has 5,000 rows, and the data know 2 of them" in large
    (blank,) = told("u,i,y\n\n1,a,0\n1,b,1\n\n", label="y")
    assert blank == "Left out 2 lines with nothing in the columns that are read."


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"u;i\r1;2\r", "carriage returns alone"),
        (b"PK\x03\x04 and more", "is an Excel or zip file"),
        (b"u,i,y\n1,a,0,9\n", "line 2 has 4 fields, the header has 3"),
        (b'u,i,y\n1,a"b,0\n', r'quote \("\) stands within a text in line 2'),
        (b"1,a,0\n2,b,1\n", "The first line of the file names the columns: '1,a,0'"),
        (b"u::i::y\n1::2::0\n", "one column: is the separator right"),
        (b"u,i,y\n", "r.csv: The data has no rows"),
        (b"u,i\x00,y\n1,2,3\n", "is no text"),
    ],
)
def test_files_that_cannot_be_read_as_they_are(tmp_path, content, said):
    with pytest.raises(DataError, match=said):
        Clients.from_file(write(tmp_path, content), "u", ids=["i"])


def test_a_comma_may_mean_thousands(tmp_path):
    file = write(tmp_path, 'u,i,p\n1,a,"1,000"\n1,b,2\n')
    with pytest.raises(ColumnError, match="line 2, client 1: '1,000' may mean thousands or a fraction"):
        Clients.from_file(file, "u", ids=["i"], values=["p"])
    file = write(tmp_path, "u;i;p\n1;a;1,250\n1;b;0,125\n")  # no thousand begins with 0
    assert Clients.from_file(file, "u", ids=["i"], values=["p"]).column("p").values.tolist() == [1.25, 0.125]


def test_what_is_read_without_being_asked(tmp_path):
    header = write(tmp_path, 'u, "i" ,y\n1,a,1\n1,b,0\n')
    assert Clients.from_file(header, "u", ids=["i"], label="y").samples == 2
    unmarked = write(tmp_path, "u;i;y\n1;a;1\n1;b;0\n".encode("utf-16-le"))
    assert Clients.from_file(unmarked, "u", ids=["i"], label="y").samples == 2
    packed = write(tmp_path, gzip.compress(b"u;i;y\n1;a;1\n1;b;0\n"))  # whatever the name says
    assert Clients.from_file(packed, "u", ids=["i"], label="y").samples == 2
    with pytest.raises(DataError, match="the other way round, y>=1"):
        Clients.from_file(packed, "u", ids=["i"], label="y=>1")
