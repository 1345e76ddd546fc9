"""Gossip as a run: the same bits however it is computed or interrupted, nodes that leave, parts, and refusals."""

# Wrong calls are what is tested here.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gossip_worlds import STEPS, gossip, trainer, world
from worlds import click_data, equal

import fedsub as fs
from fedsub.errors import ConfigError, MethodError
from fedsub.gossip import AllReduce, Metropolis, RandomPeers, Regular, Ring
from fedsub.method.sampling import Daily, Mask, Random
from fedsub.method.training import Options
from fedsub.objective.problem import Problem

SCRIPT = """
import os, random, signal, sys, time
from pathlib import Path
import fedsub as fs
from worlds import bag, item_data

work = {"lr": 0.3, "local_steps": 4, "batch_size": 4, "availability": "daily:5,0.6"}
METHODS = {
    "segments": fs.methods.segmented_gossip(**work, segments=3, graph="regular:4"),
    "neighbours": fs.methods.dpsgd(**work, graph="regular:4", fresh=True, over="peers"),
}

def train(name, out):
    clients = item_data(tuple(range(3, 15)), items=50)
    fs.run(
        METHODS[name], bag(clients, dim=3), clients, rounds=9, seed=5, engine="serial", lost=0.1,
        evaluate=fs.Evaluate(every=3), out=out, resume=True, checkpoint_every=2,
    )

def start(*arguments):
    child = os.fork()
    if child:
        return child
    try:
        train(*arguments)
    except BaseException as error:
        print(repr(error), flush=True)
        os._exit(1)
    os._exit(0)

def rounds(path):
    return path.read_bytes().count(b"\\n") if path.exists() else 0

moments, kills = random.Random(1), 0
for name in METHODS:
    whole, broken = f"{sys.argv[1]}/whole-{name}", f"{sys.argv[1]}/broken-{name}"
    assert os.waitpid(start(name, whole), 0)[1] == 0
    metrics = Path(broken, "metrics.jsonl")
    for _ in range(2):
        child, begun, ended, deadline = start(name, broken), rounds(metrics), False, time.monotonic() + 60
        while not ended and rounds(metrics) < begun + 3 and time.monotonic() < deadline:
            ended = os.waitpid(child, os.WNOHANG)[0] == child
            time.sleep(0.0005)
        if ended:
            break
        time.sleep(moments.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        kills += os.waitpid(child, 0)[1] == signal.SIGKILL
    assert os.waitpid(start(name, broken), 0)[1] == 0
print("kills", kills)
"""


def test_a_driver_that_is_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """SIGKILL within rounds, of random peers and of a graph that stays, with nodes that come and go."""
    here = Path(__file__).parents[1]
    paths = [str(here), str(here.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-1]) >= 3
    for name in ("segments", "neighbours"):
        for file in ("metrics.jsonl", "traffic.jsonl", "model.safetensors", "personal.safetensors"):
            whole, broken = tmp_path / f"whole-{name}" / file, tmp_path / f"broken-{name}" / file
            assert whole.read_bytes() == broken.read_bytes(), (name, file)


METHODS = {
    "gossip": lambda: fs.methods.gossip(solver=STEPS, peers=2, over="peers"),
    "segments": lambda: fs.methods.segmented_gossip(solver=STEPS, segments=5, availability="random:0.7"),
    "fresh": lambda: fs.methods.dpsgd(solver=STEPS, graph="regular:4", fresh=True),
    "ring": lambda: fs.methods.ring_all_reduce(solver=STEPS),
}


@pytest.mark.parametrize("name", METHODS)
def test_chunks_and_workers_change_no_bit(name: str) -> None:
    objective, clients = world()
    runs = [
        fs.run(METHODS[name](), objective, clients, rounds=3, seed=4, engine="batched", **how)
        for how in ({}, {"chunk": 2}, {"chunk": 4, "workers": 2}, {"chunk": 1})
    ]
    assert all(equal(one.params, runs[0].params) for one in runs[1:])
    assert all(one.history == runs[0].history for one in runs[1:])
    other = fs.run(METHODS[name](), objective, clients, rounds=3, seed=5, engine="batched")
    assert not equal(other.params, runs[0].params)


def stored(result: fs.Result) -> dict[str, torch.Tensor]:
    assert result.personal is not None
    return result.personal.kept.tensors


@pytest.mark.parametrize("method", ["gossip", "dpsgd", "ring_all_reduce"])
def test_a_node_that_is_away_stays_as_it_was_and_comes_back(method: str) -> None:
    """It neither trains nor answers nor costs a byte; the others go on without it."""
    objective, clients = world()
    pattern = np.ones((2, 9), bool)
    pattern[1, [2, 5]] = False
    made = fs.methods.make(method, solver=STEPS, availability=Mask(pattern))
    one, two, three = (fs.run(made, objective, clients, rounds=n, seed=1, engine="serial") for n in (1, 2, 3))
    rows = clients.spaces["ids"].row_offsets
    for name, after in stored(two).items():
        before, later = stored(one)[name], stored(three)[name]
        for node in range(9):
            piece = slice(rows[node], rows[node + 1]) if name.endswith("emb.weight") else slice(node, node + 1)
            stayed = torch.equal(before[piece], after[piece])
            assert stayed == (node in (2, 5)), (name, node)
            assert not torch.equal(after[piece], later[piece])
    assert [record["clients"] for record in three.history[1:]] == [9, 7, 9]


def test_lost_nodes_are_those_of_any_run_and_do_not_mix() -> None:
    objective, clients = world()
    result = fs.run(gossip(AllReduce()), objective, clients, rounds=6, seed=3, engine="serial", lost=0.4)
    lost = [record["lost"] for record in result.history[1:]]
    assert 0 < sum(lost) < 6 * 9
    for record in result.history[1:]:
        assert record["gossip_links"] == (record["clients"] - record["lost"]) % 9 or record["lost"] == 0


def test_in_a_round_without_anybody_nothing_happens() -> None:
    objective, clients = world()
    nobody = np.zeros((2, 9), bool)
    nobody[0] = True
    made = gossip(RandomPeers(peers=2), availability=Mask(nobody))
    one, two = (fs.run(made, objective, clients, rounds=n, seed=1, engine="serial") for n in (1, 2))
    assert equal(stored(one), stored(two))
    assert two.history[-1]["clients"] == two.history[-1]["down"] == 0


def test_a_node_with_nan_sits_out_and_is_counted() -> None:
    bad = click_data()
    values = bad.columns["value"].values.copy()
    values[: bad.sizes[0]] = np.inf
    broken = replace(bad, columns={**bad.columns, "value": replace(bad.columns["value"], values=values)})
    goal = fs.models.make_objective(broken, "embedding", dim=3, hidden=4, seed=1)
    result = fs.run(fs.methods.gossip(peers=3, local_steps=2), goal, broken, rounds=2, engine="serial")
    assert [record["rejected"] for record in result.history[1:]] == [1, 1]
    assert all(torch.isfinite(value).all() for value in stored(result).values())
    with pytest.raises(fs.errors.NoUsableClient, match="lower lr"):
        fs.run(fs.methods.gossip(local_steps=2), goal, broken, rounds=2, engine="serial", on_bad_update="raise")


def test_proximal_term_clipping_adam_schedules_and_epochs_need_no_server() -> None:
    objective, clients = world()
    for settings in (
        {"mu": 0.5}, {"clip_norm": 0.01}, {"solver": "adam", "lr": 0.01}, {"schedule": "exponential:0.5"},
        {"local_epochs": 1}, {"momentum": 0.5}, {"batch_size": None}, {"groups": {"emb.*": {"lr": 0.5}}},
    ):  # fmt: skip
        plain, other = (
            fs.run(fs.methods.gossip(**more), objective, clients, rounds=2, seed=1, engine="serial")
            for more in ({}, settings)
        )
        assert not equal(plain.params, other.params), settings


def test_what_a_part_makes_of_an_update_is_what_a_node_keeps() -> None:
    class Halved(fs.Part):
        def finish(self, message, params, work):
            message.trees["update"] = {n: value / 2 for n, value in message.trees["update"].items()}

    objective, clients = world()
    start = {n: p.detach().clone() for n, p in objective.module.named_parameters()}
    plain, half = (
        fs.run(gossip(RandomPeers(peers=0), parts=parts), objective, clients, rounds=1, engine="serial")
        for parts in ((), (Halved(),))
    )
    for name in ("out.weight", "out.bias"):
        whole, part = stored(plain)[f"ownmodel.own/{name}"], stored(half)[f"ownmodel.own/{name}"]
        torch.testing.assert_close(part - start[name], (whole - start[name]) / 2, atol=1e-6, rtol=1e-5)


def test_personal_parameters_are_never_exchanged() -> None:
    objective, clients = world()
    made = fs.methods.ring_all_reduce(solver=STEPS, personal="out.*", personal_init="shared")
    result = fs.run(made, objective, clients, rounds=3, seed=1, engine="serial")
    own = stored(result)["ownmodel.own/out.weight"]
    assert len(torch.unique(own, dim=0)) == 9
    shared = fs.run(fs.methods.ring_all_reduce(solver=STEPS), objective, clients, rounds=3, seed=1, engine="serial")
    assert len(torch.unique(stored(shared)["ownmodel.own/out.weight"], dim=0)) == 1
    assert result.history[-1]["down"] < shared.history[-1]["down"]
    # All alone with them it is FedPer with everybody, of which the shared part is averaged over holders.
    fedper = fs.methods.fedsubavg(solver=STEPS, personal="out.*", personal_init="shared", clients_per_round=None)
    server = fs.run(fedper, objective, clients, rounds=3, seed=1, engine="serial")
    torch.testing.assert_close(own, stored(server)["personal.own/out.weight"], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(result.params["emb.weight"], server.params["emb.weight"], atol=1e-6, rtol=1e-5)
    drawn = fs.methods.gossip(solver=STEPS, personal="out.*")
    first = trainer(drawn, objective, clients)
    assert len(torch.unique(first.memory.tensors["ownmodel.own/out.weight"], dim=0)) == 9


def test_the_mean_of_all_models_or_every_nodes_own_is_evaluated() -> None:
    objective, clients = world()
    own, mean = (
        fs.run(fs.methods.gossip(solver=STEPS, evaluated=what), objective, clients, rounds=3, seed=1, engine="serial")
        for what in ("nodes", "mean")
    )
    assert equal(own.params, mean.params)
    assert mean.personal is None
    assert own.history[-1]["train.ce"] != mean.history[-1]["train.ce"]
    assert own.final["train"]["shared"]["ce"] == pytest.approx(mean.history[-1]["train.ce"])
    assert mean.history[-1]["gossip.consensus"] == own.history[-1]["gossip.consensus"] > 0
    assert own.history[0]["gossip.consensus"] == 0


@pytest.mark.parametrize("evaluated", ["nodes", "mean"])
def test_what_is_evaluated_is_the_mean_of_that_round(evaluated: str) -> None:
    """Whenever rounds are evaluated, the model that a run ends with is the mean of its nodes' last models."""
    objective, clients = world()
    made = fs.methods.gossip(solver=STEPS, evaluated=evaluated)
    often, seldom, short = (
        fs.run(made, objective, clients, rounds=n, seed=1, engine="serial", evaluate=fs.Evaluate(every=every))
        for n, every in ((4, 1), (4, 4), (3, 3))
    )
    assert equal(often.params, seldom.params)
    assert not equal(often.params, short.params)
    for name in ("train.ce", "gossip.consensus"):
        assert often.history[-1][name] == seldom.history[-1][name]
        assert often.history[3][name] == short.history[-1][name]
    if evaluated == "nodes":
        weights = torch.from_numpy(clients.sizes / clients.sizes.sum())
        mean = torch.einsum("n,nij->ij", weights, stored(often)["ownmodel.own/out.weight"].double())
        torch.testing.assert_close(often.params["out.weight"].double(), mean, atol=1e-6, rtol=1e-6)


def test_nodes_models_come_back_from_a_directory(tmp_path: Path) -> None:
    objective, clients = world()
    made = fs.methods.dpsgd(solver=STEPS)
    result = fs.run(made, objective, clients, rounds=2, engine="serial", out=tmp_path / "run")
    kept = fs.load(tmp_path / "run").personal
    assert kept is not None
    rows = clients.spaces["ids"].row_offsets
    for node in (0, 4):
        values = kept.params(clients.client_ids[node])
        assert torch.equal(values["out.weight"], stored(result)["ownmodel.own/out.weight"][node])
        own = stored(result)["ownmodel.own/emb.weight"][rows[node] : rows[node + 1]]
        assert torch.equal(values["emb.weight"], own)
    warm = fs.run(made, objective, clients, rounds=1, engine="serial", start=tmp_path / "run")
    assert warm.history[0]["gossip.consensus"] == pytest.approx(result.history[-1]["gossip.consensus"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gossip(RandomPeers(peers=-1)), "peers of gossip"),
        (lambda: gossip(RandomPeers(segments=0)), "segments of gossip"),
        (lambda: gossip(RandomPeers(weighting="size")), "weighting must be one of samples, clients"),
        (lambda: gossip(RandomPeers(), over="rows"), "over of gossip must be holders or peers"),
        (lambda: gossip(RandomPeers(), evaluated="all"), "evaluated of gossip must be nodes or mean"),
        (lambda: gossip(RandomPeers(), fresh=True), "complete graph is the same in every round"),
        (lambda: gossip(RandomPeers(), fresh=1, graph=Ring()), "fresh must be True or False"),
        (lambda: gossip(AllReduce(), graph=Ring()), "makes a ring of all nodes itself"),
        (lambda: Metropolis(segments=3), "unexpected keyword argument 'segments'"),
        (lambda: AllReduce(segments=3), "unexpected keyword argument 'segments'"),
        (lambda: gossip(RandomPeers(), parts=fs.Prox(0.1)), "parts must be a tuple of fedsub parts"),
        (lambda: gossip(RandomPeers(), parts=(3,)), "parts must be a tuple of fedsub parts"),
        (lambda: gossip(RandomPeers(), parts=(fs.Personal(("a",)), fs.Personal(("b",)))), "Personal 2 times"),
        (lambda: gossip("random"), "mixing of Gossip must be an object like"),
        (lambda: gossip(RandomPeers(), graph="ring"), "graph of Gossip must be an object like"),
        (lambda: gossip(RandomPeers(), availability="random"), "availability of Available must be"),
        (lambda: gossip(RandomPeers(), local=fs.SGD), "local of Gossip"),
        (lambda: gossip(RandomPeers(), parts=(fs.ControlVariates(),)), "has no server, and ControlVariates needs one"),
        (lambda: gossip(RandomPeers(), parts=(fs.NormalisedSteps(),)), "sends something beside the model"),
        (lambda: gossip(RandomPeers(), parts=(fs.codecs.TopK(0.1),)), "in other bytes"),
        (lambda: gossip(RandomPeers(), parts=(fs.ClipRows(1.0),)), "changes what a server has added up"),
        (lambda: gossip(RandomPeers(), parts=(fs.LocalDP(clip=1.0, noise=0),)), "needs one"),
        (lambda: gossip(RandomPeers(), parts=(fs.SecureSum(1.0),)), "SecureSum needs one"),
        (lambda: fs.methods.gossip(clients_per_round=3), "gossip has no setting 'clients_per_round'"),
        (lambda: fs.methods.dpsgd(server="adam"), "dpsgd has no setting 'server'"),
        (lambda: fs.methods.make("segmented gossip", peer=3), "did you mean 'peers'"),
    ],
)
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises((MethodError, ConfigError, TypeError), match=message):
        make()


def test_graphs_that_do_not_fit_the_data_are_refused_before_training(tmp_path: Path) -> None:
    objective, clients = world(sizes=(3, 3, 3, 3, 3, 3, 3))
    for graph, message in (("torus", "no grid of two sides"), ("regular:3", "one of the two numbers even")):
        with pytest.raises(MethodError, match=message):
            fs.run(fs.methods.dpsgd(graph=graph), objective, clients, rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(MethodError, match="torus"):
        fs.compare({"D-PSGD": fs.methods.dpsgd(graph="torus")}, objective, clients, rounds=1)


def test_what_the_data_does_not_allow_is_refused_before_training() -> None:
    objective, clients = world()  # 12 rows of 3 values, 3 and 1 dense ones
    assert fs.run(gossip(RandomPeers(segments=40)), objective, clients, rounds=1, engine="serial").history
    for mixing in (RandomPeers(segments=41), RandomPeers(segments=10**12)):
        with pytest.raises(MethodError, match="more than the 40 values that nodes exchange"):
            fs.run(gossip(mixing), objective, clients, rounds=1, engine="serial")
    apart = fs.methods.segmented_gossip(solver=STEPS, segments=5, personal="emb.*")
    with pytest.raises(MethodError, match="more than the 4 values"):
        fs.run(apart, objective, clients, rounds=1, engine="serial")
    for made in (gossip(RandomPeers()), gossip(AllReduce()), gossip(Metropolis(), graph=Ring())):
        with pytest.raises(MethodError, match="at least two clients"):
            fs.run(made, *world(sizes=(5,)), rounds=1)


def test_own_parameters_that_nobody_mentions_are_refused() -> None:
    clients = click_data()
    objective = fs.models.make_objective(clients, "lr", own_bias=True)
    with pytest.raises(MethodError, match="gossip would share them"):
        fs.run(fs.methods.gossip(), objective, clients, rounds=1)
    problem = Problem.bind(objective, clients)
    made = fs.methods.gossip(personal=list(objective.own))
    assert made.private(problem.names) == ("own.bias",)
    assert made.prepare(problem, problem.params(), Options(engine="serial")).trainer is not None


def test_a_description_says_all_that_numbers_depend_on() -> None:
    described = fs.methods.segmented_gossip(graph="regular:6", availability="random:0.5").describe()
    assert described["mixing"] == {"type": "RandomPeers", "segments": 4, "peers": 2, "weighting": "samples"}
    assert described["graph"] == {"type": "Regular", "degree": 6}
    assert described["availability"] == {"type": "Random", "share": 0.5}
    assert described["local"]["lr"] == 0.1
    assert fs.methods.dpsgd(graph=Regular(6)).describe()["kind"] == "Metropolis"
    assert isinstance(fs.methods.gossip(availability="daily:4,0.5").availability, Daily)
    assert fs.methods.gossip(availability=Random(0.2)).availability == Random(0.2)
    assert isinstance(fs.methods.dpsgd().mixing, Metropolis)
