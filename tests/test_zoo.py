"""FedProx, Scaffold, FedNova and local solvers against closed forms and brute force."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from worlds import bag, equal, item_data, trainer_for

import fedsub as fs
from fedsub.data.heat import row_heat, weighted_heat
from fedsub.errors import MethodError
from fedsub.method.batches import draw
from fedsub.method.schedules import parse

DOUBLE = torch.float64
EVERYONE = {"clients_per_round": None, "weighting": "clients"}
ENGINES = pytest.mark.parametrize("engine", ["serial", "batched"])


# ---------------------------------------------------------------------- worlds with known answers


class Point(nn.Module):
    """Dense numbers, in double."""

    def __init__(self, *start: float):
        super().__init__()
        self.x = nn.Parameter(torch.tensor(start if len(start) > 1 else start[0], dtype=DOUBLE))

    def forward(self, batch):
        return self.x


def quadratics(a, e, start: float = 0.0, copies=None) -> tuple[fs.Objective, fs.Clients]:
    """Client i has ½ a_i (x − e_i)², ``copies[i]`` times over."""
    copies = copies or [1] * len(a)
    clients = fs.Clients.from_arrays(
        {"a": np.repeat(np.array(a, np.float32), copies), "e": np.repeat(np.array(e, np.float32), copies)},
        offsets=np.concatenate([[0], np.cumsum(copies)]),
        ids=[],
        values=["a", "e"],
    )
    loss = lambda x, batch: 0.5 * batch["a"].double() * (x - batch["e"].double()) ** 2  # noqa: E731
    return fs.Objective(Point(start), loss), clients


def slopes(g, copies=None) -> tuple[fs.Objective, fs.Clients]:
    """Client i has the loss g_ik · x on its k-th sample: gradients that do not depend on x."""
    clients = fs.Clients.from_arrays(
        {"g": np.concatenate(g).astype(np.float32)},
        offsets=np.concatenate([[0], np.cumsum([len(one) for one in g])]),
        ids=[],
        values=["g"],
    )
    return fs.Objective(Point(0.25), lambda x, batch: batch["g"].double() * x), clients


def final(method, objective, clients, rounds: int = 1, **options):
    return fs.run(method, objective, clients, rounds=rounds, **options).params


def x_of(*arguments, **options) -> float:
    return float(final(*arguments, **options)["x"])


def start_of(objective: fs.Objective) -> dict:
    return {n: p.detach().clone() for n, p in objective.module.named_parameters()}


DRIFT = ((1, 4, 10), (0, 5, -1))  # a and e of §2.1: optimum 2/3, FedAvg ends elsewhere
OPTIMUM, FEDAVG = 2 / 3, 1.1793039910


# ---------------------------------------------------------------------- FedProx


@ENGINES
def test_fedprox_weighs_each_fixed_gradient(engine: str) -> None:
    """Δ = −η Σ_k (1−α)^{τ−1−k} g_k with α = ημ; for equal ones ‖a‖₁ = (1−(1−α)^τ)/α = 3.3616."""
    local = {"lr": 0.1, "mu": 2.0, "batch_size": 1, "batches": "ordered", **EVERYONE}
    a = 0.8 ** np.arange(4, -1, -1)
    assert a.sum() == pytest.approx(3.3616, rel=1e-12)
    for g in ([1.5] * 5, [1.0, -2.0, 0.5, 4.0, 3.0]):
        goal, clients = slopes([g, g])
        x = x_of(fs.methods.fedprox(local_steps=5, **local), goal, clients, engine=engine)
        assert 0.25 - x == pytest.approx(0.1 * a @ g, rel=1e-12)


@ENGINES
def test_fedprox_local_map_and_its_limit(engine: str) -> None:
    a, e, start, lr, mu = 3.0, 2.0, -1.0, 0.1, 0.7
    goal, clients = quadratics([a, a], [e, e], start)
    x = start
    for steps in range(1, 5):
        x = (1 - lr * (a + mu)) * x + lr * (a * e + mu * start)
        method = fs.methods.fedprox(lr=lr, mu=mu, local_steps=steps, batch_size=1, **EVERYONE)
        assert x_of(method, goal, clients, engine=engine) == pytest.approx(x, rel=1e-12)
    method = fs.methods.fedprox(lr=lr, mu=mu, local_steps=200, batch_size=1, **EVERYONE)
    assert x_of(method, goal, clients, engine=engine) == pytest.approx((a * e + mu * start) / (a + mu), rel=1e-12)


@ENGINES
def test_fedprox_without_pull_is_fedavg(engine: str) -> None:
    clients = item_data()
    goal = bag(clients, dim=3)
    local = {"lr": 0.3, "local_epochs": 1, "batch_size": 4, "clients_per_round": 5}
    found = final(fs.methods.fedprox(mu=0.0, **local), goal, clients, 2, engine=engine)
    assert equal(found, final(fs.methods.fedavg(**local), goal, clients, 2, engine=engine))


def test_too_strong_a_pull_is_refused() -> None:
    fs.methods.fedprox(lr=0.5, mu=2.0)
    for settings in ({"lr": 0.5, "mu": 2.01}, {"lr": 0.1, "mu": 2.0, "groups": {"x": {"lr": 0.51}}}):
        with pytest.raises(MethodError, match="lr·mu"):
            fs.methods.fedprox(**settings)


# ---------------------------------------------------------------------- Scaffold


@ENGINES
@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_takes_the_drift_out(engine: str, option: str) -> None:
    goal, clients = quadratics(*DRIFT)
    local = {"lr": 0.02, "local_steps": 10, "batch_size": 1, **EVERYONE}
    assert x_of(fs.methods.fedavg(**local), goal, clients, 60, engine=engine) == pytest.approx(FEDAVG, abs=1e-9)
    x = x_of(fs.methods.scaffold(option=option, **local), goal, clients, 80, engine=engine)
    assert x == pytest.approx(OPTIMUM, abs=1e-12)


@ENGINES
def test_scaffold_with_one_step_of_everyone_is_gradient_descent(engine: str) -> None:
    goal, clients = quadratics(*DRIFT, start=3.0)
    a, e = (np.array(v, float) for v in DRIFT)
    x = 3.0
    for _ in range(5):
        x -= 0.05 * (a * (x - e)).mean()
    for option in ("I", "II"):
        method = fs.methods.scaffold(option=option, lr=0.05, local_steps=1, batch_size=1, **EVERYONE)
        assert x_of(method, goal, clients, 5, engine=engine) == pytest.approx(x, rel=1e-12)


def variates(trainer) -> tuple[dict, dict]:
    """(c, c_i) of a trainer: c_i of tables as [N, rows, …], zero outside S(i)."""
    c = trainer.state.shared["scaffold"]["variate"]
    own = {}
    for name in trainer.problem.names:
        stored = trainer.state.kept.tensors[f"scaffold.variate/{name}"]
        if name not in trainer.problem.tables:
            own[name] = stored
            continue
        space = trainer.problem.tables[name]
        own[name] = torch.zeros(len(trainer.problem.clients), *c[name].shape, dtype=DOUBLE)
        for i in range(len(trainer.problem.clients)):
            at = slice(int(space.row_offsets[i]), int(space.row_offsets[i + 1]))
            own[name][i, torch.from_numpy(space.rows_of(i)).long()] = stored[at]
    return c, own


@ENGINES
@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("average", ["clients", "holders", "holders by samples"])
def test_the_servers_variate_is_the_mean_of_the_clients(engine: str, option: str, average: str) -> None:
    """c = (1/N) Σ c_i at all times; with OverHolders c_m is the mean over the holders of row m."""
    clients = item_data((1, 7, 4, 9, 2, 5))
    goal = bag(clients, dim=2, dtype=DOUBLE)
    local = {"lr": 0.3, "local_epochs": 1, "batch_size": 2, "clients_per_round": 3}
    if average == "clients":
        method = fs.methods.scaffold(option=option, weighting="clients", **local)
    else:
        how = "samples" if average.endswith("samples") else "clients"
        method = fs.methods.fedsubavg(variates=option, weighting=how, **local)
    trainer = trainer_for(method, goal, clients, engine)
    space, w = clients.spaces["ids"], clients.sizes.astype(float)
    seen: set[int] = set()
    for number in range(1, 6):
        seen |= set(trainer.round(number).clients.tolist())
        c, own = variates(trainer)
        for name, mean in c.items():
            table = name in trainer.problem.tables
            weight = torch.from_numpy(w if average.endswith("samples") else np.ones(6))
            total = torch.einsum("i,i...->...", weight, own[name])
            over = torch.tensor(float(weight.sum()))
            if table and average != "clients":
                heat = weighted_heat(space, clients.sizes) if average.endswith("samples") else row_heat(space)
                over = torch.from_numpy(heat.astype(float)).clamp(min=1)[:, None]
            torch.testing.assert_close(mean, total / over, rtol=1e-12, atol=1e-14)
        # A client that never took part has no variate; one that did has one on S(i), which is all that is stored.
        for i in range(6):
            assert bool(own["out.weight"][i].any()) == (i in seen)
    assert len(trainer.state.kept.tensors["scaffold.variate/emb.weight"]) == len(space.rows)


@ENGINES
def test_variates_use_the_clients_own_number_of_steps(engine: str) -> None:
    """Option II from zero: c_i⁺ = (x − y)/(I_i η), the mean gradient on the path."""
    goal, clients = quadratics((1, 4, 10), (0, 5, -1), start=2.0, copies=[1, 3, 5])
    method = fs.methods.scaffold(lr=0.02, local_epochs=1, batch_size=1, **EVERYONE)
    trainer = trainer_for(method, goal, clients, engine)
    trainer.round(1)
    c, own = variates(trainer)
    for i, (a, e, steps) in enumerate(zip(*DRIFT, (1, 3, 5), strict=True)):
        y = e + (2.0 - e) * (1 - 0.02 * a) ** steps
        assert float(own["x"][i]) == pytest.approx((2.0 - y) / (steps * 0.02), rel=1e-12)
    assert float(c["x"]) == pytest.approx(float(own["x"].mean()), rel=1e-12)


@ENGINES
@pytest.mark.parametrize("share", [1.0, 0.5, 0.1])
def test_option_one_takes_the_gradient_at_x_over_a_share_of_the_batches(engine: str, share: float) -> None:
    """c_i⁺ = g_i(x): the mean over the first ⌈share · I_i⌉ batches, whichever way a client's steps go on."""
    clients = item_data((1, 7, 4, 9, 2, 5))
    goal = bag(clients, dim=2, dtype=DOUBLE)
    local = {"lr": 0.3, "local_epochs": 1, "batch_size": 2, "clients_per_round": None}
    name = "I" if share == 0.5 else f"I:{share:g}"
    trainer = trainer_for(fs.methods.scaffold(option=name, **local), goal, clients, engine)
    assert trainer.method.parts[0].share == share
    trainer.round(1)
    _, own = variates(trainer)
    batches = draw(clients, trainer.sampler.select(1, 0, None), trainer.method.local, round=1, seed=0)
    for i, steps in enumerate(batches.steps):
        module, found = copy.deepcopy(goal.module), []
        for step in range(math.ceil(share * steps)):
            at = batches.samples[i, step][batches.weights[i, step] > 0]
            batch = {k: torch.from_numpy(v) for k, v in clients.gather(at, ("ids", "label"), local=False).items()}
            loss = goal.loss(goal.output(module, batch), batch).mean()
            found.append(torch.autograd.grad(loss, list(module.parameters())))
        for (key, _), gradients in zip(module.named_parameters(), zip(*found, strict=True), strict=True):
            torch.testing.assert_close(own[key][i], torch.stack(gradients).mean(0), rtol=1e-9, atol=1e-12)


@ENGINES
def test_scaffold_costs_twice_the_traffic(engine: str) -> None:
    clients = item_data()
    goal = bag(clients, dim=2, dtype=DOUBLE)
    local = {"local_steps": 1, "clients_per_round": 4}
    plain, double = (
        trainer_for(make(**local), goal, clients, engine).round(1) for make in (fs.methods.fedavg, fs.methods.scaffold)
    )
    assert plain.clients.tolist() == double.clients.tolist()
    assert double.down.tolist() == (2 * plain.down).tolist()
    ids = plain.up - plain.down
    assert ids.tolist() == (4 * clients.spaces["ids"].counts[plain.clients]).tolist()  # they cross once
    assert (double.up - ids).tolist() == (2 * (plain.up - ids)).tolist()


def test_option_two_is_for_plain_sgd() -> None:
    for settings in ({"momentum": 0.9}, {"solver": "adam"}, {"clip_norm": 1.0}, {"weight_decay": 0.1}):
        with pytest.raises(MethodError, match="option"):
            fs.methods.scaffold(**settings)
        fs.methods.scaffold(option="I", **settings)
    with pytest.raises(MethodError, match="sampled"):
        fs.methods.sampled_heat(variates="II")
    for wrong, said in (
        ("I:0", "above 0"),
        ("I:2", "at most 1"),
        ("II:1", "no number"),
        ("III", "one of"),
        ("I:x", "not a"),
    ):
        with pytest.raises(MethodError, match=said):
            fs.methods.scaffold(option=wrong)


@ENGINES
def test_scaffold_at_the_server(engine: str) -> None:
    """β = 0 is FedAvg; otherwise X + (1−β) Δ + β h and h ← (1−ρ) h + ρ Δ, for a constant update by hand."""
    clients = item_data()
    goal = bag(clients, dim=2)
    local = {"lr": 0.3, "local_steps": 2, "batch_size": 4, "clients_per_round": 4}
    server = fs.servers.ScaffoldHistory(beta=0.0)
    plain = fs.methods.fedavg(**local)
    assert equal(
        final(replace(plain, server=server), goal, clients, 3, engine=engine),
        final(plain, goal, clients, 3, engine=engine),
    )
    goal, clients = slopes([[1.5]] * 4)
    local = {"lr": 0.1, "local_steps": 1, "batch_size": 1, "clients_per_round": 2}
    x, h, d = 0.25, 0.0, -0.15
    for number in range(1, 5):
        x, h = x + 0.5 * d + 0.5 * h, 0.5 * h + 0.5 * d
        assert h == pytest.approx(d * (1 - 0.5**number))
        found = x_of(fs.methods.scaffold_server(**local), goal, clients, number, engine=engine)
        assert found == pytest.approx(x, rel=1e-12)


# ---------------------------------------------------------------------- FedNova

STEPS = {"local_epochs": 1, "batch_size": 1, **EVERYONE}


@ENGINES
@pytest.mark.parametrize(("lr", "fedavg", "fednova"), [(0.01, 5.0537392, 4.6507826), (0.1, 5.4821029, 4.4047946)])
def test_fixed_points_with_unequal_steps(engine: str, lr: float, fedavg: float, fednova: float) -> None:
    rounds = 20 if lr == 0.1 else 130
    for make, expected in ((fs.methods.fednova, fednova), (fs.methods.fedavg, fedavg)):
        goal, clients = quadratics((1, 1, 1), (0, 10, 4), start=expected + 0.01, copies=[1, 5, 20])
        x = x_of(make(lr=lr, **STEPS), goal, clients, rounds, engine=engine)
        assert x == pytest.approx(expected, abs=1e-6)
    c = 1 - (1 - lr) ** np.array([1, 5, 20])
    e = np.array([0, 10, 4])
    assert c @ e / c.sum() == pytest.approx(fedavg, abs=1e-6)
    assert (c / [1, 5, 20]) @ e / (c / [1, 5, 20]).sum() == pytest.approx(fednova, abs=1e-6)


@ENGINES
@pytest.mark.parametrize("way", [{}, {"momentum": 0.7}, {"mu": 0.5}])
def test_equal_steps_make_fednova_fedavg(engine: str, way: dict) -> None:
    clients = item_data((4, 8, 2, 1, 16))
    goal = bag(clients, dim=2, dtype=DOUBLE)
    local = {"lr": 0.3, "local_steps": 3, "batch_size": 2, "clients_per_round": 3, **way}
    plain = final(fs.methods.fedavg(**local), goal, clients, 3, engine=engine)
    for name, value in final(fs.methods.fednova(**local), goal, clients, 3, engine=engine).items():
        torch.testing.assert_close(value, plain[name], rtol=1e-10, atol=1e-12)


@ENGINES
@pytest.mark.parametrize("way", [{}, {"momentum": 0.7}, {"mu": 2.0}])
@pytest.mark.parametrize("weighting", ["clients", "samples"])
def test_fednova_against_brute_force(engine: str, way: dict, weighting: str) -> None:
    """X + τ_eff Σ p_i Δ_i/‖a_i‖₁ with a_i found by sending unit gradients through the local rule one by one."""
    lr, taus = 0.1, np.array([1, 4, 7])

    def update(g) -> float:
        x = b = 0.0
        for one in g:
            b = way.get("momentum", 0.0) * b + one + way.get("mu", 0.0) * x
            x -= lr * b
        return x

    norms = np.array([sum(-update(np.eye(t)[k]) / lr for k in range(t)) for t in taus])
    if way.get("momentum"):  # the closed forms of the specification
        r = 0.7
        np.testing.assert_allclose(norms, (taus - r * (1 - r**taus) / (1 - r)) / (1 - r), rtol=1e-12)
    elif way:
        np.testing.assert_allclose(norms, (1 - 0.8**taus) / 0.2, rtol=1e-12)
    else:
        np.testing.assert_allclose(norms, taus, rtol=1e-12)
    gradients = [np.linspace(-1, 2, t).astype(np.float32).astype(float) for t in taus]
    goal, clients = slopes(gradients)
    p = taus / taus.sum() if weighting == "samples" else np.full(3, 1 / 3)
    deltas = np.array([update(g) for g in gradients])
    local = {"lr": lr, "batches": "ordered", **STEPS, "weighting": weighting, **way}
    x = x_of(fs.methods.fednova(**local), goal, clients, engine=engine)
    assert x - 0.25 == pytest.approx((p @ norms) * (p @ (deltas / norms)), rel=1e-12)
    method = fs.methods.fednova(**local)
    x = x_of(replace(method, parts=(*method.parts[:-1], fs.NormalisedSteps("steps"))), goal, clients, engine=engine)
    assert x - 0.25 == pytest.approx((p @ taus) * (p @ (deltas / norms)), rel=1e-12)


def test_fednova_sends_one_number_more() -> None:
    clients = item_data()
    goal = bag(clients, dim=2)
    plain, nova = (
        trainer_for(make(clients_per_round=4), goal, clients, "serial").round(1)
        for make in (fs.methods.fedavg, fs.methods.fednova)
    )
    assert nova.down.tolist() == plain.down.tolist()
    assert nova.up.tolist() == (plain.up + 4).tolist()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"solver": "adam"}, "linear"),
        ({"momentum": 0.9, "mu": 0.1}, "not for both"),
        ({"clip_norm": 1.0}, "clipping"),
        ({"weight_decay": 0.1}, "weight decay"),
        ({"groups": {"out.*": {"clip_norm": 1.0}}}, "clipping"),
        ({"groups": {"out.*": {"weight_decay": 0.1}}}, "weight decay"),
        ({"groups": {"out.*": {"lr": 0.05}}, "mu": 0.1}, "one number for all"),
        ({"codec": "sign"}, "lost"),
    ],
)
def test_fednova_refuses_what_it_has_no_norm_for(settings: dict, reason: str) -> None:
    with pytest.raises(MethodError, match=reason):
        fs.methods.fednova(**settings)


def test_scaffold_comes_before_fednova() -> None:
    fs.methods.fednova(variates="II")
    with pytest.raises(MethodError, match="before FedNova"):
        replace(fs.methods.fedavg(), parts=(fs.NormalisedSteps(), fs.ControlVariates()))


# ---------------------------------------------------------------------- local solvers


def torch_client(goal, clients, make, steps: int, size: int, clip=None) -> dict:
    """One client's local work by torch.optim, on ordered batches."""
    module = fs.Objective(bag(clients, dim=2, dtype=DOUBLE).module, goal.loss, goal.tables).module
    module.load_state_dict(goal.module.state_dict())
    optimiser = make(module)
    per_pass = -(-clients.samples // size)
    for step in range(steps):
        at = step % per_pass * size
        own = np.arange(at, min(at + size, clients.samples))
        batch = {k: torch.from_numpy(v) for k, v in clients.gather(own, local=False).items()}
        optimiser.zero_grad()
        goal.loss(goal.output(module, batch), batch).mean().backward()
        for names in clip or ():
            own = [p for n, p in module.named_parameters() if n.startswith(names)]
            nn.utils.clip_grad_norm_(own, clip[names])
        optimiser.step()
    return start_of(fs.Objective(module, goal.loss, goal.tables))


SOLVERS = {
    "momentum": ({"momentum": 0.8}, lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.8), None),
    "decay": ({"weight_decay": 0.3}, lambda p: torch.optim.SGD(p, lr=0.2, weight_decay=0.3), None),
    "adam": ({"solver": "adam"}, lambda p: torch.optim.Adam(p, lr=0.2), None),
    "adam and decay": (
        {"solver": "adam", "weight_decay": 0.3}, lambda p: torch.optim.Adam(p, lr=0.2, weight_decay=0.3), None,
    ),
    "clip": ({"clip_norm": 0.05}, lambda p: torch.optim.SGD(p, lr=0.2), {"": 0.05}),
    "all": (
        {"clip_norm": 0.05, "weight_decay": 0.1, "momentum": 0.5},
        lambda p: torch.optim.SGD(p, lr=0.2, weight_decay=0.1, momentum=0.5),
        {"": 0.05},
    ),
}  # fmt: skip


def lone_client():
    """A client with eight samples that holds every row, so that its submodel is the model."""
    draw = np.random.default_rng(0)
    clients = fs.Clients.from_arrays(
        {"ids": np.arange(24).reshape(8, 3) % 6, "label": draw.integers(0, 2, 8)},
        offsets=[0, 8], ids=["ids"], label="label", sizes={"ids": 6},
    )  # fmt: skip
    return bag(clients, dim=2, dtype=DOUBLE), clients


@ENGINES
@pytest.mark.parametrize("solver", SOLVERS)
def test_local_solvers_are_those_of_torch(engine: str, solver: str) -> None:
    settings, make, clip = SOLVERS[solver]
    goal, clients = lone_client()
    method = fs.methods.fedavg(lr=0.2, local_steps=6, batch_size=2, batches="ordered", clients_per_round=1, **settings)
    expected = torch_client(goal, clients, lambda m: make(m.parameters()), 6, 2, clip)
    for name, value in final(method, goal, clients, engine=engine).items():
        # torch's clipping adds 1e-6 to the norm
        torch.testing.assert_close(value, expected[name], rtol=1e-4 if clip else 1e-9, atol=1e-6 if clip else 1e-11)


@ENGINES
def test_a_client_is_clipped_by_its_own_norm(engine: str) -> None:
    """Two clients with gradients 3 and 0.5, clipped at 1: steps of 1 and 0.5."""
    goal, clients = slopes([[3.0], [-0.5]])
    method = fs.methods.fedavg(lr=0.1, local_steps=2, batch_size=1, clip_norm=1.0, **EVERYONE)
    assert x_of(method, goal, clients, engine=engine) == pytest.approx(0.25 - 0.2 * (1.0 - 0.5) / 2, rel=1e-12)


def test_schedules_by_hand() -> None:
    exponential, diminishing, cosine = parse("exponential:0.9"), parse("diminishing:10"), parse("cosine:4")
    assert [exponential.factor(r) for r in (1, 2, 3)] == pytest.approx([1, 0.9, 0.81])
    assert [diminishing.factor(r) for r in (1, 2, 11)] == pytest.approx([1, 10 / 11, 0.5])
    assert [cosine.factor(r) for r in (1, 2, 3, 4, 9)] == pytest.approx([1, 0.75, 0.25, 0, 0])
    fifth = [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0, 0]
    assert [parse("cosine:5").factor(r) for r in range(1, 7)] == pytest.approx(fifth)
    floored = fs.schedules.Cosine(3, floor=0.2)
    assert [floored.factor(r) for r in (1, 2, 3, 4)] == pytest.approx([1, 0.6, 0.2, 0.2])
    assert fs.schedules.Cosine(1, floor=0.2).factor(1) == 1  # a single round, at the full rate
    assert parse(None) is None
    assert parse("constant") is None
    for text in ("cosine:x", "linear:3", "exponential:1.5", "diminishing:-1"):
        with pytest.raises(MethodError):
            parse(text)


@ENGINES
@pytest.mark.parametrize("schedule", ["exponential:0.5", "diminishing:2", "cosine:5"])
def test_the_schedule_sets_a_rounds_rate(engine: str, schedule: str) -> None:
    goal, clients = slopes([[1.0], [1.0]])
    method = fs.methods.fedavg(lr=0.1, local_steps=3, batch_size=1, schedule=schedule, **EVERYONE)
    total = sum(parse(schedule).factor(r) for r in range(1, 5))
    assert x_of(method, goal, clients, 4, engine=engine) == pytest.approx(0.25 - 0.3 * total, rel=1e-12)
    # Scaffold reads gradients off the path with the round's own rate.
    trainer = trainer_for(fs.methods.scaffold(lr=0.1, local_steps=3, batch_size=1, schedule=schedule, **EVERYONE),
                          goal, clients, engine)  # fmt: skip
    for number in (1, 2, 3):
        trainer.round(number)
        assert float(variates(trainer)[0]["x"]) == pytest.approx(1.0, rel=1e-12)


# ---------------------------------------------------------------------- settings by parameter


class Two(nn.Module):
    """Two dense vectors, ``a.x`` and ``b.x``."""

    def __init__(self):
        super().__init__()
        self.a, self.b = Point(1.0, 2.0), Point(-3.0, 0.5)

    def forward(self, batch):
        return self.a.x, self.b.x


A, B = torch.tensor([1.0, 2.0], dtype=DOUBLE), torch.tensor([-3.0, 0.5], dtype=DOUBLE)
GA, GB = torch.tensor([3.0, 4.0], dtype=DOUBLE), torch.tensor([0.6, -0.8], dtype=DOUBLE)  # norms 5 and 1


def two() -> tuple[fs.Objective, fs.Clients]:
    """Two equal clients whose gradient is (GA, GB) everywhere."""
    clients = fs.Clients.from_arrays({"one": np.ones(2, np.float32)}, offsets=[0, 1, 2], ids=[], values=["one"])
    loss = lambda z, batch: batch["one"].double() * ((GA * z[0]).sum() + (GB * z[1]).sum())  # noqa: E731
    return fs.Objective(Two(), loss), clients


def together(norm: float) -> tuple[torch.Tensor, torch.Tensor]:
    return GA * norm / math.sqrt(26), GB * norm / math.sqrt(26)


GROUPS = {  # settings -> the update of one step of lr 0.1 (server included)
    "lr": ({"groups": {"b.*": {"lr": 0.02}}}, -0.1 * GA, -0.02 * GB),
    "first pattern wins": ({"groups": {"b.x": {"lr": 0.3}, "*": {"lr": 0.02}}}, -0.02 * GA, -0.3 * GB),
    "weight_decay": ({"groups": {"a.*": {"weight_decay": 0.5}}}, -0.1 * (GA + 0.5 * A), -0.1 * GB),
    "decay but for one": (
        {"weight_decay": 0.5, "groups": {"a.*": {"weight_decay": 0.0}}}, -0.1 * GA, -0.1 * (GB + 0.5 * B),
    ),
    "clip_norm": ({"groups": {"a.*": {"clip_norm": 2.0}}}, -0.1 * GA * 2 / 5, -0.1 * GB),
    "clip_norm of the rest": (
        {"clip_norm": 0.25, "groups": {"a.*": {"clip_norm": 2.0}}}, -0.1 * GA * 2 / 5, -0.1 * GB * 0.25,
    ),
    "clip_norm for all": ({"clip_norm": 1.0}, -0.1 * together(1.0)[0], -0.1 * together(1.0)[1]),
    "server_lr": ({"groups": {"b.*": {"server_lr": 3.0}}}, -0.1 * GA, -0.3 * GB),
    "lr and server_lr": ({"groups": {"b.*": {"server_lr": 3.0, "lr": 0.2}}}, -0.1 * GA, -0.6 * GB),
    "proximal": ({"mu": 5.0, "groups": {"b.*": {"lr": 0.2}}}, -0.1 * GA, -0.2 * GB),
}  # fmt: skip


@ENGINES
@pytest.mark.parametrize("which", GROUPS)
def test_groups_by_hand(engine: str, which: str) -> None:
    settings, a, b = GROUPS[which]
    goal, clients = two()
    found = final(fs.methods.fedavg(lr=0.1, local_steps=1, batch_size=1, **EVERYONE, **settings), goal, clients,
                  engine=engine)  # fmt: skip
    torch.testing.assert_close(found["a.x"], A + a, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found["b.x"], B + b, rtol=1e-12, atol=1e-12)


@ENGINES
def test_temper_and_cap_by_pattern(engine: str) -> None:
    clients = item_data((4, 8, 2, 1, 16))
    goal = bag(clients, dim=2, dtype=DOUBLE)
    local = {"lr": 0.3, "local_steps": 2, "batch_size": 2, **EVERYONE}
    x, heat = start_of(goal)["emb.weight"], row_heat(clients.spaces["ids"])
    plain = final(fs.methods.fedavg(**local), goal, clients, engine=engine)["emb.weight"] - x
    for group, c in (
        ({"temper": 0.5}, (5 / np.maximum(heat, 1)) ** 0.5),
        ({"max_coef": 2.0}, np.minimum(5 / np.maximum(heat, 1), 2.0)),
    ):
        method = fs.methods.fedsubavg(groups={"emb.*": group}, **local)
        found = final(method, goal, clients, engine=engine)["emb.weight"] - x
        torch.testing.assert_close(found, plain * torch.from_numpy(c)[:, None], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("key", ["lr", "weight_decay", "clip_norm", "server_lr", "temper", "max_coef"])
def test_a_pattern_that_fits_nothing_is_refused(key: str) -> None:
    clients = item_data()
    method = fs.methods.fedsubavg(clients_per_round=4, groups={"embedding.*": {key: 1.0}})
    with pytest.raises(MethodError, match="fits no parameter"):
        fs.run(method, bag(clients), clients, rounds=1)


def test_unknown_settings_of_groups_are_refused() -> None:
    with pytest.raises(MethodError, match="momentum"):
        fs.methods.fedavg(groups={"*": {"momentum": 0.9}})
    with pytest.raises(MethodError, match="fedsubavg"):
        fs.methods.fedavg(groups={"*": {"temper": 0.5}})
    with pytest.raises(MethodError, match="patterns"):
        fs.methods.fedavg(groups=["emb.*"])


# ---------------------------------------------------------------------- inexactness


def test_inexactness_on_quadratics() -> None:
    """∇h = a(x−e) + μ(x−X), and I steps shrink x − x* by (1 − η(a+μ))^I, x* the exact prox: so does the gradient."""
    a, e, start, lr = np.array([1.0, 4.0, 10.0]), np.array([0.0, 5.0, -1.0]), 2.0, 0.02
    goal, clients = quadratics(a, e, start, copies=[1, 2, 4])
    for mu in (0.0, 3.0):
        method = fs.methods.fedprox(mu=mu, lr=lr, local_steps=5, batch_size=1)
        expected = (1 - lr * (a + mu)) ** 5
        np.testing.assert_allclose(fs.diagnostics.inexactness(method, goal, clients), expected, rtol=1e-9)
        found = fs.diagnostics.inexactness(method, goal, clients, who=[2, 0])
        np.testing.assert_allclose(found, expected[[2, 0]], rtol=1e-9)
    # What is sent makes no difference to the local work: codecs, FedNova and the server.
    method = fs.methods.fedavg(lr=lr, local_steps=5, batch_size=1, codec="sign", server="adam")
    np.testing.assert_allclose(fs.diagnostics.inexactness(method, goal, clients), (1 - lr * a) ** 5, rtol=1e-9)
    # From elsewhere: at its own minimum a client has nothing to do.
    at = {"x": torch.tensor(5.0, dtype=DOUBLE)}
    found = fs.diagnostics.inexactness(method, goal, clients, at)
    np.testing.assert_allclose(found, [(1 - lr) ** 5, 0.0, (1 - lr * 10) ** 5], rtol=1e-9)
    assert goal.module.x.item() == start


def test_inexactness_over_submodels() -> None:
    """Gradients of tables count on S(i); a module's own parameters are left alone."""
    clients = item_data((4, 8, 2, 1, 16))
    goal = bag(clients, dim=2, dtype=DOUBLE)
    before = start_of(goal)
    method = fs.methods.fedprox(mu=0.5, lr=0.3, local_steps=1, batch_size=None)
    found = fs.diagnostics.inexactness(method, goal, clients)

    def slope(module, i: int) -> list[torch.Tensor]:
        own = np.arange(clients.offsets[i], clients.offsets[i + 1])
        batch = {k: torch.from_numpy(v) for k, v in clients.gather(own, local=False).items()}
        return torch.autograd.grad(goal.loss(goal.output(module, batch), batch).mean(), tuple(module.parameters()))

    for i in range(len(clients)):
        module = bag(clients, dim=2, dtype=DOUBLE).module
        first = slope(module, i)
        with torch.no_grad():
            for p, g in zip(module.parameters(), first, strict=True):
                p -= 0.3 * g
        second = [g - 0.5 * 0.3 * f for g, f in zip(slope(module, i), first, strict=True)]
        norms = [math.sqrt(sum(float(g.square().sum()) for g in gs)) for gs in (first, second)]
        assert found[i] == pytest.approx(norms[1] / norms[0], rel=1e-12)
    assert equal(before, start_of(goal))
    more = fs.diagnostics.inexactness(replace(method, local=fs.SGD(0.3, 50, None, None)), goal, clients)
    assert (more < found).all()
    with pytest.raises(MethodError, match="cannot be asked"):
        fs.diagnostics.inexactness(method, goal, clients, who=[5])
    with pytest.raises(MethodError, match="pools"):
        fs.diagnostics.inexactness(fs.methods.centralsgd(), goal, clients)
    with pytest.raises(MethodError, match="params must hold"):
        fs.diagnostics.inexactness(method, goal, clients, {"emb.weight": before["emb.weight"]})
