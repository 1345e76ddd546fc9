"""Parts and the rounds ask solvers, servers and samplers what they can do, not what they are called."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from worlds import bag, equal, item_data

import fedsub as fs
from fedsub.errors import MethodError
from fedsub.method.groups import Cohort
from fedsub.method.sampling import Available, BySize, Poisson, PowerOfChoice, Random, Sampler
from fedsub.method.sampling.base import BoundSampler
from fedsub.method.servers import ServerRule, TorchOptimiser
from fedsub.trees import add_rows

ENGINES = pytest.mark.parametrize("engine", ["serial", "batched"])
LOCAL = {"lr": 0.3, "local_steps": None, "local_epochs": 1, "batch_size": 4}


@dataclass(frozen=True)
class Renamed(fs.SGD):
    """SGD under another name."""


@dataclass(frozen=True)
class Plain(fs.Solver):
    """A solver of one's own that says that its step is −rate · gradient."""

    linear = True  # type: ignore[assignment]

    def step(self, params, grads, state, work):
        self._move(params, grads, work)


@dataclass(frozen=True)
class Signs(fs.Solver):
    """One that is not linear, and says nothing."""

    def step(self, params, grads, state, work):
        self._move(params, {name: g.sign() for name, g in grads.items()}, work)


def slots(local, parts=(), server=None, sampler=None) -> fs.Method:
    return fs.Method(
        local=local, parts=parts, average=fs.OverClients(), server=server or fs.Add(), sampler=sampler or fs.Uniform(4)
    )  # fmt: skip


def params(method: fs.Method, engine: str = "serial", rounds: int = 3) -> dict:
    clients = item_data()
    return fs.run(method, bag(clients, dim=2), clients, rounds=rounds, engine=engine).params


@ENGINES
@pytest.mark.parametrize("part", [fs.NormalisedSteps(), fs.ControlVariates()])
def test_a_solver_that_is_linear_is_enough(part: fs.Part, engine: str) -> None:
    expected = params(slots(fs.SGD(**LOCAL), (part,)), engine)
    assert not equal(expected, params(slots(fs.SGD(**LOCAL)), engine))
    for local in (Renamed(**LOCAL), Plain(**LOCAL)):
        assert equal(params(slots(local, (part,)), engine), expected)


@ENGINES
def test_momentum_of_a_subclass_counts(engine: str) -> None:
    parts = (fs.NormalisedSteps(),)
    one, two = (params(slots(kind(**LOCAL, momentum=0.5), parts), engine) for kind in (fs.SGD, Renamed))
    assert equal(one, two)
    assert not equal(one, params(slots(fs.SGD(**LOCAL), parts), engine))


def test_a_solver_that_is_not_linear_is_refused_with_the_reason() -> None:
    params(slots(Signs(**LOCAL)))  # by itself it works
    with pytest.raises(MethodError, match=r"FedNova.*Signs is not linear in the gradients"):
        slots(Signs(**LOCAL), (fs.NormalisedSteps(),))
    with pytest.raises(MethodError, match="plain SGD"):
        slots(Signs(**LOCAL), (fs.ControlVariates(),))
    slots(Signs(**LOCAL), (fs.ControlVariates("I"),))
    with pytest.raises(MethodError, match="weight decay"):
        slots(Renamed(**LOCAL, weight_decay=0.1), (fs.NormalisedSteps(),))


def test_norms_of_a_path() -> None:
    steps = torch.tensor([1.0, 3.0], dtype=torch.float64)
    for local in (fs.SGD(), Plain()):
        assert local.path_norm(steps, 0.0).tolist() == [1.0, 3.0]
        assert local.path_norm(steps, 0.2).tolist() == pytest.approx([1.0, 1 + 0.8 + 0.64])
    assert fs.SGD(momentum=0.5).path_norm(steps, 0.0).tolist() == pytest.approx([1.0, 1 + 1.5 + 1.75])


def test_engines_are_compared_by_smooth_steps() -> None:
    adam, own = fs.Adam(lr=0.01, local_steps=3, batch_size=2), Signs(**LOCAL)
    assert adam.smooth() == fs.SGD(0.1, local_steps=3, batch_size=2)
    assert own.smooth() is own


@dataclass(frozen=True)
class Half(ServerRule):
    """X + Δ/2: a server with one method."""

    def step(self, params, mean, rows, state, round):
        for name, update in mean.items():
            if name in rows:
                add_rows(params[name], rows[name].long(), update * 0.5)
            else:
                params[name].add_(update, alpha=0.5)


class Bare:
    """A server's four methods, without the base class."""

    lazy = False
    init = step = catch_up = staticmethod(lambda *a: {})


@ENGINES
def test_a_server_of_ones_own(engine: str) -> None:
    assert not Half().lazy
    assert not Half().whole_tables
    assert Half().fitted(0.5) == Half()
    method = slots(fs.SGD(**LOCAL), server=Half())
    assert equal(params(method, engine), params(replace(method, server=fs.Add(lr=0.5)), engine))
    with pytest.raises(MethodError, match=r"ServerRule; .* lacks advance, fitted, whole_tables"):
        replace(method, server=Bare())


def test_whole_tables() -> None:
    def make(tensors):
        return torch.optim.SGD(tensors, lr=1.0)

    assert TorchOptimiser(make).whole_tables
    assert not TorchOptimiser(make, sparse_server=True).whole_tables
    assert not fs.Add(momentum=0.9).whole_tables


@dataclass(frozen=True)
class First(Sampler):
    """The first two clients."""

    def bind(self, sizes):
        return BoundFirst(sizes)


class BoundFirst(BoundSampler):
    least = 2

    def draw(self, round, seed, probe, pool):
        return Cohort.of(pool[:2])


def test_what_samplers_say_of_themselves() -> None:
    sizes = np.full(10, 3)
    for sampler, share, repeats, probes, reports in (
        (fs.Uniform(4), 0.4, False, False, ()),
        (fs.Uniform(40, replacement=True), 1.0, True, False, ()),
        (BySize(4, replacement=True), 0.4, True, False, ()),
        (Poisson(4), 0.4, False, False, ()),
        (fs.Everyone(), 1.0, False, False, ()),
        (First(), 1.0, False, False, ()),
        (PowerOfChoice(3, 6), 0.3, False, True, ()),
        (PowerOfChoice(3, 6, "rpow"), 0.3, False, False, ("loss",)),
        (fs.sampling.UCB(3), 0.3, False, False, ("loss", "deviation")),
    ):
        for one in (sampler, Available(sampler, Random(0.5))):
            assert one.share(10) == share
            assert one.may_repeat == repeats
            assert one.probes == probes
            bound = one.bind(sizes)
            assert bound.repeats == repeats
            assert bound.reports == reports


def test_a_sampler_of_ones_own_among_those_at_hand() -> None:
    params(slots(fs.SGD(**LOCAL), sampler=Available(First(), Random(0.7))))
    with pytest.raises(MethodError, match=r"like Uniform.50., a Sampler"):
        Available(Bare(), Random(0.7))  # type: ignore[arg-type]
    with pytest.raises(MethodError, match=r"sampling\.Sampler"):
        slots(fs.SGD(), sampler=Bare())


@dataclass(frozen=True)
class Tether(fs.Part):
    """A proximal term of one's own, which says so."""

    pull = 0.8  # type: ignore[assignment]

    def grad(self, grads, params, work):
        return {k: torch.add(g, params[k] - work.sent[k], alpha=0.8) for k, g in grads.items()}


@ENGINES
def test_a_part_that_pulls_counts_in_the_norms(engine: str) -> None:
    own, ours, plain = (
        params(slots(fs.SGD(**LOCAL), parts), engine)
        for parts in ((Tether(), fs.NormalisedSteps()), (fs.Prox(0.8), fs.NormalisedSteps()), (Tether(),))
    )
    assert equal(own, ours)
    assert not equal(own, plain)


@dataclass(frozen=True)
class Mine(fs.Part):
    """Keeps the last bias to the client, under a name of its own."""

    client_slots = ("head",)
    own = "head"

    def private(self, names):
        return tuple(n for n in names if n == "out.bias")

    def kept_names(self, slot, names):
        return self.private(names)

    def first(self, slot, name, start):
        return start.values

    def supply(self, work):
        return dict(work.client[self.key]["head"])

    def finish(self, message, params, work):
        work.client[self.key]["head"] = {"out.bias": params["out.bias"].clone()}
        del message.trees["update"]["out.bias"]


@ENGINES
def test_a_part_of_ones_own_keeps_parameters(engine: str) -> None:
    clients, done = item_data(), []
    for part in (Mine(), fs.Personal(("out.bias",), init="shared")):
        done.append(fs.run(slots(fs.SGD(**LOCAL), (part,)), bag(clients, dim=2), clients, rounds=2, engine=engine))
    assert str(done[0].history) == str(done[1].history)
    assert str(done[0].final) == str(done[1].final)
    with pytest.raises(MethodError, match="Mine and Personal"):
        slots(fs.SGD(**LOCAL), (Mine(), fs.Personal(("out.bias",))))


def test_an_average_says_whether_it_corrects() -> None:
    class Doubled(fs.OverClients):
        corrects = True  # type: ignore[assignment]

    settings = {"local": fs.SGD(), "server": fs.Add(), "sampler": fs.Uniform(4)}
    fs.Method(average=fs.OverClients(), parts=(fs.codecs.Sign(),), **settings)
    with pytest.raises(MethodError, match="Doubled' positive coefficient per row"):
        fs.Method(average=Doubled(), parts=(fs.codecs.Sign(),), **settings)


def test_a_codec_without_decode_and_half_a_server_are_refused() -> None:
    class Mute(fs.Part):
        codec = True

    with pytest.raises(MethodError, match="Mute says codec = True and has no decode"):
        slots(fs.SGD(), (Mute(),))
    half: Any = object()
    with pytest.raises(MethodError, match="server of TailMean must be like Add"):
        fs.servers.TailMean(0.5, server=half)
