"""A feature party asked out of turn, or for what it does not have: it says NO, why, and nothing has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sides import BATCH, STEPS, shop
from torch import Tensor

from fedsub.round import wire
from fedsub.vertical import FeatureHalf, agreed
from fedsub.vertical.agreed import ids_digest

RUN = 77


class Asks:
    """A label party, question by question."""

    def __init__(self, folder: Path | None = None, resume: bool = False):
        self.party = shop()
        self.half = FeatureHalf(self.party, folder, resume=resume)
        self.digests = [ids_digest(part, "shop") for part in (self.party.data, self.party.parts["test"])]

    def __call__(self, kind: int, round: int = 0, flags: int = 0, run: int = RUN, **tensors: Any) -> wire.Envelope:
        given = {name: torch.as_tensor(value) for name, value in tensors.items()}
        return wire.read(self.half.answer(wire.write(wire.Envelope(kind, round, 0, 0, run, flags, tensors=given))))

    def join(self, digests: list[int] | None = None, **other: int) -> wire.Envelope:
        digests = self.digests if digests is None else digests
        numbers = {"seed": 0, "batch_size": BATCH, "steps": STEPS, **other}
        samples = torch.full((len(digests),), 46)
        return self(agreed.JOIN, **numbers, samples=samples, digests=torch.tensor(digests, dtype=torch.int64))

    def refused(self, *question: Any, **tensors: Any) -> str:
        before = {name: value.clone() for name, value in self.half.params.items()}
        answer = self(*question, **tensors)
        assert answer.kind == agreed.NO
        assert all(torch.equal(value, self.half.params[name]) for name, value in before.items())
        return agreed.said(answer)


def gradient() -> Tensor:
    return torch.ones(BATCH, 3, dtype=torch.float64)


def test_nothing_before_joining() -> None:
    ask = Asks()
    for kind in (agreed.BEGIN, agreed.FORWARD, agreed.BACK, agreed.ASK, agreed.SAVE, agreed.END):
        assert "begin with JOIN" in ask.refused(kind, 1)
    assert ask.join().kind == agreed.JOINED
    assert "has not joined that run" in ask.refused(agreed.BEGIN, 0, 0, RUN + 1)
    assert "no question of kind 49" in ask.refused(49)


def test_joining_with_other_samples_or_settings() -> None:
    ask = Asks()
    train, test = ask.digests
    assert "does not have the samples to train on" in agreed.said(ask.join([test, train]))  # its own, but to test on
    assert "part 2 of the data" in agreed.said(ask.join([train, 5]))
    assert "one digest for every part" in agreed.said(ask.join([]))
    assert "batch_size" in agreed.said(ask.join(batch_size=0))
    assert ask.join().kind == ask.join().kind == agreed.JOINED  # twice is once
    assert "in a run with other settings" in agreed.said(ask.join(steps=STEPS + 1))


def test_steps_out_of_turn() -> None:
    ask = Asks()
    ask.join()
    assert ask(agreed.BEGIN, 0).kind == agreed.READY
    assert "gradient of step 1 came at step 0, unasked" in ask.refused(agreed.BACK, 1, gradient=gradient())
    assert ask.refused(agreed.FORWARD, 2)
    first = ask(agreed.FORWARD, 1)
    assert "gradient of step 2 came at step 0, unasked" in ask.refused(agreed.BACK, 2, gradient=gradient())
    assert ask.refused(agreed.BACK, 1, gradient=gradient()[:5])
    assert ask.refused(agreed.BACK, 1, gradient=gradient() * float("inf"))
    assert torch.equal(ask(agreed.FORWARD, 1).tensors["z"], first.tensors["z"])
    then = ask(agreed.BACK, 1, agreed.MORE, gradient=gradient())
    assert (then.kind, then.round) == (agreed.Z, 2)
    again = ask(agreed.BACK, 1, agreed.MORE, gradient=gradient())  # its answer was lost: not a second step
    assert torch.equal(then.tensors["z"], again.tensors["z"])
    assert int(ask.half.at) == 1


def test_samples_that_it_does_not_have() -> None:
    ask = Asks()
    ask.join()
    for samples in ([46], [-1], [0, 46], []):
        wanted = torch.tensor(samples, dtype=torch.int64)
        assert "does not have those samples" in ask.refused(agreed.ASK, part=ask.digests[0], samples=wanted)
    assert "does not have those samples" in ask.refused(agreed.ASK, part=5, samples=[0])
    assert ask(agreed.ASK, part=ask.digests[0], samples=[45, 0]).tensors["z"].shape == (2, 3)
    many = torch.zeros(agreed.AT_ONCE + 1, dtype=torch.int64)
    assert "at most 4,096 samples" in ask.refused(agreed.ASK, part=ask.digests[0], samples=many)


def test_rounds_that_it_does_not_stand_at(tmp_path: Path) -> None:
    ask = Asks(tmp_path / "shop")
    ask.join()
    ask(agreed.BEGIN, 0)
    assert "Round 1 cannot be saved at step 0" in ask.refused(agreed.SAVE, 1)
    ask(agreed.FORWARD, 1)
    for step in range(1, STEPS + 1):
        size = ask.half._opened[1].output.shape if ask.half._opened else (0,)
        ask(agreed.BACK, step, agreed.MORE * (step < STEPS), gradient=torch.ones(size, dtype=torch.float64))
    assert "Round 2 cannot be saved at step 3" in ask.refused(agreed.SAVE, 2)
    assert ask(agreed.SAVE, 1).kind == agreed.READY
    assert "none of 2" in ask.refused(agreed.BEGIN, 2)
    assert ask(agreed.BEGIN, 1).kind == agreed.READY
    alone = Asks()  # without a directory it can begin anew, and nothing else
    alone.join()
    assert "keeps no checkpoints and stands at step 0, not 3" in alone.refused(agreed.BEGIN, 1)


@pytest.mark.parametrize("data", [b"", b"x" * 500])
def test_bytes_that_are_no_question(data: bytes) -> None:
    ask = Asks()
    assert wire.read(ask.half.answer(data)).kind == agreed.NO
    assert ask.half.refused == 1
