"""Data from elsewhere: Hugging Face and Arrow data sets, LEAF's JSON, torch data sets."""

from __future__ import annotations

import importlib
import json
import types
import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from fedsub.data import Clients
from fedsub.errors import ColumnError, DataError, DataNotice

ROWS = {"user": ["a", "b", "a"], "item": [7, 8, 9], "y": [1, 0, 0]}


def values(clients: Clients, column: str) -> list:
    return clients.column(column).values.tolist()


def rows(clients: Clients, column: str) -> list:
    """The ids of a column, sample by sample, as they were given."""
    space = clients.space_of(column)
    assert space.vocabulary is not None
    got = clients.gather(np.arange(clients.samples), [column], local=False)[column]
    return np.asarray(space.vocabulary)[got].tolist()


def test_arrow_data_sets():
    clients = Clients.from_frame(pyarrow.dataset.dataset(pa.table(ROWS)), "user", ids=["item"], label="y")
    assert clients.client_ids.tolist() == ["a", "b"]
    assert rows(clients, "item") == [7, 9, 8]
    assert values(clients, "y") == [1, 0, 0]


class Named:
    """What `datasets.Dataset` says of itself, where the library is not installed."""

    def __init__(self, table: pa.Table, names: dict[str, list[str]]):
        self.table, self.column_names = table, table.column_names
        labelled = {c: types.SimpleNamespace(names=n) for c, n in names.items()}
        self.features = dict.fromkeys(table.column_names) | labelled

    def __len__(self):
        return len(self.table)

    def select_columns(self, names):
        return Named(self.table.select(names), {})

    def with_format(self, kind):
        assert kind == "arrow"
        return self

    def __getitem__(self, which):
        return self.table


Named.__module__ = "datasets.arrow_dataset"


def hugging_face(table, labels):
    """A real data set where the library is there, else one that answers alike."""
    try:
        datasets: Any = importlib.import_module("datasets")
        datasets.Dataset  # tests/datasets, a folder of ours, answers to the name too  # noqa: B018
    except (ImportError, AttributeError):
        return Named(pa.table(table), labels)
    kinds = {"user": datasets.Value("string"), "item": datasets.Value("int64")}
    kinds |= {name: datasets.ClassLabel(names=names) for name, names in labels.items()}
    return datasets.Dataset.from_dict(table, features=datasets.Features(kinds))


def test_hugging_face_with_class_labels_in_their_order():
    data = hugging_face(ROWS, {"y": ["yes", "no"]})
    with pytest.warns(DataNotice, match="'yes' is 0, 'no' is 1"):
        clients = Clients.from_frame(data, "user", ids=["item"], label="y")
    assert values(clients, "y") == [1, 0, 0]  # the numbers of the data set, not the alphabet's
    assert clients.column("y").classes == ("yes", "no")
    assert values(Clients.from_frame(data, "user", ids=["item"], label="y==yes"), "y==yes") == [0, 1, 1]


def test_parts_and_streams_of_hugging_face_are_refused():
    parts = type("DatasetDict", (dict,), {"__module__": "datasets.dataset_dict"})(train=1, test=2)
    with pytest.raises(DataError, match=r"choose one part, as in data\['train'\]"):
        Clients.from_frame(parts, "user", ids=["item"])
    stream = type("IterableDataset", (), {"__module__": "datasets.iterable_dataset"})()
    with pytest.raises(DataError, match="without streaming=True"):
        Clients.from_frame(stream, "user", ids=["item"])


def leaf(folder, name: str, users: dict) -> None:
    content = {"users": list(users), "num_samples": [len(u["y"]) for u in users.values()], "user_data": users}
    (folder / name).write_text(json.dumps(content))


def test_leaf_folder(tmp_path):
    leaf(tmp_path, "a.json", {"f1": {"x": [[0.5, 1.0], [2.0, 3.0]], "y": [0, 1]}})
    leaf(tmp_path, "b.json", {"f0": {"x": [[4.0, 5.0]], "y": [1]}})
    clients = Clients.from_leaf(tmp_path)
    assert clients.client_ids.tolist() == ["f0", "f1"]
    assert clients.offsets.tolist() == [0, 1, 3]
    assert values(clients, "x") == [[4, 5], [0.5, 1], [2, 3]]
    assert values(clients, "y") == [1, 0, 1]
    assert Clients.from_leaf(tmp_path / "a.json", label="y>=1").label == "y>=1"


def test_leaf_texts(tmp_path):
    leaf(tmp_path, "s.json", {"ROMEO": {"x": ["abc", "ca"], "y": ["a", "b"]}, "JULIET": {"x": ["b"], "y": ["c"]}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        letters = Clients.from_leaf(tmp_path / "s.json", ids=["x"], text={"x": "characters"}, binary_label=False)
    assert np.asarray(letters.spaces["x"].vocabulary).tolist() == ["", "a", "b", "c"]
    assert rows(letters, "x") == [["b", "", ""], ["a", "b", "c"], ["c", "a", ""]]
    assert letters.column("y").classes == ("a", "b", "c")
    leaf(tmp_path, "t.json", {"u": {"x": [["1", "so  sad"], ["2", "happy so"]], "y": [0, 1]}})
    words = Clients.from_leaf(tmp_path / "t.json", ids={"word": ["x[1]"]}, text={"x[1]": "words"})
    assert rows(words, "x[1]") == [["so", "sad"], ["happy", "so"]]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1]", "is no LEAF file"),
        ("{", "cannot be read as JSON"),
        ('{"users": ["a", "b"], "user_data": {"a": {"x": [1], "y": [1]}}}', "names the user 'b'"),
        ('{"users": [3], "user_data": {"a": {"x": [1], "y": [1]}}}', "names the user 3"),
        ('{"user_data": {"a": {"x": [1, 2], "y": [1]}}}', "user 'a' has lists of 2 x, 1 y"),
        ('{"user_data": {"a": {"x": [1], "y": [1]}, "b": {"y": [1]}}}', "not every user has a list 'x'"),
        ('{"users": null, "user_data": {}}', "has no users"),
    ],
)
def test_damaged_leaf(tmp_path, content, said):
    (tmp_path / "d.json").write_text(content)
    with pytest.raises(DataError, match=said):
        Clients.from_leaf(tmp_path / "d.json")


def test_a_leaf_user_in_two_files(tmp_path):
    for name in ("a.json", "b.json"):
        leaf(tmp_path, name, {"u": {"x": [[1.0]], "y": [1]}})
    with pytest.raises(DataError, match=r"User 'u' is in a\.json and in b\.json"):
        Clients.from_leaf(tmp_path)


class Samples(Dataset):
    """Dicts whose lists differ in length."""

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return {"words": torch.arange(i + 1), "image": torch.full((2, 2), float(i)), "y": i % 2}


def test_torch_data_sets():
    x, y = torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 1])
    whole = TensorDataset(x, y)
    clients = Clients.from_torch({"ann": Subset(whole, [2, 0]), "bob": Subset(whole, [1])})
    assert clients.client_ids.tolist() == ["ann", "bob"]
    assert values(clients, "x") == [[4, 5], [0, 1], [2, 3]]
    assert values(clients, "y") == [1, 0, 1]
    one_by_one = Clients.from_torch([[whole[2], whole[0]], [whole[1]]])  # lists are data sets, too
    assert values(one_by_one, "x") == values(clients, "x")
    dicts = Clients.from_torch([Samples()], ids=["words"], values=["image"])
    assert rows(dicts, "words") == [[0, 0, 0], [0, 1, 0], [0, 1, 2]]  # a list's padding is shown by the row of 0
    assert values(dicts, "image") == [[0] * 4, [1] * 4, [2] * 4]
    ids = TensorDataset(torch.tensor([30, 10]), x[:2], y[:2])
    told = {"names": ("item", "f", "y"), "ids": ["item"], "values": ["f"]}
    named = Clients.from_torch([ids], **told, vocabulary={"item": [10, 20]}, grow=True)
    assert rows(named, "item") == [30, 10]
    assert named.size("item") == 3


@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        (TensorDataset(torch.zeros(1)), {}, "a data set for each client"),
        ({}, {}, "no client"),
        ([TensorDataset(torch.zeros(2, 1), torch.zeros(2), torch.zeros(2))], {}, r"has 3 parts, and names are x, y"),
        ([TensorDataset(torch.zeros(0, 1), torch.zeros(0))], {}, "is empty"),
        ([[(torch.zeros(2), 0), (torch.zeros(3), 1)]], {}, "'x' holds lists"),
        ({1: [(0.0, 0)], "a": [(0.0, 0)]}, {}, "name them all by text"),
        ([[(0.0, 0)]], {"label": "z"}, "have no 'z'"),
        ([[(0.0, 0)]], {"idss": ["x"]}, "no option 'idss'; did you mean 'ids'"),
    ],
)
def test_torch_data_sets_that_cannot_be(data, options, said):
    with pytest.raises((DataError, ColumnError), match=said):
        Clients.from_torch(data, **options)
