"""FedAvg, FedSubAvg and FedProx against closed forms, brute force and enumeration."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from worlds import bag, click_data, equal, item_data, trainer_for

import fedsub as fs
from fedsub.data.heat import row_heat, weighted_heat
from fedsub.errors import MethodError
from fedsub.method.batches import draw
from fedsub.method.groups import Cohort
from fedsub.objective.population import Population
from fedsub.objective.problem import Problem
from fedsub.round.layout import Layouts, asked_of
from fedsub.round.messages import Uplink
from fedsub.round.sums import Sums

CPU = torch.device("cpu")
DOUBLE = torch.float64
EVERYONE = {"clients_per_round": None, "weighting": "clients"}
ENGINES = pytest.mark.parametrize("engine", ["serial", "batched"])


# ---------------------------------------------------------------------- worlds with known answers


class Values(nn.Module):
    """The values of the rows a sample names; padding counts nothing."""

    def __init__(self, start):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[0.0], *[[x] for x in start]], dtype=DOUBLE))

    def forward(self, ids):
        return nn.functional.embedding(ids, self.w).squeeze(-1) * (ids != 0)


def example_one(n: int, start=(3.0, -2.0)) -> tuple[fs.Objective, fs.Clients]:
    """Client 1 has the loss w1² + w2², all others w2²; row 0 is padding."""
    lists = [[1, 2]] + [[2]] * (n - 1)
    clients = fs.Clients.from_arrays({"ids": lists}, offsets=np.arange(n + 1), ids=["ids"], sizes={"ids": 3})
    loss = lambda z, batch: (z**2).sum(-1)  # noqa: E731
    return fs.Objective(Values(start), loss, {"w": "ids"}, inputs=("ids",)), clients


class Point(nn.Module):
    """One dense number."""

    def __init__(self, start: float = 0.0):
        super().__init__()
        self.x = nn.Parameter(torch.tensor(start, dtype=DOUBLE))

    def forward(self, batch):
        return self.x


def quadratics(a, e, start: float = 0.0) -> tuple[fs.Objective, fs.Clients]:
    """Client i has ½ a_i (x − e_i)²."""
    clients = fs.Clients.from_arrays(
        {"a": np.array(a, np.float32), "e": np.array(e, np.float32)},
        offsets=np.arange(len(a) + 1),
        ids=[],
        values=["a", "e"],
    )
    loss = lambda x, batch: 0.5 * batch["a"].double() * (x - batch["e"].double()) ** 2  # noqa: E731
    return fs.Objective(Point(start), loss), clients


def final(method, objective, clients, rounds: int = 1, **options):
    return fs.run(method, objective, clients, rounds=rounds, **options).params


def client_gradients(objective: fs.Objective, clients: fs.Clients, samples=None) -> list[dict]:
    """∇f_i at the objective's parameters, by autograd on the full table; one dict per client."""
    out = []
    for i in range(len(clients)):
        module = copy.deepcopy(objective.module)
        own = np.arange(clients.offsets[i], clients.offsets[i + 1]) if samples is None else samples[i]
        batch = {k: torch.from_numpy(v) for k, v in clients.gather(own, local=False).items()}
        objective.loss(objective.output(module, batch), batch).mean().backward()
        out.append({n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in module.named_parameters()})
    return out


def start_of(objective: fs.Objective) -> dict:
    return {n: p.detach().clone() for n, p in objective.module.named_parameters()}


# ---------------------------------------------------------------------- Example 1


@ENGINES
@pytest.mark.parametrize(("n", "lr", "steps"), [(2, 0.1, 1), (10, 0.5, 1), (7, 0.2, 3), (5, 0.05, 10)])
def test_example_one(engine: str, n: int, lr: float, steps: int) -> None:
    goal, clients = example_one(n)
    local = {"lr": lr, "local_steps": steps, "batch_size": 1, **EVERYONE}
    rounds, q = 4, (1 - 2 * lr) ** steps
    slow = final(fs.methods.fedavg(**local), goal, clients, rounds, engine=engine)["w"].squeeze(-1)
    expected = [0.0, (1 - (1 - q) / n) ** rounds * 3.0, q**rounds * -2.0]
    np.testing.assert_allclose(slow, expected, rtol=1e-12, atol=1e-15)
    fast = final(fs.methods.fedsubavg(**local), goal, clients, rounds, engine=engine)["w"].squeeze(-1)
    np.testing.assert_allclose(fast, [0.0, q**rounds * 3.0, q**rounds * -2.0], rtol=1e-12, atol=1e-15)


def test_example_one_heat() -> None:
    _, clients = example_one(6)
    assert row_heat(clients.spaces["ids"]).tolist() == [6, 1, 6]


# ---------------------------------------------------------------------- FedAvg, FedSGD, local SGD


@ENGINES
def test_drift_bias_of_fedavg(engine: str) -> None:
    goal, clients = quadratics((1, 4, 10), (0, 5, -1))
    method = fs.methods.fedavg(lr=0.02, local_steps=10, batch_size=1, **EVERYONE)
    x = float(final(method, goal, clients, 80, engine=engine)["x"])
    assert x == pytest.approx(1.1793039910, abs=1e-9)
    one_step = replace(method, local=fs.SGD(0.05, 1, None, 1))
    x = float(final(one_step, goal, clients, 200, engine=engine)["x"])
    assert x == pytest.approx(0.6666666667, abs=1e-9)  # the optimum: one local step has no drift


@ENGINES
def test_one_step_of_everyone_is_gradient_descent(engine: str) -> None:
    clients = item_data((4, 8, 2, 1, 16))  # powers of two: sample weights are exact
    goal = bag(clients, dim=2, dtype=DOUBLE)
    method = fs.methods.fedavg(lr=0.7, local_steps=1, batch_size=None, **EVERYONE)
    found = final(method, goal, clients, 3, engine=engine)
    for _ in range(3):
        gradients = client_gradients(goal, clients)
        with torch.no_grad():
            for name, p in goal.module.named_parameters():
                p -= 0.7 * sum(g[name] for g in gradients) / len(clients)
    for name, p in goal.module.named_parameters():
        torch.testing.assert_close(found[name], p.detach(), rtol=1e-10, atol=1e-12)


@ENGINES
def test_fedsgd_averages_gradients_or_parameters_alike(engine: str) -> None:
    clients = item_data((4, 8, 2, 1, 16))
    goal = bag(clients, dim=2, dtype=DOUBLE)
    found = final(fs.methods.fedsgd(lr=0.5, clients_per_round=None), goal, clients, engine=engine)
    share = clients.sizes / clients.samples
    gradients = client_gradients(goal, clients)
    for name, x in start_of(goal).items():
        step = sum(w * g[name] for w, g in zip(share, gradients, strict=True))
        torch.testing.assert_close(found[name], x - 0.5 * step, rtol=1e-10, atol=1e-12)
    # Averaging by samples, the mean gradient is the one of all samples together.
    pooled = client_gradients(goal, clients.pooled())[0]
    for name, x in start_of(goal).items():
        torch.testing.assert_close(found[name], x - 0.5 * pooled[name], rtol=1e-10, atol=1e-12)


@ENGINES
def test_local_sgd_with_one_step_is_minibatch_sgd(engine: str) -> None:
    clients = item_data((8, 9, 11, 16))
    goal = bag(clients, dim=2, dtype=DOUBLE)
    method = fs.methods.local_sgd(lr=0.5, local_steps=1, batch_size=4)
    found = final(method, goal, clients, 3, engine=engine, seed=4)
    everyone = Cohort.of(np.arange(4))
    for number in (1, 2, 3):
        samples = draw(clients, everyone, method.local, round=number, seed=4).samples
        together = client_gradients(goal, clients, [samples.reshape(-1)] * len(clients))[0]  # batch K·B = 16
        with torch.no_grad():
            for name, p in goal.module.named_parameters():
                p -= 0.5 * together[name]
    for name, p in goal.module.named_parameters():
        torch.testing.assert_close(found[name], p.detach(), rtol=1e-10, atol=1e-12)


def test_server_lr_scales_the_step() -> None:
    clients = item_data()
    goal = bag(clients, dtype=DOUBLE)
    base = {"lr": 0.5, "local_steps": 2, "batch_size": 4, "clients_per_round": 5}
    x = start_of(goal)
    one = final(fs.methods.fedavg(**base), goal, clients, engine="serial")
    half = final(fs.methods.fedavg(**base, server_lr=0.5), goal, clients, engine="serial")
    for name in x:
        torch.testing.assert_close(half[name] - x[name], 0.5 * (one[name] - x[name]), rtol=1e-9, atol=1e-13)


# ---------------------------------------------------------------------- FedSubAvg by hand


@ENGINES
@pytest.mark.parametrize("weighting", ["clients", "samples"])
def test_equal_heat_is_fedavg_bit_for_bit(engine: str, weighting: str) -> None:
    draws = np.random.default_rng(0)
    sizes = np.array([6, 6, 9, 12, 7])
    ids = np.concatenate([np.resize(draws.permutation(6), n) for n in sizes])  # everyone holds all six rows
    clients = fs.Clients.from_arrays(
        {"ids": ids[:, None], "label": draws.integers(0, 2, len(ids))},
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        ids=["ids"],
        label="label",
        sizes={"ids": 6},
    )
    goal = bag(clients, dim=3)
    local = {"lr": 0.3, "local_steps": 4, "batch_size": 4, "clients_per_round": 3, "weighting": weighting}
    plain = final(fs.methods.fedavg(**local), goal, clients, 3, engine=engine)
    sub = final(fs.methods.fedsubavg(**local), goal, clients, 3, engine=engine)
    assert equal(plain, sub)
    assert not equal(plain, start_of(goal))


@ENGINES
def test_everyone_and_one_step_is_preconditioned_gradient_descent(engine: str) -> None:
    """K = N, I = 1: X − γ D ∇f with D = diag(N / n_m)."""
    clients = item_data((4, 8, 2, 1, 16))
    goal = bag(clients, dim=2, dtype=DOUBLE)
    method = fs.methods.fedsubavg(lr=0.7, local_steps=1, batch_size=None, **EVERYONE)
    found = final(method, goal, clients, engine=engine)
    gradients, heat = client_gradients(goal, clients), row_heat(clients.spaces["ids"])
    for name, x in start_of(goal).items():
        d = torch.ones(len(x)) if name != "emb.weight" else torch.from_numpy(5 / np.maximum(heat, 1))
        d = d.double().reshape(-1, *[1] * (x.ndim - 1))
        step = d * sum(g[name] for g in gradients) / 5
        torch.testing.assert_close(found[name], x - 0.7 * step, rtol=1e-12, atol=1e-14)


def test_untouched_rows_keep_their_bits() -> None:
    clients = click_data()
    torch.manual_seed(0)
    goal = fs.models.make_objective(clients, "embedding")
    for method in (
        fs.methods.fedavg(clients_per_round=2),
        fs.methods.fedsubavg(clients_per_round=2),
        fs.methods.fedprox(clients_per_round=2),
        fs.methods.sampled_heat(clients_per_round=2),
    ):
        trainer = trainer_for(method, goal, clients, "batched")
        before = {n: p.clone() for n, p in trainer.params.items()}
        report = trainer.round(1)
        moved = trainer.state.take_moved()
        assert moved is not None
        for table, space in trainer.problem.tables.items():
            held = np.unique(np.concatenate([space.rows_of(c) for c in report.clients]))
            assert moved[table].tolist() == held.tolist()
            rest = np.setdiff1d(np.arange(space.size), held)
            assert len(rest) or space.name != "item"
            assert torch.equal(trainer.params[table][rest], before[table][rest])
            assert not torch.equal(trainer.params[table][held], before[table][held])


# ---------------------------------------------------------------------- the average slot by itself


class Rows(nn.Module):
    """A table and a dense parameter, in double; only their shapes matter."""

    def __init__(self, rows: int):
        super().__init__()
        self.table, self.dense = nn.Embedding(rows, 2, dtype=DOUBLE), nn.Linear(2, 1, dtype=DOUBLE)

    def forward(self, batch):
        return self.dense(self.table(batch["ids"])).squeeze(-1)


def held_problem(holders: list[list[int]], sizes: list[int], rows: int) -> Problem:
    """Client i holds exactly the rows holders[i] and has sizes[i] samples."""
    clients = fs.Clients.from_arrays(
        {"ids": np.concatenate([np.resize(h, n) for h, n in zip(holders, sizes, strict=True)])},
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        ids=["ids"],
        sizes={"ids": rows},
    )
    return Problem.bind(fs.Objective(Rows(rows), lambda z, b: z, {"table.weight": "ids"}), clients)


def random_deltas(problem: Problem, seed: int) -> list[dict]:
    """One update per client: table rows in the order of S(i), and dense parameters."""
    torch.manual_seed(seed)
    out = []
    for i in range(len(problem.clients)):
        rows = len(problem.spaces["ids"].rows_of(i))
        out.append(
            {
                "table.weight": torch.randn(rows, 2, dtype=DOUBLE),
                "dense.weight": torch.randn(1, 2, dtype=DOUBLE),
                "dense.bias": torch.randn(1, dtype=DOUBLE),
            }
        )
    return out


def full(problem: Problem, i: int, delta: dict) -> torch.Tensor:
    out = torch.zeros(problem.spaces["ids"].size, 2, dtype=DOUBLE)
    out[torch.from_numpy(problem.spaces["ids"].rows_of(i)).long()] = delta["table.weight"]
    return out


def mean_over(problem: Problem, average, who, deltas, left_out=()) -> dict:
    """The average of the clients ``who``, scattered into the full table."""
    cohort = Cohort.of(np.array(who), may_repeat=True)
    population = Population.of(problem)
    layout = Layouts(population.rows, CPU)(asked_of(problem.spaces, cohort.clients))
    bound = average.bind(population, CPU)
    sums = Sums(
        problem.params(), population.tables, layout, {"update": problem.names}, held=average.needs_held
    )  # fmt: skip
    weights = average.weight(problem.clients.sizes[cohort.clients])
    for k, i in enumerate(who):
        share = weights[k : k + 1] * (i not in left_out)
        tree = {n: d * share[0] if n in problem.tables else (d * share[0])[None] for n, d in deltas[i].items()}
        numbers = {"weight": share, "count": np.array([float(i not in left_out)]), "loss": np.zeros(1)}
        uplink = Uplink(cohort.take(np.array([k])), np.array([i in left_out]), {"update": tree}, numbers)
        sums.add(uplink, slice(k, k + 1))
    summed = sums.total()
    mean = bound(summed)
    table = torch.zeros(problem.spaces["ids"].size, 2, dtype=DOUBLE)
    table[summed.rows["table.weight"]] = mean["table.weight"]
    return {**mean, "table.weight": table}


def test_figure_one() -> None:
    """N = 3, two clients hold parameter 1 with updates u1 and u2."""
    problem = held_problem([[1, 2], [1], [2]], [2, 2, 2], rows=3)
    deltas = random_deltas(problem, 0)
    both = full(problem, 0, deltas[0])[1] + full(problem, 1, deltas[1])[1]
    plain = mean_over(problem, fs.OverClients(), [0, 1, 2], deltas)["table.weight"][1]
    sub = mean_over(problem, fs.OverHolders(), [0, 1, 2], deltas)["table.weight"][1]
    torch.testing.assert_close(plain, both / 3)
    torch.testing.assert_close(sub, both / 2)


@st.composite
def populations(draw_):
    """(holders, sizes, rows, seed) of five clients; every client holds something."""
    rows = draw_(st.integers(2, 6))
    holders = draw_(
        st.lists(st.lists(st.integers(0, rows - 1), min_size=1, max_size=rows, unique=True), min_size=5, max_size=5)
    )
    sizes = [len(h) + draw_(st.integers(0, 20)) for h in holders]
    return holders, sizes, rows, draw_(st.integers(0, 1000))


def close(a, b) -> None:
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(populations())
def test_fedsubavg_is_unbiased_over_all_cohorts(world) -> None:
    """The mean over all C(5, 2) cohorts is (1/n_m) Σ Δ_im over the holders, for every held row."""
    holders, sizes, rows, seed = world
    problem = held_problem(holders, sizes, rows)
    deltas = random_deltas(problem, seed)
    steps = [mean_over(problem, fs.OverHolders(), c, deltas) for c in combinations(range(5), 2)]
    heat = torch.from_numpy(row_heat(problem.spaces["ids"])).double()
    together = sum(full(problem, i, deltas[i]) for i in range(5))
    close(sum(s["table.weight"] for s in steps) / 10, together / heat.clamp(min=1)[:, None])
    close(sum(s["dense.weight"] for s in steps) / 10, sum(d["dense.weight"] for d in deltas) / 5)


@settings(max_examples=40, deadline=None)
@given(populations(), st.integers(1, 5))
def test_weighted_form_against_brute_force(world, k: int) -> None:
    holders, sizes, rows, seed = world
    problem = held_problem(holders, sizes, rows)
    deltas, w = random_deltas(problem, seed), problem.clients.sizes
    who = np.random.default_rng(seed).permutation(5)[:k].tolist()
    found = mean_over(problem, fs.OverHolders("samples"), who, deltas)
    share = sum(w[i] for i in who)
    expected = torch.stack([float(w[i]) * full(problem, i, deltas[i]) for i in who]).sum(0) / share
    for m in range(rows):
        heat = sum(w[i] for i in range(5) if m in holders[i])
        if heat:
            close(found["table.weight"][m], expected[m] * float(w.sum() / heat))
    close(found["dense.bias"], sum(w[i] * deltas[i]["dense.bias"] for i in who) / share)


@settings(max_examples=40, deadline=None)
@given(populations())
def test_the_unbiased_weighting_is_unbiased(world) -> None:
    """Horvitz–Thompson: the mean over all cohorts is Σ w_i Δ_im / W_m."""
    holders, sizes, rows, seed = world
    problem = held_problem(holders, sizes, rows)
    deltas, w = random_deltas(problem, seed), problem.clients.sizes
    steps = [mean_over(problem, fs.OverHolders("unbiased"), c, deltas) for c in combinations(range(5), 2)]
    heat = torch.from_numpy(weighted_heat(problem.spaces["ids"], w))
    together = sum(int(w[i]) * full(problem, i, deltas[i]) for i in range(5))
    close(sum(s["table.weight"] for s in steps) / 10, together / heat.clamp(min=1)[:, None])
    dense = sum(int(w[i]) * deltas[i]["dense.weight"] for i in range(5)) / float(w.sum())
    close(sum(s["dense.weight"] for s in steps) / 10, dense)


def test_the_weighted_form_is_not_unbiased() -> None:
    """A ratio of random numbers: only with everyone, or equal sizes, is it exact."""
    holders, sizes = [[0], [0, 1], [1], [0], [1]], [1, 30, 4, 9, 2]

    def bias(sizes: list[int], k: int) -> float:
        problem = held_problem(holders, sizes, rows=2)
        deltas, w = random_deltas(problem, 1), problem.clients.sizes
        cohorts = list(combinations(range(5), k))
        steps = [mean_over(problem, fs.OverHolders("samples"), c, deltas)["table.weight"] for c in cohorts]
        heat = torch.from_numpy(weighted_heat(problem.spaces["ids"], w))
        expected = sum(int(w[i]) * full(problem, i, deltas[i]) for i in range(5)) / heat[:, None]
        return float((sum(steps) / len(steps) - expected).abs().max())

    assert bias(sizes, 2) > 0.05
    assert bias(sizes, 5) < 1e-12
    assert bias([3] * 5, 2) < 1e-12


@settings(max_examples=40, deadline=None)
@given(populations(), st.integers(1, 5), st.sampled_from(["clients", "samples"]))
def test_sampled_holders_against_brute_force(world, k: int, weighting: str) -> None:
    holders, sizes, rows, seed = world
    problem = held_problem(holders, sizes, rows)
    deltas = random_deltas(problem, seed)
    w = problem.clients.sizes if weighting == "samples" else np.ones(5)
    who = np.random.default_rng(seed).permutation(5)[:k].tolist()
    found = mean_over(problem, fs.OverSampledHolders(weighting), who, deltas)
    for m in range(rows):
        own = [i for i in who if m in holders[i]]
        expected = sum(w[i] * full(problem, i, deltas[i])[m] for i in own) / sum(w[i] for i in own) if own else 0
        close(found["table.weight"][m], expected + torch.zeros(2, dtype=DOUBLE))
    dense = sum(w[i] * deltas[i]["dense.weight"] for i in who) / sum(w[i] for i in who)
    close(found["dense.weight"], dense)


@pytest.mark.parametrize(
    "average",
    [fs.OverClients(), fs.OverHolders(), fs.OverHolders("unbiased"), fs.OverSampledHolders("samples")],
)
def test_a_client_left_out_leaves_its_rows_alone(average) -> None:
    problem = held_problem([[0, 1], [1, 2], [2]], [3, 5, 4], rows=3)
    deltas = random_deltas(problem, 2)
    found = mean_over(problem, average, [0, 1, 2], deltas, left_out=(0,))
    assert all(torch.isfinite(v).all() for v in found.values())
    assert torch.equal(found["table.weight"][0], torch.zeros(2, dtype=DOUBLE))
    without = mean_over(problem, average, [1, 2], deltas)
    for name in found:
        close(found[name], without[name])


def test_a_client_drawn_twice_counts_twice() -> None:
    problem = held_problem([[0, 1], [1, 2], [2]], [3, 5, 4], rows=3)
    deltas = random_deltas(problem, 2)
    found = mean_over(problem, fs.OverClients(), [1, 1, 0], deltas)["table.weight"]
    close(found, (2 * full(problem, 1, deltas[1]) + full(problem, 0, deltas[0])) / 3)


# ---------------------------------------------------------------------- coefficients

HELD = [[0, 1], [0, 2], [0], [0, 2], [0]]  # n = 5, 1, 2, and nobody holds row 3


def coefficients(average: fs.OverHolders) -> np.ndarray:
    problem = held_problem(HELD, [2, 4, 6, 8, 10], rows=4)
    return average.bind(Population.of(problem), CPU).coefficients["table.weight"].numpy()


def test_coefficients() -> None:
    np.testing.assert_allclose(coefficients(fs.OverHolders()), [1, 5, 2.5, 1])
    np.testing.assert_allclose(coefficients(fs.OverHolders("samples")), [1, 15, 30 / 12, 1])
    np.testing.assert_allclose(coefficients(fs.OverHolders("unbiased")), [1, 15, 30 / 12, 1])
    np.testing.assert_allclose(coefficients(fs.OverHolders(max_coef=3)), [1, 3, 2.5, 1])
    np.testing.assert_allclose(coefficients(fs.OverHolders(temper=0)), [1, 1, 1, 1])
    np.testing.assert_allclose(coefficients(fs.OverHolders(temper=0.5)), [1, 5**0.5, 2.5**0.5, 1], rtol=1e-12)
    np.testing.assert_allclose(coefficients(fs.OverHolders(temper=0.5, max_coef=2)), [1, 2, 2.5**0.5, 1])


def test_estimated_heat_is_clipped_to_what_is_possible() -> None:
    for bad in (0.0, -7.0, 0.2, np.nan, -np.inf):
        found = coefficients(fs.OverHolders(heat={"ids": np.array([5.0, bad, 2, bad])}))
        np.testing.assert_allclose(found, [1, 5, 2.5, 5])
    for large in (5.0, 6.0, 1e30, np.inf):
        found = coefficients(fs.OverHolders(heat={"ids": np.array([large, 1, 2, 1])}))
        np.testing.assert_allclose(found, [1, 5, 2.5, 5])
    with pytest.raises(MethodError, match="4 rows"):
        coefficients(fs.OverHolders(heat={"ids": np.ones(3)}))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=4, max_size=4),
    st.sampled_from(["clients", "samples", "unbiased"]),
    st.floats(0, 1),
    st.one_of(st.none(), st.floats(1, 100)),
)
def test_no_coefficient_is_ever_infinite(heat, weighting: str, temper: float, cap) -> None:
    for given_heat in (None, {"ids": np.array(heat)}):
        average = fs.OverHolders(weighting, temper=temper, max_coef=cap, heat=given_heat)
        found = coefficients(average)
        assert np.isfinite(found).all()
        assert (found >= 1 - 1e-6).all()
        assert found.max() <= (30.001 if cap is None else min(30.001, cap * 1.000001))


@pytest.mark.parametrize(
    "make",
    [
        lambda: fs.OverHolders("size"),
        lambda: fs.OverHolders(temper=1.5),
        lambda: fs.OverHolders(max_coef=0.5),
        lambda: fs.OverClients("unbiased"),
        lambda: fs.OverSampledHolders("heat"),
        lambda: fs.Add(0.0),
        lambda: fs.SGD(lr=0.0),
        lambda: fs.SGD(lr=float("nan")),
        lambda: fs.SGD(local_steps=2, local_epochs=1),
        lambda: fs.SGD(local_steps=None),
        lambda: fs.SGD(local_steps=0),
        lambda: fs.SGD(batch_size=0),
        lambda: fs.SGD(batches="random"),
        lambda: fs.Prox(-1).check(fs.methods.fedavg()),
        lambda: replace(fs.methods.fedavg(), parts=fs.Prox()),
    ],
)
def test_nonsense_is_refused_when_it_is_built(make) -> None:
    with pytest.raises(MethodError):
        make()


# ---------------------------------------------------------------------- FedProx


@ENGINES
def test_fedprox_without_pull_is_fedavg(engine: str) -> None:
    clients = item_data()
    goal = bag(clients, dim=3)
    local = {"lr": 0.3, "local_epochs": 2, "batch_size": 4, "clients_per_round": 5}
    assert equal(
        final(fs.methods.fedprox(mu=0.0, **local), goal, clients, 3, engine=engine),
        final(fs.methods.fedavg(**local), goal, clients, 3, engine=engine),
    )


@ENGINES
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_fedprox_on_a_quadratic(engine: str, steps: int) -> None:
    a, e, start, lr, mu = 3.0, 2.0, -1.0, 0.1, 0.7
    goal, clients = quadratics([a, a], [e, e], start)
    method = fs.methods.fedprox(lr=lr, mu=mu, local_steps=steps, batch_size=1, **EVERYONE)
    x = start
    for _ in range(steps):
        x = (1 - lr * (a + mu)) * x + lr * (a * e + mu * start)
    assert float(final(method, goal, clients, engine=engine)["x"]) == pytest.approx(x, rel=1e-12)


@ENGINES
def test_fedprox_solves_the_proximal_problem(engine: str) -> None:
    goal, clients = quadratics([3.0], [2.0], -1.0)
    method = fs.methods.fedprox(lr=0.1, mu=0.5, local_steps=300, batch_size=1, **EVERYONE)
    x = float(final(method, goal, clients, engine=engine)["x"])
    assert x == pytest.approx((3 * 2 + 0.5 * -1) / 3.5, rel=1e-12)


@ENGINES
def test_fedprox_weighs_fixed_gradients_geometrically(engine: str) -> None:
    """Linear loss g·x: Δ = −η g ‖a‖₁ with ‖a‖₁ = (1 − (1 − ημ)^τ)/(ημ) = 3.3616."""
    clients = fs.Clients.from_arrays({"g": np.array([1.5, 1.5])}, offsets=[0, 1, 2], ids=[], values=["g"])
    goal = fs.Objective(Point(0.25), lambda x, batch: batch["g"].double() * x)
    method = fs.methods.fedprox(lr=0.1, mu=2.0, local_steps=5, batch_size=1, **EVERYONE)
    x = float(final(method, goal, clients, engine=engine)["x"])
    assert (0.25 - x) / (0.1 * 1.5) == pytest.approx(3.3616, rel=1e-12)


def test_fedprox_pulls_rows_of_the_submodel_only() -> None:
    """Client 2 holds w2 only; the pull acts on it, and w1 is moved by client 1 alone."""
    goal, clients = example_one(2)
    method = fs.methods.fedprox(lr=0.1, mu=1.0, local_steps=2, batch_size=1, **EVERYONE)
    found = final(method, goal, clients, engine="serial")["w"].squeeze(-1)
    shrink = 0.8 * 0.8 + 0.1 * (1 - 0.8)  # x1 = .8X; x2 = .8 x1 − .1 (x1 − X)
    np.testing.assert_allclose(found, [0, 3 * (1 + shrink) / 2, -2 * shrink], rtol=1e-12)


def test_too_strong_a_pull_is_refused() -> None:
    with pytest.raises(MethodError, match="overshoots"):
        fs.methods.fedprox(lr=0.5, mu=2.01)
    fs.methods.fedprox(lr=0.5, mu=2.0)
    with pytest.raises(MethodError, match="at least 0"):
        fs.methods.fedprox(mu=-0.1)
