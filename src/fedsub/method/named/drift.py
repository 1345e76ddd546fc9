"""Methods against the drift of clients that take many steps."""

from __future__ import annotations

from typing import Any, Unpack

from fedsub.errors import MethodError
from fedsub.method import spelling
from fedsub.method.average import OverClients, OverHolders
from fedsub.method.named.catalogue import composed, named
from fedsub.method.parts import AnchoredSteps, ControlVariates, Dynamic, Multipliers, Splitting
from fedsub.method.servers import ScaffoldHistory
from fedsub.method.settings import Common, Heat
from fedsub.method.slots import Method


@named("Scaffold", "control variates against client drift", "step g − c_i + c", "Karimireddy et al. 2020")
def scaffold(*, option: str = "II", weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """Scaffold: control variates take client drift out of the local steps.

    ``option`` "II" (default) or "I" (gradients at X over half of the round's batches; over all of them with "I:1").
    Twice the traffic of FedAvg.
    Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020.
    """
    variates = spelling.variates(option)
    if not isinstance(variates, ControlVariates):
        raise MethodError(
            f"option of scaffold must be I, II or like I:1, got {option!r}; others are methods of their own."
        )
    return composed("scaffold", OverClients(weighting), common, variates=variates)


@named(
    "Scaffold (server)", "history of updates mixed in, ours",
    "X + (1−β) Δ + β h", "ours", fixed={"server": ScaffoldHistory},
)  # fmt: skip
def scaffold_server(*, weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """Scaffold's idea at the server alone, for large models: the step is mixed with the mean of past updates.

    Our own reading of one sentence in Ding et al. 2022, not a reproduction: X + (1−β) Δ̄ + β h and
    h ← (1−ρ) h + ρ Δ̄, with ρ the share of clients in a round. Clients keep and send nothing more.
    """
    return composed("scaffold_server", OverClients(weighting), common)


@named(
    "FedNova", "updates divided by local steps",
    "X + τ_eff Σ p_i Δ_i / ‖a_i‖₁", "Wang et al. 2020", fixed={"normalise": True},
)  # fmt: skip
def fednova(*, weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """FedNova: updates are divided by the clients' numbers of steps, so that busy clients do not count for more.

    Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", 2020.
    """
    return composed("fednova", OverClients(weighting), common)


@named("FedDyn", "prices that clients learn, and their mean", "step g + y_i + α (x − X)", "Acar et al. 2021")
def feddyn(*, alpha: float = 0.1, weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """FedDyn: every client learns a price for leaving what it was sent, so that all agree on the optimum.

    Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021.
    """
    return composed("feddyn", OverClients(weighting), common, variates=Dynamic(alpha))


@named("FedADMM", "multipliers of clients that come and go", "X + s mean(u_i⁺ − u_i)", "Gong et al. 2022")
def fedadmm(
    *, rho: float = 0.1, weighting: str = "samples", heat: Heat = None, **common: Unpack[Common]
) -> Method:  # fmt: skip
    """FedADMM: the alternating direction method of multipliers; X is the mean of what all clients keep.

    Of a row that is the mean over its holders. Gong, Li and Freris, "FedADMM: A Robust Federated Deep Learning
    Framework with Adaptivity to System Heterogeneity", ICDE 2022.
    """
    average = OverHolders(weighting, heat=spelling.heat(heat))
    return composed("fedadmm", average, common, variates=Multipliers(rho))


@named("FedSplit", "proximal points, reflected", "prox(2X − z_i), X = mean(z_i)", "Pathak and Wainwright 2020")
def fedsplit(
    *, rho: float = 0.1, relax: float = 1.0, weighting: str = "samples", heat: Heat = None, **common: Unpack[Common]
) -> Method:  # fmt: skip
    """FedSplit: a proximal point method whose fixed point is the optimum, by Peaceman–Rachford splitting.

    ``relax`` below 1 is calmer, ½ is Douglas and Rachford's. Pathak and Wainwright, "FedSplit: an algorithmic
    framework for fast federated optimization", NeurIPS 2020.
    """
    average = OverHolders(weighting, heat=spelling.heat(heat))
    return composed("fedsplit", average, common, variates=Splitting(rho, relax))


@named(
    "FSVRG", "variance-reduced steps around everybody's gradient",
    "step S_i [g(x) − g(X)] + ∇f(X)", "Konečný et al. 2016",
)  # fmt: skip
def fsvrg(
    *, lr: float = 1.0, scale: bool = True, even: bool = True, holders: bool = False, weighting: str = "samples",
    heat: Heat = None, **common: Any,
) -> Method:  # fmt: skip
    """FSVRG: everybody's gradient in odd rounds, variance-reduced local steps that use it in even ones.

    ``scale``: the paper's S_i; ``even``: h_i = lr / steps; ``holders``: the gradient, too, over a row's holders.
    Konečný et al., "Federated Optimization: Distributed Machine Learning for On-Device Intelligence", 2016.
    """
    part, average = AnchoredSteps(scale, even, holders), OverHolders(weighting, heat=spelling.heat(heat))
    return composed("fsvrg", average, {**common, "lr": lr}, variates=part)
