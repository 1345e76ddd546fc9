"""A client that is drawn twice in a round: its update counts twice, what it keeps and sends of that once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from worlds import bag, item_data, trainer_for

import fedsub as fs
from fedsub.errors import MethodError

ENGINES = pytest.mark.parametrize("engine", ["serial", "batched"])
CURVES, CENTRES = np.array([1.0, 2, 3, 1, 2, 3]), np.array([1.0, -1, 0.5, 2, 0, 0.3])
OPTIMUM = float((CURVES * CENTRES).sum() / CURVES.sum())


class Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, batch):
        return batch["a"] / 2 * (self.x - batch["e"]) ** 2


def quadratics() -> tuple[fs.Objective, fs.Clients]:
    """Client i minimises a_i/2 (x − e_i)²."""
    arrays = {"a": CURVES, "e": CENTRES}
    clients = fs.Clients.from_arrays(arrays, offsets=np.arange(7), ids=[], values=["a", "e"])
    return fs.Objective(Point(), lambda z, batch: z), clients


@ENGINES
@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_converges_and_its_variate_is_the_mean_of_the_clients(engine: str, option: str) -> None:
    goal, clients = quadratics()
    method = fs.Method(
        local=fs.SGD(lr=0.05, local_steps=4, batch_size=1), parts=(fs.ControlVariates(option),),
        average=fs.OverClients(), server=fs.Add(), sampler=fs.Uniform(5, replacement=True),
    )  # fmt: skip
    trainer = trainer_for(method, goal, clients, engine)
    twice = 0
    for number in range(1, 301):
        drawn = trainer.round(number).clients
        twice += len(drawn) - len(np.unique(drawn))
        mean = float(trainer.memory.tensors["scaffold.variate/x"].mean())
        assert float(trainer.server.keeper.slots["scaffold"]["variate"]["x"]) == pytest.approx(mean, abs=1e-12)
    assert twice > 100
    assert float(trainer.params["x"]) == pytest.approx(OPTIMUM, abs=1e-6)


@pytest.mark.parametrize("codec", [fs.codecs.ErrorFeedbackSign(), fs.codecs.TopK(0.5), fs.codecs.RandomK(0.5)])
def test_error_feedback_is_refused(codec: fs.Part) -> None:
    """What was left out before would be sent twice."""
    slots = {"local": fs.SGD(lr=0.1), "average": fs.OverClients(), "server": fs.Add(), "parts": (codec,)}
    fs.Method(sampler=fs.Uniform(5), **slots)
    with pytest.raises(MethodError, match="drawn twice"):
        fs.Method(sampler=fs.Uniform(5, replacement=True), **slots)
    with pytest.raises(MethodError, match="drawn twice"):
        fs.Method(sampler=fs.sampling.Available(fs.sampling.BySize(5, True), fs.sampling.Random(0.5)), **slots)


@ENGINES
def test_a_payload_without_memory_counts_every_time(engine: str) -> None:
    class Counts(fs.Part):
        """Sends the client's update again; nothing is kept, so that every draw counts."""

        payloads = ("again",)

        def finish(self, message, params, work) -> None:
            message.trees["counts.again"] = dict(message.trees["update"])

        def combine(self, mean, total, state, round) -> None:
            again = mean.pop("counts.again")
            for name, value in mean["update"].items():
                torch.testing.assert_close(again[name], value, rtol=0, atol=0)

    goal, clients = quadratics()
    method = fs.Method(
        local=fs.SGD(lr=0.05, local_steps=2, batch_size=1), parts=(Counts(),), average=fs.OverClients(),
        server=fs.Add(), sampler=fs.Uniform(5, replacement=True),
    )  # fmt: skip
    assert fs.run(method, goal, clients, rounds=5, engine=engine).engine == engine


@pytest.mark.parametrize(("engine", "chunk"), [("serial", None), ("batched", 12), ("batched", 5)])
@pytest.mark.parametrize("lost", [0.0, 0.4])
def test_what_is_kept_is_that_of_the_first_draw(engine: str, chunk: int | None, lost: float) -> None:
    """The same as if each client had been drawn once: a second draw has other samples, and leaves no trace in c_i."""
    data = item_data((5, 7, 4, 9, 6, 5, 8, 3), items=12, width=3)

    def after_a_round(sampler: fs.sampling.Sampler) -> tuple[fs.Tree, np.ndarray]:
        method = fs.Method(
            local=fs.SGD(lr=0.3, local_steps=2, batch_size=2), parts=(fs.ControlVariates(),), average=fs.OverClients(),
            server=fs.Add(), sampler=sampler,
        )  # fmt: skip
        goal = bag(data, seed=3, dim=2, dtype=torch.float64)
        trainer = trainer_for(method, goal, data, engine, chunk=chunk, lost=lost)
        return trainer.memory.tensors, trainer.round(1).clients

    kept, drawn = after_a_round(fs.Uniform(12, replacement=True))
    once = np.isin(np.arange(8), drawn)
    assert len(drawn) > once.sum()
    expected, alone = after_a_round(fs.sampling.Available(fs.Everyone(), fs.sampling.Mask(once)))
    assert alone.tolist() == np.unique(drawn).tolist()
    for key, value in expected.items():
        torch.testing.assert_close(kept[key], value, rtol=1e-9, atol=1e-12)
        assert kept[key].abs().sum() > 0
