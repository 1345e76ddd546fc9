"""Rounds of clients that perturb the rows they name: what the server is told, what is trained, and what it comes to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from worlds import SIZES, bag, click_data, equal, item_data, trainer_for

import fedsub as fs
from fedsub import rng
from fedsub.errors import MethodError
from fedsub.method import sampling, servers
from fedsub.method.spelling import secure as spelled
from fedsub.node import Node
from fedsub.privacy import PermanentResponse
from fedsub.privacy.heat.words import simulated
from fedsub.round.secure import opening, perturbed
from fedsub.secure import Uniting
from fedsub.testing import SEED, check_part

LOCAL = fs.SGD(lr=0.4, local_steps=3, batch_size=4)
FINE: dict[str, Any] = {"clip": 8.0, "levels": 2**31 + 1, "bits": 64}
Way = dict[str, Any]


class Clicks(torch.nn.Module):
    """Four id columns: one id, a list over the same table, two ids at places, one id more."""

    def __init__(self, data: fs.Clients):
        super().__init__()
        torch.manual_seed(0)
        self.item, self.place = torch.nn.Embedding(data.size("item"), 2), torch.nn.Embedding(data.size("place"), 2)
        self.slot, self.out = torch.nn.Embedding(data.size("slot"), 1), torch.nn.Linear(9, 1)

    def forward(self, batch):
        x = [self.item(batch["item"]), (self.item(batch["history"]) * (batch["history"] > 0).unsqueeze(-1)).sum(1)]
        x += [self.place(batch["place"]).flatten(1), self.slot(batch["slot"])]
        return self.out(torch.cat(x, 1)).squeeze(-1)


def clicks(data: fs.Clients) -> fs.Objective:
    tables = {"item.weight": ["item", "history"], "place.weight": "place", "slot.weight": "slot"}
    return fs.Objective(Clicks(data), fs.losses.binary("label"), tables, unused=("value",))


DATA = click_data((3, 7, 14, 9, 2, 15, 8, 13, 6))


def method(*parts: fs.Part, average: Any = None, server: Any = None, sampler: Any = None, **way: Any) -> fs.Method:
    secure = fs.SecureSum(**{"clip": 0.5, "rows": "perturbed:2", **way})
    return fs.Method(
        local=LOCAL, parts=(*parts, secure), average=average or fs.OverHolders("samples"), server=server or fs.Add(),
        sampler=sampler or fs.Uniform(6),
    )  # fmt: skip


def train(method: fs.Method, *, rounds: int = 3, data: fs.Clients = DATA, **options: Any) -> fs.Result:
    return fs.run(method, clicks(data), data, rounds=rounds, seed=3, **{"engine": "serial", **options})


def word(space: str, client: int, purpose: int, question: int, rows: np.ndarray) -> np.ndarray:
    """The uniform numbers of a client, from counters, as the simulation has them."""
    return rng.uniform(simulated(3, f"rows of {space}", np.array([client]))(purpose, question, 10_000)[0, rows])


def expected_names(data: fs.Clients, space: str, client: int, union: np.ndarray, number: int) -> list[int]:
    """Preset 2: lasting with 15/16 and 1/16, and again so; row 0 of a padded space by everybody."""
    p, q, out = 15 / 16, 1 / 16, []
    held = set(data.spaces[space].rows_of(client).tolist())
    first, again = word(space, client, 2, 0, union), word(space, client, 3, number, union)
    for row, lasting, fresh in zip(union.tolist(), first, again, strict=True):
        says = lasting < (p if row in held else q)
        if fresh < (p if says else q) or (row == 0 and data.spaces[space].padding):
            out.append(row)
    return out


def test_the_server_is_told_the_union_and_what_each_names_of_it() -> None:
    trainer = trainer_for(method(), clicks(DATA), DATA, "serial", seed=3)
    told, opened = [], trainer.server.open

    def watched(number, cohort, rows, probe=""):
        told.append((number, cohort, rows))
        return opened(number, cohort, rows, probe)

    trainer.server.open = watched  # type: ignore[method-assign]
    lasting: dict[tuple[str, int, int], list[bool]] = {}
    for number in range(1, 4):
        trainer.round(number)
        _, cohort, rows = told[-1]
        for space, asked in rows.items():
            held = [DATA.spaces[space].rows_of(c) for c in cohort.clients.tolist()]
            union, begin = np.unique(np.concatenate(held)), 0
            for client, count in zip(cohort.clients.tolist(), asked.counts.tolist(), strict=True):
                named = asked.rows[begin : begin + count].tolist()
                assert named == expected_names(DATA, space, client, union, number)
                begin += count
                for row in union.tolist():
                    lasting.setdefault((space, client, row), []).append(row in named)
    assert any(len(set(said)) > 1 for said in lasting.values())  # drawn afresh every round


def hand_made(data: fs.Clients, number: int) -> fs.Clients:
    """The samples that are left in a round in which everybody takes part."""
    arrays: dict[str, list] = {name: [] for name in data.columns}
    offsets = [0]
    unions = {n: np.unique(s.rows) for n, s in data.spaces.items()}
    for client in range(len(data)):
        came = {n: set(expected_names(data, n, client, union, number)) for n, union in unions.items()}
        for sample in range(int(data.offsets[client]), int(data.offsets[client + 1])):
            one = {n: v[0] for n, v in data.gather(np.array([sample]), local=False).items()}
            before = [row for row in one["history"].tolist() if row]
            history = [row for row in before if row in came["item"]]
            fine = one["item"] in came["item"] and one["slot"] in came["slot"] and set(one["place"]) <= came["place"]
            if fine and (history or not before):
                for name, value in {**one, "history": history}.items():
                    arrays[name].append(value)
        if len(arrays["label"]) > offsets[-1]:
            offsets.append(len(arrays["label"]))
    return fs.Clients.from_arrays(
        {n: v if n == "history" else np.array(v) for n, v in arrays.items()}, offsets=np.array(offsets),
        ids={"item": ["item", "history"], "place": ["place"], "slot": ["slot"]}, label="label", values=["value"],
        sizes={n: s.size for n, s in data.spaces.items()},
    )  # fmt: skip


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_a_round_is_that_of_the_samples_that_are_left(engine: str) -> None:
    """Against a plain round on data made by hand of what is left, weighted by it; clients of whom nothing is left
    weigh nothing, and are counted. Rows of too few names stay as they are."""
    left = hand_made(DATA, 1)
    plain = fs.Method(
        local=fs.SGD(lr=0.4, local_steps=3, batch_size=4, batches="ordered"), average=fs.OverClients("samples"),
        server=fs.Add(), sampler=fs.Everyone(),
    )  # fmt: skip
    result = train(replace(plain, parts=(fs.SecureSum(rows="perturbed:2", **FINE),)), rounds=1, engine=engine)
    expected = fs.run(plain, clicks(DATA), left, rounds=1, seed=3, engine="serial")
    start = clicks(DATA).module.state_dict()
    idle = len(DATA) - len(left)
    assert idle > 0
    assert left.samples < DATA.samples
    assert result.history[1]["idle"] == idle
    assert result.history[1]["loss"] == pytest.approx(expected.history[1]["loss"], abs=1e-5)
    kept_back = 0
    for name, value in result.params.items():
        space = {"item.weight": "item", "place.weight": "place", "slot.weight": "slot"}.get(name)
        rows = np.ones(len(value), bool)
        if space is not None:
            union = np.unique(DATA.spaces[space].rows)
            named = [expected_names(DATA, space, client, union, 1) for client in range(len(DATA))]
            rows = np.bincount(np.concatenate(named).astype(int), minlength=len(value)) >= 2
            kept_back += int((~rows[union]).sum())
        there, first = value.numpy(), start[name].numpy()
        assert np.allclose(there[rows], expected.params[name].numpy()[rows], atol=1e-5), name
        assert np.array_equal(there[~rows], first[~rows])
        assert not np.array_equal(there[rows], first[rows])
    assert result.history[1]["withheld"] == kept_back


WAYS: dict[str, tuple[tuple[fs.Part, ...], Way, Way]] = {
    "FedSubAvg": ((), {}, {}),
    "lost": ((), {}, {"lost": 0.25}),
    "lost and spare": ((), {"spare": 2}, {"lost": 0.25}),
    "sampled holders": ((), {"average": fs.OverSampledHolders()}, {"lost": 0.25}),
    "FedProx": ((fs.Prox(0.1),), {"average": fs.OverClients("clients")}, {}),
    "FedNova": ((fs.NormalisedSteps(),), {}, {}),
    "Adam": ((), {"server": servers.Adam(lr=0.01)}, {}),
    "own table": ((fs.Personal(("slot.weight",)),), {}, {"lost": 0.2}),
    "LocalDP": ((fs.LocalDP(0.5, noise=0.5),), {"clip": 2.0, "average": fs.OverHolders("clients")}, {}),
    "Poisson": ((), {"sampler": sampling.Poisson(4)}, {}),
}


@pytest.mark.parametrize("name", WAYS)
def test_the_protocol_and_the_plain_sum_are_the_same_bits(name: str) -> None:
    parts, way, options = WAYS[name]
    plain, played = (train(method(*parts, **way, simulate=simulate), **options) for simulate in (True, False))
    assert equal(plain.params, played.params)
    assert str(plain.history) == str(played.history)  # with its bytes


@pytest.mark.parametrize("options", [{}, {"lost": 0.25}])
def test_preset_1_names_rows_as_they_are(options: Way) -> None:
    """Bit for bit a round whose rows are named in the clear; and where nobody is lost, one that tells no rows."""
    found, clear, union = (train(method(rows=rows), **options) for rows in ("perturbed:1", "clear", "union"))
    assert equal(found.params, clear.params)
    assert [r["loss"] for r in found.history[1:]] == [r["loss"] for r in clear.history[1:]]
    assert equal(found.params, union.params) == (not options)


@pytest.mark.parametrize("preset", [1, 5])
def test_presets_without_a_coin_are_the_plain_round_up_to_rounding(preset: int) -> None:
    """Preset 5, the whole union for everybody, withholds nothing; preset 1 on data of which all rows have holders."""
    data = DATA if preset == 5 else click_data((30, 25, 40, 35), items=6, length=3)
    sampler = fs.Everyone()
    found = train(method(rows=f"perturbed:{preset}", sampler=sampler, **FINE), data=data)
    plain = fs.Method(local=LOCAL, average=fs.OverHolders("samples"), server=fs.Add(), sampler=sampler)
    expected = train(plain, data=data)
    for name, value in found.params.items():
        assert torch.allclose(value, expected.params[name], atol=2e-5)
    assert [(r["withheld"], r["idle"]) for r in found.history[1:]] == [(0, 0)] * 3
    assert found.history[-1]["loss"] == pytest.approx(expected.history[-1]["loss"], abs=1e-5)


def test_rows_that_a_client_was_sent_and_does_not_hold_never_move() -> None:
    """Not by decay, nor by what pulls towards what was sent; with preset 5 everybody is sent everything."""
    data = item_data(SIZES, items=12, width=2)
    local = fs.SGD(lr=0.3, local_steps=3, batch_size=4, weight_decay=0.1)
    found = []
    for rows in ("perturbed:5", "union"):
        parts = (fs.Prox(0.3), fs.SecureSum(rows=rows, **FINE))
        m = fs.Method(local=local, parts=parts, average=fs.OverClients(), server=fs.Add(), sampler=fs.Everyone())
        objective = bag(data, dim=2)
        objective = fs.Objective(objective.module, objective.loss, {"emb.weight": "ids"}, l2=0.05)
        found.append(fs.run(m, objective, data, rounds=2, engine="serial", seed=3))
    assert found[1].history[-1]["withheld"] == 0
    for name, value in found[0].params.items():
        assert torch.allclose(value, found[1].params[name], atol=1e-7), name


def test_the_part_holds_what_a_part_must(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines, groups, workers, a resumed run, and nodes that share nothing but bytes, with all bytes counted; the
    nodes' words are those of the simulation."""
    made = Node.__init__

    def born(self: Node, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        self.heat.words = lambda _, space: simulated(SEED, space, np.array([self.number]))  # type: ignore[method-assign]

    monkeypatch.setattr(Node, "__init__", born)
    check_part(fs.SecureSum(2.0, rows="perturbed:2"))


def test_a_row_that_the_union_misses_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a ring of 256 elements what two put at a row often adds up to 0: such a row is not there, in both ways."""
    for module in (opening, perturbed):
        monkeypatch.setattr(module, "Uniting", lambda rows: Uniting(rows, bits=8))
    data, missed = item_data((200,) * 9, items=300, width=2), 0
    found = []
    for simulate in (True, False):
        trainer = trainer_for(method(simulate=simulate), bag(data, dim=2), data, "serial", seed=3)
        for number in range(1, 6):
            report = trainer.round(number)
            held = [data.spaces["ids"].rows_of(client) for client in report.clients.tolist()]
            union = np.unique(np.concatenate(held))
            there = trainer.transport._unions["ids"]  # type: ignore[union-attr]
            assert np.isin(there, union).all()
            missed += len(union) - len(there)
        found.append(trainer.params)
    assert missed > 0
    assert equal(found[0], found[1])


def test_a_row_of_one_holder_moves_when_it_named_it_and_never_else() -> None:
    """What the page says of exact sums: over rounds, names and sums together leave one client."""
    draw = np.random.default_rng(0)
    rows = np.concatenate([1 + draw.permutation(8)[:5] for _ in range(8)])[:, None]
    rows[0] = 0
    data = fs.Clients.from_arrays(
        {"ids": rows, "label": draw.integers(0, 2, 40)}, offsets=np.arange(0, 41, 5), ids=["ids"], label="label",
        sizes={"ids": 9},
    )  # fmt: skip
    m = method(sampler=fs.Everyone(), average=fs.OverClients(), **FINE)
    trainer = trainer_for(m, bag(data, dim=2), data, "serial", seed=3)
    left, moves = np.ones(8, bool), []
    for number in range(1, 61):
        before = trainer.params["emb.weight"][0].clone()
        trainer.round(number)
        asked = trainer.transport._named["ids"]  # type: ignore[union-attr]
        named = np.array([0 in asked.take(np.array([k])).rows for k in range(8)])
        moves.append(not torch.equal(trainer.params["emb.weight"][0], before))
        assert moves[-1] == (named[0] and named.sum() >= 2)
        if named.sum() >= 2:
            left &= named == moves[-1]
    assert 0 < sum(moves) < 60
    assert left.tolist() == [True] + [False] * 7


def test_a_round_in_which_nothing_is_left_changes_nothing() -> None:
    never = PermanentResponse(p1=1e-6, p2=0.0, p3=1.0, p4=0.0)
    result = train(method(rows=never), rounds=2)
    assert equal(result.params, dict(clicks(DATA).module.named_parameters()))
    assert [r["idle"] for r in result.history[1:]] == [6, 6]
    assert sum("was left out: no client had samples left" in event for event in result.events) == 2


def test_noise_hides_that_a_client_has_nothing_left() -> None:
    """With LocalDP all weigh the same, and noise lies on every row that a client named, held or not."""
    never = PermanentResponse(p1=0.5, p2=0.5, p3=0.5, p4=0.5)
    m = method(fs.LocalDP(0.5, noise=2.0), rows=never, clip=9.0, average=fs.OverClients(), sampler=fs.Everyone())
    trainer = trainer_for(m, clicks(DATA), DATA, "serial", seed=3)
    before = {n: p.clone() for n, p in trainer.params.items()}
    report = trainer.round(1)
    assert report.measured["idle"] > 0
    moved = trainer.params["item.weight"] != before["item.weight"]
    asked = trainer.transport._named["item"]  # type: ignore[union-attr]
    counts = np.bincount(asked.rows, minlength=len(moved))
    assert np.array_equal(moved.all(1).numpy()[1:], counts[1:] >= 2)  # the padding row never moves
    total = trainer.transport._counted.counts  # type: ignore[union-attr]
    assert total["item"].tolist() == counts[trainer.transport._unions["item"]].tolist()  # type: ignore[union-attr]


def test_the_budget_counts_what_clients_say_of_their_rows() -> None:
    """ε∞ for a row, times the rows told, in each table that is sent; on top of heat and of training."""
    from fedsub.privacy.accounting import epsilon
    from fedsub.privacy.spending import Spend

    once = np.log(15)
    unbounded, bounded = train(method()), train(method(rows=PermanentResponse(preset=2, rows=4)))
    assert unbounded.privacy["epsilon"] == np.inf
    assert "costs an ε without bound" in unbounded.events[1]
    assert bounded.privacy["epsilon"] == pytest.approx(4 * 3 * once)
    assert bounded.history[-1]["privacy.epsilon"] == pytest.approx(12 * once)
    assert "ε 2.708 a row for ever" in bounded.events[1]
    everything = train(method(rows="perturbed:5"))
    assert everything.privacy["epsilon"] == 0
    heat = fs.privacy.RandomizedResponse(epsilon=1.0, rows=2)
    parts = (fs.LocalDP(0.5, noise=2.0, epsilon=90),)
    rows = PermanentResponse(preset=2, rows=4)
    result = train(method(*parts, rows=rows, clip=9.0, average=fs.OverHolders("clients", heat=heat)))
    took = max(spend["times"] for spend in result.privacy["spends"] if spend["kind"] == "gaussian")
    training = epsilon([Spend.gaussian("training", 1.0, times=took)], 1e-5)
    assert result.privacy["epsilon"] == pytest.approx(12 * once + 3 * 2 * 1.0 + training)
    with pytest.raises(MethodError, match=r"row sets by permanent response.*an ε without bound"):
        train(method(*parts, clip=9.0, average=fs.OverClients()))


def test_a_client_tells_of_no_more_rows_than_it_may() -> None:
    """Without false names and coins what is named is what is told of."""
    told = PermanentResponse(p1=1.0, p2=0.0, p3=1.0, p4=0.0, rows=4)
    trainer = trainer_for(method(rows=told, sampler=fs.Everyone()), clicks(DATA), DATA, "serial", seed=3)
    trainer.round(1)
    first = {s: asked.rows.tolist() for s, asked in trainer.transport._named.items()}  # type: ignore[union-attr]
    for space, asked in trainer.transport._named.items():  # type: ignore[union-attr]
        held = DATA.spaces[space].counts - DATA.spaces[space].padding
        assert (asked.counts - DATA.spaces[space].padding).tolist() == np.minimum(held, 4).tolist()
    trainer.round(2)
    assert first == {s: asked.rows.tolist() for s, asked in trainer.transport._named.items()}  # type: ignore[union-attr]


class Whole(Clicks):
    def forward(self, batch):
        return super().forward(batch) + (self.place.weight**2).sum()


def whole(data: fs.Clients) -> fs.Objective:
    tables = {"item.weight": ["item", "history"], "place.weight": "place", "slot.weight": "slot"}
    return fs.Objective(Whole(data), fs.losses.binary("label"), tables, unused=("value",), whole=("place.weight",))


class Twice(Clicks):
    def __init__(self, data: fs.Clients):
        super().__init__(data)
        self.bias = torch.nn.Embedding(data.size("slot"), 1)

    def forward(self, batch):
        return super().forward(batch) + self.bias(batch["slot"]).squeeze(-1)


def twice(data: fs.Clients) -> fs.Objective:
    tables = {"item.weight": ["item", "history"], "place.weight": "place", "slot.weight": "slot", "bias.weight": "slot"}
    return fs.Objective(Twice(data), fs.losses.binary("label"), tables, unused=("value",))


REFUSED: dict[str, tuple[Any, str]] = {
    "preset": (lambda: method(rows="perturbed:7"), "one of 1 to 5"),
    "no preset": (lambda: method(rows="perturbed"), "lacks its preset"),
    "nothing named": (lambda: method(rows=PermanentResponse(p1=0.0, p2=0.5, p3=0.5, p4=0.0)), "a row that it holds"),
    "Scaffold": (lambda: method(fs.ControlVariates(), payload_clip=1.0), "keep account of every row"),
    "unbiased": (lambda: method(average=fs.OverHolders("unbiased")), "too short by what was lost"),
    "LocalDP": (lambda: method(fs.LocalDP(0.5, noise=1.0)), "which rows it holds"),
    "whole": (lambda: fs.run(method(), whole(DATA), DATA, rounds=1), "uses the table 'place.weight' whole"),
    "own and shared": (lambda: fs.run(method(fs.Personal(("bias.weight",))), twice(DATA), DATA, rounds=1),
                       "'bias.weight' stays with the clients and shares its rows"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused_with_the_reason(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(MethodError, match=words):
        make()


def test_words_for_perturbed_rows() -> None:
    assert spelled("perturbed:0.5,preset=2") == fs.SecureSum(0.5, rows="perturbed:2")
    numbers = PermanentResponse(p1=0.9, p2=0.1, p3=0.8, p4=0.2, rows=50)
    written = "perturbed:0.5,p1=0.9,p2=0.1,p3=0.8,p4=0.2,rows=50,spare=1"
    assert spelled(written) == fs.SecureSum(0.5, rows=numbers, spare=1)
    for wrong, words in {"perturbed:0.5": "preset=2", "perturbed:preset=2": "lacks clip"}.items():
        with pytest.raises(MethodError, match=words):
            spelled(wrong)
