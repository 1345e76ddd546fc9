"""Methods that choose who takes part."""

from __future__ import annotations

from typing import Any

from fedsub.method.average import OverClients
from fedsub.method.named.catalogue import composed, named
from fedsub.method.sampling import UCB, PowerOfChoice
from fedsub.method.slots import Method


@named("Power-of-choice", "clients with the largest loss of d candidates", "m worst of d ∝ w_i", "Cho et al. 2020")
def power_of_choice(
    *, candidates: int = 100, variant: str = "pow", clients_per_round: int = 50, **common: Any
) -> Method:  # fmt: skip
    """Power-of-choice: of ``candidates`` drawn by data size, those with the largest loss take part.

    ``variant``: "pow" (asks for the loss on all data), "cpow" (on one batch), "rpow" (last training loss, free).
    Cho, Wang and Joshi, "Client Selection in Federated Learning", 2020.
    """
    sampler = PowerOfChoice(clients_per_round, candidates, variant)
    return composed("power_of_choice", OverClients("clients"), common, sampler=sampler)


@named("UCB-CS", "a bandit selects clients", "p_k (L/N + √(2σ² ln T / N))", "Cho et al. 2020")
def ucb_cs(*, gamma: float = 0.7, clients_per_round: int = 50, **common: Any) -> Method:
    """UCB-CS: a bandit chooses the clients whose discounted loss, plus a bonus for the unknown, is largest.

    Cho, Gupta, Joshi and Yağan, "Bandit-based Communication-Efficient Client Selection", 2020.
    """
    return composed("ucb_cs", OverClients("clients"), common, sampler=UCB(clients_per_round, gamma))
