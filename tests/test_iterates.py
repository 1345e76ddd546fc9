"""Means of iterates: against the mean of dense iterates, written out; resumed; in runs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from worlds import bag, equal, item_data, shared_model, trainer_for

import fedsub as fs
from fedsub.errors import MethodError
from fedsub.method.servers import (
    EMA,
    Adagrad,
    Adam,
    Add,
    FrequencyAware,
    ScaffoldHistory,
    TailMean,
    TorchOptimiser,
    Yogi,
)
from fedsub.method.servers.base import Gaps
from fedsub.method.servers.fading import means_usable
from fedsub.round.predict import PersonalModel
from fedsub.trees import Tree
from fedsub.trees import whole as at_hand

DOUBLE, ROUNDS = torch.float64, 60
SERVERS = {
    "add": Add(0.7),
    "momentum": Add(0.5, momentum=0.9),
    "by group": Add(0.5, momentum=0.8, groups={"table": {"lr": 0.2}}),
    "adagrad": Adagrad(0.1),
    "adagrad with momentum": Adagrad(0.1, beta1=0.5),
    "yogi": Yogi(0.1),
    "adam": Adam(0.1, beta1=0.95, beta2=0.9),  # term by term
    "adam of one moment": Adam(0.1, beta1=0.0),
    "sparse adam": Adam(0.1, sparse_server=True),
    "history": ScaffoldHistory(0.5, beta=0.4, rho=0.2),
    "history of one round": ScaffoldHistory(0.5, beta=0.4, rho=1.0),
    "frequency": FrequencyAware(0.5),
    "torch": TorchOptimiser(lambda tensors: torch.optim.Adam(tensors, lr=0.01)),
}
MEANS = {"tail": TailMean(0.5, rounds=ROUNDS), "last 7": TailMean(7, rounds=ROUNDS), "ema": EMA(0.9)}


class World:
    """Updates of a table [12, 2], of which row 0 moves in round 1 only, row 1 never, and of a dense head."""

    def __init__(self, dtype=DOUBLE, seed: int = 0):
        self.draw = torch.Generator().manual_seed(seed)
        self.params = {
            "table": torch.randn(12, 2, dtype=DOUBLE, generator=self.draw).to(dtype),
            "head": torch.randn(3, dtype=DOUBLE, generator=self.draw).to(dtype),
        }

    def round(self, number: int) -> tuple[Tree, dict[str, torch.Tensor]]:
        some = torch.randperm(10, generator=self.draw)[: 1 + number % 3].sort().values + 2
        rows = torch.cat([torch.tensor([0]), some]) if number == 1 else some
        dtype = self.params["table"].dtype
        mean = {
            "table": torch.randn(len(rows), 2, dtype=DOUBLE, generator=self.draw).to(dtype),
            "head": torch.randn(3, dtype=DOUBLE, generator=self.draw).to(dtype),
        }
        return mean, {"table": rows.int()}


def brute_force(server, rounds: int) -> list[Tree]:
    """All iterates of a server, every row of them brought up to date after every round."""
    world, out = World(), []
    state = server.init(world.params, ["table"])
    for number in range(1, rounds + 1):
        mean, rows = world.round(number)
        server.step(world.params, mean, rows, state, number)
        server.catch_up(world.params, None, state, number)
        out.append({name: p.clone() for name, p in world.params.items()})
    return out


def weights(mean: TailMean | EMA, rounds: int) -> list[float]:
    if isinstance(mean, EMA):
        return [mean.decay ** (rounds - j) for j in range(1, rounds + 1)]
    first = ROUNDS - (30 if mean.last == 0.5 else 7) + 1
    return [float(j >= first) for j in range(1, rounds + 1)]


@pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)
@pytest.mark.parametrize("kind", MEANS.values(), ids=MEANS)
def test_it_is_the_mean_of_dense_iterates(server, kind: TailMean | EMA) -> None:
    """In double precision to 1e-12, read at several rounds; reading and averaging change no iterate."""
    iterates, world, mean = brute_force(server, ROUNDS), World(), replace(kind, server=server)
    plain = World()
    state, alone = mean.init(world.params, ["table"]), server.init(plain.params, ["table"])
    for number in range(1, ROUNDS + 1):
        update, rows = world.round(number)
        plain.round(number)
        if mean.lazy and number % 2:  # as a round does it before rows are sent
            mean.catch_up(world.params, rows, state, number - 1)
            server.catch_up(plain.params, rows, alone, number - 1)
        mean.step(world.params, {k: v.clone() for k, v in update.items()}, rows, state, number)
        server.step(plain.params, update, rows, alone, number)
        if number in (1, 20, 33, 54, ROUNDS):
            params = {name: p.clone() for name, p in world.params.items()}
            copied = {name: v.clone() for name, v in state.items()}
            mean.catch_up(params, None, copied, number)
            found, w = mean.outcome(params, copied, number), weights(mean, number)
            for name, value in found.items():
                total = sum(a * x[name] for a, x in zip(w, iterates, strict=False))
                expected = total / sum(w) if sum(w) else iterates[number - 1][name]
                torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
            assert torch.equal(found["table"][1], world.params["table"][1])  # never moved: the row itself
    if not server.lazy:  # a lazy one is brought to where the mean begins, which rounds differently
        assert equal(world.params, plain.params)
    for name, p in world.params.items():
        torch.testing.assert_close(p, plain.params[name], rtol=1e-12, atol=1e-12)


SLOW = pytest.mark.slow  # tables in double precision take seconds


@pytest.mark.parametrize(
    ("fade", "dtype", "close"),
    [
        (1.0, torch.float32, 2e-5),
        (0.99, torch.float32, 2e-5),
        pytest.param(0.95, torch.float32, 2e-5, marks=SLOW),
        pytest.param(1.0, DOUBLE, 1e-10, marks=SLOW),
        pytest.param(0.99, DOUBLE, 1e-10, marks=SLOW),
    ],
)
def test_the_mean_of_adams_way_is_that_of_its_places(fade: float, dtype, close: float) -> None:
    """The tabulated functions against a loop over rounds."""
    server, draw = Adam(0.1, tau=2.0**-10), torch.Generator().manual_seed(1)
    assert means_usable(server.beta1, server.beta2, fade)
    gaps = torch.tensor([0, 1, 2, 3, 10, 32, 33, 60, 200, 400])
    m = torch.randn(10, 5, generator=draw).to(dtype)
    v = torch.logspace(-14, 4, 5).expand(10, 5).to(dtype).contiguous()
    held = {"m": m.clone(), "v": v.clone()}
    found = server.mean_drift(held, Gaps(gaps), fade)
    assert equal(held, {"m": m, "v": v})
    assert found.dtype == dtype
    for row, gap in enumerate(gaps.tolist()):
        moment, square, place, total, mass = m[row].double(), v[row].double(), 0.0, torch.zeros(5, dtype=DOUBLE), 0.0
        for _ in range(gap):
            moment, square = server.beta1 * moment, server.beta2 * square
            place = place + moment / (square.sqrt() + server.tau)
            total, mass = fade * total + place, fade * mass + 1
        torch.testing.assert_close(found[row].double(), total / max(mass, 1), rtol=close, atol=0)


# ---------------------------------------------------------------------- in runs


METHODS = {
    "fedavg": {},
    "fedsubavg": {"codec": "topk:0.5"},
    "fedadam": {},
    "scaffold": {},
    "fedavgm": {"sampler": "poisson", "clients_per_round": 1},  # with rounds in which nobody takes part
    "fedper": {"personal": "out.*"},
}


def of(name: str, **more) -> fs.Method:
    settings = {"local_steps": 2, "clients_per_round": 2, **METHODS[name], **more}
    method = fs.methods.make(name, **settings)
    assert isinstance(method, fs.Method)
    return method


@pytest.mark.parametrize("name", METHODS)
def test_what_a_run_evaluates_and_keeps_is_the_mean(name: str, tmp_path) -> None:
    """Of the iterates of the same method without a mean; interrupted and resumed it is the same, bit for bit."""
    clients, rounds = item_data(), 8
    trainer = trainer_for(of(name), bag(clients), clients, "serial")
    iterates, played = [], []
    for number in range(1, rounds + 1):
        played.append(len(trainer.round(number).clients) > 0)
        model = trainer.model(number)
        shared = at_hand(model.shared if isinstance(model, PersonalModel) else model, "A test")
        iterates.append({k: v.clone() for k, v in shared.items()})
    taken = [x for x, there in zip(iterates, played, strict=True) if there]
    assert all(played) == (name != "fedavgm")
    window = taken[rounds - 4 :]  # from the fifth round in which somebody took part

    def train(out, rounds: int = rounds, **more) -> fs.Result:
        method = of(name, iterates="tail:0.5")
        plan = fs.Evaluate(every=1)
        return fs.run(
            method,
            bag(clients),
            clients,
            rounds=rounds,
            engine="serial",
            out=out,
            evaluate=plan,
            checkpoint_every=3,
            **more,
        )

    whole = train(tmp_path / "whole")
    for key, value in whole.params.items():
        expected = sum(x[key].double() for x in window) / len(window)
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(whole.params["emb.weight"], iterates[-1]["emb.weight"])
    loaded = fs.load(tmp_path / "whole")
    assert equal({k: loaded.params[k] for k in whole.params}, whole.params)

    class Stop(fs.Callback):
        def on_round(self, record):
            if record["round"] == 7:  # the last checkpoint is that of round 6, within the mean
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", callbacks=[Stop()])
    cut = train(tmp_path / "cut", resume=True)
    assert equal(cut.params, whole.params)
    assert repr(cut.history) == repr(whole.history)  # with nan in them
    assert repr(cut.final) == repr(whole.final)


def test_a_curve_shows_the_mean_from_where_it_begins() -> None:
    clients = item_data()
    plain = fs.run(of("fedavg"), bag(clients), clients, rounds=6, engine="serial", evaluate=fs.Evaluate(every=1))
    tail = fs.run(
        of("fedavg", iterates="tail:2"), bag(clients), clients, rounds=6, engine="serial", evaluate=fs.Evaluate(every=1)
    )
    same = [a == b for a, b in zip(plain.series("train.ce")[1], tail.series("train.ce")[1], strict=True)]
    assert same == [True] * 6 + [False]  # a mean of one iterate is that iterate


@pytest.mark.parametrize("iterates", ["tail:0.4", "ema:0.8"])
def test_it_does_not_depend_on_how_clients_are_grouped(iterates: str) -> None:
    clients = item_data()
    found = []
    for chunk in (None, 1):
        trainer = trainer_for(of("fedadam", iterates=iterates), bag(clients), clients, "batched", chunk=chunk, rounds=6)
        for number in range(1, 7):
            trainer.round(number)
        found.append(shared_model(trainer, 6))
        looked = shared_model(trainer, 6)  # looking changes nothing
        assert equal(looked, found[-1])
        trainer.settle(6)
        assert equal(trainer.params, looked)
    assert equal(*found)


# ---------------------------------------------------------------------- how it is asked for


def test_spellings() -> None:
    assert of("fedavg", iterates="last") == of("fedavg")
    assert of("fedadam", iterates="tail:100").server == TailMean(100, Adam())
    assert fs.methods.fedadam(server=EMA(0.9, Adam(0.3))).server == EMA(0.9, Adam(0.3))
    described = of("fedavg", iterates="ema:0.9").describe()["server"]
    assert json.loads(json.dumps(described))["server"]["type"] == "Add"
    assert "rounds" not in of("fedavg", iterates="tail:0.5").describe()["server"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TailMean(1.5), "share of the rounds"),
        (lambda: TailMean(0), "share of the rounds"),
        (lambda: EMA(1.0), "less than 1"),
        (lambda: EMA(0.0), "leave EMA out"),
        (lambda: EMA(0.9, TailMean()), "mean of means"),
        (lambda: EMA(0.9, 3), "must be like Add"),  # type: ignore[arg-type]
        (lambda: of("fedavg", iterates="tial:0.5"), "tail"),
        (lambda: of("fedavg", iterates="tail:many"), "not a number"),
        (lambda: fs.methods.fedadam(server=TailMean(0.5, Add())), "adam"),
        (lambda: TailMean(0.5).init({"w": torch.ones(2)}, []), "how many rounds"),
    ],
)
def test_nonsense_is_refused(make, says: str) -> None:
    with pytest.raises(MethodError, match=says):
        make()


def test_a_lazy_server_of_ones_own_must_say_where_its_rows_go() -> None:
    class Own(fs.servers.ServerRule):
        lazy = True  # type: ignore[assignment]

    with pytest.raises(MethodError, match="RowServer"):
        TailMean(0.5, Own())  # type: ignore[arg-type]
