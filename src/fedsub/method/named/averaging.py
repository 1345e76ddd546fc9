"""Over whom the mean is taken: FedAvg, FedSubAvg and their plain relatives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

from fedsub.checks import check_flag, check_whole
from fedsub.errors import MethodError
from fedsub.method import spelling
from fedsub.method.average import OverClients, OverHolders, OverSampledHolders
from fedsub.method.named.catalogue import composed, named
from fedsub.method.schedules import Schedule
from fedsub.method.settings import Common, Heat
from fedsub.method.slots import Method


@named("FedAvg", "mean of the clients' updates", "X + Σ w_i Δ_i / Σ w_i", "McMahan et al. 2017")
def fedavg(*, weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """FedAvg: the mean of the cohort's updates, by samples (default) or by client.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017.
    """
    return composed("fedavg", OverClients(weighting), common)


@named(
    "FedSubAvg", "mean of each row over the clients that hold it",
    "X_m + (W/W_m) Σ w_i Δ_im / Σ w_i", "Ding et al. 2022",
)  # fmt: skip
def fedsubavg(
    *, weighting: str = "samples", temper: float = 1.0, max_coef: float | str | None = None,
    heat: Heat = None, **common: Unpack[Common],
) -> Method:  # fmt: skip
    """FedSubAvg: each parameter's mean is taken over all clients that hold it.

    ``weighting``: "samples" (as in the published experiments), "clients" (Algorithm 1) or "unbiased". ``heat``: how the
    clients that hold a row are counted; exactly, or in private (docs/private_heat.md).
    Ding et al., "Federated Submodel Optimization for Hot and Cold Data Features", NeurIPS 2022.
    """
    return composed(
        "fedsubavg", OverHolders(weighting, temper=temper, max_coef=max_coef, heat=spelling.heat(heat)), common
    )


@named("FedProx", "FedAvg with a pull to what was sent", "step g + μ (x − X)", "Li et al. 2020")
def fedprox(*, mu: float = 0.01, original: bool = False, weighting: str = "samples", **common: Any) -> Method:
    """FedProx: FedAvg with a proximal term that keeps clients near what they were sent.

    ``original``: clients are drawn with probability p_k = w_k / W and averaged plainly, (1/K) Σ x_k, as in the paper.
    Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.
    """
    check_flag("original of fedprox", original)
    if original:
        if common.get("sampler", "by-size") not in ("uniform", "by-size") or weighting not in ("samples", "clients"):
            raise MethodError(
                "original=True draws clients by size and averages them plainly, so that another sampler or weighting "
                "beside it means nothing; leave it out, or original."
            )
        weighting, common = "clients", {**common, "sampler": "by-size"}
    return composed("fedprox", OverClients(weighting), {**common, "mu": mu})


@named("FedSGD", "one gradient step a round", "X − lr Σ w_i g_i / Σ w_i", "McMahan et al. 2017")
def fedsgd(
    *,
    lr: float = 0.1,
    batch_size: int | None = None,
    clients_per_round: int | None = 50,
    weighting: str = "samples",
    batches: str = "shuffled",
    replacement: bool = False,
) -> Method:
    """FedSGD: one gradient step per round, on all local data unless a batch size is given.

    McMahan et al., 2017.
    """
    common = Common(
        lr=lr, local_steps=1, batch_size=batch_size, clients_per_round=clients_per_round, batches=batches,
        replacement=replacement,
    )  # fmt: skip
    return composed("fedsgd", OverClients(weighting), common)


@named("Local SGD", "everyone, averaged every H steps", "(1/K) Σ x_k", "Stich 2019")
def local_sgd(
    *,
    lr: float = 0.1,
    local_steps: int = 10,
    batch_size: int | None = 5,
    weighting: str = "clients",
    batches: str = "shuffled",
) -> Method:
    """Local SGD: every worker, every round, takes H = local_steps steps; then all are averaged.

    Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019.
    """
    common = Common(lr=lr, local_steps=local_steps, batch_size=batch_size, clients_per_round=None, batches=batches)
    return composed("local_sgd", OverClients(weighting), common)


@named("CentralSGD", "all data in one place (baseline)", "X − lr g, batch K·B", "baseline")
def centralsgd(
    *,
    lr: float = 0.1,
    local_steps: int = 10,
    batch_size: int = 5,
    clients_per_round: int = 50,
    batches: str = "shuffled",
    clip_norm: float | None = None,
    schedule: str | Schedule | None = None,
) -> Method:
    """CentralSGD: all data in one place, as many samples a round as the federated methods use.

    One batch holds batch_size · clients_per_round samples. A baseline, not a federated method.
    """
    for setting, value in {"batch_size": batch_size, "clients_per_round": clients_per_round}.items():
        check_whole(f"{setting} of centralsgd", value, 1)
    size = batch_size * clients_per_round
    common = Common(
        lr=lr, local_steps=local_steps, batch_size=size, clients_per_round=None, batches=batches, clip_norm=clip_norm,
        schedule=schedule,
    )  # fmt: skip
    return replace(composed("centralsgd", OverClients(), common), pooled=True)


@named("Sampled heat", "mean over the cohort's holders of a row", "X_m + Σ w_i Δ_im / Σ_held w_i", "Niu et al. 2020")
def sampled_heat(*, weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """Mean over the holders within the cohort; needs no global heat, but is not FedSubAvg.

    Niu et al., "Billion-Scale Federated Learning on Mobile Clients", MobiCom 2020.
    """
    return composed("sampled_heat", OverSampledHolders(weighting), common)
