"""Scores of new samples: those of the formula, for every way to name a run, with ids that training never saw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from shop import CLIENTS, FRAME, by_hand, train
from torch import nn

import fedsub as fs
from fedsub.errors import CheckpointError, ColumnError, ConfigError, DataError, ObjectiveError

NEW = pl.DataFrame(
    {
        "item": ["sku-3", "new", "sku-7", None],
        "genre": [103, 103, 999, 101],
        "age": [0.5, -1.0, None, 2.0],
        "x": list("abcd"),
    }
)


def scores(predicted: fs.Predicted, name: str = "score") -> np.ndarray:
    return predicted.frame[name].to_numpy()


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> fs.Result:
    return train(tmp_path_factory.mktemp("runs") / "a")


def test_scores_are_those_of_the_formula(kept: fs.Result, tmp_path: Path):
    FRAME.drop("liked").write_csv(tmp_path / "rows.csv")
    FRAME.write_parquet(tmp_path / "rows.parquet")
    expected = by_hand(kept, FRAME)
    assert kept.path is not None
    for run in (kept, kept.path, str(kept.path), fs.load(kept.path), train()):
        assert np.allclose(scores(fs.predict(run, FRAME)), expected, atol=1e-6)
    for data in (tmp_path / "rows.csv", tmp_path / "rows.parquet", FRAME.to_pandas(), FRAME.to_dict(as_series=False)):
        found = fs.predict(kept, data)
        assert np.allclose(scores(found), expected, atol=1e-6)
        assert np.allclose(scores(found, "probability"), 1 / (1 + np.exp(-expected)), atol=1e-6)
        assert found.frame.columns[-2:] == ["score", "probability"]
        assert (found.unknown, found.incomplete, found.without) == ({}, {}, 0)


def test_scores_are_those_of_the_module(kept: fs.Result):
    batch = CLIENTS.gather(np.arange(CLIENTS.samples), local=False)
    with torch.no_grad():
        said = kept.module()({name: torch.from_numpy(a) for name, a in batch.items()})
    in_order = FRAME.sort("user", maintain_order=True)
    assert CLIENTS.client_ids.tolist() == sorted(set(FRAME["user"]))
    assert np.allclose(scores(fs.predict(kept, in_order)), said.numpy(), atol=1e-6)


def test_ids_that_training_never_saw_count_as_zero_and_are_counted(kept: fs.Result):
    found = fs.predict(kept, NEW)
    rows = NEW.head(2)
    assert np.allclose(scores(found)[:2], by_hand(kept, rows), atol=1e-6)
    assert found.frame["score"].to_list()[2:] == [None, None]  # no age, no item
    assert found.unknown == {"item": 1, "genre": 1}
    assert found.incomplete == {"item": 1, "age": 1}
    assert found.without == 2
    assert "2 of 4 rows have no score." in found.sentences()
    assert found.frame.drop("score", "probability").equals(NEW)


def test_ids_that_training_never_saw_left_empty_or_refused(kept: fs.Result):
    found = fs.predict(kept, NEW, unknown="empty")
    assert [v is None for v in found.frame["score"]] == [False, True, True, True]
    assert found.incomplete == {"item": 1, "age": 1}
    with pytest.raises(DataError, match=r"1 ids of 'item' were not in training, such as 'new' in row 1"):
        fs.predict(kept, NEW, unknown="refuse")


def test_personal_models_score_with_the_clients_own_parameters(tmp_path: Path):
    result = train(tmp_path / "run", own_bias=True, personal=["own.*"])
    bias = {u: float(fs.load(tmp_path / "run").personal.params(u)["own.bias"]) for u in CLIENTS.client_ids.tolist()}  # type: ignore[union-attr]
    assert len(set(bias.values())) > 1
    stranger = FRAME.head(3).with_columns(user=pl.lit("nobody"))
    shared = float(result.params["own.bias"])
    expected = by_hand(result, FRAME) + [bias[u] for u in FRAME["user"]]
    for run in (result, tmp_path / "run", train(own_bias=True, personal=["own.*"])):
        found = fs.predict(run, pl.concat([FRAME, stranger]))
        assert np.allclose(scores(found), np.r_[expected, by_hand(result, stranger) + shared], atol=1e-5)
        assert found.new_clients == 1


def test_personal_rows_and_mixtures(tmp_path: Path):
    """Every client's module, read back, says the same."""
    clients = fs.Clients.from_frame(FRAME, "user", ids=["item", "genre"], label="liked", values=["age"])
    objective = fs.models.make_objective(clients, "lr", bias=True)
    objective = fs.Objective(objective.module, objective.loss, objective.tables, l2=0.1)
    methods = {
        "rows": fs.methods.fedsubavg(lr=0.5, clients_per_round=6, personal=["*weight"]),
        "mixture": fs.methods.l2gd(lam=1.0),
    }
    for name, method in methods.items():
        fs.run(method, objective, clients, rounds=3, out=tmp_path / name)
        trained, found = fs.load(tmp_path / name), fs.predict(tmp_path / name, FRAME, module=objective)
        for user in ("u0", "u7"):
            mine = FRAME.with_row_index("at").filter(pl.col("user") == user)
            own = fs.Clients.from_frame(mine, "user", ids=["item", "genre"], values=["age"], vocabulary=clients)
            batch = own.gather(np.arange(own.samples), local=False)
            with torch.no_grad():
                said = trained.module(objective, client=user)({n: torch.from_numpy(a) for n, a in batch.items()})
            assert np.allclose(scores(found)[mine["at"].to_numpy()], said.numpy(), atol=1e-6), name


class Classes(nn.Module):
    def __init__(self, items: int, outputs: int = 3):
        super().__init__()
        self.items = nn.Embedding(items, outputs)

    def forward(self, item):
        return self.items(item)


def test_classes_by_their_names():
    words = ["bad", "fair", "good"]
    rows = FRAME.select("user", "item").with_columns(rating=pl.Series([words[k % 3] for k in range(len(FRAME))]))
    clients = fs.Clients.from_frame(rows, "user", ids=["item"], label="rating", binary_label=False)
    objective = fs.Objective(
        Classes(clients.size("item")), fs.losses.cross_entropy("rating"), {"items.weight": "item"}, inputs=("item",)
    )
    result = fs.run(fs.methods.fedsubavg(lr=0.5, clients_per_round=6), objective, clients, rounds=2)
    found = fs.predict(result, rows.select("item"))
    table, ids = result.params["items.weight"], clients.spaces["item"].vocabulary
    assert ids is not None
    logits = table[[int(np.flatnonzero(ids == i)[0]) for i in rows["item"]]]
    assert found.frame["class"].to_list() == [words[k] for k in logits.argmax(1).tolist()]
    assert np.allclose(scores(found, "probability"), logits.softmax(1).amax(1).numpy(), atol=1e-6)


def test_lists_leave_out_unknown_ids_and_keep_their_end():
    draw = np.random.default_rng(0)
    lists = [draw.integers(1, 20, draw.integers(0, 5)).tolist() for _ in range(40)]
    data = {"user": [k % 4 for k in range(40)], "words": lists, "y": draw.integers(0, 2, 40)}
    clients = fs.Clients.from_arrays(data, "user", ids=["words"], label="y")
    objective = fs.models.make_objective(clients, "lr")
    result = fs.run(fs.methods.fedsubavg(lr=0.5, clients_per_round=2), objective, clients, rounds=2)
    ids = clients.spaces["words"].vocabulary
    assert ids is not None
    table = dict(zip(ids.tolist(), result.params["weights.t_words.weight"][:, 0].tolist(), strict=True))
    known = sorted(set(table) - {0})[:6]
    width = clients.columns["words"].width
    found = fs.predict(result, {"words": [[known[0], 777, known[1]], [], known]})
    expected = [table[known[0]] + table[known[1]], 0.0, sum(table[k] for k in known[-width:])]
    assert np.allclose(scores(found), expected, atol=1e-6)
    assert found.unknown == {"words": 1}


def test_a_module_of_ones_own_from_a_directory(tmp_path: Path):
    objective = fs.Objective(Classes(CLIENTS.size("item"), 1), fs.losses.binary("liked"), {"items.weight": "item"},
                             inputs=("item",), unused=("genre",))  # fmt: skip
    method = fs.methods.fedsubavg(lr=0.5, clients_per_round=6)
    result = fs.run(method, objective, CLIENTS, rounds=2, out=tmp_path / "run")
    with pytest.raises(ObjectiveError, match="written in Python"):
        fs.predict(tmp_path / "run", FRAME)
    found = fs.predict(tmp_path / "run", FRAME, module=Classes(CLIENTS.size("item"), 1))
    assert np.array_equal(scores(found), scores(fs.predict(result, FRAME)))
    assert "probability" in found.frame.columns


def test_refusals(kept: fs.Result, tmp_path: Path):
    with pytest.raises(ColumnError, match="no column 'age' in the data"):
        fs.predict(kept, NEW.drop("age"))
    with pytest.raises(ColumnError, match=r"a column 'score' already; give the new ones a prefix"):
        fs.predict(kept, FRAME.with_columns(score=1))
    assert "m_score" in fs.predict(kept, FRAME.with_columns(score=1), prefix="m_").frame.columns
    with pytest.raises(ConfigError, match="unknown is 'mean'; valid: empty, refuse, zero"):
        fs.predict(kept, NEW, unknown="mean")
    with pytest.raises(ConfigError, match="run is a int"):
        fs.predict(3, NEW)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no rows"):
        fs.predict(kept, NEW.head(0))
    with pytest.raises(CheckpointError, match="There is no directory"):
        fs.predict(tmp_path / "nothing", NEW)
