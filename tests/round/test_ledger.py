"""The bytes that a run reports are the lengths of the messages that would be sent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from node.processes import COMMON, SEED, common_but, data, objective
from node.test_node import SIZES, Direct, population

import fedsub as fs
from fedsub.disk.files import JsonLines
from fedsub.method.codecs.wire import encode_rows
from fedsub.method.slots import Method
from fedsub.methods import CATALOGUE
from fedsub.node import Node, serve
from fedsub.node.share import only
from fedsub.round import wire


def made(name: str) -> Callable[[], Any]:
    entry, given = CATALOGUE[name], COMMON | {"candidates": 6}
    return lambda: entry.make(**{k: v for k, v in given.items() if k in entry.defaults})


def slots(*parts: fs.Part, sampler: Any = None, average: Any = None) -> Callable[[], fs.Method]:
    return lambda: fs.Method(
        local=fs.SGD(lr=0.2, local_steps=2, batch_size=4), parts=parts, average=average or fs.OverHolders("samples"),
        server=fs.Add(), sampler=sampler or fs.Uniform(4),
    )  # fmt: skip


class Both(fs.Part):
    """Sends a tree and a number, keeps one slot at the server that is sent and one that is not."""

    payloads, numbers, server_slots, sent_slots = ("tree",), ("n",), ("sent", "stays"), ("sent",)

    def finish(self, message: fs.Message, params: fs.Tree, work: fs.Work) -> None:
        message.trees["both.tree"] = dict(message.trees["update"])
        message.numbers["both.n"] = torch.ones(work.group.count)

    def combine(self, mean: dict, total: fs.Total, state: dict, round: int) -> None:
        assert total.numbers["both.n"] == pytest.approx(1)
        mean.pop("both.tree")


named = [n for n in CATALOGUE if isinstance(made(n)(), Method) and not made(n)().pooled]
CASES = {name: made(name) for name in named} | {
    "sign": slots(fs.codecs.Sign(), average=fs.OverClients()), "ef-sign": slots(fs.codecs.ErrorFeedbackSign()),
    "top-k": slots(fs.codecs.TopK(0.2)), "random-k": slots(fs.codecs.RandomK(0.2)), "int8": slots(fs.codecs.Int8()),
    "variates": slots(fs.ControlVariates()), "prox": slots(fs.Prox(0.1)), "nova": slots(fs.NormalisedSteps()),
    "clip rows": slots(fs.ClipRows(0.1)), "personal": slots(fs.Personal(("out.*", "slots.*"))), "both": slots(Both()),
    "variates, top-k": slots(fs.ControlVariates(), fs.codecs.TopK(0.2)),
    "personal, int8": slots(fs.Personal(("items.*",)), fs.codecs.Int8()),
    "drawn twice": slots(fs.ControlVariates(), sampler=fs.Uniform(9, replacement=True), average=fs.OverClients()),
    "probes": slots(sampler=fs.sampling.PowerOfChoice(3, 6)),
    "reports": slots(sampler=fs.sampling.UCB(3)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_counted_is_written(name: str, tmp_path: Path) -> None:
    clients, rounds = data(), 2
    simulated = fs.run(CASES[name](), objective(SIZES), clients, rounds=rounds, seed=SEED, engine="serial")
    channels = {
        n: Direct(Node(only(clients, n), objective, CASES[name](), n, tmp_path / str(n))) for n in range(len(clients))
    }
    params = {n: p.detach().clone() for n, p in objective(SIZES).module.named_parameters()}
    found = serve(CASES[name](), params, population(), channels, rounds=rounds, seed=SEED)
    written = [[report.total_down, report.total_up] for report in found.reports]
    assert written == [[r["down"], r["up"]] for r in simulated.history[1:]]


@pytest.mark.parametrize("name", ["fedsubavg", "variates, top-k", "drawn twice", "reports", "personal, int8"])
def test_engines_count_alike(name: str) -> None:
    found = [
        fs.run(
            CASES[name](),
            objective(SIZES),
            data(),
            rounds=2,
            seed=SEED,
            engine=engine,
            chunk=None if engine == "serial" else 3,
        ).history
        for engine in ("serial", "batched")
    ]
    assert [r["up"] for r in found[0]] == [r["up"] for r in found[1]]


def sent(kind: int, **tensors: torch.Tensor) -> int:
    """Bytes of a message that is really written."""
    return len(wire.write(wire.Envelope(kind, 1, 0, tensors={n.replace("__", "/"): v for n, v in tensors.items()})))


def asks(clients: fs.Clients, i: int) -> int:
    """Bytes of the message in which a client names all its rows."""
    rows = {f"rows__{s}": encode_rows(space.rows_of(i), space.size) for s, space in clients.spaces.items()}
    return sent(wire.ROWS, **{n: torch.frombuffer(bytearray(v), dtype=torch.uint8) for n, v in rows.items()})


@pytest.mark.parametrize(
    "method", [fs.methods.l2gd(lam=0.1, p=0.5, alpha=0.1, L=1.0), fs.methods.apgd1(lam=0.1, L=1.0, mu=0.1)]
)
def test_counted_is_written_by_the_mixture(method: fs.mixture.Mixture, tmp_path: Path) -> None:
    """What a client sends up and gets back: its own model, or the mean on its rows, and perhaps a direction."""
    clients = data()
    fs.run(method, objective(SIZES), clients, rounds=6, seed=SEED, out=tmp_path)
    rows, first = JsonLines.read(tmp_path / "traffic.jsonl"), True
    module = dict(objective(SIZES).module.named_parameters())
    for row in rows:
        for i, down, up in zip(row["clients"], row["down"], row["up"], strict=True):
            x = {n: v.detach() for n, v in module.items()}
            for table, space in (("items.weight", "item"), ("slots.weight", "slot")):
                x[table] = x[table][torch.from_numpy(clients.spaces[space].rows_of(i).astype(np.int64))]
            assert down == sent(wire.DOWN, **{f"vector0__{n}": v for n, v in x.items()})
            assert up == down + asks(clients, i) * first
        first = first and not row["clients"]
    assert not first


@pytest.mark.parametrize("submodel", [True, False])
@pytest.mark.parametrize("name", ["fedmavg", "sfmf"])
def test_counted_is_written_by_the_factorisation(name: str, submodel: bool, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    user, item = np.nonzero(draw.random((6, 20)) < 0.5)
    ratings = fs.Clients.from_arrays(
        {"user": user, "item": item, "rating": draw.integers(1, 6, len(user)).astype(np.float32)}, client="user",
        ids=["item"], label="rating", binary_label=False, sizes={"item": 20},
    )  # fmt: skip
    goal = fs.models.make_objective(ratings, "factorisation", rank=3)
    options = {"clients_per_round": None} if name == "fedmavg" else {"step": 0.01}
    fs.run(fs.methods.make(name, submodel=submodel, **options), goal, ratings, rounds=1, out=tmp_path)
    (row,) = JsonLines.read(tmp_path / "traffic.jsonl")
    step = {"step": torch.zeros((), dtype=torch.float64)} if name == "fedmavg" else {}
    for i, down, up in zip(row["clients"], row["down"], row["up"], strict=True):
        w = torch.zeros(len(ratings.spaces["item"].rows_of(i)) if submodel else 20, 3)
        assert down == sent(wire.DOWN, **{"model__items.weight": w}, **step)
        steps = sent(wire.UP, **step) if step else 0
        assert up == sent(wire.UP, **{"update__items.weight": w}) + steps + (asks(ratings, i) if submodel else 0)


def test_bytes_by_hand() -> None:
    """FedAvg: an invitation, the rows and what is asked for down; row ids, the update and three sums up."""
    clients = data()
    result = fs.run(fs.methods.fedavg(**common_but(clients_per_round=None)), objective(SIZES), clients, rounds=1)
    head, entry, dense = 48 + 16, lambda name, ndim: 4 + 8 * ndim + len(name), 4 * (3 * 8 + 3 + 3 + 1)
    tables = {"items.weight": ("item", 3), "slots.weight": ("slot", 2)}
    parameters = {**dict.fromkeys(tables, 2), "hidden.weight": 2, "hidden.bias": 1, "out.weight": 2, "out.bias": 1}
    down = up = 0
    for i in range(len(clients)):
        held = {table: clients.spaces[space].rows_of(i) for table, (space, _) in tables.items()}
        values = dense + sum(4 * len(held[table]) * width for table, (_, width) in tables.items())
        down += head + head + sum(entry(f"model/{n}", d) for n, d in parameters.items()) + values
        ids = sum(len(encode_rows(held[t].astype(np.int64), clients.spaces[s].size)) for t, (s, _) in tables.items())
        up += head + sum(entry(f"rows/{space}", 1) for space, _ in tables.values()) + ids
        up += head + sum(entry(f"update/{n}", d) for n, d in parameters.items()) + values
        up += sum(entry(f"sum/{n}", 0) + 8 for n in ("weight", "count", "loss"))
    assert [result.history[1]["down"], result.history[1]["up"]] == [down, up]


def test_slots_that_stay_at_the_server_cost_nothing() -> None:
    class Stays(fs.Part):
        server_slots = ("slope",)

    class Travels(fs.Part):
        server_slots, sent_slots = ("slope",), ("slope",)

    plain, stays, travels = (
        fs.run(slots(*parts)(), objective(SIZES), data(), rounds=1, seed=SEED).history[1]["down"]
        for parts in ((), (Stays(),), (Travels(),))
    )
    assert stays == plain
    assert travels > 1.5 * plain
    assert wire.length([]) == 64
