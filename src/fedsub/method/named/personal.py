"""Methods that leave layers with the clients."""

from __future__ import annotations

from typing import Any

from fedsub.method.average import OverClients
from fedsub.method.named.catalogue import composed, named
from fedsub.method.slots import Method


@named("FedPer", "clients keep layers of their own", "W_B + Σ γ_i Δ_B,i; W_i stays", "Arivazhagan et al. 2019")
def fedper(
    *, personal: str | list[str] = "last", personal_init: str = "random", weighting: str = "samples",
    **common: Any,
) -> Method:  # fmt: skip
    """FedPer: FedAvg on the shared layers; every client keeps layers of its own, which never leave it.

    ``personal`` names them: patterns, or "last". M. G. Arivazhagan et al., "Federated Learning with Personalization
    Layers", 2019. For shared tables with the heat correction: ``fedsubavg(personal="head.*")``.
    """
    settings: dict[str, Any] = {"personal": personal, "personal_init": personal_init, **common}
    return composed("fedper", OverClients(weighting), settings)
