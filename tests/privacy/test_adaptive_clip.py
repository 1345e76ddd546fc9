"""A clip norm that follows a quantile of the updates' norms: against numpy, its noise, its cost, the same anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from noisy import method, train, world
from scipy import stats
from typer.testing import CliRunner
from worlds import trainer_for

import fedsub as fs
from fedsub import rng
from fedsub.cli import app
from fedsub.errors import MethodError
from fedsub.method.groups import Cohort
from fedsub.privacy.accounting import epsilon
from fedsub.privacy.spending import Spend
from fedsub.testing import check_part

FOLLOWS = fs.CentralDP(clip=0.3, noise=0.0, quantile=0.5, clip_rate=0.4)
CLIENTS, ROUNDS = 12, 40


def lengths_of(words: np.ndarray) -> np.ndarray:
    """Norms of updates whose logarithm is normal with mean 1 and deviation 0.5."""
    return np.exp(1 + 0.5 * stats.norm.ppf((words >> np.uint64(11)).astype(np.float64) / 2**53))


@dataclass(frozen=True)
class Given(fs.Part):
    """Every client sends an update of a length that its random word of the round gives, along its bias alone."""

    def finish(self, message: fs.Message, params: fs.Tree, work: fs.Work) -> None:
        assert work.words is not None
        lengths = torch.from_numpy(lengths_of(work.words))
        update = {name: torch.zeros_like(value) for name, value in message.trees["update"].items()}
        update["out.bias"] += work.group.spread(lengths, "out.bias", update["out.bias"])
        message.trees["update"] = update


def path(result: fs.Result) -> np.ndarray:
    """The clip norm of every round."""
    return np.array([record["central_clip"] for record in result.history[1:]])


def by_numpy(part: fs.CentralDP, per_round: int, seed: int) -> tuple[np.ndarray, float]:
    """(the clip norms, what was added to the bias), without noise."""
    assert part.quantile is not None
    clip, moved, clips = part.clip, 0.0, []
    sampler = fs.sampling.Poisson(per_round).bind(world()[1].sizes)
    for number in range(1, ROUNDS + 1):
        cohort = sampler.select(number, seed, lambda *_: np.zeros(0))
        lengths = lengths_of(cohort.words(seed, rng.PART, number))
        clips.append(clip)
        moved += np.minimum(lengths, clip).sum() / per_round
        below = 0.5 + (np.where(lengths <= clip, 0.5, -0.5)).sum() / per_round
        clip *= np.exp(-part.clip_rate * (below - part.quantile))
    return np.array(clips), moved


@pytest.mark.parametrize("quantile", [0.3, 0.5, 0.9])
def test_it_is_what_numpy_computes(quantile: float) -> None:
    part = replace(FOLLOWS, quantile=quantile)
    result = train(method(Given(), part, per_round=2), rounds=ROUNDS, seed=5)
    clips, moved = by_numpy(part, 2, 5)
    assert 0 in [record["clients"] for record in result.history[1:]]  # nobody: then half counts as below
    np.testing.assert_allclose(path(result), clips, rtol=1e-12)
    begun = float(world()[0].module.get_parameter("out.bias").detach())
    assert float(result.params["out.bias"]) - begun == pytest.approx(moved, rel=2e-6)


@pytest.mark.parametrize(("quantile", "first"), [(0.2, 50.0), (0.8, 0.05)])
def test_it_finds_the_quantile(quantile: float, first: float) -> None:
    """From far below and far above, with noise on the bits."""
    part = fs.CentralDP(clip=first, noise=0.4, quantile=quantile, bit_noise=0.6)
    clips = path(train(method(Given(), part, per_round=None), rounds=150, evaluate=fs.Evaluate(every=150)))
    wanted = np.exp(stats.norm(1, 0.5).ppf(quantile))
    assert np.exp(np.log(clips[60:]).mean()) == pytest.approx(wanted, rel=0.1)


def test_the_noise_of_bits_and_of_values() -> None:
    """N(0, σ_b²) on Σ (b − ½), and z_Δ times the round's own clip norm on every entry of the sum."""
    part = fs.CentralDP(clip=0.3, noise=1.0, quantile=0.5, bit_noise=1.5)
    z = (1.0**-2 - (2 * 1.5) ** -2) ** -0.5
    bits, values = [], []
    for seed in range(80):
        trainer = trainer_for(method(Given(), part, per_round=None), *world(), "serial", seed=seed)
        reports = [trainer.round(number) for number in (1, 2)]
        clip = [report.measured["central_clip"] for report in reports]
        words = Cohort.of(np.arange(CLIENTS)).words(seed, rng.PART, 1)
        share = (lengths_of(words) <= 0.3).mean()
        bits.append((0.5 - np.log(clip[1] / clip[0]) / 0.2 - share) * CLIENTS / 1.5)
        moved = (trainer.params["emb.weight"] - world()[0].module.get_parameter("emb.weight")).detach()
        values.append(moved.numpy() * CLIENTS / (z * np.hypot(clip[0], clip[1])))  # nobody sent anything there, twice
    assert stats.kstest(bits, "norm").pvalue > 0.01
    assert stats.kstest(np.stack(values).ravel(), "norm").pvalue > 0.01


@pytest.mark.parametrize("secret", [None, "cd" * 32])
def test_it_is_the_same_in_every_engine(secret: str | None) -> None:
    part = fs.CentralDP(clip=0.1, noise=0.5, quantile=0.4, secret=secret)
    check_part(part, method=method(per_round=3))


@pytest.mark.parametrize(
    ("name", "accountant", "rate"),
    [("rdp", RdpAccountant, 1.0), ("rdp", RdpAccountant, 0.2), ("pld", PLDAccountant, 1.0)],  # pld samples single ones
)
def test_the_budget_covers_the_bits(name: str, accountant: Callable[[], Any], rate: float) -> None:
    """Both sums of a round, over the same clients, cost what the accountant says: by dp-accounting, of the two."""
    part = fs.CentralDP(clip=0.3, noise=1.2, quantile=0.5, bit_noise=0.9)
    values, bits = part.noises_of(1.2, expected=100)
    both = dp_accounting.ComposedDpEvent(
        [dp_accounting.GaussianDpEvent(values), dp_accounting.GaussianDpEvent(bits / 0.5)]
    )
    event = both if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, both)
    times = 50 if name == "rdp" else 5
    composed = accountant().compose(event, times).get_epsilon(1e-5)
    assert epsilon([Spend.gaussian("", 1.2, rate=rate, times=times)], 1e-5, name) == pytest.approx(composed, abs=1e-6)


def test_updates_get_the_noise_that_bits_leave_them() -> None:
    """z_Δ = (1 − 1.2⁻²)^(−½) = 1.81 in the place of z = 1, on every entry."""
    part = fs.CentralDP(clip=0.5, noise=1.0, quantile=0.5, bit_noise=0.6)
    still = method(part, per_round=None, local=fs.SGD(lr=1e-12, local_steps=1, batch_size=1))
    result, (objective, clients) = train(still, rounds=1), world()
    first = dict(objective.module.named_parameters())
    drawn = torch.cat([(value - first[name].detach()).flatten() for name, value in result.params.items()])
    assert float(drawn.std()) * len(clients) / 0.5 == pytest.approx((1 - 1.2**-2) ** -0.5, rel=0.25)


def test_how_the_noise_is_shared_out() -> None:
    part = fs.CentralDP(clip=0.3, noise=1.2, quantile=0.5)
    assert part.noises_of(1.2, expected=1000) == (pytest.approx((1.2**-2 - 100**-2) ** -0.5), 50)
    assert part.noises_of(1.2, expected=4) == (pytest.approx(1.2 * (4 / 3) ** 0.5), 1.2)
    assert part.noises_of(0.0, expected=4) == (0.0, 0.0)


def test_what_a_run_tells(tmp_path: Path) -> None:
    """The same ε as with a clip norm that stands; the shares of the noise and the next round's clip norm beside it."""
    part = fs.CentralDP(clip=0.3, epsilon=9.0, quantile=0.5)
    result = train(method(part), rounds=4, out=tmp_path / "run", checkpoint_every=4)
    fixed = train(method(fs.CentralDP(clip=0.3, epsilon=9.0)), rounds=4)
    clipping = result.privacy["clipping"]
    assert result.privacy == {**fixed.privacy, "clipping": clipping}
    noise = result.privacy["spends"][0]["noise"]
    assert clipping["noise"] ** -2 + (2 * clipping["bit_noise"]) ** -2 == pytest.approx(noise**-2)
    assert json.loads((tmp_path / "run" / "privacy.json").read_bytes())["clipping"] == clipping
    assert len(set(path(result))) == 4
    assert abs(np.log(clipping["clip"] / path(result)[-1])) < 0.2 * 4  # a step on from the last round's
    said = CliRunner().invoke(app, ["privacy", "spent", str(tmp_path / "run")]).output
    words = f"clip norm {clipping['clip']:.4g} at quantile 0.5; noise {clipping['noise']:.4g} × clip for updates"
    assert words in " ".join(said.split())


def test_more_rounds_go_on_with_the_clip_norm(tmp_path: Path) -> None:
    part = fs.CentralDP(clip=0.05, noise=1.0, quantile=0.5)
    whole = train(method(part), rounds=5)
    train(method(part), rounds=2, out=tmp_path / "run")
    more = train(method(part), rounds=5, out=tmp_path / "run", resume=True)
    assert path(more).tolist() == path(whole).tolist()
    assert all(torch.equal(more.params[n], whole.params[n]) for n in whole.params)


@dataclass(frozen=True)
class Broken(fs.Part):
    """What every client would send is no number."""

    def finish(self, message: fs.Message, params: fs.Tree, work: fs.Work) -> None:
        message.trees["update"]["out.bias"] = message.trees["update"]["out.bias"] * float("nan")


def test_a_round_of_refusals_counts_as_nobody() -> None:
    clips = path(train(method(Broken(), FOLLOWS, per_round=None), rounds=3, evaluate=fs.Evaluate(every=3)))
    assert clips == pytest.approx([0.3, 0.3, 0.3])  # ½ is the quantile


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"quantile": 0.0}, "between 0 and 1"),
        ({"quantile": 1.0}, "between 0 and 1"),
        ({"quantile": 0.5, "clip_rate": 0.0}, "clip_rate"),
        ({"bit_noise": 2.0}, "give quantile"),
        ({"quantile": 0.5, "bit_noise": 0.5}, r"above 0\.5"),
        ({"quantile": 0.5, "bit_noise": 0.0}, "bit_noise"),
    ],
)
def test_refused_with_the_reason(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(MethodError, match=reason):
        method(fs.CentralDP(**{"clip": 0.5, "noise": 1.0, **settings}))


def test_noise_that_follows_from_epsilon_is_checked_before_training() -> None:
    part = fs.CentralDP(clip=0.5, epsilon=0.5, quantile=0.5, bit_noise=0.5)
    with pytest.raises(MethodError, match="bits alone tell more"):
        train(method(part), rounds=3)


def test_words() -> None:
    made = fs.methods.fedavg(
        weighting="clients", sampler="poisson", dp="central:clip=0.3,epsilon=8,quantile=0.5,bit_noise=5"
    )
    assert made.parts == (fs.CentralDP(0.3, epsilon=8.0, quantile=0.5, bit_noise=5.0),)
