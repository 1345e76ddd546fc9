"""Methods against the drift of clients that take many steps."""

from __future__ import annotations

from typing import Unpack

from fedsub.method.average import OverClients
from fedsub.method.named.catalogue import composed, named
from fedsub.method.servers import ScaffoldHistory
from fedsub.method.settings import Common
from fedsub.method.slots import Method


@named("Scaffold", "control variates against client drift", "step g − c_i + c", "Karimireddy et al. 2020")
def scaffold(*, option: str = "II", weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """Scaffold: control variates take client drift out of the local steps.

    ``option`` "II" (default) or "I" (gradients at X over half of the round's batches; over all of them with "I:1").
    Twice the traffic of FedAvg.
    Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020.
    """
    return composed("scaffold", OverClients(weighting), common, variates=option)


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
