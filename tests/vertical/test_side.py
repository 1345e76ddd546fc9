"""One party's module on the rows of a batch: padding that a batch does not name, and dropout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sides import OPTIONS, label, shop
from test_split_resume import Stop
from torch import Tensor, nn

import fedsub as fs
from fedsub import vertical
from fedsub.round import wire
from fedsub.vertical import agreed
from fedsub.vertical.agreed import batch_of


class Lists(nn.Module):
    """A logit of a list's embeddings, row 0 of which stands for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.out = nn.Embedding(12, 2, padding_idx=0).double(), nn.Linear(2, 1).double()

    def forward(self, batch: Any) -> Tensor:
        return self.out(self.rows(batch["read"]).mean(1)).squeeze(-1)


def test_a_batch_without_padding_does_not_take_another_row_for_it() -> None:
    draw = np.random.default_rng(2)
    read = draw.integers(1, 12, (40, 2))  # no list is short: row 0 is in no batch
    data = {"id": [f"p{n}" for n in range(40)], "read": read, "label": np.arange(40) % 2}
    clients = fs.Clients.from_arrays(
        data, client="id", ids=["read"], padding=["read"], label="label", sizes={"read": 12}
    )  # fmt: skip
    torch.manual_seed(0)
    module = Lists()
    tables = {"rows.weight": "read"}
    party = vertical.LabelParty(module, fs.losses.binary("label"), clients, tables=tables, optimiser=1.0)
    found = vertical.run(party, [], rounds=1, steps=3, batch_size=7).result
    for step in (1, 2, 3):
        samples = batch_of(0, 40, 7, step)
        arrays = clients.gather(samples, local=False)
        logits = module({"read": torch.from_numpy(arrays["read"])})
        loss = nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(arrays["label"]).double())
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        for p, g in zip(module.parameters(), gradients, strict=True):
            p.data -= g
    for name, value in module.named_parameters():
        assert torch.allclose(found.params[name], value, rtol=0, atol=1e-12), name


class Drops(nn.Module):
    """z [b, 3] of ones, of which half are dropped and the others doubled."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.drop = nn.Parameter(torch.ones(1, 3, dtype=torch.float64)), nn.Dropout(0.5)

    def forward(self, batch: Any) -> Tensor:
        return self.drop((0 * batch["price"].double() + 1)[:, None] @ self.w)


def dropping() -> tuple[vertical.LabelParty, list[vertical.Party]]:
    party = shop()
    return label(3, ("shop",)), [vertical.Party("shop", Drops(), party.data, party.parts, unused=("item",))]


def test_dropout_is_drawn_anew_in_every_step_and_not_in_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[Tensor]] = {"train": [], "ask": []}
    plain = vertical.FeatureHalf.answer

    def answer(half: vertical.FeatureHalf, data: bytes) -> bytes:
        said = plain(half, data)
        message = wire.read(said)
        if message.kind == agreed.Z:
            seen["ask" if wire.read(data).kind == agreed.ASK else "train"].append(message.tensors["z"])
        return said

    monkeypatch.setattr(vertical.FeatureHalf, "answer", answer)
    vertical.run(*dropping(), **OPTIONS)
    dropped = [tuple((z == 0).flatten().tolist()) for z in seen["train"] if len(z) == 13]
    assert len(set(dropped)) == len(dropped) > 6
    assert 0.35 < np.mean([np.mean(one) for one in dropped]) < 0.65
    assert seen["ask"]
    assert not any((z == 0).any() for z in seen["ask"])


def test_dropout_is_the_same_again_and_after_an_interruption(tmp_path: Path) -> None:
    expected = vertical.run(*dropping(), **OPTIONS)
    torch.manual_seed(99)  # nobody else's random numbers matter
    with pytest.raises(KeyboardInterrupt):
        vertical.run(*dropping(), **OPTIONS, out=tmp_path / "a", callbacks=[Stop(3)])
    found = vertical.run(*dropping(), **OPTIONS, out=tmp_path / "a", resume=True)
    assert torch.equal(found.bottoms["shop"].w, expected.bottoms["shop"].w)  # type: ignore[arg-type]
    assert all(torch.equal(v, found.result.params[n]) for n, v in expected.result.params.items())
