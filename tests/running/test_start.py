"""Warm start: what is taken over, by id; vocabularies that grow; other numberings refused."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from worlds import envelope, equal

import fedsub as fs
from fedsub.errors import CheckpointError, ConfigError, DataError, ObjectiveError


class Scorer(nn.Module):
    def __init__(self, items: int, dim: int = 2):
        super().__init__()
        self.items, self.out = nn.Embedding(items, dim), nn.Linear(dim, 1)

    def forward(self, batch):
        return self.out(self.items(batch["item"])).squeeze(-1)


def samples(items: list[str], users: int = 8, seed: int = 0) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    n = 6 * users
    return {
        "user": np.repeat([f"u{k}" for k in range(users)], 6),
        "item": [*items, *draw.choice(items, n - len(items)).tolist()],
        "liked": draw.integers(0, 2, n),
    }


OLD, NEW = ["b", "d", "f", "h"], ["a", "b", "c", "d", "e", "f", "h"]


def data(items: list[str], **options) -> fs.Clients:
    return fs.Clients.from_arrays(samples(items), "user", ids=["item"], label="liked", **options)


def objective(clients: fs.Clients, seed: int = 0) -> fs.Objective:
    torch.manual_seed(seed)
    return fs.Objective(Scorer(clients.size("item")), fs.losses.binary("liked"), {"items.weight": "item"})


def method(name: str = "fedsubavg", **more) -> Any:
    return fs.methods.make(name, lr=0.3, local_steps=2, batch_size=4, clients_per_round=3, **more)


def train(clients: fs.Clients, out: Path | None = None, name: str = "fedsubavg", seed: int = 0, **more) -> fs.Result:
    given: dict[str, Any] = {"rounds": 3, "engine": "serial", "evaluate": fs.Evaluate(every=5)} | more
    return fs.run(method(name), objective(clients, seed), clients, out=out, **given)


# ---------------------------------------------------------------------- vocabularies that grow


def test_known_ids_keep_their_rows_and_new_ones_follow():
    old = data(OLD)
    grown = data(NEW, vocabulary=old, grow=True)
    space = grown.spaces["item"]
    assert space.vocabulary is not None
    assert space.vocabulary.tolist() == [*OLD, "a", "c", "e"]
    assert grown.size("item") == 7
    whole, rows = samples(NEW), grown.gather(np.arange(grown.samples), ["item"], local=False)["item"]
    assert [space.vocabulary[r] for r in rows] == whole["item"]  # users are in sorted order already
    again = data(OLD, vocabulary={"item": space.vocabulary})  # fewer ids, the same rows
    assert again.size("item") == 7
    first = again.gather(np.arange(4), ["item"], local=False)["item"]
    assert first.tolist() == [0, 1, 2, 3]


def test_lists_keep_their_padding():
    rows = {"user": ["x", "y"], "item": [5, 7], "history": [[7], []], "liked": [0, 1]}
    ids = {"item": ["item", "history"]}
    old = fs.Clients.from_arrays(rows, "user", ids=ids, label="liked")
    new = rows | {"item": [5, 6], "history": [[7, 4], []]}
    grown = fs.Clients.from_arrays(new, "user", ids=ids, label="liked", vocabulary=old, grow=True)
    assert grown.spaces["item"].vocabulary.tolist() == [0, 5, 7, 4, 6]  # type: ignore[union-attr]
    assert grown.gather(np.array([0]), ["history"], local=False)["history"].tolist() == [[2, 3]]


@pytest.mark.parametrize(
    ("vocabulary", "grow", "message"),
    [
        ({"item": OLD}, False, r"3 id\(s\) of 'item' are not in the vocabulary, such as 'a', 'c', 'e'"),
        ({"item": [1, 2]}, True, "ids 'item' are"),
        ({"item": ["b", "b"]}, True, "holds an id twice"),
        ({"item": 3}, True, "must be a list of ids"),
        (7, True, "expected {space: ids}"),
        (None, True, "name it: vocabulary="),
    ],
)
def test_vocabularies_that_do_not_fit(vocabulary, grow, message):
    with pytest.raises(DataError, match=message):
        data(NEW, vocabulary=vocabulary, grow=grow)


# ---------------------------------------------------------------------- what is taken over


def begun(result: fs.Result, clients: fs.Clients, **more) -> fs.Tree:
    """The parameters at the moment of growing, before any round."""
    seen: dict[str, torch.Tensor] = {}

    class Look(fs.Callback):
        def on_round(self, record) -> None:
            raise KeyboardInterrupt

    own = objective(clients, 9)
    with pytest.raises(KeyboardInterrupt):
        fs.run(method(more.pop("name", "fedsubavg")), own, clients, rounds=1, engine="serial", copy=False,
               callbacks=[Look()], **more)  # fmt: skip
    for name, value in own.module.named_parameters():
        seen[name] = value.detach().clone()
    return seen


@pytest.mark.parametrize("kind", ["directory", "trained", "result", "module"])
def test_rows_of_known_ids_are_bit_identical_at_the_moment_of_growing(tmp_path: Path, kind: str):
    old = data(OLD)
    first = train(old, tmp_path / "a")
    start = {
        "directory": lambda: tmp_path / "a",
        "trained": lambda: fs.load(tmp_path / "a"),
        "result": lambda: first,
        "module": lambda: copy.deepcopy(first.module()),
    }[kind]()
    grown = data(NEW, vocabulary=fs.load(tmp_path / "a"), grow=True)
    found = begun(first, grown, start=start)
    fresh = dict(objective(grown, 9).module.named_parameters())
    assert torch.equal(found["items.weight"][:4], first.params["items.weight"])
    assert torch.equal(found["items.weight"][4:], fresh["items.weight"][4:])  # as the module itself draws them
    assert torch.equal(found["out.weight"], first.params["out.weight"])


def test_a_state_dict():
    old = data(OLD)
    first = train(old)
    state = first.module().state_dict()
    assert equal(begun(first, old, start=state), first.params)
    with pytest.raises(ObjectiveError, match="it is not known which ids they stand for"):
        begun(first, data(NEW, vocabulary=old, grow=True), start=state)
    with pytest.raises(ObjectiveError, match=r"has no out\.bias"):
        begun(first, old, start={k: v for k, v in state.items() if k != "out.bias"})


def test_train_grow_and_train_on_resumed_before_and_after(tmp_path: Path):
    class Stop(fs.Callback):
        def on_round(self, record) -> None:
            if record["round"] == 2:
                raise KeyboardInterrupt

    old = data(OLD)
    grown = data(NEW, vocabulary=old, grow=True)
    after: dict[str, Any] = {"name": "fedadam", "seed": 1, "start_state": True, "checkpoint_every": 1, "rounds": 4}
    train(old, tmp_path / "a", "fedadam")
    whole = train(grown, tmp_path / "b", start=tmp_path / "a", **after)
    with pytest.raises(KeyboardInterrupt):
        train(old, tmp_path / "c", "fedadam", callbacks=[Stop()], checkpoint_every=1)
    train(old, tmp_path / "c", "fedadam", resume=True)
    with pytest.raises(KeyboardInterrupt):
        train(grown, tmp_path / "d", start=tmp_path / "c", callbacks=[Stop()], **after)
    resumed = train(grown, tmp_path / "d", start=tmp_path / "c", resume=True, **after)
    assert equal(whole.params, resumed.params)
    for file in ("metrics.jsonl", "traffic.jsonl", "model.safetensors"):
        assert (tmp_path / "b" / file).read_bytes() == (tmp_path / "d" / file).read_bytes()


def test_bytes_after_growing_are_those_of_the_rows(tmp_path: Path):
    """Down: an invitation and the client's rows; whatever the old table was."""
    old, everyone = data(OLD), fs.methods.fedavg(lr=0.3, local_steps=1, clients_per_round=8)
    train(old, tmp_path / "a")
    grown = data(NEW, vocabulary=old, grow=True)
    options: dict[str, Any] = {"rounds": 1, "engine": "serial"}
    warm = fs.run(everyone, objective(grown), grown, start=tmp_path / "a", **options)
    cold = fs.run(everyone, objective(grown), grown, **options)
    rows = int(grown.spaces["item"].counts.sum())
    heads = 64 + envelope({"model/items.weight": 2, "model/out.weight": 2, "model/out.bias": 1})
    assert warm.history[1]["down"] == 8 * heads + rows * 2 * 4 + 8 * 3 * 4
    assert (warm.history[1]["down"], warm.history[1]["up"]) == (cold.history[1]["down"], cold.history[1]["up"])


# ---------------------------------------------------------------------- with the server's state


@pytest.mark.parametrize(
    ("name", "iterates"), [("fedadam", "last"), ("fedavgm", "last"), ("fedadagrad", "last"), ("fedavgm", "ema:0.8")]
)
def test_with_its_state_the_server_goes_on_as_if_nothing_had_been(tmp_path: Path, name: str, iterates: str):
    """All clients, full batches, one step: rounds then do not depend on their number, and 3 + 3 rounds are 6."""
    clients = data(OLD)
    given: dict[str, Any] = {"lr": 0.3, "local_steps": 1, "batch_size": None, "clients_per_round": None,
                             "iterates": iterates}  # fmt: skip
    one = fs.methods.make(name, **given)
    options: dict[str, Any] = {"engine": "serial"}
    fs.run(one, objective(clients), clients, rounds=3, out=tmp_path / "a", **options)
    whole = fs.run(one, objective(clients), clients, rounds=6, **options)
    on = fs.run(one, objective(clients, 5), clients, rounds=3, start=tmp_path / "a", start_state=True, **options)
    anew = fs.run(one, objective(clients, 5), clients, rounds=3, start=tmp_path / "a", **options)
    for key, value in whole.params.items():
        torch.testing.assert_close(on.params[key], value, rtol=1e-5, atol=1e-7)
    assert not torch.allclose(anew.params["items.weight"], whole.params["items.weight"], rtol=1e-5, atol=1e-7)


def test_a_tail_mean_does_not_go_on_in_another_run(tmp_path: Path):
    clients, one = data(OLD), method(iterates="tail:2")
    fs.run(one, objective(clients), clients, rounds=3, engine="serial", out=tmp_path / "a")
    with pytest.raises(ConfigError, match="counts its rounds from the end of its own run"):
        fs.run(one, objective(clients), clients, rounds=3, engine="serial", start=tmp_path / "a", start_state=True)
    on = fs.run(one, objective(clients), clients, rounds=4, engine="serial", out=tmp_path / "a", resume=True)
    assert any("goes on from round 2; a run of 4 rounds would begin it with round 3" in said for said in on.events)


def test_rows_that_a_lazy_server_owes_are_those_of_a_table_that_was_larger_from_the_start(tmp_path: Path):
    """Rows that join later have the moments of rows that nobody ever sent."""
    large = data(NEW, vocabulary={"item": [*OLD, "a", "c", "e"]})
    few = data(OLD, vocabulary={"item": [*OLD, "a", "c", "e"]})  # the same samples as `old`, in the larger table
    old = data(OLD)
    starts = objective(few)
    table = starts.module.get_parameter("items.weight")
    small = objective(old)
    with torch.no_grad():
        small.module.load_state_dict({**starts.module.state_dict(), "items.weight": table[:4].clone()})
    one, options = method("fedadam"), {"rounds": 3, "engine": "serial", "seed": 2}
    fs.run(one, starts, few, out=tmp_path / "large", **options)
    fs.run(one, small, old, out=tmp_path / "small", **options)
    last: dict[str, Any] = {"rounds": 2, "engine": "serial", "start_state": True}
    from_large = fs.run(one, objective(few), large, start=tmp_path / "large", **last)
    from_small = fs.run(one, objective(few), large, start=tmp_path / "small", **last)
    assert equal(from_large.params, from_small.params)


@pytest.mark.parametrize(
    ("name", "start", "message"),
    [
        ("fedavg", "adam", "remembers .*m, v.* and that of fedavg nothing"),
        ("scaffold", "scaffold", "Clients of .* remember"),
        ("fedadam", "module", "only a run's directory holds"),
        ("fedadam", "result", "was not kept in a directory"),
    ],
)
def test_state_that_cannot_be_taken_over(tmp_path: Path, name: str, start: str, message: str):
    clients = data(OLD)
    if start in ("adam", "scaffold"):
        train(clients, tmp_path / "a", "fedadam" if start == "adam" else start)
    result = train(clients) if start in ("module", "result") else None
    given = tmp_path / "a" if result is None else result if start == "result" else result.module()
    with pytest.raises(ConfigError, match=message):
        train(clients, tmp_path / "b", name, start=given, start_state=True)
    assert not (tmp_path / "b").exists()


# ---------------------------------------------------------------------- refused


def test_an_old_module_on_another_numbering_is_refused(tmp_path: Path):
    first = train(data(OLD), tmp_path / "a")
    other = data(["a", "b", "c", "d"])  # as many ids, other ones: the shapes fit
    for module in (first.module(), fs.load(tmp_path / "a").module(Scorer(4)), copy.deepcopy(first.module())):
        with pytest.raises(ObjectiveError, match="row 0 is 'b' there and 'a' in the data"):
            fs.run(method(), fs.Objective(module, fs.losses.binary("liked"), {"items.weight": "item"}), other, rounds=1)
    for start in (tmp_path / "a", first, first.module()):
        with pytest.raises(ObjectiveError, match="stand for other ids"):
            train(other, start=start)
    same = fs.Objective(first.module(), fs.losses.binary("liked"), {"items.weight": "item"})
    fs.run(method(), same, data(OLD), rounds=1, engine="serial")  # its own data are fine


def test_a_run_remembers_where_it_started(tmp_path: Path):
    clients = data(OLD)
    train(clients, tmp_path / "a")
    train(clients, tmp_path / "other", seed=3)
    begin = train(clients, tmp_path / "b", start=tmp_path / "a")
    assert any("started from" in said for said in begin.events)
    with pytest.raises(CheckpointError, match=r"start\.values"):
        train(clients, tmp_path / "b", start=tmp_path / "other", resume=True)
    with pytest.raises(CheckpointError, match=r"start\."):
        train(clients, tmp_path / "b", resume=True)


@pytest.mark.parametrize("start", [3, {"a": 1}, {}])
def test_what_is_no_start(start):
    with pytest.raises(ConfigError, match="expected a run's directory"):
        train(data(OLD), start=start)


def test_a_comparison_starts_from_another(tmp_path: Path):
    old = data(OLD)
    methods = {"A": method(), "B": method("fedadam")}
    rest: dict[str, Any] = {"rounds": 2, "engine": "serial"}
    fs.compare(methods, objective(old), old, out=tmp_path / "a", **rest)
    fs.compare(methods, objective(old, 4), old, out=tmp_path / "b", start=tmp_path / "a", **rest)
    for label in ("a", "b"):
        alone = fs.run(methods[label.upper()], objective(old, 7), old, start=tmp_path / "a" / f"{label}-seed0", **rest)
        assert equal(alone.params, fs.load(tmp_path / "b" / f"{label}-seed0").params)
    with pytest.raises(ConfigError, match="has no run c-seed0"):
        fs.compare({"C": method()}, objective(old), old, start=tmp_path / "a", **rest)


def test_clients_that_are_known_keep_their_own_parameters(tmp_path: Path):
    old = data(OLD)
    one = fs.methods.fedper(personal=["out.*"], lr=0.3, local_steps=2, clients_per_round=8)
    fs.run(one, objective(old), old, rounds=2, engine="serial", out=tmp_path / "a")
    first = fs.load(tmp_path / "a")
    # Steps so small that clients end with what they began with.
    fs.run(
        fs.methods.fedper(personal=["out.*"], lr=1e-30, local_steps=1, clients_per_round=8), objective(old, 3), old,
        rounds=1, engine="serial", out=tmp_path / "b", start=tmp_path / "a",
    )  # fmt: skip
    second = fs.load(tmp_path / "b")
    assert first.personal is not None
    assert second.personal is not None
    for client in ("u0", "u5"):
        assert equal(first.personal.params(client), second.personal.params(client))


def test_clients_of_a_mixture_begin_anew(tmp_path: Path):
    clients = data(OLD)
    fs.run(fs.methods.make("l2gd"), objective(clients), clients, rounds=1, out=tmp_path / "a")
    on = fs.run(fs.methods.make("l2gd"), objective(clients, 3), clients, rounds=1, start=tmp_path / "a")
    assert any("begin anew from the shared model" in said for said in on.events)
    with pytest.raises(ConfigError, match="has no server whose state"):
        fs.run(fs.methods.make("l2gd"), objective(clients), clients, rounds=1, start=tmp_path / "a", start_state=True)


def test_the_page_tells_what_comes_out(capsys):
    page = (Path(__file__).parents[2] / "docs/going_on.md").read_text()
    (code,) = re.findall(r"^```python\n(import fedsub.*?)^```", page, re.M | re.S)
    exec(code, {})
    assert capsys.readouterr().out.strip() == re.findall(r"vocabulary\)  # (.+)", code)[0]
