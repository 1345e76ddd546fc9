"""What crosses between parties: gradients in closed form, bytes by formula, and messages that cannot be used."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sides import BATCH, OPTIONS, STEPS, clients, label, shop, world
from split_trained import played
from torch import Tensor, nn

import fedsub as fs
from fedsub import vertical
from fedsub.errors import ConfigError, DataError, MethodError, ObjectiveError, RunError, WireError
from fedsub.round import wire
from fedsub.vertical import agreed, link
from fedsub.vertical.agreed import batch_of
from fedsub.vertical.link import Direct


@pytest.fixture
def crossed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[wire.Envelope, wire.Envelope]]:
    """Every question and its answer, of runs in this process."""
    seen: list[tuple[wire.Envelope, wire.Envelope]] = []
    plain = vertical.FeatureHalf.answer

    def answer(half: vertical.FeatureHalf, data: bytes) -> bytes:
        said = plain(half, data)
        seen.append((wire.read(data), wire.read(said)))
        return said

    monkeypatch.setattr(vertical.FeatureHalf, "answer", answer)
    return seen


class Linear(nn.Module):
    """z = W x, [b, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[0.3, -0.2]], dtype=torch.float64))

    def forward(self, batch: Any) -> Tensor:
        return batch["price"].double()[:, None] @ self.weight


class Logistic(nn.Module):
    """s = z·v + c."""

    def __init__(self) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.tensor([0.7, -0.4], dtype=torch.float64))
        self.c = nn.Parameter(torch.tensor(0.1, dtype=torch.float64))

    def forward(self, batch: Any) -> Tensor:
        return batch["shop"] @ self.v + self.c


def test_the_gradient_of_a_logistic_top(crossed: list) -> None:
    """∂ℓ/∂z of sample i is (σ(s_i) − y_i)·v / b, and W moves by −rate · Σ x_i (∂ℓ/∂z_i)."""
    train, _ = clients(("price",), {}, values=["price"])
    y, _ = clients(("label",), {}, label="label")
    side = vertical.LabelParty(Logistic(), fs.losses.binary("label"), y, optimiser=0.0001)
    found = vertical.run(
        side, [vertical.Party("shop", Linear(), train, optimiser=0.5)], rounds=1, steps=2, batch_size=8
    )
    w, v, c = np.array([0.3, -0.2]), np.array([0.7, -0.4]), 0.1
    sent = [q.tensors["gradient"].numpy() for q, _ in crossed if q.kind == agreed.BACK]
    assert len(sent) == 2
    for step, gradient in enumerate(sent, 1):
        samples = batch_of(0, train.samples, 8, step)
        x, labels = train.column("price").values[samples], y.column("label").values[samples]
        z = np.outer(x, w)
        rest = 1 / (1 + np.exp(-(z @ v + c))) - labels
        assert np.abs(gradient - np.outer(rest, v) / 8).max() < 1e-15
        w = w - 0.5 * x @ gradient
        v, c = v - 0.0001 * z.T @ rest / 8, c - 0.0001 * rest.mean()
    assert np.abs(found.bottoms["shop"].weight.detach().numpy()[0] - w).max() < 1e-15  # type: ignore[union-attr]


def test_bytes_are_two_numbers_a_sample_and_dimension_and_the_envelopes() -> None:
    found = played(2)
    empty, sizes = wire.length([]), [min(BATCH, 46 - place) for place in range(0, 46, BATCH)]
    assert label(3, ("shop",)).data.samples == 46
    for record in found.result.history[1:]:
        first = (record["round"] - 1) * STEPS
        batches = [sizes[step % len(sizes)] for step in range(first, first + STEPS)]
        numbers = sum(batches) * (3 + 2) * 8
        assert record["down"] == numbers + 2 * (empty + STEPS * wire.length([("gradient", 2)]))
        assert record["up"] == numbers + 2 * (empty + STEPS * wire.length([("z", 2)]))


def test_ids_and_rows_do_not_cross(crossed: list) -> None:
    """In training: activations, gradients and the numbers of steps."""
    played(1)
    names = {name for q, a in crossed if q.kind != agreed.JOIN for name in (*q.tensors, *a.tensors)}
    assert names == {"gradient", "z", "part", "samples"}
    assert all(q.tensors.keys() <= {"gradient"} for q, _ in crossed if q.kind in (agreed.FORWARD, agreed.BACK))


class Nothing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, 0, dtype=torch.float64))

    def forward(self, batch: Any) -> Tensor:
        return batch["price"].double()[:, None] @ self.w


def test_without_dimensions_the_label_party_trains_alone(crossed: list) -> None:
    party = shop()
    silent = vertical.Party("shop", Nothing(), party.data, party.parts, unused=("item",))
    found = vertical.run(label(0, ("shop",)), [silent], **OPTIONS)
    alone = played(0)
    assert all(torch.equal(v, alone.result.params[n]) for n, v in found.result.params.items())
    assert not [q for q, _ in crossed if q.kind in (agreed.FORWARD, agreed.BACK, agreed.ASK)]
    assert all(record["down"] == record["up"] == 0 for record in found.result.history)
    assert any("dimension 0" in said for said in found.result.events)


def damaged(data: bytes) -> bytes:
    return data[:40] + bytes([data[40] ^ 1]) + data[41:]


def another(change: Callable[[wire.Envelope], wire.Envelope]) -> Callable[[bytes], bytes]:
    return lambda data: wire.write(change(wire.read(data)))


def answers(change: Callable[[Tensor], Tensor]) -> Callable[[wire.Envelope], wire.Envelope]:
    def changed(m: wire.Envelope) -> wire.Envelope:
        return wire.Envelope(m.kind, m.round, m.client, m.repeat, m.run, m.flags, tensors={"z": change(m.tensors["z"])})

    return changed


GARBAGE = [
    damaged, lambda data: b"", lambda data: os.urandom(200), lambda data: data[:-30],
    another(answers(lambda z: z[:, :1])), another(answers(lambda z: z.float())), another(answers(lambda z: z * np.nan)),
    another(lambda m: wire.Envelope(agreed.READY, m.round, m.client, run=m.run)),
    another(lambda m: wire.Envelope(m.kind, m.round, 7, run=m.run, tensors=m.tensors)),
    another(lambda m: wire.Envelope(m.kind, m.round + 1, m.client, run=m.run, tensors=m.tensors)),
]  # fmt: skip


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("towards", ["label", "party"])
def test_what_cannot_be_used_is_refused_counted_and_changes_nothing(
    garbage: Callable[[bytes], bytes], towards: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, count = played(1), [0]
    send, receive = Direct.send, Direct.receive

    def turn(data: bytes, kind: int) -> bytes:
        training = wire.read(data).kind == kind and wire.read(data).round > 0
        count[0] += training
        hit = training and count[0] in (2, 4, 5)
        try:
            return garbage(data) if hit else data
        except KeyError:  # nothing of that name in a question
            return damaged(data)

    if towards == "label":
        monkeypatch.setattr(Direct, "receive", lambda self: turn(receive(self) or b"", agreed.Z))
    else:
        monkeypatch.setattr(Direct, "send", lambda self, data: send(self, turn(data, agreed.BACK)))
    found = played(1)
    assert all(torch.equal(v, expected.result.params[n]) for n, v in found.result.params.items())
    own = dict(expected.bottoms["shop"].named_parameters())
    assert all(torch.equal(v, own[n]) for n, v in found.bottoms["shop"].named_parameters())
    assert len(found.refused) == 3
    assert all(said.startswith("shop: ") for said in found.refused)
    assert any("refused: shop: " in said for said in found.result.events)


def test_whatever_answer_is_lost_the_question_is_put_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third one is damaged, of whatever kind: joined, begun, activations, gradients taken, the end."""
    expected, count, hit = played(1), [0], set[int]()
    receive = Direct.receive

    def third(self: Direct) -> bytes:
        data = receive(self) or b""
        count[0] += 1
        if count[0] % 3 != 1:
            return data
        hit.add(wire.read(data).kind)
        return damaged(data)

    monkeypatch.setattr(Direct, "receive", third)
    found = played(1)
    assert hit == {agreed.JOINED, agreed.READY, agreed.Z}
    assert all(torch.equal(v, expected.result.params[n]) for n, v in found.result.params.items())
    own = dict(expected.bottoms["shop"].named_parameters())
    assert all(torch.equal(v, own[n]) for n, v in found.bottoms["shop"].named_parameters())
    assert found.result.history[-1]["test.auc"] == expected.result.history[-1]["test.auc"]


def test_a_party_that_sends_nothing_else_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = Direct.receive
    monkeypatch.setattr(Direct, "receive", lambda self: damaged(receive(self) or b""))
    with pytest.raises(WireError, match=rf"{link.TRIES} answers of shop in a row.*digest"):
        played(1)


def test_a_late_answer_is_dropped_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that came twice: the second comes where the next one is waited for."""
    receive = Direct.receive
    extra: list[bytes] = []

    def twice(self: Direct) -> bytes | None:
        if extra:
            return extra.pop()
        data = receive(self)
        if data is not None and wire.read(data).kind == agreed.Z and wire.read(data).round == 2:
            extra.append(data)
        return data

    expected = played(1)
    monkeypatch.setattr(Direct, "receive", twice)
    found = played(1)
    assert not found.refused
    assert all(torch.equal(v, expected.result.params[n]) for n, v in found.result.params.items())


def test_other_samples_are_refused() -> None:
    side, (party,) = world(1)
    other, _ = party.data.split(0.9, seed=3)
    with pytest.raises(WireError, match=r"shop does not have the samples to train on.*Align the ids"):
        vertical.run(side, [vertical.Party("shop", party.bottom, other, tables=party.tables)], **OPTIONS)
    with pytest.raises(WireError, match=r"does not have part 2 of the data"):
        vertical.run(side, [vertical.Party("shop", party.bottom, party.data, tables=party.tables)], **OPTIONS)


def test_refusals_before_anything_is_sent() -> None:
    side, (party,) = world(1)
    with pytest.raises(DataError, match=r"46 samples and 1 ids"):
        vertical.Party("shop", party.bottom, party.data.pooled(), tables=party.tables)
    with pytest.raises(ConfigError, match=r"begins with a letter; got '3'"):
        vertical.Party("3", party.bottom, party.data)
    with pytest.raises(MethodError, match=r"An optimiser is a rate"):
        vertical.Party("shop", party.bottom, party.data, tables=party.tables, optimiser="sgd")
    with pytest.raises(ConfigError, match=r"names of their own, got shop, shop"):
        vertical.run(side, [party, party], **OPTIONS)
    with pytest.raises(ConfigError, match=r"a column 'town', where the activations"):
        vertical.run(side, [vertical.Party("town", party.bottom, party.data, party.parts, party.tables)], **OPTIONS)
    far = vertical.Remote("shop", "127.0.0.1", 9)
    with pytest.raises(MethodError, match=r"need a secret: the seed is told"):
        vertical.run(label(3, ("shop",), protections=[vertical.Protection()]), [far], **OPTIONS)
    with pytest.raises(ConfigError, match=r"leave ranking= and norms= out"):
        vertical.run(side, [party], evaluate=fs.Evaluate(norms=2), **OPTIONS)
    with pytest.raises(RunError, match=r"shop was not reached within 0 s"):
        vertical.run(side, [vertical.Remote("shop", "127.0.0.1", 9, patience=0)], **OPTIONS)


def test_a_table_used_whole_is_refused() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items = nn.Embedding(30, 2).double()

        def forward(self, batch: Any) -> Tensor:
            return self.items(batch["item"]) + self.items.weight.mean(0)

    side, (party,) = world(1)
    with pytest.raises(WireError, match=r"'items.weight' is used whole"):
        vertical.run(side, [vertical.Party("shop", Whole(), party.data, party.parts, party.tables)], **OPTIONS)
    with pytest.raises(ObjectiveError, match="asks for column 'paper'"):
        vertical.run(label(3, ("paper",)), [party], **OPTIONS)


class Fails(nn.Module):
    """Right on the first batch; ``how`` it is wrong later."""

    def __init__(self, how: str):
        super().__init__()
        self.w, self.how, self.asked = nn.Parameter(torch.ones(1, 3, dtype=torch.float64)), how, [0]

    def __deepcopy__(self, memo: Any) -> Fails:
        made = Fails(self.how)
        made.asked = self.asked
        return made

    def forward(self, batch: Any) -> Tensor:
        self.asked[0] += 1
        z = batch["price"].double()[:, None] @ self.w
        if self.how == "flat":
            return z.flatten()
        if self.asked[0] > 4 and self.how == "raises":
            raise KeyError("my own")
        return z[1:] if self.asked[0] > 4 and self.how == "short" else z


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("flat", r"makes activations \[39\] of 13 samples; return one row for each"),
        ("short", r"makes activations \[12, 3\] of 13 samples"),
        ("raises", r"The module of shop failed with KeyError: 'my own' \(test_split_messages.py, line \d+\)"),
    ],
)
def test_a_module_that_fails_ends_the_run_with_a_reason(how: str, said: str) -> None:
    side, (party,) = world(1)
    with pytest.raises(WireError, match=rf"It refuses: .*{said}"):
        vertical.run(side, [vertical.Party("shop", Fails(how), party.data, party.parts, unused=("item",))], **OPTIONS)


def test_what_a_party_says_is_shown_as_one_line() -> None:
    message = wire.Envelope(agreed.NO, 0, 0, tensors=agreed.text("two\nlines\t \x1b[31mand red"))
    assert agreed.said(message) == "two lines [31mand red"
