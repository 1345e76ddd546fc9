"""Methods whose server takes more than a plain step."""

from __future__ import annotations

from typing import Any, Unpack

from fedsub.method import spelling
from fedsub.method.average import OverClients, OverHolders
from fedsub.method.named.catalogue import composed, named
from fedsub.method.servers import Adagrad, Adam, Add, FrequencyAware, Yogi
from fedsub.method.settings import Common, Heat
from fedsub.method.slots import Method


@named("FedAvgM", "momentum at the server", "b ← β b + Δ, X + b", "Hsu et al. 2019", fixed={"server": Add})
def fedavgm(*, server_momentum: float = 0.9, weighting: str = "samples", **common: Any) -> Method:
    """FedAvgM: FedAvg with momentum at the server.

    Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution", 2019.
    """
    return composed("fedavgm", OverClients(weighting), {**common, "server_momentum": server_momentum})


@named("FedAdam", "Adam at the server", "X + η m / (√v + τ)", "Reddi et al. 2021", fixed={"server": Adam})
def fedadam(*, weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """FedAdam: the mean update is the gradient of an Adam step at the server (no bias correction, v starts at τ²).

    Reddi et al., "Adaptive Federated Optimization", ICLR 2021.
    """
    return composed("fedadam", OverClients(weighting), common)


@named("FedYogi", "Yogi at the server", "X + η m / (√v + τ)", "Reddi et al. 2021", fixed={"server": Yogi})
def fedyogi(*, weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """FedYogi: as FedAdam, with second moments that change by at most the last square. Reddi et al., 2021."""
    return composed("fedyogi", OverClients(weighting), common)


@named(
    "FedAdagrad", "Adagrad at the server",
    "v ← v + Δ², X + η Δ / (√v + τ)", "Reddi et al. 2021", fixed={"server": Adagrad},
)  # fmt: skip
def fedadagrad(*, weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """FedAdagrad: as FedAdam, with the sum of all squares instead of a running mean. Reddi et al., 2021."""
    return composed("fedadagrad", OverClients(weighting), common)


@named(
    "Frequency-aware", "steps shrink with a row's updates",
    "X_m + η Δ_m / √(updates of m)", "ours", fixed={"server": FrequencyAware},
)  # fmt: skip
def frequency_aware(*, weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """A row's step shrinks with the square root of how often it was updated: rare rows keep long steps.

    The frequency-aware learning rates of centralised recommenders, as a server; it needs no heat.
    """
    return composed("frequency_aware", OverClients(weighting), common)


@named(
    "FedSubAvg + Adam", "heat correction, Adam at the server",
    "FedAdam on (W/W_m) Δ_m", "fedsub", fixed={"server": Adam},
)  # fmt: skip
def fedsubadam(
    *, weighting: str = "samples", temper: float = 1.0, max_coef: float | str | None = None,
    heat: Heat = None, **common: Unpack[Common],
) -> Method:  # fmt: skip
    """FedSubAvg's corrected update as the gradient of an Adam step at the server.

    For a constant coefficient c this is FedAdam with τ/c in place of τ: the correction becomes a τ per row.
    """
    return composed(
        "fedsubadam", OverHolders(weighting, temper=temper, max_coef=max_coef, heat=spelling.heat(heat)), common
    )


@named(
    "FedSubAvg + Adagrad", "heat correction, Adagrad at the server",
    "FedAdagrad on (W/W_m) Δ_m", "fedsub", fixed={"server": Adagrad},
)  # fmt: skip
def fedsubadagrad(
    *, weighting: str = "samples", temper: float = 1.0, max_coef: float | str | None = None,
    heat: Heat = None, **common: Unpack[Common],
) -> Method:  # fmt: skip
    """FedSubAvg's corrected update as the gradient of an Adagrad step at the server."""
    return composed(
        "fedsubadagrad", OverHolders(weighting, temper=temper, max_coef=max_coef, heat=spelling.heat(heat)), common
    )
