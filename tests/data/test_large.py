"""Data larger than memory: whatever the budget, files and workers, the very bytes that reading in memory writes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from large import TINY, outcome, same, to, written

from fedsub.data import Clients
from fedsub.data.large import parts
from fedsub.data.large.budget import Budget, bytes_of
from fedsub.errors import DataError

WORDS = st.text("abcXYZ0é", min_size=0, max_size=3)
IDS = {
    "words": (WORDS, pl.String),
    "integers": (st.integers(-(2**62), 2**62), pl.Int64),
    "small": (st.integers(-3, 5), pl.Int32),
    "whole": (st.integers(-9, 9).map(float), pl.Float64),
}
VALUES = {
    "number": (st.floats(-5, 5, width=32), pl.Float32),
    "integer": (st.integers(-(2**62), 2**62), pl.Int64),
    "fractions": (st.sampled_from(["1.5", " 2", "3e1", "7"]), pl.String),
    "commas": (st.sampled_from(["1,5", "2", "-0,25"]), pl.String),
    "times": (st.sampled_from(["2020-12-31 10:00", "2021-01-01 11:30"]), pl.String),
    "mixed": (st.sampled_from(["2", "x"]), pl.String),
}
LABELS = {
    "binary": (st.integers(0, 1), pl.Int8, "y", {}),
    "rule": (st.integers(1, 5), pl.Int64, "y>=4", {}),
    "text rule": (st.sampled_from(["1", "2,5", "4"]), pl.String, "y>2", {}),
    "names": (st.sampled_from(["ham", "spam", " ham"]), pl.String, "y", {}),
    "word rule": (st.sampled_from(["ham", "spam", "eggs"]), pl.String, "y==spam", {}),
    "number": (st.floats(-5, 5), pl.Float64, "y", {"binary_label": False}),
    "not binary": (st.floats(-5, 5), pl.Float64, "y", {}),
    "classes": (st.sampled_from(["a", "b", "c"]), pl.Categorical, "y", {"binary_label": False}),
}


@st.composite
def tables(draw):
    """Samples with ids of every shape, a label, plain values, perhaps gaps, as a frame and options to read it."""
    n = draw(st.integers(1, 40))
    ids, kind = IDS[draw(st.sampled_from(sorted(IDS)))]
    owners, owner = IDS[draw(st.sampled_from(["words", "integers", "small"]))]
    value, value_kind = VALUES[draw(st.sampled_from(sorted(VALUES)))]
    label, label_kind, said, more = LABELS[draw(st.sampled_from(sorted(LABELS)))]
    gaps = draw(st.sampled_from([0, 0, 8]))

    def column(entries, name):
        some = entries if not gaps or name == "history" else st.one_of(*[entries] * gaps, st.none())
        return draw(st.lists(some, min_size=n, max_size=n))

    lists = draw(st.booleans())
    history = draw(st.lists(st.lists(ids, max_size=4), min_size=n, max_size=n))
    frame = {
        "user": pl.Series(column(owners, "user"), dtype=owner),
        "item": pl.Series(column(ids, "item"), dtype=kind),
        "pair": pl.Series(draw(st.lists(st.tuples(ids, ids), min_size=n, max_size=n)), dtype=pl.Array(kind, 2)),
        "history": pl.Series(history, dtype=pl.List(kind)),
        "row": pl.Series(column(st.integers(0, 9), "row"), dtype=pl.Int64),
        "y": pl.Series(column(label, "y"), dtype=label_kind),
        "value": pl.Series(column(value, "value"), dtype=value_kind),
    }
    spaces = {"thing": ["item", "pair", "history"] if lists else ["item", "pair"], "row": ["row"]}
    options = {"ids": spaces, "label": said, "values": draw(st.sampled_from([["value"], []])), **more}
    options["nulls"] = draw(st.sampled_from(["refuse", "drop", "own"]))
    options["max_len"] = draw(st.sampled_from([None, 2]))
    options["sizes"] = draw(st.sampled_from([None, {"row": 5000}, {"row": 8}, {"row": 10}]))
    options["padding"] = draw(st.sampled_from([[], ["row"], ["thing"]]))
    cuts = draw(st.lists(st.integers(0, n), max_size=3))
    pieces = st.builds(Budget, st.integers(1, 20), st.integers(1, 2000), st.integers(1, 2000), st.integers(1, 3))
    return pl.DataFrame(frame), options, cuts, draw(pieces)


# To shrink a table of seven columns takes minutes, and the message of the assertion says what differs.
@settings(deadline=None, max_examples=40, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(tables())
def test_the_same_bytes_errors_and_notices(table):
    frame, options, cuts, budget = table
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        same(written(frame, where / "data", cuts), where, "user", budget, **options)


def clicks(n: int = 300, seed: int = 0) -> pl.DataFrame:
    draw = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "user": [f"u{i}" for i in draw.integers(0, 30, n)],
            "item": draw.integers(0, 60, n) * 1_000_003,
            "history": [draw.integers(0, 60, k).tolist() for k in draw.integers(0, 5, n)],
            "price": draw.random(n),
            "y": draw.integers(0, 2, n),
        }
    )


READ: dict[str, Any] = {
    "ids": {"item": ["item"], "h": ["history"], "user": ["user"]},
    "label": "y",
    "values": ["price"],
}


def test_it_really_spills(tmp_path, monkeypatch):
    """Many runs, many parts, many blocks of a vocabulary: none of the cases above fits at once."""
    seen = []
    gather = parts.Parts.gather
    monkeypatch.setattr(parts.Parts, "gather", lambda self, part: seen.append(part) or gather(self, part))
    found = same(written(clicks(), tmp_path / "data", [90, 91, 200]), tmp_path, "user", **READ)
    assert not found.error
    assert len(seen) > 20


def test_a_client_larger_than_a_part(tmp_path):
    frame = clicks().with_columns(user=pl.lit("all"))
    found = same(written(frame, tmp_path / "data", [10]), tmp_path, "user", Budget(7, 50, 50, 2), **READ)
    assert found.manifest["clients"] == 1


def test_text_files_one_and_several(tmp_path):
    frame = clicks().drop("history")
    (tmp_path / "log").mkdir()
    for i in range(3):
        lines = frame[i * 100 : (i + 1) * 100].write_csv()
        (tmp_path / "log" / f"{i}.csv").write_text(lines.replace("\n", "\n,,,\n", 2))
    options: dict[str, Any] = {"ids": ["item"], "label": "y", "values": ["price"]}
    found = same(tmp_path / "log", tmp_path, "user", **options)
    assert found.told[0].startswith("Left out 6 lines")
    (tmp_path / "one").mkdir()
    same(tmp_path / "log" / "1.csv", tmp_path / "one", "user", **options)


def test_types_of_text_files_are_those_of_all(tmp_path):
    """An id that is a number in one file and text in another is text; 1 and 0.5 are both numbers."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "a.csv").write_text("user,item,price\n1,7,1\n2,8,2\n")
    (tmp_path / "log" / "b.csv").write_text("user,item,price\n1,7a,0.5\n")
    same(tmp_path / "log", tmp_path, "user", ids=["item"], values=["price"])
    clients = Clients.from_file(tmp_path / "log", "user", ids=["item"], values=["price"])
    vocabulary = clients.spaces["item"].vocabulary
    assert vocabulary is not None
    assert vocabulary.tolist() == ["7", "7a", "8"]
    assert clients.column("price").values.tolist() == [1.0, 0.5, 2.0]


def test_frames_of_every_kind(tmp_path):
    pa = pytest.importorskip("pyarrow")
    dataset = pytest.importorskip("pyarrow.dataset")
    frame = clicks()
    whole = outcome(lambda _: Clients.from_frame(frame, "user", **READ), tmp_path / "memory.fedsub")
    kinds = {
        "polars": frame, "lazy": frame.lazy(), "pandas": frame.to_pandas(), "arrow": frame.to_arrow(),
        "dataset": dataset.dataset(pa.table(frame.to_arrow())),
    }  # fmt: skip
    for name, one in kinds.items():
        found = outcome(
            lambda folder, one=one: Clients.from_frame(one, "user", to=folder, memory="4GB", **READ),
            tmp_path / f"{name}.fedsub",
        )
        assert found.files == whole.files, name
        assert found.manifest == whole.manifest, name


def test_leaf_file_by_file(tmp_path):
    import json

    draw = np.random.default_rng(3)
    (tmp_path / "leaf").mkdir()
    for part in range(3):
        users = {
            f"user{part}{i}": {"x": draw.integers(0, 9, (n, 2)).tolist(), "y": draw.integers(0, 2, n).tolist()}
            for i, n in enumerate(draw.integers(1, 6, 4))
        }
        content = {"users": list(users), "user_data": users}
        (tmp_path / "leaf" / f"{part}.json").write_text(json.dumps(content))
    cases: list[dict[str, Any]] = [{}, {"ids": ["x[0]"], "values": ["x[1]"]}, {"label": "y>=1"}]
    for options in cases:
        name = str(len(options))
        there = outcome(lambda _, o=options: Clients.from_leaf(tmp_path / "leaf", **o), tmp_path / f"m{name}.fedsub")
        here = outcome(
            lambda folder, o=options: Clients.from_leaf(tmp_path / "leaf", to=folder, memory="4GB", **o),
            tmp_path / f"l{name}.fedsub",
        )
        assert not there.error
        assert (here.files, here.told, here.error) == (there.files, there.told, there.error)


def test_files_of_an_object_store(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    written(clicks(), tmp_path / "data", [100])
    store = fsspec.filesystem("memory")
    store.put(str(tmp_path / "data"), "/log", recursive=True)
    there = same(tmp_path / "data", tmp_path, "user", **READ)
    for address in ("memory://log", "memory://log/*.parquet"):
        found = outcome(
            lambda folder, a=address: Clients.from_file(a, "user", to=folder, memory="4GB", **READ),
            tmp_path / f"{len(address)}.fedsub",
        )
        assert found.files == there.files
        assert Clients.from_file(address, "user", **READ).fingerprint == there.manifest["fingerprint"]
    with pytest.raises(DataError, match=r"memory://nothing\.parquet.*check the address"):
        Clients.from_file("memory://nothing.parquet", "user", **READ)
    with pytest.raises(DataError, match=r"strange://x\.parquet cannot be read"):
        Clients.from_file("strange://x.parquet", "user", **READ)


def test_statistics_and_heat_are_kept_with_the_data(tmp_path):
    from fedsub.data.heat import kept, summarise
    from fedsub.data.store import provenance

    written(clicks(), tmp_path / "data", [100])
    clients = Clients.from_file(tmp_path / "data", "user", to=tmp_path / "out.fedsub", memory="4GB", **READ)
    made = provenance(tmp_path / "out.fedsub") or {}
    assert made["statistics"]["samples_per_client"]["max"] == clients.sizes.max()
    assert kept(made) == summarise(clients)
    assert made["options"]["client"] == "user"


def test_heat_that_nobody_has_is_kept_too(tmp_path):
    """Lists that are all empty: ratios are no numbers, which JSON does not have."""
    from fedsub.data.heat import kept
    from fedsub.data.store import provenance

    frame = pl.DataFrame({"user": [1, 2], "h": pl.Series([[], []], dtype=pl.List(pl.Int64))})
    Clients.from_frame(frame, "user", ids=["h"], to=tmp_path / "out.fedsub", memory="4GB")
    found = kept(provenance(tmp_path / "out.fedsub") or {})
    assert found is not None
    assert np.isnan(found.overall.dispersion)


def test_sizes_in_words():
    assert bytes_of("2GB") == bytes_of("2 gb") == 2_000_000_000
    assert bytes_of("512MiB") == 512 << 20
    assert bytes_of("1.5K") == 1500
    assert bytes_of(7) == 7
    for bad in ("much", "-1GB", "0", 0, 1.5, None, "3XB"):
        with pytest.raises(DataError, match="expected bytes or a text"):
            bytes_of(bad)


def test_too_little_memory_is_said_before_anything_is_read(tmp_path):
    written(clicks(), tmp_path / "data", [])
    with pytest.raises(DataError, match=r"memory is 50 MB, and the process holds .* already; give it at least"):
        Clients.from_file(tmp_path / "data", "user", to=tmp_path / "out", memory="50MB", **READ)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_progress_ends_where_it_should(tmp_path):
    seen = []
    written(clicks(), tmp_path / "data", [100])
    from fedsub.data.ingest import from_file

    from_file(tmp_path / "data", "user", to=to(tmp_path / "o", TINY, progress=lambda *told: seen.append(told)), **READ)
    assert ("read", 300, 300) in seen
    assert ("write", 300, 300) in seen
    assert seen[-1] == ("finish", 1, 1)
    assert [told[0] for told in seen] == sorted([t[0] for t in seen], key=["read", "number", "write", "finish"].index)
