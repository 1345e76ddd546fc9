"""Matrix factorisation with private user vectors."""

from __future__ import annotations

from fedsub.families.factorisation.settings import SFMF, FedMAvg
from fedsub.method.named.catalogue import named


@named(
    "FedMAvg", "matrix factorisation, W averaged, H private",
    "W ← P(1/m Σ W_p), H_p ← P(H_p − ∇/c_p)", "Wang et al. 2021", model="factorisation",
)  # fmt: skip
def fedmavg(
    *,
    clients_per_round: int | None = 50,
    q1: int = 5,
    q2_hat: int = 20,
    gamma1: float = 2.0,
    gamma2: float = 1.0,
    projection: str = "none",
    projection_w: str | None = None,
    l2: float = 0.1,
    submodel: bool = False,
    temper: float = 1.0,
    bounded: bool = True,
) -> FedMAvg:
    """FedMAvg: matrix factorisation with shared item vectors W and private user vectors h, by model averaging.

    ``submodel=True``: users exchange only the rows of items that they rated, averaged over those who hold them.
    Wang, Suwandi and Chang, "Demystifying Model Averaging for Communication-Efficient Federated Matrix
    Factorization", ICASSP 2021.
    """
    return FedMAvg(
        clients_per_round=clients_per_round, q1=q1, q2_hat=q2_hat, gamma1=gamma1, gamma2=gamma2, projection=projection,
        projection_w=projection_w, l2=l2, submodel=submodel, temper=temper, bounded=bounded,
    )  # fmt: skip


@named(
    "SFMF", "matrix factorisation by summed gradients (baseline)",
    "W − γ (Σ ∇_W + 2λW)", "Chai et al. 2019", model="factorisation",
)  # fmt: skip
def sfmf(*, step: float = 0.001, l2: float = 10.0, submodel: bool = False) -> SFMF:
    """SFMF: every user, every round, one gradient step of matrix factorisation; the baseline of FedMAvg.

    Chai, Wang, Chen and Yang, "Secure Federated Matrix Factorization", 2019; without its encryption.
    """
    return SFMF(step=step, l2=l2, submodel=submodel)
