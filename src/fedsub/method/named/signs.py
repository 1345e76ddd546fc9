"""Methods that send signs instead of values."""

from __future__ import annotations

from typing import Any, Unpack

from fedsub.method.average import OverClients
from fedsub.method.codecs import ErrorFeedbackSign, Sign
from fedsub.method.named.catalogue import composed, named
from fedsub.method.settings import Common
from fedsub.method.slots import Method


@named(
    "SignSGD", "majority vote of signs, one bit a value",
    "X + δ sign(Σ sign Δ_i)", "Bernstein et al. 2019", fixed={"codec": Sign()},
)  # fmt: skip
def signsgd(*, server_lr: float = 0.001, local_steps: int = 1, **common: Any) -> Method:
    """SignSGD with majority vote: clients send one bit per value, the server steps by the sign of their sum.

    Bernstein et al., "signSGD with Majority Vote is Communication Efficient and Fault Tolerant", ICLR 2019.
    """
    settings = {**common, "server_lr": server_lr, "local_steps": local_steps}
    if common.get("local_epochs") is not None:
        settings.pop("local_steps")
    return composed("signsgd", OverClients("clients"), settings)


@named(
    "EF-SignSGD", "signs with error feedback",
    "C(p) = ‖p‖₁/d · sign(p), p = Δ + e", "Karimireddy et al. 2019", fixed={"codec": ErrorFeedbackSign()},
)  # fmt: skip
def ef_signsgd(*, weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """EF-SignSGD: one bit per value and a scale; what the bits lose is kept and added next time.

    Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
    """
    return composed("ef_signsgd", OverClients(weighting), common)
