"""A client that finds NaN or infinity in anything it would send sends nothing, and is counted."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from worlds import bag, item_data, trainer_for

import fedsub as fs
from fedsub.errors import NoUsableClient
from fedsub.node.share import only

ENGINES = pytest.mark.parametrize("engine", ["serial", "batched"])
DATA = item_data((5, 3, 6, 4, 2))
BAD = 3  # samples of the client that goes wrong: the second one has as many


def spoil(tree: dict, work: fs.Work, value: float, which: torch.Tensor) -> None:
    """Add ``value`` to the clients ``which`` [c] of a group."""
    for name, leaf in tree.items():
        tree[name] = leaf + work.group.spread(torch.where(which, value, 0.0).to(leaf.dtype), name, leaf)


class Wrong(fs.Part):
    """Makes NaN or infinity where it is told, at the client that takes three steps."""

    payloads, numbers = ("more",), ("n",)

    def __init__(self, where: str, value: float):
        self.where, self.value = where, value

    def finish(self, message: fs.Message, params: fs.Tree, work: fs.Work) -> None:
        assert work.steps is not None
        message.trees["wrong.more"] = dict(message.trees["update"])
        message.numbers["wrong.n"] = work.steps.double()
        which = work.steps == BAD
        if self.where == "numbers":
            message.numbers["wrong.n"] = torch.where(which, self.value, message.numbers["wrong.n"])
        else:
            spoil(message.trees["update" if self.where == "update" else "wrong.more"], work, self.value, which)

    def combine(self, mean: dict, total: fs.Total, state: dict, round: int) -> None:
        assert math.isfinite(total.numbers["wrong.n"])
        assert all(torch.isfinite(v).all() for v in mean.pop("wrong.more").values())


def method(*parts: fs.Part) -> fs.Method:
    return fs.Method(
        local=fs.SGD(lr=0.1, local_steps=None, local_epochs=1, batch_size=1, batches="ordered"), parts=parts,
        average=fs.OverHolders("samples"), server=fs.Add(), sampler=fs.Everyone(),
    )  # fmt: skip


@ENGINES
@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["update", "payload", "numbers"])
def test_born_in_finish(engine: str, chunk: int | None, value: float, where: str) -> None:
    part = Wrong(where, value)
    trainer = trainer_for(method(part), bag(DATA, dtype=torch.float64), DATA, engine, chunk=chunk)
    report = trainer.round(1)
    assert report.rejected.tolist() == [1]
    assert all(torch.isfinite(v).all() for v in trainer.params.values())
    # The mean is over the others: as if the client had not been there.
    assert report.up[1] < report.up.min(where=report.clients != 1, initial=10**9)
    start = bag(DATA, dtype=torch.float64).module.get_parameter("out.bias").detach()
    torch.testing.assert_close(trainer.params["out.bias"] - start, mean_of_the_others(), rtol=1e-9, atol=0)


@cache
def mean_of_the_others() -> torch.Tensor:
    """Where each of the other clients, alone with its data, would move the bias; their mean by samples."""
    sizes = {i: n for i, n in enumerate((5, 3, 6, 4, 2)) if i != 1}
    start = bag(DATA, dtype=torch.float64).module.get_parameter("out.bias").detach()
    ends = [
        fs.run(method(), bag(DATA, dtype=torch.float64), only(DATA, i), rounds=1, engine="serial").params["out.bias"]
        for i in sizes
    ]
    return torch.stack([n * (end - start) for n, end in zip(sizes.values(), ends, strict=True)]).sum(0) / 17


@ENGINES
def test_strictly(engine: str) -> None:
    trainer = trainer_for(
        method(Wrong("payload", math.nan)), bag(DATA, dtype=torch.float64), DATA, engine, on_bad_update="raise"
    )
    with pytest.raises(NoUsableClient, match="NaN or infinity"):
        trainer.round(1)


def test_nobody_is_left() -> None:
    with pytest.raises(NoUsableClient, match="none delivered"):
        fs.run(fs.methods.fedavg(lr=1e300, clients_per_round=None), bag(DATA, dtype=torch.float64), DATA, rounds=3)
