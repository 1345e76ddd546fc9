"""The label party's samples that others lack: steps of its own between those with the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sides import Own, Top, shop
from sides import clients as cut
from test_split_resume import Stop

import fedsub as fs
from fedsub import rng, vertical
from fedsub.data.split import select, take
from fedsub.errors import CheckpointError, ConfigError, DataError, ObjectiveError
from fedsub.vertical.agreed import batch_of

BATCH, STEPS, ROUNDS, COUNT, LR = 13, 3, 3, 2, 0.2


class Linear(torch.nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input).squeeze(-1)


def world(optimiser: Any = LR, **more: Any) -> tuple[vertical.LabelParty, list[vertical.Party]]:
    """A label party with a head of its own; the test part of its samples, say, is nowhere else."""
    train, own = cut(("town", "label"), {"town": ["town"]}, label="label")
    torch.manual_seed(3)
    bottom, top = Own(train.size("town")), Top(5)
    module = vertical.OwnHead(bottom, top, ("shop",), Linear(2, 1)).double()
    tables = {"bottom.towns.weight": "town"}
    label = vertical.LabelParty(
        module, fs.losses.binary("label"), train, {}, tables, optimiser, own=own, own_steps=COUNT, **more
    )
    return label, [replace(shop(optimiser), parts={})]


def options(**more: Any) -> dict[str, Any]:
    return {"rounds": ROUNDS, "steps": STEPS, "batch_size": BATCH, **more}


def batch(clients: fs.Clients, samples: np.ndarray) -> dict[str, torch.Tensor]:
    arrays = clients.gather(samples, local=False)
    return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in arrays.items()}


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_it_is_training_in_one_place_on_both_kinds_of_batches(momentum: float) -> None:
    """With momentum rows that a batch does not name move too; they catch up by the number of steps since."""
    label, (party,) = world()
    rule = fs.servers.Add(lr=LR, momentum=momentum) if momentum else LR
    found = vertical.run(*world(rule), **options())
    module, bottom, own = label.module, party.bottom, label.own
    assert own is not None
    mine, everything = [*module.parameters()], [*module.parameters(), *bottom.parameters()]
    speed = {p: torch.zeros_like(p) for p in everything}
    seed = int(rng.key(0, rng.SIDES)) >> 1

    def step(logits: torch.Tensor, y: torch.Tensor, moved: list[torch.nn.Parameter]) -> None:
        loss = F.binary_cross_entropy_with_logits(logits, y.double())
        for p, g in zip(moved, torch.autograd.grad(loss, moved, allow_unused=True), strict=True):
            speed[p] = momentum * speed[p] + (0 if g is None else g)
            p.data -= LR * speed[p]

    for t in range(1, ROUNDS * STEPS + 1):
        samples = batch_of(0, label.data.samples, BATCH, t)
        both = batch(label.data, samples)
        step(module({**both, "shop": bottom(batch(party.data, samples))}), both["label"], everything)
        for k in range(COUNT):
            alone = batch(own, batch_of(seed, own.samples, BATCH, (t - 1) * COUNT + k + 1))
            step(module(alone), alone["label"], mine)
    for name, value in module.named_parameters():
        assert torch.allclose(found.result.params[name], value, rtol=0, atol=1e-12), name
    for name, value in found.bottoms["shop"].named_parameters():
        assert torch.allclose(value, dict(bottom.named_parameters())[name], rtol=0, atol=1e-12), name


def test_nothing_more_crosses() -> None:
    plain, own = (vertical.run(replace(world()[0], own=data), world()[1], **options())
                  for data in (None, world()[0].own))  # fmt: skip
    assert plain.result.bytes_per_client() == own.result.bytes_per_client() > 0
    assert any(not torch.equal(v, own.result.params[n]) for n, v in plain.result.params.items())


def test_resumed_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    """With Adam, whose rows are brought up to date by the number of steps since."""
    expected = vertical.run(*world(fs.servers.Adam(lr=0.05)), **options())
    with pytest.raises(KeyboardInterrupt):
        vertical.run(*world(fs.servers.Adam(lr=0.05)), **options(out=tmp_path / "a", callbacks=[Stop(2)]))
    found = vertical.run(*world(fs.servers.Adam(lr=0.05)), **options(out=tmp_path / "a", resume=True))
    for name, value in expected.result.params.items():
        assert torch.equal(value, found.result.params[name])
    label, parties = world(fs.servers.Adam(lr=0.05))
    with pytest.raises(CheckpointError):
        vertical.run(replace(label, own_steps=1), parties, **options(out=tmp_path / "a", resume=True))


def test_rows_that_only_own_samples_name_come_back_too(tmp_path: Path) -> None:
    """A checkpoint of a large table keeps the rows that moved, here most of them by these samples alone.

    It is left in round 3, so that it goes on from the rows of round 2 over all of those of round 1.
    """

    def apart() -> tuple[vertical.LabelParty, list[vertical.Party]]:
        label, parties = world()
        shared = np.asarray(label.data.client_ids)
        data = {
            "id": [*shared, *(f"q{n}" for n in range(30))],
            "town": [*(np.arange(len(shared)) % 9), *range(9, 39)],
            "label": np.arange(len(shared) + 30) % 2,
        }
        every = fs.Clients.from_arrays(data, client="id", ids=["town"], label="label", sizes={"town": 4000})
        own = np.char.startswith(every.client_ids.astype(str), "q")
        torch.manual_seed(3)
        module = vertical.OwnHead(Own(4000), Top(5), ("shop",), Linear(2, 1)).double()
        train, alone = (select(every, np.flatnonzero(which)) for which in (~own, own))
        return replace(label, module=module, data=train, own=alone), parties

    expected = vertical.run(*apart(), **options())
    with pytest.raises(KeyboardInterrupt):
        vertical.run(*apart(), **options(out=tmp_path / "a", callbacks=[Stop(3)]))
    found = vertical.run(*apart(), **options(out=tmp_path / "a", resume=True))
    for name, value in expected.result.params.items():
        assert torch.equal(value, found.result.params[name]), name


def test_students_learn_from_parties_and_nobody_learns_from_students() -> None:
    torch.manual_seed(0)
    bottom, top, student = Own(5).double(), Top(5).double(), torch.nn.Linear(2, 3).double()
    module = vertical.Students(bottom, top, ("shop",), {"shop": student})
    z = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    given: dict[str, Any] = {"town": torch.tensor([0, 1, 2, 1]), "label": torch.tensor([0.0, 1, 1, 0]), "shop": z}
    weights = [*bottom.parameters(), *top.parameters(), z]
    logits = module(given)
    error = (student(bottom(given)) - z).square().sum(1)
    assert torch.equal(logits, top(bottom(given), z))
    values = vertical.Distilled("label", weight=0.5)(logits, given)
    assert torch.allclose(values, fs.losses.binary("label")(logits, given) + 0.5 * error)
    plain = torch.autograd.grad(fs.losses.binary("label")(logits, given).sum(), weights, retain_graph=True)
    for a, b in zip(torch.autograd.grad(values.sum(), weights, retain_graph=True), plain, strict=True):
        assert torch.equal(a, b)
    wanted = torch.autograd.grad(0.5 * (student(bottom(given).detach()) - z.detach()).square().sum(), student.weight)
    assert torch.allclose(torch.autograd.grad(values.sum(), student.weight)[0], wanted[0])
    without = {name: given[name] for name in ("town", "label")}
    assert torch.equal(module(without), top(bottom(without), student(bottom(without))))
    module.eval()
    fresh = {name: given[name] for name in ("town", "label", "shop")}
    assert torch.equal(vertical.Distilled("label")(module(fresh), fresh), fs.losses.binary("label")(logits, fresh))


def test_what_makes_no_sense_is_refused_before_training() -> None:
    label, parties = world()
    joined = vertical.Joined(Own(5), Top(5), ("shop",)).double()
    with pytest.raises(ObjectiveError, match=r"column 'shop', which the data lacks.* alone: use OwnHead or Students"):
        vertical.run(replace(label, module=joined), parties, **options())
    towns = np.arange(9)
    other = fs.Clients.from_arrays(
        {"id": [f"q{t}" for t in towns], "town": towns, "label": towns % 2}, client="id", ids=["town"], label="label"
    )
    with pytest.raises(DataError, match="number the table 'town' in another way"):
        vertical.run(replace(label, own=other), parties, **options())
    with pytest.raises(ConfigError, match="own_steps must be a whole number of at least 1"):
        vertical.run(replace(label, own_steps=0), parties, **options())
    with pytest.raises(ConfigError, match="own of the label party must be Clients"):
        vertical.run(replace(label, own=[1]), parties, **options())  # type: ignore[arg-type]
    assert label.own is not None
    few = take(label.own, np.arange(1))
    assert vertical.run(replace(label, own=few), parties, **options()).result.history  # one sample is enough
