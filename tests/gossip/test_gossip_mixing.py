"""What nodes average: FedAvg and FedSubAvg where everybody hears everybody, and sums written out in numpy."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from gossip_worlds import STEPS, gossip, mix, models, pulls_of, put, scatter, several, trainer, world

import fedsub as fs
from fedsub.gossip import AllReduce, Complete, Metropolis, RandomPeers, Regular, Ring
from fedsub.gossip.exchange import Exchange
from fedsub.gossip.trainer import GossipTrainer

EVERYBODY = np.arange(9)


def close(a: dict, b: dict, tolerance: float = 1e-6) -> bool:
    return all(float((a[n] - b[n]).abs().max()) <= tolerance * max(1.0, float(b[n].abs().max())) for n in b)


@pytest.mark.parametrize("weighting", ["samples", "clients"])
@pytest.mark.parametrize("mixing", ["peers", "segments", "ring", "metropolis"])
def test_all_who_hear_all_are_fedavg_and_fedsubavg_with_everybody(mixing: str, weighting: str) -> None:
    """R ≥ K − 1, any number of segments, the ring, and D-PSGD on the complete graph; rows and dense parameters."""
    objective, clients = world()
    kinds = {
        "peers": RandomPeers(peers=8, weighting=weighting),
        "segments": RandomPeers(peers=100, segments=5, weighting=weighting),
        "ring": AllReduce(weighting=weighting), "metropolis": Metropolis(),
    }  # fmt: skip
    if mixing == "metropolis" and weighting == "samples":
        weighting = "clients"
    server = {
        "peers": fs.methods.fedavg(weighting=weighting, solver=STEPS, clients_per_round=None),
        "holders": fs.methods.fedsubavg(weighting=weighting, solver=STEPS, clients_per_round=None),
    }
    theirs = None
    for over, method in server.items():
        ours = fs.run(gossip(kinds[mixing], over=over), objective, clients, rounds=4, engine="serial", seed=3)
        theirs = fs.run(method, objective, clients, rounds=4, engine="serial", seed=3)
        assert close(ours.params, theirs.params), over
        assert [r["loss"] for r in ours.history[1:]] == pytest.approx([r["loss"] for r in theirs.history[1:]], rel=1e-5)
        assert ours.history[-1]["gossip.consensus"] < 1e-6 or over == "peers"
    assert theirs is not None
    plain = fs.run(server["peers"], objective, clients, rounds=4, engine="serial", seed=3)
    assert not close(plain.params, theirs.params, 1e-3)  # the correction does something here


def test_nobody_heard_is_local_training() -> None:
    """R = 0: every node ends where its own steps lead, bit for bit, as with all parameters personal."""
    objective, clients = world()
    alone = fs.methods.fedavg(solver=STEPS, personal="*", personal_init="shared", clients_per_round=None)
    theirs = fs.run(alone, objective, clients, rounds=3, engine="serial", seed=2)
    for mixing in (RandomPeers(peers=0), RandomPeers(peers=0, segments=4)):
        ours = fs.run(gossip(mixing), objective, clients, rounds=3, engine="serial", seed=2)
        assert ours.personal is not None
        assert theirs.personal is not None
        for name in objective.module.state_dict():
            own = theirs.personal.kept.tensors[f"personal.own/{name}"]
            assert torch.equal(ours.personal.kept.tensors[f"ownmodel.own/{name}"], own), name
        assert ours.history[-1]["down"] == ours.history[-1]["up"] == 0


def test_one_segment_is_ordinary_gossip() -> None:
    objective, clients = world()
    named = fs.methods.gossip(peers=2, solver=STEPS), fs.methods.segmented_gossip(peers=2, segments=1, solver=STEPS)
    first, second = (fs.run(m, objective, clients, rounds=3, engine="serial", seed=1) for m in named)
    assert all(torch.equal(first.params[n], second.params[n]) for n in first.params)
    assert [r["down"] for r in first.history] == [r["down"] for r in second.history]


def by_hand(made: GossipTrainer, before: list, after: list, pulls: dict, over: str) -> list:
    """New models of gossip, value by value. ``pulls``: (node, segment) -> whom it hears."""
    exchange = made.exchange
    own, edges = exchange.own, exchange.network.segments.edges
    assert own is not None
    new = []
    for i, mine in enumerate(after):
        model, offset = {}, 0
        for name in exchange.network.names:
            flat, out = mine[name].reshape(-1), mine[name].reshape(-1).copy()
            for place in range(flat.size):
                if np.isnan(flat[place]):
                    continue
                segment = int(np.searchsorted(edges, offset + place, side="right")) - 1
                heard = pulls.get((i, segment), [])
                there = [(j, after[j][name].reshape(-1)[place]) for j in heard]
                holders = [(j, value) for j, value in there if not np.isnan(value)]
                if over == "holders":
                    weights = own[i] + sum(own[j] for j, _ in holders)
                    out[place] = (own[i] * flat[place] + sum(own[j] * v for j, v in holders)) / weights
                else:
                    rest = sum(own[j] for j, v in there if np.isnan(v))
                    weights = own[i] + sum(own[j] for j in heard)
                    stood = before[i][name].reshape(-1)[place]
                    out[place] = (own[i] * flat[place] + sum(own[j] * v for j, v in holders) + rest * stood) / weights
            model[name], offset = out.reshape(mine[name].shape), offset + flat.size
        new.append(model)
    return new


def metropolis_by_hand(before: list, after: list, links: dict, over: str) -> list:
    """The same for D-PSGD on a graph, ``links``: node -> neighbours."""
    new = []
    for i, mine in enumerate(after):
        model = {}
        for name in mine:
            out = mine[name].copy()
            for place in np.ndindex(out.shape):
                if np.isnan(out[place]):
                    continue

                def holding(k: int, name=name, place=place) -> list[int]:
                    return [j for j in links[k] if not np.isnan(after[j][name][place])]

                change = 0.0
                for j in links[i]:
                    if not np.isnan(after[j][name][place]):
                        degrees = (
                            (len(holding(i)), len(holding(j))) if over == "holders" else (len(links[i]), len(links[j]))
                        )
                        change += (after[j][name][place] - mine[name][place]) / (1 + max(degrees))
                    elif over == "peers":
                        weight = 1 / (1 + max(len(links[i]), len(links[j])))
                        change += weight * (before[i][name][place] - mine[name][place])
                out[place] += change
            model[name] = out
        new.append(model)
    return new


@pytest.mark.parametrize("over", ["holders", "peers"])
@pytest.mark.parametrize(
    ("made_of", "segments"), [*((world, s) for s in (1, 2, 7, 19, 40)), *((several, s) for s in (1, 4, 17))]
)
def test_a_mixing_is_what_numpy_makes_of_it(made_of: Any, segments: int, over: str) -> None:
    """Rows across borders (3 columns in 40 values), segments within a row, dense parameters, and several tables."""
    objective, clients = made_of()
    made = trainer(gossip(RandomPeers(peers=3, segments=segments), over=over), objective, clients)
    scatter(made, 1)
    before, stood = models(made), made.exchange.before()
    scatter(made, 2)
    after = models(made)
    nodes = np.array([0, 1, 2, 4, 5, 7, 8])  # two are away
    found = made.exchange.meet(5, nodes)
    pulls: dict = {}
    for to, of, segment in zip(pulls_of(found).to, pulls_of(found).of, pulls_of(found).segment, strict=True):
        pulls.setdefault((int(to), int(segment)), []).append(int(of))
    assert set(pulls) == {(i, s) for i in nodes.tolist() for s in range(segments)}
    assert all(len(set(p)) == 3 and i not in p and {3, 6}.isdisjoint(p) for (i, _), p in pulls.items())
    made.exchange.mix(found, stood)
    same(models(made), by_hand(made, before, after, pulls, over))
    for away in (3, 6):
        same([models(made)[away]], [after[away]], 0.0)


def same(found: list, expected: list, tolerance: float = 2e-6) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        for name in theirs:
            np.testing.assert_allclose(ours[name], theirs[name], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("over", ["holders", "peers"])
@pytest.mark.parametrize("made_of", [world, several])
def test_d_psgd_is_what_numpy_makes_of_it(made_of: Any, over: str) -> None:
    objective, clients = made_of()
    made = trainer(gossip(Metropolis(), graph=Ring(), over=over), objective, clients)
    scatter(made, 1)
    before, stood = models(made), made.exchange.before()
    scatter(made, 2)
    after = models(made)
    here = np.delete(EVERYBODY, 3)
    links = {k: [j for j in ((k - 1) % 9, (k + 1) % 9) if j != 3] for k in range(9)} | {3: []}
    made.exchange.mix(made.exchange.meet(1, here), stood)
    same(models(made), metropolis_by_hand(before, after, links, over))


def test_both_ways_to_hear_everybody_agree() -> None:
    """Sums by row, and pulls that are listed: the complete graph as a graph of one's own."""
    objective, clients = world()
    pairs = np.array(list(combinations(range(9), 2)))
    for mixing in (RandomPeers(peers=8, segments=3), Metropolis()):
        for over in ("holders", "peers"):
            found = []
            for graph in (Complete(), fs.gossip.Given(9, pairs)):
                made = trainer(gossip(mixing, graph=graph, over=over), objective, clients)
                scatter(made, 1)
                stood = made.exchange.before()
                scatter(made, 2)
                outcome = made.exchange.meet(1, EVERYBODY)
                assert (outcome.meeting is None) == isinstance(graph, Complete)
                made.exchange.mix(outcome, stood)
                found.append((models(made), outcome))
            same(found[0][0], found[1][0])
            one, other = found[0][1], found[1][1]
            np.testing.assert_array_equal(one.traffic.down, other.traffic.down)
            np.testing.assert_array_equal(one.traffic.up, other.traffic.up)
            assert one.measured == pytest.approx(other.measured)


@pytest.mark.parametrize("segments", [1, 6])
@pytest.mark.parametrize("over", ["holders", "peers"])
def test_every_new_value_lies_between_those_it_is_made_of(segments: int, over: str) -> None:
    objective, clients = world()
    made = trainer(gossip(RandomPeers(peers=3, segments=segments), over=over), objective, clients)
    for number in range(1, 6):
        scatter(made, number)
        stood, before = made.exchange.before(), models(made)
        scatter(made, 50 + number)
        after = models(made)
        found = made.exchange.meet(number, EVERYBODY)
        made.exchange.mix(found, stood)
        low, high = made.exchange.network.segments.edges[:-1], made.exchange.network.segments.edges[1:]
        mixed = [_flat(m) for m in models(made)]
        old, new = [_flat(m) for m in before], [_flat(m) for m in after]
        pulls = pulls_of(found)
        for i in range(9):
            for s in range(segments):
                piece = slice(low[s], high[s])
                heard = [i, *pulls.of[(pulls.to == i) & (pulls.segment == s)]]
                among = np.array([new[j][piece] for j in heard] + ([old[i][piece]] if over == "peers" else []))
                held = ~np.isnan(mixed[i][piece])
                assert np.array_equal(held, ~np.isnan(new[i][piece]))
                assert (mixed[i][piece][held] <= np.nanmax(among[:, held], 0) + 1e-6).all()
                assert (mixed[i][piece][held] >= np.nanmin(among[:, held], 0) - 1e-6).all()


def _flat(model: dict) -> np.ndarray:
    return np.concatenate([model[name].reshape(-1) for name in ("emb.weight", "out.weight", "out.bias")])


@pytest.mark.parametrize("mixing", [RandomPeers(peers=2), RandomPeers(peers=2, segments=5), Metropolis()])
def test_consensus_shrinks(mixing: fs.gossip.Mixing) -> None:
    objective, clients = world(sizes=(4,) * 9, items=5)  # everybody holds nearly everything
    made = trainer(
        gossip(mixing, graph=Regular(4) if isinstance(mixing, Metropolis) else Complete()), objective, clients
    )
    scatter(made)
    distances = [_furthest(models(made))]
    for number in range(1, 16):
        mix(made.exchange, number, EVERYBODY)
        distances.append(_furthest(models(made)))
    assert distances[-1] < 0.05 * distances[0]
    assert all(later <= earlier + 1e-6 for earlier, later in pairwise(distances))


def _furthest(found: list) -> float:
    """The largest distance of two nodes in what both hold, in the largest value: it cannot grow by averaging."""
    flat = [_flat(model) for model in found]
    return max(np.nanmax(np.abs(a - b)) for a, b in combinations(flat, 2))


def test_gossip_keeps_the_mean_in_expectation_and_cold_rows_need_the_correction() -> None:
    """Over all draws of peers, nodes of equal weight: over holders the mean of a row's holders stays; over peers the
    step from where they began is h_m = (1 + R (n_m − 1)/(N − 1)) / (1 + R) of it."""
    objective, clients = world(sizes=(3,) * 5, items=40, seed=4)
    nodes, peers = 5, 2
    others = {i: list(combinations([j for j in range(nodes) if j != i], peers)) for i in range(nodes)}
    heat = fs.heat.row_heat(clients.spaces["ids"])
    assert {1, 2, 3} <= set(heat.tolist())
    for over in ("holders", "peers"):
        made = trainer(gossip(RandomPeers(peers=peers), over=over), objective, clients)
        scatter(made, 1)
        before = models(made)
        start = {name: over_holders([m[name] for m in before]) for name in before[0]}
        for model in before:  # they began alike
            for name, value in model.items():
                value[~np.isnan(value)] = start[name][~np.isnan(value)]
        scatter(made, 2)
        after = models(made)
        mean = []
        for draw in range(len(others[0])):  # nodes draw apart, so that one index for all covers each node's draws
            pulls = {(i, 0): list(others[i][draw]) for i in range(nodes)}
            mean.append(by_hand(made, before, after, pulls, over))
        expected = {n: over_holders([m[n] for found in mean for m in found]) for n in start}
        trained = {n: over_holders([m[n] for m in after]) for n in start}
        for name, value in expected.items():
            held = heat if name == "emb.weight" else np.full(len(value), nodes)
            share = (1 + peers * (held - 1) / (nodes - 1)) / (1 + peers) if over == "peers" else np.ones(len(held))
            step = share.reshape(-1, *[1] * (value.ndim - 1)) * (trained[name] - start[name])
            there = ~np.isnan(value)
            np.testing.assert_allclose(value[there], (start[name] + step)[there], atol=1e-12)


def over_holders(values: list) -> np.ndarray:
    """The mean without NaN; NaN where nobody holds a row."""
    held = (~np.isnan(values)).sum(0)
    return np.where(held > 0, np.nansum(values, 0) / np.maximum(held, 1), np.nan)


@pytest.mark.parametrize("nodes_here", [EVERYBODY, np.delete(EVERYBODY, [2, 6])])
def test_d_psgd_keeps_the_mean_over_holders(nodes_here: np.ndarray) -> None:
    objective, clients = world()
    made = trainer(gossip(Metropolis(), graph=Regular(4)), objective, clients)
    scatter(made)
    before = {n: np.nanmean([m[n] for m in models(made)], 0) for n in made.params}
    for number in range(1, 4):
        mix(made.exchange, number, nodes_here)
    for name, value in before.items():
        after = np.nanmean([m[name] for m in models(made)], 0)
        np.testing.assert_allclose(after, value, atol=1e-6)


def test_averaging_alone_comes_together_at_the_rate_of_the_spectral_gap() -> None:
    """‖x − x̄‖ falls by |λ₂| = 1 − gap a round; from the eigenvector of λ₂ exactly so, on a ring of 9."""
    objective, clients = world(items=3)
    made = trainer(gossip(Metropolis(), graph=Ring()), objective, clients)
    second = 1 / 3 + 2 / 3 * np.cos(2 * np.pi / 9)
    assert made.measures({})["gossip.gap"] == pytest.approx(1 - second, rel=1e-6)
    dense = "out.weight"
    start = np.cos(2 * np.pi * np.arange(9) / 9)[:, None, None] * np.ones((1, 1, 3))
    put(made, [{dense: value} for value in start])
    for number in range(1, 11):
        mix(made.exchange, number, EVERYBODY)
        found = np.array([m[dense] for m in models(made)])
        np.testing.assert_allclose(found, start * second**number, atol=1e-6)
    draw = np.random.default_rng(0).normal(size=start.shape)
    put(made, [{dense: value} for value in draw])
    first = np.linalg.norm(draw - draw.mean(0))
    for number in range(1, 31):
        mix(made.exchange, number, EVERYBODY)
        found = np.array([m[dense] for m in models(made)])
        assert np.linalg.norm(found - draw.mean(0)) <= second**number * first + 1e-5


@pytest.mark.parametrize("graph", [Ring(), Regular(4)])
def test_a_fresh_graph_is_another_one_in_every_round_and_that_of_its_seed(graph: fs.gossip.Graph) -> None:
    objective, clients = world()

    def pairs(number: int, *, seed: int = 0, fresh: bool = True) -> list:
        made = trainer(gossip(Metropolis(), graph=graph, fresh=fresh), objective, clients, seed=seed)
        pulls = pulls_of(made.exchange.meet(number, EVERYBODY))
        return list(zip(pulls.to.tolist(), pulls.of.tolist(), strict=True))

    assert pairs(1) != pairs(2) != pairs(3)
    assert pairs(2) == pairs(2)
    assert pairs(2) != pairs(2, seed=1)
    assert pairs(1, fresh=False) == pairs(2, fresh=False)
    assert {len(pairs(n)) for n in (1, 2, 3)} == {len(pairs(1, fresh=False))}
    made = trainer(gossip(Metropolis(), graph=graph, fresh=True), objective, clients)
    one = [made.exchange.meet(n, EVERYBODY) for n in (2, 3, 2)]
    assert list(zip(pulls_of(one[2]).to.tolist(), pulls_of(one[2]).of.tolist(), strict=True)) == pairs(2)
    assert not torch.equal(*(torch.from_numpy(pulls_of(found).of) for found in one[:2]))


def test_a_row_that_nobody_nearby_holds_is_counted() -> None:
    objective, clients = world()
    made = trainer(gossip(Metropolis(), graph=Ring()), objective, clients)
    found, held = made.exchange.meet(1, EVERYBODY), [set(clients.spaces["ids"].rows_of(k).tolist()) for k in range(9)]
    alone = [held[k] - held[(k - 1) % 9] - held[(k + 1) % 9] for k in range(9)]
    assert found.measured["gossip_alone_rows"] == sum(map(len, alone)) > 0
    assert found.measured["gossip_alone"] == sum(bool(rows) for rows in alone)
    everyone = trainer(gossip(AllReduce()), objective, clients).exchange.meet(1, EVERYBODY)
    assert everyone.measured["gossip_alone_rows"] == int((fs.heat.row_heat(clients.spaces["ids"]) == 1).sum())
    here = np.array([0, 2, 3, 4])  # rows of those who are away are not asked for
    some = trainer(gossip(AllReduce()), objective, clients).exchange.meet(1, here)
    rows = np.concatenate([clients.spaces["ids"].rows_of(k) for k in here])
    assert some.measured["gossip_alone_rows"] == (np.bincount(rows) == 1).sum() > 0


def test_measured_distance_is_that_of_the_models() -> None:
    objective, clients = world()
    made = trainer(gossip(RandomPeers(peers=1)), objective, clients)
    scatter(made)
    mean = made._mean(7)
    weights = clients.sizes / clients.sizes.sum()
    found = models(made)
    np.testing.assert_allclose(
        mean["out.weight"], sum(w * m["out.weight"] for w, m in zip(weights, found, strict=True)), atol=1e-6
    )
    rows = np.array([m["emb.weight"] for m in found])
    share = np.where(np.isnan(rows), 0.0, clients.sizes[:, None, None])
    by_holders = np.nansum(share * rows, 0) / np.maximum(share.sum(0), 1)
    held = share.sum(0) > 0
    np.testing.assert_allclose(mean["emb.weight"].double().numpy()[held], by_holders[held], atol=1e-6)
    apart = [sum(np.nansum((m[n] - mean[n].double().numpy()) ** 2) for n in mean) for m in found]
    measured = made.measures({})
    assert measured["gossip.consensus"] == pytest.approx(np.sqrt(np.mean(apart)), rel=1e-6)
    assert measured["gossip.furthest"] == pytest.approx(np.sqrt(np.max(apart)), rel=1e-6)
    assert isinstance(made.exchange, Exchange)
