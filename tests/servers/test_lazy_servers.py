"""A lazy server's rows catch up to what a naive dense implementation has."""

from __future__ import annotations

import pytest
import torch
from every_server import DOUBLE, LAZY, World, named
from torch import Tensor

from fedsub.method.servers import Adam, Add, ScaffoldHistory, Yogi
from fedsub.method.servers.base import Gaps
from fedsub.method.servers.fading import fading, usable
from fedsub.trees import Tree


def dense_round(server, x: Tensor, update: Tensor, memory: Tree, lr: float) -> None:
    """One round of a server on a whole table, rows that nobody sent included: the text-book formulas."""
    if isinstance(server, Add):
        memory["b"] = server.momentum * memory.get("b", torch.zeros_like(x)) + update
        x += lr * memory["b"]
    elif isinstance(server, ScaffoldHistory):
        assert server.rho is not None
        h = memory.get("h", torch.zeros_like(x))
        x += lr * ((1 - server.beta) * update + server.beta * h)
        memory["h"] = (1 - server.rho) * h + server.rho * update
    else:
        memory["m"] = server.beta1 * memory.get("m", torch.zeros_like(x)) + (1 - server.beta1) * update
        v = memory.get("v", torch.full_like(x, server.tau**2))
        if isinstance(server, Adam):
            v = server.beta2 * v + (1 - server.beta2) * update**2
        elif isinstance(server, Yogi):
            v = v - (1 - server.beta2) * update**2 * torch.sign(v - update**2)
        else:
            v = v + update**2
        memory["v"] = v
        x += lr * memory["m"] / (v.sqrt() + server.tau)


@named(LAZY)
@pytest.mark.parametrize(
    ("shape", "dtype"), [(s, DOUBLE) for s in ((20, 3), (20,), (20, 1), (20, 2, 2))] + [((20, 3), torch.float32)]
)
def test_lazy_is_dense(server, dtype, shape) -> None:
    """Against the formulas in double precision, relative to the largest value that there has been."""
    world, rounds, close = World(dtype, shape), 320, 1e-12 if dtype == DOUBLE else 1e-6
    params = world.params
    naive = {name: p.to(DOUBLE, copy=True) for name, p in params.items()}
    memory: dict[str, Tree] = {"table": {}, "head": {}}
    lr = {"table": 0.5, "head": 0.01} if server.groups else {"table": server.lr, "head": server.lr}
    state = server.init(params, ["table"])
    largest: dict[str, float] = {}

    def compare(name: str, ours: Tensor, truth: Tensor) -> None:
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double(), truth, rtol=0, atol=close * largest[name])

    assert server.lazy
    for r in range(1, rounds + 1):
        rows = world.rows(r)
        if r % 3 and r > 1:  # the caller sends rows up to date; a step must cope if not
            server.catch_up(params, {"table": rows}, state, r - 1)
            compare("table", params["table"][rows], naive["table"][rows])
        mean = world.mean(rows, r)
        server.step(params, mean, {"table": rows}, state, r)
        whole = torch.zeros(shape, dtype=DOUBLE).index_copy_(0, rows.long(), mean["table"].double())
        dense_round(server, naive["table"], whole, memory["table"], lr["table"])
        dense_round(server, naive["head"], mean["head"].double(), memory["head"], lr["head"])
        for slot, values in {"table": naive["table"], **memory["table"], "head": naive["head"]}.items():
            largest[slot] = max(largest.get(slot, 0.0), values.abs().max().item())
        if r in (37, 299, rounds):  # someone reads all of it; row 0 was last sent in round 1, row 2 in round 40
            server.catch_up(params, None, state, r)
            compare("table", params["table"], naive["table"])
            for slot, values in memory["table"].items():
                if slot in server.slots and dtype == DOUBLE:  # single precision rounds β itself, lazy or not
                    compare(slot, state[f"{slot}/table"], values)
    if dtype == DOUBLE:  # the same here
        compare("head", params["head"], naive["head"])
    assert state["last/table"].eq(rounds).all()


@named(LAZY)
def test_one_long_gap_is_dense(server, monkeypatch) -> None:
    monkeypatch.setattr("fedsub.method.servers.base.CHUNK", 8)  # elements: four rows, then two
    params = {"table": torch.zeros(6, 2, dtype=DOUBLE)}
    naive, memory = params["table"].clone(), {}
    state = server.init(params, ["table"])
    lr = 0.5 if server.groups else server.lr
    generator = torch.Generator().manual_seed(3)
    for r in range(1, 1001):
        rows = torch.tensor([r]) if r in (1, 2, 3) else torch.tensor([], dtype=torch.int64)
        mean = torch.randn(len(rows), 2, dtype=DOUBLE, generator=generator)
        server.step(params, {"table": mean}, {"table": rows}, state, r)
        dense_round(server, naive, torch.zeros_like(naive).index_copy_(0, rows, mean), memory, lr)
    assert state["last/table"].tolist() == [0, 1, 2, 3, 0, 0]
    server.catch_up(params, {}, state, 1000)  # no table named: nothing to do
    assert state["last/table"].tolist() == [0, 1, 2, 3, 0, 0]
    server.catch_up(params, None, state, 1000)
    torch.testing.assert_close(params["table"], naive, rtol=1e-12, atol=1e-12)
    before = {k: v.clone() for k, v in (params | state).items()}
    server.catch_up(params, None, state, 1000)
    assert all(torch.equal(v, before[k]) for k, v in (params | state).items())


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 3e-6), (DOUBLE, 3e-12)], ids=str)
@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.99), (0.9, 0.999), (0.5, 0.3), (0.98, 0.99), (0.1, 0.999)])
def test_adams_fading_is_its_sum(beta1, beta2, dtype, digits) -> None:
    """Σ_{j=1..k} β1^j / (β2^{j/2} √v + τ), term by term, for sizes and gaps of all orders."""
    tau = 2.0**-10  # a power of two: that float32 rounds √v/τ is not the table's doing
    size = torch.logspace(-12, 8, 200, dtype=DOUBLE).to(dtype).double() * tau
    assert usable(beta1, beta2)
    for gap in (0, 1, 2, 7, 60, 5000):
        j = torch.arange(1, gap + 1, dtype=DOUBLE)[:, None]
        expected = (beta1**j / (beta2 ** (j / 2) * size + tau)).sum(0)
        found = fading(beta1, beta2, tau, dtype).sum(size.to(dtype), Gaps(torch.full((200,), gap)))
        torch.testing.assert_close(found.double(), expected, rtol=digits, atol=0)


def test_where_adams_fading_would_lose_digits_it_is_not_used() -> None:
    assert not usable(0.9, 0.81)  # later terms may grow
    assert not usable(0.9, 0.0)
    assert not usable(0.999, 0.9999)  # a table of too many terms
