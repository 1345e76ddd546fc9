"""Accounting: against dp-accounting's own composition; budgets that end, are kept and are never gone past."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from noisy import method, train, world
from scipy import optimize, stats
from worlds import trainer_for

import fedsub as fs
from fedsub.errors import MethodError
from fedsub.node import Node, serve
from fedsub.node.share import only
from fedsub.objective.population import Population
from fedsub.objective.problem import Problem
from fedsub.privacy.accounting import calibrate, epsilon
from fedsub.privacy.budget import Budget
from fedsub.privacy.heat import CentralHistogram, RandomizedResponse
from fedsub.privacy.spending import Spend
from fedsub.testing import _data, _Direct, _objective

TRAINING = Spend.gaussian("training", 0.8, rate=0.01, times=400)


@pytest.mark.parametrize(("name", "accountant"), [("rdp", RdpAccountant), ("pld", PLDAccountant)])
def test_epsilon_is_that_of_the_composed_event(name: str, accountant: Callable[[], Any]) -> None:
    heat = Spend.gaussian("heat", 20.0)
    event = dp.ComposedDpEvent([
        dp.GaussianDpEvent(20.0), dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(0.8)), 400),
    ])  # fmt: skip
    composed = accountant().compose(event).get_epsilon(1e-5)
    assert epsilon([heat, TRAINING], 1e-5, name) == pytest.approx(composed, abs=1e-6)
    pure = Spend.pure("index sets", 0.5, 1e-6, times=2)
    expected = 1.0 + accountant().compose(event).get_epsilon(1e-5 - 2e-6)
    assert epsilon([heat, TRAINING, pure], 1e-5, name) == pytest.approx(expected, abs=1e-6)


def test_noise_that_promises_nothing_is_counted_without_gigabytes() -> None:
    """Its loss distribution would have 5 · 10⁹ places: there the moments bound it."""
    little = [Spend.gaussian("training", 1e-3, rate=0.1, times=4)]
    assert epsilon(little, 1e-5, "pld") == epsilon(little, 1e-5, "rdp") > 1e6


def test_one_gaussian_has_the_epsilon_of_its_closed_form() -> None:
    """Balle and Wang, 2018: δ = Φ(1/2σ − εσ) − e^ε Φ(−1/2σ − εσ)."""
    sigma = 1.3

    def over(e: float) -> float:
        near, far = stats.norm.cdf([0.5 / sigma - e * sigma, -0.5 / sigma - e * sigma])
        return float(near - math.exp(e) * far - 1e-5)

    exact = float(optimize.brentq(over, 0.1, 20))  # pyright: ignore[reportArgumentType]
    assert epsilon([Spend.gaussian("one", sigma)], 1e-5, "pld") == pytest.approx(exact, abs=2e-3)
    assert exact < epsilon([Spend.gaussian("one", sigma)], 1e-5, "rdp") < 1.2 * exact


def test_a_spend_times_a_number() -> None:
    once = Spend.pure("heat", 0.5, times=3)
    assert (once * 2).times == 6
    assert epsilon([once * 2], 1e-5) == epsilon([once, once], 1e-5) == 3.0
    noisy = Spend.gaussian("training", 2.0, times=2)
    assert epsilon([noisy * 4], 1e-5) == pytest.approx(epsilon([Spend.gaussian("", 2.0, times=8)], 1e-5))


def test_what_has_no_bound_is_infinite() -> None:
    assert epsilon([], 1e-5) == 0
    assert epsilon([Spend.gaussian("none", 0.0)], 1e-5) == math.inf
    assert epsilon([Spend.gaussian("none", 0.0, times=0)], 1e-5) == 0
    assert epsilon([Spend.pure("heat in the clear", math.inf)], 1e-5) == math.inf
    assert epsilon([Spend.pure("much delta", 1.0, 1e-4)], 1e-5) == math.inf
    assert not Budget(8.0).admits([Spend.pure("heat in the clear", math.inf)])


@pytest.mark.parametrize("accountant", ["rdp", pytest.param("pld", marks=pytest.mark.slow)])
def test_calibrated_noise_is_the_least_that_fits(accountant: str) -> None:
    before = (Spend.pure("heat", 1.0),)
    noise = calibrate(4.0, 1e-5, 100, 0.05, before, accountant)

    def at(share: float) -> float:
        return epsilon([*before, Spend.gaussian("training", share * noise, rate=0.05, times=100)], 1e-5, accountant)

    assert at(1.0) <= 4.0 < at(0.998)
    with pytest.raises(MethodError, match="before the first round: by heat"):
        calibrate(1.0, 1e-5, 100, 0.05, before)


def test_a_budget_counts_rounds_to_its_end() -> None:
    budget, once = Budget(3.0), Spend.gaussian("training", 0.8, rate=0.05)
    most = budget.times(once)
    assert budget.spent([once * most]) <= 3.0 < budget.spent([once * (most + 1)])
    assert budget.times(once, [Spend.pure("heat", 1.0)]) < most
    for rounds in (1, 7, 40):
        spent = budget.spent([once * rounds])
        assert [Budget(spent * (1 + part)).times(once) - rounds for part in (-1e-9, 0.0, 1e-9)] == [-1, 0, 0]
    assert Budget().times(once) > 10**9
    assert [budget.times(once, (), n) for n in (1, most - 1, most, most + 1, 2 * most)] == [
        1,
        most - 1,
        most,
        most,
        most,
    ]
    assert budget.times(once, [Spend.pure("heat", 2.9)], 1) == 0
    nonsense: list[dict[str, Any]] = [{"epsilon": 0.0}, {"epsilon": math.nan}, {"delta": 1.0}, {"accountant": "sum"}]
    for wrong in nonsense:
        with pytest.raises(MethodError):
            Budget(**wrong)


def most_rounds(noise: float, eps: float, rate: float = 4 / 12) -> int:
    return Budget(eps).times(Spend.gaussian("training", noise, rate=rate))


def test_a_run_ends_before_the_round_that_goes_past_its_budget(tmp_path: Path) -> None:
    part = fs.CentralDP(clip=0.3, noise=1.0, epsilon=6.0)
    most = most_rounds(1.0, 6.0)
    assert 2 < most < 12
    result = train(method(part), rounds=20, out=tmp_path / "run", checkpoint_every=2, evaluate=fs.Evaluate(every=4))
    assert result.history[-1]["round"] == most
    assert any(f"Stopped before round {most + 1}" in said for said in result.events)
    shorter = train(method(part), rounds=most)
    assert all(np.array_equal(result.params[n].numpy(), shorter.params[n].numpy()) for n in shorter.params)
    spent = epsilon([Spend.gaussian("training", 1.0, rate=4 / 12, times=most)], 1e-5)
    assert result.privacy["epsilon"] == pytest.approx(spent) == result.history[-1]["privacy.epsilon"]
    assert json.loads((tmp_path / "run" / "result.json").read_bytes())["privacy"]["epsilon"] == pytest.approx(spent)
    # What is spent stays spent: neither resuming nor more rounds gives another one.
    again = train(method(part), rounds=30, out=tmp_path / "run", checkpoint_every=2, resume=True,
                  evaluate=fs.Evaluate(every=4))  # fmt: skip
    assert again.history[-1]["round"] == most
    assert again.privacy["epsilon"] == pytest.approx(spent)


def test_an_interrupted_run_remembers_what_it_spent(tmp_path: Path) -> None:
    class Halt(fs.Callback):
        def on_round(self, record: dict[str, Any]) -> None:
            if record["round"] == 3:
                raise InterruptedError

    made, options = method(fs.CentralDP(clip=0.3, noise=1.0)), {"out": tmp_path / "run", "checkpoint_every": 2}
    with pytest.raises(InterruptedError):
        train(made, callbacks=[Halt()], **options)
    resumed, whole = train(made, resume=True, **options), train(made)
    assert resumed.privacy == whole.privacy
    assert whole.privacy["spends"][-1]["times"] == 6
    assert all(np.array_equal(resumed.params[n].numpy(), whole.params[n].numpy()) for n in whole.params)


def test_noise_follows_from_epsilon_and_stays_when_a_run_grows(tmp_path: Path) -> None:
    part = fs.CentralDP(clip=0.3, epsilon=5.0)
    first = train(method(part), rounds=6, out=tmp_path / "run")
    noise = first.privacy["spends"][-1]["noise"]
    assert noise == pytest.approx(calibrate(5.0, 1e-5, 6, 4 / 12), rel=1e-12)
    assert 4.9 < first.privacy["epsilon"] <= 5.0
    more = train(method(part), rounds=60, out=tmp_path / "run", resume=True)
    assert more.privacy["spends"][-1]["noise"] == noise  # what was spent was spent at this noise
    assert more.privacy["epsilon"] <= 5.0
    assert more.history[-1]["round"] < 10


def test_a_budget_without_room_is_refused_before_training() -> None:
    with pytest.raises(MethodError, match="not admit a single round"):
        train(method(fs.CentralDP(clip=1.0, noise=0.3, epsilon=1.0)))


def test_epsilon_is_in_the_records() -> None:
    result = train(method(fs.CentralDP(clip=0.3, noise=1.0)), evaluate=fs.Evaluate(every=2))
    rounds, spent = result.series("privacy.epsilon")
    assert rounds == [0, 2, 4, 6]
    assert spent[0] == 0
    assert spent == sorted(spent)


def test_a_model_that_is_trained_further_brings_what_it_spent(tmp_path: Path) -> None:
    made = method(fs.CentralDP(clip=0.3, noise=1.0, epsilon=6.0))
    first = train(made, rounds=3, out=tmp_path / "first")
    most = most_rounds(1.0, 6.0)
    for start in (first, tmp_path / "first"):
        second = train(made, rounds=20, start=start)
        assert second.history[-1]["round"] == most - 3
        whole = Spend.gaussian("", 1.0, rate=4 / 12, times=most)
        assert second.privacy["epsilon"] == pytest.approx(epsilon([whole], 1e-5))
        assert any("counts here too" in said for said in second.events)
    # The same seed gives other noise and other cohorts than those that the first rounds had.
    quiet = method(fs.CentralDP(clip=1e-9, noise=1e9))
    a = train(quiet, rounds=1)
    b = train(quiet, rounds=1, start=a)
    objective, _ = world()
    places = [objective.module.get_parameter("emb.weight").detach(), *(r.params["emb.weight"] for r in (a, b))]
    one, other = ((y - x).flatten().numpy() for x, y in itertools.pairwise(places))
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.4
    plain = train(method(), rounds=1)
    assert any("was not private" in said for said in train(made, rounds=1, start=plain).events)


def test_a_server_of_nodes_stops_as_well() -> None:
    """And whoever plays a round past the end by hand is refused."""
    clients = _data()
    objective = _objective({name: space.size for name, space in clients.spaces.items()})
    population = Population.of(Problem.bind(objective, clients))
    params = {n: p.detach().clone() for n, p in objective.module.named_parameters()}
    made = method(fs.CentralDP(clip=0.3, noise=2.0, epsilon=3.0), per_round=3)
    most = most_rounds(2.0, 3.0, 3 / 7)
    with TemporaryDirectory() as folder:
        channels = {
            k: _Direct(Node(only(clients, k), _objective, made, k, Path(folder) / str(k))) for k in range(len(clients))
        }
        served = serve(made, params, population, channels, rounds=most + 3)
    assert len(served.reports) == most
    assert f"Stopped before round {most + 1}" in served.stopped
    trainer = trainer_for(method(fs.CentralDP(clip=0.3, noise=1.0, epsilon=4.0)), *world(), "serial")
    ends = most_rounds(1.0, 4.0)
    for number in range(1, ends + 1):
        trainer.round(number)
    with pytest.raises(MethodError, match="would go past"):
        trainer.round(ends + 1)


def test_private_heat_is_spent_from_the_same_budget() -> None:
    heat = CentralHistogram(1.0, rows=30)
    made = method(fs.CentralDP(clip=0.3, noise=4.0, epsilon=9.0), average=fs.OverHolders("clients", heat=heat))
    result = train(made, rounds=3)
    first, training = result.privacy["spends"]
    assert training["times"] == 3
    asked = epsilon([Spend(**first)], 1e-5)
    assert asked == pytest.approx(1.0)
    alone = epsilon([Spend.gaussian("training", 4.0, rate=4 / 12, times=3)], 1e-5)
    assert result.privacy["epsilon"] == pytest.approx(asked + alone)
    assert result.history[0]["privacy.epsilon"] == pytest.approx(asked)  # before the first round
    dear = fs.CentralDP(clip=0.3, noise=4.0, epsilon=asked - 1e-3)
    with pytest.raises(MethodError, match="spent before"):
        train(method(dear, average=fs.OverHolders("clients", heat=heat)), rounds=3)
    bits = RandomizedResponse(1.0)  # one for each bit: of a whole row set there is no bound
    with pytest.raises(MethodError, match="ε without bound"):
        train(method(dear, average=fs.OverHolders("clients", heat=bits)), rounds=3)
