"""Modules that would run on submodels and be wrong are refused before training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedsub as fs
from fedsub.errors import ConfigError, ObjectiveError
from fedsub.running.run import run_config


def data(clients: int = 6, rows: int = 9) -> fs.Clients:
    draw = np.random.default_rng(0)
    n = clients * 5
    arrays = {"item": draw.integers(3, rows, n), "label": draw.integers(0, 2, n)}
    return fs.Clients.from_arrays(
        arrays, client=np.repeat(np.arange(clients), 5), ids=["item"], label="label", sizes={"item": rows}
    )


class Base(nn.Module):
    def __init__(self, rows: int = 9):
        super().__init__()
        self.items, self.out = nn.Embedding(rows, 3), nn.Linear(3, 1)
        nn.init.zeros_(self.items.weight)

    def forward(self, batch):
        return self.out(self.items(batch["item"])).squeeze(-1)


class Arithmetic(Base):
    def forward(self, batch):
        return super().forward(batch) + 0.1 * batch["item"]


class Modulo(Base):
    def forward(self, batch):
        return self.out(self.items(batch["item"] % 2)).squeeze(-1)


class Beyond(Base):
    def forward(self, batch):
        return self.out(self.items(batch["item"] + 1)).squeeze(-1)


class Bound(Base):
    def __init__(self):
        super().__init__()
        self.head = lambda rows: self.out(rows)

    def forward(self, batch):
        return self.head(self.items(batch["item"])).squeeze(-1)


class Counts(Base):
    def __init__(self):
        super().__init__()
        self.seen = torch.zeros(())

    def forward(self, batch):
        self.seen = self.seen + 1
        return super().forward(batch) * self.seen


class Detached(Base):
    def forward(self, batch):
        return super().forward(batch).detach()


class Keeps(Base):
    """Keeps an intermediate result, as people do with attention weights: fine."""

    def forward(self, batch):
        self.rows = self.items(batch["item"])
        return self.out(self.rows).squeeze(-1)


def goal(module: nn.Module, **options) -> fs.Objective:
    return fs.Objective(module, fs.losses.binary("label"), {"items.weight": "item"}, **options)


def run(module: nn.Module, clients: fs.Clients | None = None, *, whole=(), **options):
    clients, objective = clients or data(), goal(module, whole=whole)
    method = fs.methods.fedsubavg(lr=0.1, local_steps=2, batch_size=2, clients_per_round=2)
    return fs.run(method, objective, clients, rounds=2, **options)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Arithmetic(), "other losses on a client's submodel than on the full tables"),
        (Modulo(), "other losses on a client's submodel than on the full tables"),
        (Beyond(), "look ids up as they come|looking rows up"),
        (Bound(), "still uses parameter 'out.weight' of the original"),
        (Counts(), "different losses for the same batch"),
        (Detached(), "does not depend on any trained parameter"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
@pytest.mark.parametrize("engine", ["serial", "auto"])
def test_refused(module: nn.Module, message: str, engine: str) -> None:
    with pytest.raises(ObjectiveError, match=message):
        run(module, engine=engine)


class Whole(Base):
    """Adds the mean of something made of the table to every logit."""

    def __init__(self, use):
        super().__init__()
        torch.manual_seed(3)
        nn.init.normal_(self.items.weight)
        self.use = use

    def forward(self, batch):
        return super().forward(batch) + self.use(self.items.weight, self.items(batch["item"]), batch["item"]).mean()


WHOLE = {
    "linear": lambda w, h, ids: F.linear(h, w),
    "matmul": lambda w, h, ids: w @ h[0],
    "einsum": lambda w, h, ids: torch.einsum("bi,ni->bn", h, w),
    ".T": lambda w, h, ids: h @ w.T,
    ".mT": lambda w, h, ids: h @ w.mT,
    ".data": lambda w, h, ids: h.sum() + w.data**2,
    ".grad": lambda w, h, ids: h.sum() + (0.0 if w.grad is None else w.grad),
    "t": lambda w, h, ids: h @ w.t(),
    "view": lambda w, h, ids: w.view(-1, 3) + h.sum(),
    "detach": lambda w, h, ids: w.detach() + h.sum(),
    "cat": lambda w, h, ids: torch.cat([h, w]),
    "chunk": lambda w, h, ids: w.chunk(2, 1)[0],
    "unbind": lambda w, h, ids: torch.stack(list(iter(w))),
    "pow": lambda w, h, ids: w**2,
    "new form": lambda w, h, ids: w.to(torch.float64),
    "every row": lambda w, h, ids: w[:],
    "every column": lambda w, h, ids: w[..., 0],
    "a slice": lambda w, h, ids: w[1:],
    "the first row": lambda w, h, ids: w[0],
    "numbered rows": lambda w, h, ids: w[[0, 1]],
    "masked rows": lambda w, h, ids: w[torch.arange(len(w)) > 0],
    "columns by id": lambda w, h, ids: w.index_select(1, torch.tensor([0])),
    "gathered columns": lambda w, h, ids: w.gather(1, torch.zeros_like(w, dtype=torch.int64)),
}
HARMLESS = {
    "form": lambda w, h, ids: h * float(w.ndim == 2 and w.requires_grad and w.is_leaf and not w.is_sparse),
    "type": lambda w, h, ids: h.to(w).type_as(w).to(w.dtype).to(w.device) * w.new_ones(3) * (w.layout is h.layout),
    "width": lambda w, h, ids: h / (w.shape[1] + w.size(1) + w.dim() + w.element_size() + w.stride()[0]),
    "weight[ids]": lambda w, h, ids: w[ids],
    "weight[ids, 1]": lambda w, h, ids: w[ids, 1],
    "index_select": lambda w, h, ids: w.index_select(0, ids) + torch.index_select(w, 0, ids),
    "index_select by name": lambda w, h, ids: torch.index_select(input=w, dim=-2, index=ids),
    "gather": lambda w, h, ids: w.gather(0, ids.unsqueeze(1).expand(-1, 3)) + torch.gather(w, 0, ids.unsqueeze(1)),
    "embedding": lambda w, h, ids: F.embedding(ids, w) + F.embedding(input=ids, weight=w) + torch.embedding(w, ids),
    "bag": lambda w, h, ids: F.embedding_bag(ids.unsqueeze(1), w, mode="sum"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("engine", ["serial", "batched", "auto"])
def test_a_table_used_whole_is_refused_with_two_ways_out(kind: str, engine: str) -> None:
    with pytest.raises(ObjectiveError, match=r"'items\.weight' is used whole") as caught:
        run(Whole(WHOLE[kind]), engine=engine)
    said = str(caught.value)
    assert "Leave it out of tables and read item under values=" in said
    assert "Objective(..., whole=('items.weight',))" in said
    if kind.isidentifier() or kind.startswith("."):
        assert f"(by {kind})" in said


@pytest.mark.parametrize("kind", WHOLE)
def test_a_table_that_is_meant_to_be_used_whole_trains_serially(kind: str) -> None:
    result = run(Whole(WHOLE[kind]), whole=("items.weight",))
    assert result.engine == "serial"
    assert any("is used whole" in e for e in result.events)
    assert not torch.equal(result.params["items.weight"], Whole(WHOLE[kind]).items.weight)


@pytest.mark.parametrize("kind", HARMLESS)
def test_lookups_and_reading_the_form_of_a_table_are_no_use_of_it(kind: str) -> None:
    assert run(Whole(HARMLESS[kind]), engine="serial").engine == "serial"


class Tied(Base):
    """Logits from a softmax over all items."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        nn.init.normal_(self.items.weight)

    def forward(self, batch):
        return F.linear(self.items(batch["item"]), self.items.weight).logsumexp(-1)


@pytest.mark.parametrize(("read", "whole", "same"), [("values", (), True), ("ids", ("items.weight",), False)])
def test_what_is_trained_is_what_is_evaluated_unless_the_own_rows_are_meant(read: str, whole, same: bool) -> None:
    draw = np.random.default_rng(0)
    arrays = {"item": draw.integers(0, 9, 30), "label": draw.integers(0, 2, 30)}
    form = {"ids": ["item"], "sizes": {"item": 9}} if read == "ids" else {"ids": [], "values": ["item"]}
    clients = fs.Clients.from_arrays(arrays, client=np.repeat(np.arange(6), 5), label="label", **form)
    tables = {"items.weight": "item"} if read == "ids" else {}
    objective = fs.Objective(Tied(), fs.losses.binary("label"), tables, whole=whole)
    method = fs.methods.fedavg(lr=1e-9, local_steps=1, batch_size=None, clients_per_round=None)
    result = fs.run(method, objective, clients, rounds=1)
    assert (result.history[1]["loss"] == pytest.approx(result.series("train.ce")[1][0], rel=1e-5)) is same


def test_whole_is_checked_and_recorded_only_if_given() -> None:
    with pytest.raises(ObjectiveError, match=r"whole names 'item.weight'.*did you mean 'items.weight'"):
        goal(Base(), whole=("item.weight",))
    with pytest.raises(ObjectiveError, match="tuple of names"):
        goal(Base(), whole="items.weight")
    method = fs.methods.fedsubavg(lr=0.1, clients_per_round=2)
    plain, meant = (run_config(method, goal(Base(), whole=w), data(), rounds=1) for w in ((), ("items.weight",)))
    assert "whole" not in plain
    assert meant == {**plain, "whole": ["items.weight"]}


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_a_module_may_keep_intermediate_results(engine: str) -> None:
    torch.manual_seed(0)
    kept, plain = Keeps(), Base()
    plain.load_state_dict(kept.state_dict())
    for name, value in run(kept, engine=engine).params.items():
        torch.testing.assert_close(value, run(plain, engine=engine).params[name])


def test_a_split_numbered_otherwise_is_refused() -> None:
    def read(items: list[str]) -> fs.Clients:
        return fs.Clients.from_arrays(
            {"item": items, "label": [0, 1, 0, 1]}, client=np.array([0, 0, 1, 1]), ids=["item"], label="label"
        )

    train, other = read(["a", "b", "a", "c"]), read(["a", "b", "a", "d"])
    with pytest.raises(ConfigError, match="numbers the rows of 'item' otherwise"):
        run(Base(3), train, test=other)


def test_labels_must_suit_the_loss() -> None:
    clients = fs.Clients.from_arrays(
        {"item": [0, 1, 2], "label": [0, 1, 7]}, client=np.array([0, 0, 1]), ids=["item"], label="label",
        binary_label=False, sizes={"item": 3},
    )  # fmt: skip
    with pytest.raises(ObjectiveError, match="needs labels 0 and 1, but column 'label' holds 7"):
        run(Base(3), clients)


@pytest.mark.parametrize("wrong", [{"module": Base}, {"module": None}, {"tables": "items.weight"}, {"loss": 3}])
def test_an_objective_of_wrong_types(wrong) -> None:
    given = {"module": Base(), "loss": fs.losses.binary("label"), "tables": {"items.weight": "item"}, **wrong}
    with pytest.raises(ObjectiveError, match="must"):
        fs.Objective(**given)


@pytest.mark.parametrize("wrong", [{"every": 0}, {"every": 1.5}, {"samples": 0}, {"final_samples": -5}])
def test_evaluate_wants_whole_numbers(wrong) -> None:
    with pytest.raises(ConfigError, match="whole number"):
        fs.Evaluate(**wrong)


@pytest.mark.parametrize("kind", ["module", "function", "bag"])
@pytest.mark.parametrize("whole", [(), ("items.weight",)])
def test_a_lookup_that_rewrites_rows_is_refused(kind: str, whole: tuple[str, ...]) -> None:
    """max_norm changes the rows that are read in place: no gradient, and no method, knows of it."""

    class Renormed(Base):
        def __init__(self):
            super().__init__()
            if kind == "module":
                self.items = nn.Embedding(9, 3, max_norm=1.0)

        def forward(self, batch):
            ids = batch["item"]
            if kind == "module":
                rows = self.items(ids)
            elif kind == "function":
                rows = F.embedding(ids, self.items.weight, max_norm=1.0)
            else:
                rows = F.embedding_bag(ids[:, None], self.items.weight, None, 1.0)
            return self.out(rows).squeeze(-1)

    with pytest.raises(ObjectiveError, match=r"looks up 'items\.weight' with max_norm, which rewrites"):
        run(Renormed(), whole=whole)
