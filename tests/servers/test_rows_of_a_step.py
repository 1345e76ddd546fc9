"""A step touches its rows only, and copied state goes on with the same bits."""

from __future__ import annotations

import pytest
import torch
from every_server import EVERY, LAZY, SPARSE, STILL, World, named

from fedsub.method.servers import Add, FrequencyAware, ScaffoldHistory
from fedsub.trees import Tree

# ---------------------------------------------------------------------- what a step touches


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("server", [*LAZY.values(), *STILL.values(), *SPARSE.values()], ids=lambda s: type(s).__name__)
def test_a_step_touches_its_rows_only(server, dtype) -> None:
    size = 1_000_000
    params = {"table": torch.linspace(0, 1, size).reshape(-1, 1), "head": torch.ones(2)}
    state = server.init(params, ["table"])
    for values in state.values():
        assert values.shape[:1] == (size,) or values.numel() <= 2
    before = {k: v.clone() for k, v in (params | state).items() if len(v.shape) and len(v) == size}
    rows = torch.tensor([5, 999_999, 0], dtype=dtype)
    for r in (1, 7):
        mean = {"table": torch.full((3, 1), 0.1), "head": torch.ones(2)}
        server.step(params, mean, {"table": rows}, state, r)
    for name, old in before.items():
        changed = ((params | state)[name] != old).reshape(size, -1).any(1).nonzero().view(-1)
        assert set(changed.tolist()) <= {0, 5, 999_999}, name
    assert (params["table"] != before["table"]).sum() == 3


@named(SPARSE | STILL)
def test_rows_nobody_sent_are_frozen(server) -> None:
    world = World(torch.float32, (20, 3))
    params = world.params
    state = server.init(params, ["table"])
    assert not server.lazy
    assert not any(name.startswith("last/") for name in state)
    for r in range(1, 30):
        rows = world.rows(r)
        rest = torch.ones(20, dtype=torch.bool).index_fill_(0, rows.long(), False)
        tables = {k: v for k, v in (params | state).items() if k.endswith("table") and v.ndim}
        before = {k: v[rest].clone() for k, v in tables.items()}
        mean = world.mean(rows, r)
        kept = {k: v.clone() for k, v in mean.items()}
        server.catch_up(params, {"table": rows}, state, r - 1)
        server.step(params, mean, {"table": rows}, state, r)
        server.catch_up(params, None, state, r)
        assert all(torch.equal(v[rest], before[k]) for k, v in tables.items())
        assert all(torch.equal(v, kept[k]) for k, v in mean.items())  # the mean is the caller's


def final(server, seed: int = 0) -> Tree:
    world = World(torch.float32, (20, 3), seed)
    state = server.init(world.params, ["table"])
    for r in range(1, 20):
        rows = world.rows(r)
        server.step(world.params, world.mean(rows, r), {"table": rows}, state, r)
    return world.params


@pytest.mark.parametrize("lr", [1.0, 0.3])
def test_special_cases_are_plain_addition(lr: float) -> None:
    plain = final(Add(lr))
    for server in (Add(lr, momentum=0.0), ScaffoldHistory(lr, beta=0.0, rho=0.2), FrequencyAware(lr, power=0.0)):
        assert server.init({"w": torch.ones(2)}, ["w"]).keys() <= {"count/w"}
        assert all(torch.equal(p, plain[k]) for k, p in final(server).items())


def test_groups_set_the_rate_by_parameter() -> None:
    plain, half = final(Add(1.0)), final(Add(0.5))
    mixed = final(Add(1.0, groups={"tab*": {"lr": 0.5}, "table": {"lr": 7.0}}))
    assert torch.equal(mixed["table"], half["table"])
    assert torch.equal(mixed["head"], plain["head"])


# ---------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("server", EVERY, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("begin", [0, 1, 25])
def test_copied_state_goes_on_with_the_same_bits(server, begin: int) -> None:
    world = World(torch.float32, (20, 3))
    params = world.params
    state = server.init(params, ["table"])
    other: tuple[Tree, Tree] | None = None
    for r in range(1, 50):
        if r == begin + 1:
            fresh = {k: torch.zeros_like(v) for k, v in params.items()}
            copied = server.init(fresh, ["table"])
            assert copied.keys() == state.keys()
            for theirs, ours in ((fresh, params), (copied, state)):
                for k, v in theirs.items():
                    assert v.dtype == ours[k].dtype
                    assert v.shape == ours[k].shape
                    v.copy_(ours[k])
            other = fresh, copied
        rows = world.rows(r)
        mean = world.mean(rows, r)
        for p, s in [(params, state)] + ([other] if other else []):
            server.catch_up(p, {"table": rows}, s, r - 1)
            server.step(p, mean, {"table": rows}, s, r)
    assert other is not None
    for theirs, ours in zip(other, (params, state), strict=True):
        assert all(torch.equal(v, ours[k]) for k, v in theirs.items())
