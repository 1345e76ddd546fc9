"""Noise that clients add themselves."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from noisy import method, train, world
from scipy import stats
from worlds import bag, trainer_for

import fedsub as fs
from fedsub.errors import MethodError
from fedsub.method.groups import Cohort
from fedsub.privacy.accounting import epsilon
from fedsub.privacy.spending import Spend
from fedsub.testing import check_part


def test_it_is_the_same_in_every_engine() -> None:
    check_part(fs.LocalDP(clip=0.3, noise=0.5))


def test_a_secret_makes_other_noise_the_same_in_every_engine() -> None:
    one, other, batched = (
        train(method(fs.LocalDP(clip=0.3, noise=1.0, secret=secret)), rounds=2, engine=engine).params["emb.weight"]
        for secret, engine in (("ef" * 32, "serial"), ("ff" * 32, "serial"), ("ef" * 32, "batched"))
    )
    assert float((one - other).abs().max()) > 0.01
    torch.testing.assert_close(one, batched, rtol=0, atol=1e-9)


def test_clients_noise_the_rows_they_hold_and_no_others() -> None:
    """One client alone: its rows and the dense parameters move by clipped update and noise, anything else stays."""
    objective, clients = world()
    alone = Cohort.of(np.array([3]))
    drawn, kept = [], []
    for seed in range(60):
        params = []
        for noise in (2.0, 0.0):
            part = fs.LocalDP(clip=0.3, noise=noise)
            trainer = trainer_for(method(part, per_round=None), objective, clients, "serial", seed=seed)
            trainer.server.sampler.select = lambda *_: alone  # type: ignore[method-assign]
            before = {n: v.clone() for n, v in trainer.params.items()}
            trainer.round(1)
            params.append(trainer.params)
        held = torch.from_numpy(clients.spaces["ids"].rows_of(3).astype(np.int64))
        moved = (params[0]["emb.weight"] != before["emb.weight"]).any(1)
        assert set(moved.nonzero().view(-1).tolist()) == set(held.tolist())
        length = sum(float((params[1][n] - before[n]).square().sum()) for n in before) ** 0.5
        assert length <= 0.3
        drawn += [((params[0][n] - params[1][n]) / 0.6).flatten() for n in before if n != "emb.weight"]
        kept.append(((params[0]["emb.weight"] - params[1]["emb.weight"]) / 0.6)[held].flatten())
    assert stats.kstest(torch.cat([*drawn, *kept]).numpy(), "norm").pvalue > 0.01
    assert abs(np.corrcoef(torch.stack(kept)[:, 0], torch.stack(kept)[:, 1])[0, 1]) < 0.45


@pytest.mark.parametrize("padding", [(), ("ids",)])
def test_padding_has_no_noise_and_two_parameters_have_different(padding: tuple[str, ...]) -> None:
    clients = fs.Clients.from_arrays(
        {"ids": np.array([[1, 2], [3, 1]]), "label": np.array([0, 1])},
        offsets=np.array([0, 2]), ids={"ids": ["ids"]}, label="label", sizes={"ids": 6}, padding=padding,
    )  # fmt: skip
    objective = bag(clients, dim=3, **({"padding_idx": 0} if padding else {}))
    first = {name: value.detach().clone() for name, value in objective.module.named_parameters()}
    result = fs.run(method(fs.LocalDP(clip=1e-6, noise=1e6), per_round=None), objective, clients, rounds=1)
    moved = {name: (value - first[name]).reshape(-1, 3) for name, value in result.params.items() if value.numel() > 2}
    assert not moved["emb.weight"][0].any()
    drawn = torch.cat([rows[rows.any(1)] for rows in moved.values()])
    assert len(moved) > 1
    assert len(drawn) > 3
    assert len(torch.unique((drawn * 1e3).round())) == drawn.numel()


def test_the_client_that_took_part_most_pays_most() -> None:
    result = train(method(fs.LocalDP(clip=0.3, noise=8.0)), rounds=6)
    times = result.privacy["spends"][-1]["times"]
    assert 1 < times <= 6
    assert result.privacy["epsilon"] == pytest.approx(epsilon([Spend.gaussian("", 4.0, times=times)], 1e-5))
    everyone = train(method(fs.LocalDP(clip=0.3, noise=8.0), per_round=None), rounds=3)
    assert everyone.privacy["spends"][-1]["times"] == 3


def test_its_budget_ends_with_the_first_client_that_has_none_left() -> None:
    part = fs.LocalDP.calibrated(clip=0.3, epsilon=4.0, participations=2)
    result = train(method(part, per_round=None), rounds=9)
    assert result.history[-1]["round"] == 2
    assert any("Stopped before round 3" in said for said in result.events)
    assert 3.9 < result.privacy["epsilon"] <= 4.0
    twice = Spend.gaussian("", (part.noise or 0.0) / 2, times=2)
    assert math.isclose(epsilon([twice], 1e-5), result.privacy["epsilon"])


def test_a_budget_goes_on_where_the_run_before_left_it() -> None:
    part = fs.LocalDP.calibrated(clip=0.3, epsilon=4.0, participations=3)
    first = train(method(part, per_round=None), rounds=2)
    second = train(method(part, per_round=None), rounds=9, start=first)
    assert second.history[-1]["round"] == 1
    assert second.privacy["epsilon"] == pytest.approx(epsilon([part.spend(3)], 1e-5))
    assert train(method(part, per_round=None), rounds=9, start=second).history[-1]["round"] == 0


@pytest.mark.parametrize("secret", [None, "ab" * 32])
def test_a_run_that_goes_on_from_another_has_other_noise(secret: str | None) -> None:
    """With the same noise the difference of two models would be that of two updates, and nothing else."""
    loud = method(fs.LocalDP(clip=1e-9, noise=1e9, secret=secret), per_round=None)
    first = train(loud, rounds=1)
    second = train(loud, rounds=1, start=first)
    start = world()[0].module.get_parameter("emb.weight").detach()
    models = [start, *(r.params["emb.weight"] for r in (first, second))]
    one, other = ((b - a).numpy()[:30].ravel() for a, b in itertools.pairwise(models))
    assert one.std() > 0.1
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.45


def test_noise_must_be_known_to_clients() -> None:
    with pytest.raises(MethodError, match="calibrated"):
        fs.LocalDP(clip=0.3, epsilon=4.0)
