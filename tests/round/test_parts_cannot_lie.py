"""Parts with state are compared with the serial engine before training, with what they send and keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from worlds import bag, choice_for, item_data

import fedsub as fs
from fedsub.errors import ConfigError, MethodError
from fedsub.testing import check_part

DATA = item_data()


@dataclass(frozen=True)
class Base(fs.Part):
    client_slots = ("v",)

    def finish(self, message: fs.Message, params: fs.Tree, work: fs.Work) -> None:
        work.client[self.key]["v"] = dict(message.trees["update"])


class Normalised(Base):
    """Divides by the norm of what a group keeps, not of what each client keeps."""

    def grad(self, grads: fs.Tree, params: fs.Tree, work: fs.Work) -> fs.Tree:
        kept = work.client[self.key]["v"]
        return {k: g + kept[k] / (kept[k].norm() + 1e-3) for k, g in grads.items()}


class KeepsAnother(Base):
    """What is sent agrees, what is kept does not."""

    def finish(self, message: fs.Message, params: fs.Tree, work: fs.Work) -> None:
        work.client[self.key]["v"] = {k: u / (u.norm() + 1e-3) for k, u in message.trees["update"].items()}


class SendsAnother(fs.Part):
    payloads = ("more",)

    def finish(self, message: fs.Message, params: fs.Tree, work: fs.Work) -> None:
        message.trees["sendsanother.more"] = {k: u / (u.norm() + 1e-3) for k, u in message.trees["update"].items()}


class Right(Base):
    """The same by client."""

    def grad(self, grads: fs.Tree, params: fs.Tree, work: fs.Work) -> fs.Tree:
        kept, group = work.client[self.key]["v"], work.group
        sizes = {k: group.total(k, v.square()).sqrt() + 1e-3 for k, v in kept.items()}
        return {k: g + kept[k] / group.spread(sizes[k], k, g) for k, g in grads.items()}


def choice(part: fs.Part):
    method = fs.Method(
        local=fs.SGD(lr=0.3, local_steps=3, batch_size=2), parts=(part,), average=fs.OverClients(), server=fs.Add(),
        sampler=fs.Uniform(4),
    )  # fmt: skip
    return choice_for(method, bag(DATA, dim=3), DATA, "batched")[2]


@pytest.mark.parametrize("part", [Normalised(), KeepsAnother(), SendsAnother()])
def test_a_part_that_differs_between_engines_runs_serially(part: fs.Part) -> None:
    found = choice(part)
    assert found.engine.name == "serial"
    assert "differ by" in found.reason


def test_a_part_that_does_not_is_batched() -> None:
    found = choice(Right())
    assert found.engine.name == "batched"
    assert found.reason.endswith("agrees with serial on two clients")


def test_what_was_left_out_of_the_comparison_is_named() -> None:
    assert "compared without TopK" in choice(fs.codecs.TopK(0.5)).reason


def test_check_part_passes_and_fails() -> None:
    check_part(Right())
    with pytest.raises(AssertionError, match="cannot be batched"), pytest.warns(UserWarning, match="differ by"):
        check_part(Normalised())


class Undeclared(fs.Part):
    """Sends a number that it does not declare."""

    def finish(self, message: fs.Message, params: fs.Tree, work: fs.Work) -> None:
        message.numbers["undeclared.n"] = torch.ones(work.group.count)


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_what_is_sent_must_be_declared(engine: str) -> None:
    method = fs.Method(
        local=fs.SGD(lr=0.3), parts=(Undeclared(),), average=fs.OverClients(), server=fs.Add(), sampler=fs.Uniform(4)
    )
    with pytest.raises(MethodError, match=r"undeclared\.n"):
        fs.run(method, bag(DATA), DATA, rounds=1, engine=engine)


class Forgetful(fs.Part):
    """Keeps something outside its slots, which an interruption loses."""

    rounds = 0

    def begin(self, params: fs.Tree, work: fs.Work) -> None:
        type(self).rounds += 1

    def grad(self, grads: fs.Tree, params: fs.Tree, work: fs.Work) -> fs.Tree:
        return {k: g * (1 + type(self).rounds) for k, g in grads.items()}


class ByTheGroup(fs.Part):
    """From the second round on, which no trial before training sees, a norm over the whole group."""

    def grad(self, grads: fs.Tree, params: fs.Tree, work: fs.Work) -> fs.Tree:
        return {k: g + (work.round > 1) * 0.1 * g.norm() for k, g in grads.items()}


class ByTheCount(fs.Part):
    """So little by the size of the group that the engines agree as far as rounding goes."""

    def grad(self, grads: fs.Tree, params: fs.Tree, work: fs.Work) -> fs.Tree:
        return {k: g + 1e-13 * work.group.count for k, g in grads.items()}


class Counting(fs.Part):
    """Its server counts rounds in an attribute, from 1 in every new run, where an interruption loses them."""

    server_slots = ("rounds",)

    def __init__(self, factor: float):
        self.factor, self.rounds = factor, 0

    def combine(self, mean: dict, total: fs.Total, state: dict, round: int) -> None:
        self.rounds = 1 if round == 1 else self.rounds + 1
        for name, value in mean["update"].items():
            value *= 1 + self.factor * self.rounds
            if not self.factor:  # kept and never used
                state["rounds"][name].fill_(float(self.rounds))


class InPlace(fs.Part):
    """Changes what it was sent: where that is the server's own tensor, the server's changes too."""

    def begin(self, params: fs.Tree, work: fs.Work) -> None:
        if work.round and not work.group.stacked:  # not in the trial before training
            work.sent["out.bias"].add_(1e-12)


@dataclass(frozen=True)
class Understated(fs.codecs.Int8):
    """Says that its update takes a byte less than it does."""

    def finish(self, message: fs.Message, params: fs.Tree, work: fs.Work) -> None:
        super().finish(message, params, work)
        assert message.encoded is not None
        message.encoded -= 1


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (ByTheGroup(), "trains another model in the batched engine"),
        (ByTheCount(), "not the same in the batched engine with chunk=2"),
        (Counting(0.1), r"not the same after an interruption \(serial\)"),
        (Counting(0.0), r"not the same in what is kept after an interruption \(serial\)"),
        (InPlace(), "not the same where clients have only bytes"),
        (Understated(), "is counted wrong: in round 1"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, fs.Part) else "",
)
def test_check_part_notices(part: fs.Part, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        check_part(part)


def test_check_part_notices_state_outside_the_slots() -> None:
    with pytest.raises(AssertionError, match="cannot be batched"):
        check_part(Forgetful())


def test_options_that_a_family_does_not_use_are_refused() -> None:
    unused: list[dict[str, Any]] = [{"workers": 2}, {"chunk": 3}, {"compile": True}]
    for options in [*unused, {"on_bad_update": "raise"}, {"lost": 0.1}]:
        with pytest.raises(ConfigError, match=next(iter(options))):
            fs.run(fs.methods.l2gd(lam=0.1), bag(DATA), DATA, rounds=1, **options)
    ratings = fs.movielens_like(scale=0.01)
    goal = fs.models.make_objective(ratings, "factorisation", rank=2)
    for options in [*unused, {"engine": "serial"}]:
        with pytest.raises(ConfigError, match=next(iter(options))):
            fs.run(fs.methods.fedmavg(), goal, ratings, rounds=1, **options)
