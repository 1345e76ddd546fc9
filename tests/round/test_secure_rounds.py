"""Rounds over a secure sum: values from formulas, the two ways bit for bit, rows of too few, and who leaves when."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from worlds import bag, equal, item_data, there, trainer_for

import fedsub as fs
from fedsub import rng
from fedsub.errors import MethodError, NoUsableClient
from fedsub.method import codecs, sampling, servers
from fedsub.method.groups import Cohort
from fedsub.method.spelling import secure as spelled
from fedsub.round.here import delivers
from fedsub.secure import Segment, Setting, sum_bytes
from fedsub.testing import check_part

DATA = item_data((3, 7, 4, 9, 2, 5, 8, 3, 6, 4, 5, 6), items=45, width=3)
LOCAL = fs.SGD(lr=0.4, local_steps=3, batch_size=4)
CLIP = 0.5
Way = dict[str, Any]


def method(*parts: fs.Part, sampler: Any = None, server: Any = None, average: Any = None, **way: Any) -> fs.Method:
    secure = fs.SecureSum(**{"clip": CLIP, **way})
    return fs.Method(
        local=LOCAL, parts=(*parts, secure), average=average or fs.OverHolders("samples"), server=server or fs.Add(),
        sampler=sampler or fs.Uniform(8),
    )  # fmt: skip


def train(method: fs.Method, *, rounds: int = 3, data: fs.Clients = DATA, **options: Any) -> fs.Result:
    return fs.run(method, bag(data, dim=2), data, rounds=rounds, seed=3, engine="serial", **options)


def captured(trainer) -> list[tuple[int, dict[str, np.ndarray], float]]:
    """(client, a_i Δ_i by parameter, a_i) of all that clients of a trainer are about to give, in order."""
    seen, work = [], trainer.here.work

    def watched(opened, add):
        def look(uplink, where):
            for k in range(len(uplink)):
                rows = opened.layout["ids"]
                at = rows.places(slice(where.start + k, where.start + k + 1))
                begin = int(rows.starts[where.start])
                values = {n: v[k : k + 1].numpy() for n, v in uplink.trees["update"].items() if n != "emb.weight"}
                table = uplink.trees["update"]["emb.weight"].numpy()[at.start - begin : at.stop - begin]
                seen.append((int(uplink.who.clients[k]), {**values, "emb.weight": table}, uplink.sums["weight"][k]))
            add(uplink, where)

        return work(opened, look)

    trainer.here.work = watched
    return seen


def levels_of(values: np.ndarray, weight: float, heaviest: float, word: int, levels: int) -> np.ndarray:
    """⌊(x + c)/δ + u⌋, x clipped to ±clip · a_i, c = clip · max a, δ = 2c/(levels − 1); u from counters."""
    c = CLIP * heaviest
    u = rng.uniform(rng.mix(np.uint64(word) + np.arange(values.size, dtype=np.uint64)))
    x = np.clip(values.astype(np.float64).reshape(-1), -CLIP * weight, CLIP * weight)
    return np.floor((x + c) * ((levels - 1) / (2 * c)) + u).astype(np.int64)


@pytest.mark.parametrize(("rows", "lost"), [("union", 0.0), ("clear", 0.0), ("union", 0.3), ("clear", 0.3)])
def test_a_round_is_the_sum_of_levels_by_hand(rows: str, lost: float) -> None:
    """X + (W/W_m) · δ Σ (level − middle) / Σ a_i over the survivors, of rows that enough of them gave to."""
    trainer = trainer_for(method(rows=rows), bag(DATA, dim=2), DATA, "serial", seed=3, lost=lost)
    before, seen = {n: p.clone() for n, p in trainer.params.items()}, captured(trainer)
    report = trainer.round(1)
    here = delivers(Cohort.of(report.clients), lost, seed=3, round=1)
    assert [client for client, _, _ in seen] == report.clients[here].tolist()
    space, sizes, levels = DATA.spaces["ids"], DATA.sizes, 2**15 + 1
    c = CLIP * sizes.max()
    held = np.zeros((len(DATA), space.size), bool)
    for client in range(len(DATA)):
        held[client, space.rows_of(client)] = True
    counts = held[report.clients].sum(0) if rows == "union" else held[report.clients[here]].sum(0)
    missing = len(report.clients) - int(here.sum()) if rows == "union" else 0
    kept = counts >= 2 + missing
    whole = held[report.clients].any(0) if rows == "union" or not missing else held[report.clients[here]].any(0)
    assert report.measured["withheld"] == (whole & ~kept).sum()
    assert (missing > 0) == (lost > 0 and rows == "union")
    total = {n: np.zeros(p.shape) for n, p in before.items()}
    for client, values, weight in seen:
        for place, name in enumerate(before):
            word = int(rng.key(3, rng.QUANTISED, 1, client, place))
            found = levels_of(values[name], weight, sizes.max(), word, levels) - (levels - 1) // 2
            value = found * (2 * c / (levels - 1))
            if name == "emb.weight":
                total[name][space.rows_of(client)] += value.reshape(-1, 2)
            else:
                total[name] += value.reshape(total[name].shape)
    total["emb.weight"][~kept] = 0
    weights = sizes[report.clients[here]].sum()
    coefficient = sizes.sum() / np.maximum(held.T @ sizes, 1)
    for name, p in trainer.params.items():
        mean = total[name] / weights * (coefficient[:, None] if name == "emb.weight" else 1.0)
        assert np.allclose(p.numpy(), before[name].numpy() + mean, atol=3e-7)
    assert torch.equal(trainer.params["emb.weight"][~kept], before["emb.weight"][~kept])
    assert kept.sum() > 5
    assert (~kept).sum() > 2


WAYS: dict[str, tuple[tuple[fs.Part, ...], Way, Way]] = {
    "FedSubAvg": ((), {}, {}),
    "lost": ((), {}, {"lost": 0.25}),
    "lost and spare": ((), {"spare": 3}, {"lost": 0.25}),
    "clear": ((), {"rows": "clear"}, {"lost": 0.25}),
    "sampled holders": ((), {"rows": "clear", "average": fs.OverSampledHolders()}, {"lost": 0.25}),
    "FedProx": ((fs.Prox(0.1),), {"average": fs.OverClients("samples")}, {}),
    "Scaffold": ((fs.ControlVariates(),), {"payload_clip": 3.0}, {"lost": 0.2}),
    "FedNova": ((fs.NormalisedSteps(),), {}, {}),
    "momentum": ((fs.ClipRows(0.01),), {"server": fs.Add(momentum=0.9)}, {"lost": 0.2}),
    "Adam": ((), {"server": servers.Adam(lr=0.01), "average": fs.OverClients()}, {}),
    "FedPer": ((fs.Personal(("out.*",)),), {}, {}),
    "own table": ((fs.Personal(("emb.weight",)),), {}, {"lost": 0.2}),
    "LocalDP": ((fs.LocalDP(0.5, noise=0.5),), {"clip": 2.0, "average": fs.OverClients()}, {}),
    "sparse graph": ((), {"sampler": fs.Everyone(), "adversarial": 0.05, "dropping": 0.05}, {}),
    "Poisson": ((), {"sampler": sampling.Poisson(4)}, {}),
}


@pytest.mark.parametrize("name", WAYS)
def test_the_protocol_and_the_plain_sum_are_the_same_bits(name: str) -> None:
    """Model, history with its bytes, and what is told; every message of the protocol was written, carried and read."""
    parts, way, options = WAYS[name]
    plain, played = (train(method(*parts, **way, simulate=simulate), **options) for simulate in (True, False))
    assert equal(plain.params, played.params)
    assert str(plain.history) == str(played.history)  # NaN of a round without a loss included
    assert "simulated" in plain.events[1]
    assert "played" in played.events[1]
    assert [r.get("given_up", 0) for r in plain.history[1:]] == [r.get("given_up", 0) for r in played.history[1:]]
    if options.get("lost"):
        assert any(r["lost"] for r in plain.history[1:])


def test_neither_engine_groups_nor_workers_change_a_bit() -> None:
    options: list[Way] = [{"chunk": 1}, {"chunk": 3}, {"chunk": 5, "workers": 2}]
    made = [fs.run(method(), bag(DATA, dim=2), DATA, rounds=2, engine="batched", **o) for o in options]
    assert all(equal(made[0].params, one.params) and one.history == made[0].history for one in made[1:])


def test_fine_levels_come_close_to_the_plain_mean() -> None:
    """All rows have holders enough here, so only the rounding is left: δ times the clients, over Σ a_i, each round."""
    data = item_data((6, 7, 4, 9, 5, 5, 8, 6), items=4, width=3)
    fine = {"clip": 4.0, "levels": 2**31 + 1, "bits": 64}
    found = train(method(sampler=fs.Everyone(), **fine), data=data)
    plain = fs.Method(local=LOCAL, average=fs.OverHolders("samples"), server=fs.Add(), sampler=fs.Everyone())
    expected = train(plain, data=data)
    for name, p in found.params.items():
        assert torch.allclose(p, expected.params[name], atol=1e-5)
    assert found.history[-1]["loss"] == pytest.approx(expected.history[-1]["loss"], abs=1e-5)
    assert found.history[-1]["clipped"] == 0


@pytest.mark.parametrize("server", [fs.Add(momentum=0.9), servers.Adam(lr=0.1), servers.Yogi(lr=0.1)])
def test_a_row_of_too_few_stays_as_it_is(server: fs.servers.ServerRule) -> None:
    """A row that one client alone holds never moves, whatever the server; what everybody holds does."""
    data = fs.Clients.from_arrays(
        {"ids": np.array([[0, 1 + i // 3] for i in range(12)]), "label": np.arange(12) % 2},
        offsets=np.arange(0, 13, 3), ids=["ids"], label="label", sizes={"ids": 5},
    )  # fmt: skip
    objective = bag(data, dim=2)
    start = objective.module.emb.weight.detach().clone()  # type: ignore[union-attr]
    for threshold, moves in ((2, True), (4, True), (5, False)):
        m = method(sampler=fs.Everyone(), server=server, rows_threshold=threshold)
        if not moves:
            with pytest.raises(MethodError, match="up to 4 clients, and SecureSum opens no sum of fewer than 5"):
                fs.run(m, objective, data, rounds=2)
            continue
        result = fs.run(m, objective, data, rounds=2)
        after = result.params["emb.weight"]
        assert torch.equal(after[1:], start[1:])
        assert not torch.equal(after[0], start[0])
        assert [r["withheld"] for r in result.history[1:]] == [4, 4]


def test_the_server_is_told_the_union_alone() -> None:
    trainer = trainer_for(method(), bag(DATA, dim=2), DATA, "serial", seed=3)
    asked, opened = [], trainer.server.open

    def watched(number, cohort, rows, probe=""):
        asked.append((cohort, rows))
        return opened(number, cohort, rows, probe)

    trainer.server.open = watched  # type: ignore[method-assign]
    trainer.round(1)
    [(cohort, rows)] = asked
    held = [DATA.spaces["ids"].rows_of(client) for client in cohort.clients.tolist()]
    assert rows["ids"].rows.tolist() == np.unique(np.concatenate(held)).tolist()
    assert len(rows["ids"].counts) == 1 < len(cohort)


def test_a_client_with_nan_leaves_before_it_masks() -> None:
    """What comes out is what the others give, whichever way; a count that it was in is not believed."""
    values = np.zeros((60, 1), np.float32)
    values[20:30] = 3e38  # of which a float32 makes infinity
    data = fs.Clients.from_arrays(
        {"ids": np.random.default_rng(0).integers(0, 9, (60, 2)), "value": values, "label": np.arange(60) % 2},
        offsets=np.arange(0, 61, 10), ids=["ids"], label="label", values=["value"], sizes={"ids": 9},
    )  # fmt: skip
    results = [
        fs.run(method(sampler=fs.Everyone(), simulate=simulate), valued(data), data, rounds=2)
        for simulate in (True, False)
    ]
    assert equal(results[0].params, results[1].params)
    assert [r["rejected"] for r in results[0].history[1:]] == [1, 1]
    assert str(results[0].history) == str(results[1].history)
    assert all(bool(torch.isfinite(p).all()) for p in results[0].params.values())


def valued(data: fs.Clients) -> fs.Objective:
    class Valued(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.emb, self.out = torch.nn.Embedding(data.size("ids"), 2), torch.nn.Linear(3, 1)

        def forward(self, batch):
            return self.out(torch.cat([self.emb(batch["ids"]).sum(1), batch["value"]], 1)).squeeze(-1)

    return fs.Objective(Valued(), fs.losses.binary("label"), {"emb.weight": "ids"})


def test_a_round_of_too_few_is_left_out_and_said() -> None:
    """Poisson cohorts of one or two: no sum of one is opened, and clients keep what they had."""
    variates = fs.ControlVariates()
    result = train(method(variates, sampler=sampling.Poisson(2), payload_clip=3.0, rows_threshold=2), rounds=12)
    alone = [r["round"] for r in result.history[1:] if r["clients"] == 1]
    assert alone
    assert all(math.isnan(result.history[r]["loss"]) for r in alone)
    said = [e for e in result.events if "was left out: 1 clients are too few" in e]
    assert len(said) == len(alone)
    one = trainer_for(
        method(variates, sampler=sampling.Poisson(2), payload_clip=3.0), bag(DATA, dim=2), DATA, "serial", seed=3
    )
    for number in range(1, alone[0]):
        one.round(number)
    before = {n: v.clone() for n, v in (*one.params.items(), *one.memory.tensors.items())}
    one.round(alone[0])
    assert equal(before, {**one.params, **one.memory.tensors})


def test_nobody_left_is_what_it_is_without_a_secure_sum() -> None:
    with pytest.raises(NoUsableClient, match="none delivered"):
        train(method(), lost=0.9999)


def test_clipping_is_counted_and_bounds_a_client() -> None:
    small = train(method(clip=1e-3), rounds=1)
    assert small.history[1]["clipped"] > 50
    assert train(method(clip=50.0), rounds=1).history[1]["clipped"] == 0


REFUSED: dict[str, tuple[Any, str]] = {
    "codec": (lambda: method(codecs.Int8()), "Int8 writes down|codec Int8"),
    "probes": (lambda: method(sampler=sampling.PowerOfChoice(4, 8)), "one by one, in the clear"),
    "reports": (lambda: train(method(sampler=sampling.UCB(4))), "loss and deviation in the clear"),
    "replacement": (lambda: method(sampler=fs.Uniform(4, replacement=True)), "drawn twice"),
    "held": (lambda: method(average=fs.OverSampledHolders()), "which rows the missing ones hold"),
    "payload": (lambda: method(fs.ControlVariates()), "scaffold.variate.*payload_clip"),
    "pooled": (lambda: fs.Method(local=LOCAL, parts=(fs.SecureSum(1.0),), average=fs.OverClients(), server=fs.Add(),
                                 sampler=fs.Everyone(), pooled=True), "in one place"),
    "range": (lambda: train(method(levels=2**30 + 1)), r"0\.5 × 9 = 4\.5 .*8 clients of up to 1073741824 each reach"),
    "central": (lambda: method(fs.CentralDP(1.0, noise=1.0), sampler=sampling.Poisson(4), average=fs.OverClients()),
                "counts by which rows are withheld have no noise"),
    "even": (lambda: method(levels=2**15), "take 32769"),
    "rows": (lambda: method(rows="both"), "union, clear"),
    "threshold": (lambda: train(method(threshold=9)), "opens no sum of fewer than 9"),
    "number": (lambda: train(method(fs.NormalisedSteps(), number_clip=2.0)), "fednova.effective = 3.*number_clip"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused_with_the_reason(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(MethodError, match=words):
        make()


def test_the_part_holds_what_a_part_must() -> None:
    """Engines, groups, workers, a resumed run, and nodes that share nothing but bytes; all bytes counted."""
    check_part(fs.SecureSum(2.0))


def test_words_for_a_secure_sum() -> None:
    assert spelled("union:0.5") == fs.SecureSum(0.5)
    written = "clear:clip=0.25,rows_threshold=3,simulate=false,payload_clip=2"
    assert spelled(written) == fs.SecureSum(0.25, rows="clear", rows_threshold=3, simulate=False, payload_clip=2.0)
    assert fs.methods.fedsubavg(secure="union:0.5").parts == (fs.SecureSum(0.5),)
    for wrong, words in {
        "onion:0.5": "union", "union": "lacks clip", "union:spare=1": "lacks clip", "union:0.5,treshold=3": "threshold",
        "union:x": "clip=x is no number", "union:1,simulate=maybe": "simulate",
    }.items():  # fmt: skip
        with pytest.raises(MethodError, match=words):
            spelled(wrong)


def test_bytes_of_a_sum_without_writing_it() -> None:
    """Every message of sums on dense and sparse graphs, against the lengths that a simulation computes."""
    from fedsub.round.secure.adding import by_protocol

    segments = (Segment("a", 5, 16, most=3), Segment("b", 1, 64, most=1))
    for people, rate, lost in ((5, 0.0, {1}), (7, 0.0, {0, 6}), (40, 0.02, {3})):
        least = people - len(lost)
        setting = Setting.plan(1, 2, range(people), segments, least=least, adversarial=rate, dropping=rate)
        one = {"a": np.arange(5) % 4, "b": np.ones(1, np.int64)}
        added = by_protocol(setting, lambda client, one=one: one, frozenset(lost))
        down, up = sum_bytes(setting, np.array([client not in lost for client in range(people)]))
        assert added.down.tolist() == down.tolist()
        assert added.up.tolist() == up.tolist()
        assert there(added.sums)["a"].tolist() == (one["a"] * (people - len(lost))).tolist()
