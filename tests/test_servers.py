"""Servers against the formulas of their papers, a naive dense implementation, and torch.optim."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsub.errors import MethodError
from fedsub.method.servers import Adagrad, Adam, Add, FrequencyAware, ScaffoldHistory, TorchOptimiser, Yogi
from fedsub.method.servers.base import Gaps
from fedsub.method.servers.fading import fading, usable
from fedsub.trees import Tree

DOUBLE = torch.float64
OPTIMISERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda t: torch.optim.SGD(t, lr=0.1),
    "momentum": lambda t: torch.optim.SGD(t, lr=0.1, momentum=0.9, weight_decay=0.01),
    "dampened": lambda t: torch.optim.SGD(t, lr=0.1, momentum=0.9, dampening=0.5),
    "adam": lambda t: torch.optim.Adam(t, lr=0.01, weight_decay=0.01),
    "amsgrad": lambda t: torch.optim.Adam(t, lr=0.01, amsgrad=True),
    "adamw": lambda t: torch.optim.AdamW(t, lr=0.01),
    "adagrad": lambda t: torch.optim.Adagrad(t, lr=0.1, initial_accumulator_value=0.1, lr_decay=0.01),
    "rmsprop": lambda t: torch.optim.RMSprop(t, lr=0.01, momentum=0.5, centered=True),
    "nadam": lambda t: torch.optim.NAdam(t, lr=0.01),
}
LAZY = {
    "momentum": Add(0.5, momentum=0.9),
    "slow momentum": Add(0.5, momentum=0.999),
    "adam": Adam(),
    "adam slow": Adam(beta1=0.5, beta2=0.999, tau=0.1),
    "adam growing terms": Adam(beta1=0.9, beta2=0.5),
    "adam without beta1": Adam(beta1=0.0),
    "adam without beta2": Adam(beta2=0.0),
    "yogi": Yogi(),
    "adagrad": Adagrad(beta1=0.9),
    "history": ScaffoldHistory(0.7, rho=0.05),
    "history of the last round": ScaffoldHistory(rho=1.0),
    "groups": Adam(groups={"tab*": {"lr": 0.5}}),
}
STILL = {
    "add": Add(0.5),
    "yogi": Yogi(beta1=0.0),
    "adagrad": Adagrad(),
    "history": ScaffoldHistory(beta=0.0, rho=0.1),
    "frequency": FrequencyAware(),
}
SPARSE = {
    "momentum": Add(momentum=0.9, sparse_server=True),
    "adam": Adam(sparse_server=True),
    "yogi": Yogi(sparse_server=True),
    "adagrad": Adagrad(beta1=0.9, sparse_server=True),
    "history": ScaffoldHistory(rho=0.1, sparse_server=True),
    **{name: TorchOptimiser(make, sparse_server=True) for name, make in OPTIMISERS.items()},
}
DENSE = {name: TorchOptimiser(make) for name, make in OPTIMISERS.items()}
EVERY = [*LAZY.values(), *STILL.values(), *SPARSE.values(), *DENSE.values()]


def named(servers: dict):
    return pytest.mark.parametrize("server", servers.values(), ids=servers.keys())


def steps(server, updates: Tensor) -> Tensor:
    """The steps that a dense parameter takes, one per update."""
    params = {"w": torch.zeros_like(updates[0])}
    state = server.init(params, ())
    taken = []
    for r, update in enumerate(updates, 1):
        before = params["w"].clone()
        server.step(params, {"w": update}, {}, state, r)
        taken.append(params["w"] - before)
    return torch.stack(taken)


# ---------------------------------------------------------------------- the formulas


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (Adam(0.01), (0.00905028, 0, -0.00010024)),
        (Yogi(0.01), (0.00904988, 0, -0.00010001)),
        (Adagrad(0.01), (0.0099005, 0, -0.0009902)),
    ],
    ids=["adam", "yogi", "adagrad"],
)
def test_the_first_round_of_an_adaptive_server(server, expected) -> None:
    step = steps(server, torch.tensor([[0.1, 0.0, -2e-4]], dtype=DOUBLE))[0]
    assert step.tolist() == pytest.approx(expected, rel=0, abs=6e-8)
    assert step[1] == 0


def test_under_a_constant_update_adam_takes_steps_of_limited_size() -> None:
    update = torch.tensor([0.1, 1e-3, -2e-5], dtype=DOUBLE)
    last = steps(Adam(0.01), update.repeat(4000, 1))[-1]
    torch.testing.assert_close(last, 0.01 * update / (update.abs() + 1e-3), rtol=1e-9, atol=0)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), exponent=st.floats(-3, 3), kind=st.sampled_from([Adam, Yogi, Adagrad]))
def test_a_heat_coefficient_is_a_tau(seed: int, exponent: float, kind) -> None:
    c = 10**exponent
    updates = torch.randn(12, 5, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed)) * 0.01
    torch.testing.assert_close(
        steps(kind(tau=1e-3), c * updates), steps(kind(tau=1e-3 / c), updates), rtol=1e-9, atol=1e-15
    )


def test_history_approaches_a_constant_update_geometrically() -> None:
    server, d = ScaffoldHistory(rho=0.1), torch.tensor([1.0, -3.0], dtype=DOUBLE)
    params = {"w": torch.zeros(2, dtype=DOUBLE)}
    state = server.init(params, ())
    for r in range(1, 60):
        before, h = params["w"].clone(), state["h/w"].clone()
        server.step(params, {"w": d}, {}, state, r)
        torch.testing.assert_close(d - state["h/w"], d * 0.9**r, rtol=1e-10, atol=0)
        torch.testing.assert_close(params["w"] - before, 0.5 * d + 0.5 * h)


def test_frequency_counts_the_rounds_of_a_row() -> None:
    server = FrequencyAware(2.0, power=0.5)
    params = {"t": torch.zeros(4, 2), "w": torch.zeros(3), "s": torch.zeros(())}
    state = server.init(params, ["t"])
    assert state["count/t"].shape == (4,)
    assert state["count/w"].shape == (1,)
    for r, rows in enumerate([[1, 3], [3], [3, 0]], 1):
        mean = {"t": torch.ones(len(rows), 2), "w": torch.ones(3), "s": torch.tensor(1.0)}
        server.step(params, mean, {"t": torch.tensor(rows)}, state, r)
    three = 2 * (1 + 2**-0.5 + 3**-0.5)
    torch.testing.assert_close(params["t"], torch.tensor([[2.0] * 2, [2.0] * 2, [0.0] * 2, [three] * 2]))
    torch.testing.assert_close(params["w"], torch.full((3,), three))
    torch.testing.assert_close(params["s"], torch.tensor(three))
    assert state["count/t"].tolist() == [1, 1, 0, 3]


# ---------------------------------------------------------------------- lazy and dense


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


class World:
    """A table and a dense parameter under random updates; rows 0–3 are rare, the last one is never sent."""

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0):
        self.rng = torch.Generator().manual_seed(seed)
        self.dtype, self.shape = dtype, shape
        self.params = {"table": self.normal(*shape), "head": self.normal(3)}

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, dtype=DOUBLE, generator=self.rng).to(self.dtype)

    def rows(self, r: int) -> Tensor:
        rare = {0: 1, 1: 20, 2: 40, 3: 300}
        chosen = torch.randperm(self.shape[0] - 5, generator=self.rng)[:4] + 4
        rows = torch.tensor([*chosen.tolist(), *[row for row, when in rare.items() if when == r]])
        return rows if r % 2 else rows.int()

    def mean(self, rows: Tensor, r: int) -> Tree:
        scale = 0.1 * 10 ** (-2 * math.sin(r))  # updates of very different sizes
        return {"table": self.normal(len(rows), *self.shape[1:]) * scale, "head": self.normal(3) * scale}


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


# ---------------------------------------------------------------------- torch.optim


@pytest.mark.parametrize("make", OPTIMISERS.values(), ids=OPTIMISERS.keys())
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_torch_optimiser_is_torch_optim(make, sparse: bool) -> None:
    """With rows that come and go (dense), or the same rows each round (sparse)."""
    world = World(torch.float32, (20, 3))
    server, params = TorchOptimiser(make, sparse_server=sparse), world.params
    fixed = torch.tensor([7, 2, 11])
    plain = [params["table"][fixed].clone() if sparse else params["table"].clone(), params["head"].clone()]
    optimiser = make(plain)
    state = server.init(params, ["table"])
    for r in range(1, 40):
        rows = fixed if sparse else world.rows(r)
        mean = world.mean(rows, r)
        server.step(params, mean, {"table": rows}, state, r)
        gradient = mean["table"] if sparse else torch.zeros(20, 3).index_copy_(0, rows.long(), mean["table"])
        plain[0].grad, plain[1].grad = -gradient, -mean["head"]
        optimiser.step()
    torch.testing.assert_close(params["table"][fixed] if sparse else params["table"], plain[0], rtol=0, atol=0)
    torch.testing.assert_close(params["head"], plain[1], rtol=0, atol=0)
    assert all(p.grad is None for p in params.values())


def test_the_first_state_of_a_torch_optimiser_is_that_of_a_fresh_one() -> None:
    params = {"table": torch.ones(5, 2), "bias": torch.ones(1), "scale": torch.tensor(1.0)}
    state = TorchOptimiser(OPTIMISERS["adam"]).init(params, ["table"])
    assert all(not v.any() for v in state.values())
    assert state["exp_avg/table"].shape == (5, 2)
    state = TorchOptimiser(OPTIMISERS["adagrad"]).init(params, ["table"])
    assert state["sum/table"].eq(0.1).all()
    assert state["step/table"] == 0
    assert params["table"].eq(1).all()


def test_a_large_table_under_a_torch_optimiser_warns() -> None:
    params = {"table": torch.zeros(1_000_001, 1)}
    with pytest.warns(UserWarning, match="lazy catch-up is not possible.*sparse_server=True"):
        TorchOptimiser(OPTIMISERS["sgd"]).init(params, ["table"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TorchOptimiser(OPTIMISERS["sgd"], sparse_server=True).init(params, ["table"])


class Lists(torch.optim.SGD):
    """An optimiser that counts in plain Python."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["seen"] = [1]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda t: torch.optim.LBFGS(t), "LBFGS.*closure"),
        (lambda t: torch.optim.Adafactor(t), "Adafactor.*has shape"),
        (lambda t: torch.optim.SparseAdam(t), "SparseAdam"),
        (lambda t: Lists(t), "Lists.*is a list"),
        (lambda t: None, "not a torch.optim.Optimizer"),
        (lambda t: torch.optim.SGD([torch.ones(2)]), "exactly the tensors"),
    ],
)
def test_a_torch_optimiser_that_does_not_fit_is_refused(make, says: str) -> None:
    params = {"table": torch.ones(5, 2), "bias": torch.ones(3)}
    with pytest.raises(MethodError, match=says):
        TorchOptimiser(make).init(params, ["table"])


# ---------------------------------------------------------------------- bad arguments


LRS, ADAPTIVE = (0, -1, float("nan"), "1", True), (Adam, Yogi, Adagrad)
GROUPS = ({"a": {"tau": 1}}, {"a": 0.5}, ["a"], {"a": {"lr": 0}}, {"a": {"lr": "x"}})
BAD: list[tuple[Callable[..., object], dict[str, Any]]] = [
    *[(kind, {"lr": v}) for kind in (Add, FrequencyAware, *ADAPTIVE) for v in LRS],
    *[(Add, {"momentum": v}) for v in (-0.1, 1, 1.5, None, float("inf"))],
    *[(kind, {"beta1": v}) for kind in ADAPTIVE for v in (-0.1, 1, "0")],
    *[(kind, {"beta2": v}) for kind in (Adam, Yogi) for v in (-0.1, 1, None)],
    *[(kind, {"tau": v}) for kind in ADAPTIVE for v in (0, -1e-3, float("nan"))],
    *[(kind, {"sparse_server": "yes"}) for kind in (Add, *ADAPTIVE)],
    *[(ScaffoldHistory, {"rho": v}) for v in (0, -0.1, 1.1)],
    *[(ScaffoldHistory, {"rho": 0.1, "beta": v}) for v in (-0.1, 1.1, "x")],
    (ScaffoldHistory, {"rho": 0.1, "sparse_server": None}),
    *[(FrequencyAware, {"power": v}) for v in (-0.5, None, float("inf"))],
    *[(kind, {"groups": v}) for kind in (Add, FrequencyAware, *ADAPTIVE) for v in GROUPS],
    (TorchOptimiser, {"make": torch.optim.SGD([torch.ones(2)])}),
    (TorchOptimiser, {"make": "adam"}),
    (TorchOptimiser, {"make": torch.optim.SGD, "sparse_server": 1}),
]


@pytest.mark.parametrize(("kind", "arguments"), BAD, ids=lambda v: getattr(v, "__name__", str(v)))
def test_bad_arguments_are_refused(kind, arguments) -> None:
    with pytest.raises(MethodError, match=r"\.$"):
        kind(**arguments)


def test_a_pattern_that_fits_nothing_is_refused() -> None:
    with pytest.raises(MethodError, match="fits no parameter"):
        Add(groups={"itms.*": {"lr": 0.5}}).init({"items.weight": torch.ones(2, 2)}, ["items.weight"])
