"""Every part, average, sampler, server and codec beside differential privacy works, or is refused with a reason."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest
from noisy import method, train

import fedsub as fs
from fedsub.errors import ConfigError, MethodError, MissingExtra
from fedsub.method.codecs import ErrorFeedbackSign, Int8, RandomK, Sign, TopK

CENTRAL, EAGER = fs.CentralDP(clip=0.5, noise=1.0), fs.CentralDP(clip=0.5, noise=1.0, eager=True)
QUANTILE, LOCAL = fs.CentralDP(clip=0.5, noise=1.0, quantile=0.5), fs.LocalDP(clip=0.5, noise=2.0)
HEAT = fs.OverHolders("clients")
samplers, servers = fs.sampling, fs.servers

REFUSED: dict[str, tuple[str, tuple[fs.Part, ...], dict[str, Any]]] = {
    "uniform": ("coin of its own", (CENTRAL,), {"sampler": fs.Uniform(4)}),
    "by size": ("coin of its own", (CENTRAL,), {"sampler": samplers.BySize(4)}),
    "power of choice": ("coin of its own", (CENTRAL,), {"sampler": samplers.PowerOfChoice(2, 4)}),
    "bandit": ("coin of its own", (CENTRAL,), {"sampler": samplers.UCB(4)}),
    "a share, uniform": ("coin of its own; Uniform", (CENTRAL,), {"sampler": samplers.Fraction(0.3, fs.Uniform(4))}),
    "available": (
        "coin of its own",
        (CENTRAL,),
        {"sampler": samplers.Available(samplers.Poisson(4), samplers.Random(0.5))},
    ),
    "samples": ("weighting='clients'", (CENTRAL,), {"average": fs.OverClients("samples")}),
    "unbiased": ("weighting='clients'", (CENTRAL,), {"average": fs.OverHolders("unbiased")}),
    "sampled heat": ("divides by who came", (CENTRAL,), {"average": fs.OverSampledHolders("clients")}),
    "exact heat": ("public_heat", (CENTRAL,), {"average": HEAT}),
    "heat as numbers": ("costs no budget here", (CENTRAL,), {"average": fs.OverHolders("clients", heat={})}),
    "momentum": ("eager=True", (CENTRAL,), {"server": fs.Add(momentum=0.9)}),
    "adam": ("eager=True", (CENTRAL,), {"server": servers.Adam()}),
    "yogi": ("eager=True", (CENTRAL,), {"server": servers.Yogi()}),
    "adagrad": ("eager=True", (CENTRAL,), {"server": servers.Adagrad()}),
    "history": ("eager=True", (CENTRAL,), {"server": servers.ScaffoldHistory()}),
    "frequency": ("eager=True", (CENTRAL,), {"server": servers.FrequencyAware()}),
    "tail mean": ("eager=True", (CENTRAL,), {"server": servers.TailMean(0.5)}),
    "EMA": ("eager=True", (CENTRAL,), {"server": servers.EMA(0.9)}),
    "clipped rows": ("eager=True", (fs.ClipRows(1.0), CENTRAL), {}),
    "Scaffold": ("beside the update", (fs.ControlVariates(), CENTRAL), {}),
    "FedDyn": ("keeps account", (fs.Dynamic(), CENTRAL), {}),
    "FedDyn behind": ("put it before", (EAGER, fs.Dynamic()), {}),
    "FedADMM": ("keeps account", (fs.Multipliers(), CENTRAL), {"average": fs.OverHolders("clients", heat={})}),
    "FedSplit": ("keeps account", (fs.Splitting(), CENTRAL), {"average": fs.OverHolders("clients", heat={})}),
    "FSVRG": ("sends a gradient", (fs.AnchoredSteps(scale=False), CENTRAL), {"sampler": fs.Everyone()}),
    "local, FedDyn": ("keeps account", (LOCAL, fs.Dynamic()), {}),
    "local, FSVRG": ("sends a gradient", (LOCAL, fs.AnchoredSteps(scale=False)), {"sampler": fs.Everyone()}),
    "codec before": ("must be the last part", (TopK(0.5, feedback=False), CENTRAL), {}),
    "local, codec before": ("must be the last part", (ErrorFeedbackSign(), LOCAL), {}),
    "Scaffold, quantile": ("beside the update", (fs.ControlVariates(), QUANTILE), {}),
    "quantile, in a secure sum": ("does not go with SecureSum", (QUANTILE, fs.SecureSum(1.0)), {}),
    "FedNova": ("beside the update", (fs.NormalisedSteps(), CENTRAL), {}),
    "personal behind": ("put it before", (CENTRAL, fs.Personal(("out.*",))), {}),
    "sign": ("codec cannot be", (CENTRAL, Sign()), {}),
    "sign with feedback": ("codec cannot be", (CENTRAL, ErrorFeedbackSign()), {}),
    "int8": ("codec cannot be", (CENTRAL, Int8()), {}),
    "top k with feedback": ("codec cannot be", (CENTRAL, TopK(0.5)), {}),
    "random k, scaled up": ("codec cannot be", (CENTRAL, RandomK(0.5, feedback=False)), {}),
    "both": ("choose one", (CENTRAL, LOCAL), {}),
    "local, asked for losses": ("in the clear", (LOCAL,), {"sampler": samplers.PowerOfChoice(2, 4)}),
    "local, last losses": ("in the clear", (LOCAL,), {"sampler": samplers.PowerOfChoice(2, 4, "rpow")}),
    "local, bandit": ("in the clear", (LOCAL,), {"sampler": samplers.UCB(4)}),
    "local, Scaffold": ("beside the update", (fs.ControlVariates(), LOCAL), {}),
    "local, FedNova": ("beside the update", (fs.NormalisedSteps(), LOCAL), {}),
    "local, personal behind": ("put it before", (LOCAL, fs.Personal(("out.*",))), {}),
}

WORKS: dict[str, tuple[tuple[fs.Part, ...], dict[str, Any]]] = {
    "everyone": ((CENTRAL,), {"sampler": fs.Everyone()}),
    "proximal": ((fs.Prox(0.1), CENTRAL), {}),
    "proximal behind": ((CENTRAL, fs.Prox(0.1)), {}),
    "heat as numbers": (
        (fs.CentralDP(0.5, 1.0, public_heat=True),), {"average": fs.OverHolders("clients", heat={"ids": np.ones(40)})}
    ),
    "public heat": ((fs.CentralDP(0.5, 1.0, public_heat=True),), {"average": HEAT}),
    "top k": ((CENTRAL, TopK(0.5, feedback=False)), {}),
    "random k": ((CENTRAL, RandomK(0.5, feedback=False, scale=False)), {}),
    "clipped gradients, momentum": ((CENTRAL,), {"local": fs.SGD(lr=0.1, clip_norm=1.0, momentum=0.5)}),
    "local Adam": ((CENTRAL,), {"local": fs.Adam(lr=0.01)}),
    "server groups": ((CENTRAL,), {"server": fs.Add(groups={"emb.*": {"lr": 0.5}})}),
    **{
        f"eager {name}": ((EAGER,), {"server": server})
        for name, server in {
            "momentum": fs.Add(momentum=0.9), "yogi": servers.Yogi(), "adagrad": servers.Adagrad(),
            "history": servers.ScaffoldHistory(), "frequency": servers.FrequencyAware(), "EMA": servers.EMA(0.9),
        }.items()
    },
    "eager clipped rows": ((fs.ClipRows(1.0), EAGER), {}),
    "quantile, Adam": ((QUANTILE,), {"server": servers.Adam()}),
    "quantile, clipped rows, top k": ((fs.ClipRows(1.0), QUANTILE, TopK(0.5, feedback=False)), {}),
    "quantile, personal": ((fs.Personal(("out.*",)), QUANTILE), {}),
    "local": ((LOCAL,), {"sampler": fs.Uniform(4), "average": fs.OverHolders("samples")}),
    "local, sampled heat": ((LOCAL,), {"average": fs.OverSampledHolders()}),
    "local, sign": ((LOCAL, ErrorFeedbackSign()), {"sampler": fs.Uniform(4)}),
    "local, personal": ((fs.Personal(("out.*",)), LOCAL), {"server": servers.Adam()}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_reason(name: str) -> None:
    reason, parts, slots = REFUSED[name]
    with pytest.raises(MethodError, match=reason):
        train(method(*parts, **slots), rounds=1)


@pytest.mark.parametrize("name", WORKS)
def test_works(name: str) -> None:
    parts, slots = WORKS[name]
    result = train(method(*parts, **slots), rounds=2)
    assert result.privacy["epsilon"] > 0


def test_pooled_data_is_refused() -> None:
    with pytest.raises(MethodError, match="pooled"):
        method(CENTRAL, pooled=True)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"clip": 0.0, "noise": 1.0}, "clip"),
        ({"clip": 1.0, "noise": -1.0}, "noise"),
        ({"clip": 1.0}, "needs noise"),
        ({"clip": 1.0, "noise": 0.0, "epsilon": 1.0}, "without noise has no epsilon"),
        ({"clip": 1.0, "noise": 1.0, "epsilon": -1.0}, "epsilon"),
        ({"clip": 1.0, "noise": 1.0, "delta": 0.0}, "delta"),
        ({"clip": 1.0, "noise": 1.0, "accountant": "guess"}, "accountant"),
        ({"clip": 1.0, "noise": 1.0, "secret": "abc"}, "secret"),
        ({"clip": 1.0, "noise": 1.0, "eager": 1}, "eager"),
    ],
)
def test_nonsense_is_refused_when_it_is_made(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(MethodError, match=reason):
        fs.CentralDP(**settings)


def test_without_dp_accounting_it_is_said_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.startswith("dp_accounting"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtra, match=r"pip install -e '\.\[privacy\]'"):
        fs.CentralDP(clip=1.0, noise=1.0)


def test_words() -> None:
    made = fs.methods.fedsubavg(
        weighting="clients", sampler="poisson", codec=None, mu=0.1,
        dp="central:clip=0.5,epsilon=8,delta=1e-6,accountant=pld,public_heat",
    )  # fmt: skip
    assert made.parts[-1] == fs.CentralDP(0.5, None, 8.0, 1e-6, "pld", public_heat=True)
    assert fs.methods.fedavg(dp="local:clip=1,noise=4").parts == (fs.LocalDP(1.0, 4.0),)
    for wrong in (
        "global:clip=1",
        "central:clip=x",
        "central:clop=1",
        "central:clip=1,noise=1,eager=7",
        "central:clip",
    ):
        with pytest.raises((MethodError, ConfigError), match=r"dp|clip"):
            fs.methods.fedavg(dp=wrong)


def test_the_secret_is_in_no_configuration() -> None:
    made = method(fs.CentralDP(clip=0.5, noise=1.0, secret="ab" * 32))
    assert "abab" not in str(made.describe())
    assert len(made.describe()["parts"][0]["secret"]["fingerprint"]) == 16
