"""Ranking against a plain loop over clients, items and orders of equal scores."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedsub as fs
from fedsub.errors import ConfigError
from fedsub.objective import ranking as measures
from fedsub.objective.problem import Problem
from fedsub.round import rank
from fedsub.round.evaluate import Evaluator
from fedsub.round.filling import Filling
from fedsub.round.lists import make
from fedsub.round.predict import PersonalModel

ITEMS, USERS = 23, 9


def ratings(seed: int = 0) -> tuple[fs.Clients, fs.Clients]:
    """(train, test): columns item and mood (what is beside it), kind (of the item), mood_item (a cross), label."""
    draw = np.random.default_rng(seed)
    user = np.repeat(np.arange(USERS), 18)
    item = np.concatenate([draw.permutation(ITEMS)[:18] for _ in range(USERS)])
    mood = np.where(user % 3 == 0, np.arange(len(user)) % 2, user % 2)  # a third of the clients has two contexts
    arrays = {
        "user": user, "item": item, "mood": mood, "kind": item % 4, "mood_item": mood * ITEMS + item,
        "label": draw.integers(0, 2, len(user)),
    }  # fmt: skip
    arrays["label"][user == 5] = 0  # likes nothing
    sizes = {"item": ITEMS, "mood": 2, "kind": 4, "mood_item": 2 * ITEMS}
    data = fs.Clients.from_arrays(arrays, "user", ids=list(sizes), label="label", sizes=sizes)
    return data.split(0.6, seed=1)


class Scorer(nn.Module):
    """Scores with many ties; ``taste`` may be a client's own."""

    def __init__(self, columns: tuple[str, ...] = ("item", "mood", "kind", "mood_item")):
        super().__init__()
        torch.manual_seed(3)
        sizes = {"item": ITEMS, "mood": 2, "kind": 4, "mood_item": 2 * ITEMS}
        self.columns = columns
        self.tables = nn.ModuleDict({f"t_{c}": nn.Embedding(sizes[c], 2) for c in columns})
        for table in self.tables.parameters():
            table.data = table.data.mul(1.5).round()
        self.taste = nn.Parameter(torch.tensor([1.0, -1.0]))

    def forward(self, batch):
        return torch.stack([self.tables[f"t_{c}"](batch[c]) for c in self.columns]).sum(0) @ self.taste


def objective(columns: tuple[str, ...] = ("item", "mood", "kind", "mood_item")) -> fs.Objective:
    unused = [c for c in ("item", "mood", "kind", "mood_item") if c not in columns]
    tables = {f"tables.t_{c}.weight": c for c in columns}
    return fs.Objective(Scorer(columns), fs.losses.binary("label"), tables, unused=unused)


def evaluator(plan: fs.Ranking, goal: fs.Objective, train: fs.Clients, test: fs.Clients) -> Evaluator:
    columns = (*goal.module.columns, "label")  # type: ignore[attr-defined]
    return Evaluator(Problem.bind(goal, train), {"test": test}, fs.Evaluate(ranking=plan), columns)


def lists_by_hand(train: fs.Clients, test: fs.Clients, columns: tuple[str, ...]) -> dict[tuple, tuple[set, set]]:
    """(client, context) -> (positives, items that are no negatives)."""
    rows = test.gather(np.arange(test.samples), local=False)
    owner = test.client_ids[test.clients_of(np.arange(test.samples))]
    seen_by: dict[Any, set] = {c: set() for c in test.client_ids.tolist()}
    mine = train.gather(np.arange(train.samples), ("item",), local=False)["item"]
    for client, item in zip(train.client_ids[train.clients_of(np.arange(train.samples))].tolist(), mine, strict=True):
        seen_by[client].add(int(item))
    liked: dict[tuple, set] = {}
    for k in np.flatnonzero(rows["label"] == 1):
        client, item = owner[k].item(), int(rows["item"][k])
        if item not in seen_by[client]:
            mood = int(rows["mood"][k]) if {"mood", "mood_item"} & {*columns} else 0
            liked.setdefault((client, mood), set()).add(item)
    every = {c: set().union(*(items for (who, _), items in liked.items() if who == c)) for c in seen_by}
    return {key: (items, seen_by[key[0]] | every[key[0]]) for key, items in liked.items()}


def score_by_hand(module: nn.Module, mood: int, taste: torch.Tensor | None = None) -> list[float]:
    """One item after the other; the module's own forward on one sample."""
    with torch.no_grad():
        if taste is not None:
            module.taste.data = taste  # type: ignore[union-attr]
        return [
            float(module({"item": torch.tensor([i]), "mood": torch.tensor([mood]), "kind": torch.tensor([i % 4]),
                          "mood_item": torch.tensor([mood * ITEMS + i])}))
            for i in range(ITEMS)
        ]  # fmt: skip


def measured_by_hand(score: list[float], positives: set, negatives: set, k: int) -> dict[str, float]:
    """One order: positives by score, equal negatives before and behind a positive in equal parts."""
    places = []
    for before, item in enumerate(sorted(positives, key=lambda i: (-score[i], i))):
        above = sum(score[n] > score[item] for n in negatives)
        beside = sum(score[n] == score[item] for n in negatives)
        places.append(1 + before + above + beside / 2)
    hits = [p for p in places if p <= k]
    ideal = sum(1 / math.log2(j + 1) for j in range(1, min(len(positives), k) + 1))
    return {
        f"hr@{k}": float(bool(hits)), f"recall@{k}": len(hits) / len(positives), f"precision@{k}": len(hits) / k,
        f"mrr@{k}": 1 / hits[0] if hits else 0.0, f"ndcg@{k}": sum(1 / math.log2(p + 1) for p in hits) / ideal,
    }  # fmt: skip


def mean_over_clients(found: dict[tuple, dict[str, float]]) -> dict[str, float]:
    clients = {client for client, _ in found}
    names = next(iter(found.values()))
    return {
        name: np.mean([np.mean([m[name] for (c, _), m in found.items() if c == client]) for client in clients])
        for name in names
    }  # type: ignore[return-value]


@pytest.mark.parametrize("columns", [("item",), ("item", "mood", "kind", "mood_item"), ("item", "mood_item")])
def test_full_ranking_equals_a_loop(columns: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = ratings()
    goal = objective(columns)
    hand = lists_by_hand(train, test, columns)
    expected: dict[str, float] = {}
    for k in (3, 10):
        expected |= mean_over_clients({
            key: measured_by_hand(score_by_hand(goal.module, key[1]), good, {*range(ITEMS)} - out, k)
            for key, (good, out) in hand.items()
        })  # fmt: skip
    plan = fs.Ranking("item", k=(10, 3), metrics=("hr", "ndcg", "mrr", "recall", "precision"))
    params = {n: p.detach() for n, p in goal.module.named_parameters()}
    for together in (1 << 22, 2 * ITEMS):  # all lists at once, two at a time
        monkeypatch.setattr(rank, "SCORES", together)
        own = evaluator(plan, goal, train, test)
        found = own(params)
        assert {n.removeprefix("test."): v for n, v in found.items() if "@" in n} == pytest.approx(expected)
    final = own.final(params)["test"]
    assert {n: final[n] for n in expected} == pytest.approx(expected)
    told = final["ranking"]
    clients = {client for client, _ in hand}
    assert told["lists"] == len(hand)
    assert told["clients"] == len(clients)
    assert told["without_positives"] == len(test.client_ids) - len(clients) > 0
    assert told["positives"] == sum(len(good) for good, _ in hand.values())
    assert sum(d["positives"] for d in told["deciles"]) == told["positives"]
    assert len(told["ndcg@10_quantiles"]) == 21


def test_personal_models_rank_their_own_clients_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dense parameter and a table of the client's own; all items, and few of many."""
    train, test = ratings()
    for names in (("taste",), ("taste", "tables.t_item.weight")):
        for candidates in (None, 2):
            goal = objective(("item", "mood"))
            method = fs.methods.fedper(personal=list(names), lr=0.5, clients_per_round=None)
            plan = fs.Ranking("item", k=3, candidates=candidates)
            watch = Watching()
            result = fs.run(
                method, goal, train, test=test, rounds=2, engine="serial", callbacks=[watch],
                evaluate=fs.Evaluate(every=2, ranking=plan),
            )  # fmt: skip
            own = watch.lists(plan, goal, train, test)
            expected = {}
            for key, (good, negatives) in own.items():
                expected[key] = measured_by_hand(score_by_hand(watch.modules[key[0]], key[1]), good, negatives, 3)
            for name, value in mean_over_clients(expected).items():
                if not name.startswith("precision"):
                    assert result.final["test"][name] == pytest.approx(value), (names, candidates, name)
                    assert result.history[-1][f"test.{name}"] == pytest.approx(value)


class Watching(fs.Callback):
    """Every client's own module at the end, as a callback sees it."""

    def on_end(self, summary: dict[str, Any]) -> None:
        assert isinstance(self.now.model(), PersonalModel)
        self.modules = {c: self.now.module(c) for c in ratings()[0].client_ids.tolist()}

    def lists(self, plan, goal, train, test) -> dict[tuple, tuple[set, set]]:
        """(client, mood) -> (positives, negatives)."""
        if plan.candidates is None:
            hand = lists_by_hand(train, test, goal.module.columns)
            return {key: (good, {*range(ITEMS)} - out) for key, (good, out) in hand.items()}
        filling = Filling.find("item", ("item", "mood", "label"), [train, test])
        made = make(plan, 1.0, "test", test, train, filling, None, "label")
        assert made.drawn is not None
        moods = test.gather(made.sample, ("mood",), local=False)["mood"]
        return {
            (test.client_ids[made.client[n]].item(), int(moods[n])): (
                {*made.positive[made.owner == n].tolist()}, {*made.drawn[n].tolist()} - {-1}
            )
            for n in range(len(made))
        }  # fmt: skip


def test_candidates_are_drawn_alike_and_are_negatives() -> None:
    train, test = ratings()
    filling = Filling.find("item", ("item", "mood", "label"), [train, test])

    def drawn(count: int | None, **settings: Any):
        plan = fs.Ranking("item", candidates=4, **settings)
        return make(plan, 1.0, "test", test, train, filling, count, "label")

    everyone = drawn(None)
    hand = lists_by_hand(train, test, ("item", "mood"))
    assert everyone.drawn is not None
    for number, row in enumerate(everyone.drawn):
        client = test.client_ids[everyone.client[number]].item()
        out = next(o for (c, _), (_, o) in hand.items() if c == client)
        able = min(4, ITEMS - len(out))
        assert (row >= 0).sum() == able
        assert len({*row[:able].tolist()} - out) == able  # distinct, neither seen nor liked
    some = drawn(3)  # the same negatives, whoever else is looked at
    assert some.drawn is not None
    for number, client in enumerate(some.client.tolist()):
        there = everyone.drawn[everyone.client == client]
        assert any(np.array_equal(some.drawn[number], row) for row in there)
    other = drawn(None, seed=1).drawn
    assert other is not None
    assert not np.array_equal(other, everyone.drawn)


def test_a_model_that_says_the_same_of_everything_gains_nothing() -> None:
    train, test = ratings()
    goal = objective(("item",))
    params = {n: torch.zeros_like(p) for n, p in goal.module.named_parameters()}
    found = evaluator(fs.Ranking("item", k=3), goal, train, test)(params)
    assert found["test.hr@3"] < 0.5  # the first of equal items would make it nearly 1
    params["taste"] += math.nan  # nor does one that diverged
    assert evaluator(fs.Ranking("item", k=3), goal, train, test)(params)["test.hr@3"] == found["test.hr@3"]


def test_places_and_measures_by_hand() -> None:
    """Two lists: positives at places 1 and 4 of one, tied with two negatives in the other."""
    owner, score = np.array([0, 0, 1]), np.array([5.0, 2.0, 1.0])
    places = measures.place(owner, score, np.array([0, 2, 0]), np.array([0, 0, 2]))
    assert places.tolist() == [1, 4, 2]
    assert measures.by_list("hr", 1, owner, places, 2).tolist() == [1, 0]
    assert measures.by_list("recall", 4, owner, places, 2).tolist() == [1, 1]
    assert measures.by_list("mrr", 2, owner, places, 2).tolist() == [1, 0.5]
    ndcg = measures.by_list("ndcg", 4, owner, places, 2)
    assert ndcg[0] == pytest.approx((1 + 1 / math.log2(5)) / (1 + 1 / math.log2(3)))
    assert ndcg[1] == pytest.approx(1 / math.log2(3))


def test_what_goes_with_an_item_is_found_and_told() -> None:
    train, test = ratings()
    columns = ("item", "mood", "kind", "mood_item", "label")
    found = Filling.find("item", columns, [train, test])
    assert set(found.follows) == {"kind"}
    assert found.follows["kind"][found.known].tolist() == [i % 4 for i in np.flatnonzero(found.known)]
    assert (found.crosses["mood_item"].other, found.crosses["mood_item"].times) == ("mood", ITEMS)
    assert found.repeated == ("mood", "label")
    result = fs.run(
        fs.methods.fedsubavg(lr=0.1, clients_per_round=2), objective(), train, test=test, rounds=1, engine="serial",
        evaluate=fs.Evaluate(ranking=fs.Ranking("item")),
    )  # fmt: skip
    assert any("kind goes with it" in event and "23 × mood + item" in event for event in result.events)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (lambda: fs.Ranking("itme"), "did you mean 'item'"),
        (lambda: fs.Ranking("item", split="tset"), "did you mean 'test'"),
        (lambda: fs.Ranking("item", split="train"), "exclude_seen=False"),
        (lambda: fs.Ranking("item", liked=7), "No client of the split 'test' has a positive"),
        (lambda: fs.Ranking("kind", k=3), "does not read"),
        (lambda: fs.Ranking("item", k=0), "k of Ranking"),
        (lambda: fs.Ranking("item", k=()), "k of Ranking is empty"),
        (lambda: fs.Ranking("item", metrics=("map",)), "no measure 'map'"),
        (lambda: fs.Ranking("item", candidates=0), "candidates of Ranking"),
        (lambda: fs.Ranking("item", liked="some"), "liked of Ranking"),
    ],
)
def test_mistakes_are_told_before_training(plan: Any, words: str, tmp_path) -> None:
    train, test = ratings()
    with pytest.raises(ConfigError, match=words):
        fs.run(
            fs.methods.fedavg(clients_per_round=2), objective(("item", "mood")), train, test=test, rounds=1,
            evaluate=fs.Evaluate(ranking=plan()), out=tmp_path / "run", engine="serial",
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_losses_without_likes_must_say_what_is_liked() -> None:
    train, test = ratings()
    goal = fs.Objective(
        Scorer(("item",)), fs.losses.squared("label"), {"tables.t_item.weight": "item"},
        unused=("mood", "kind", "mood_item"),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="liked"):
        evaluator(fs.Ranking("item"), goal, train, test)
    both = [evaluator(fs.Ranking("item", liked=liked), goal, train, test) for liked in (1, "all")]
    params = {n: p.detach() for n, p in goal.module.named_parameters()}
    some, all_of_them = (one.final(params)["test"]["ranking"]["positives"] for one in both)
    assert all_of_them > some
