"""The named method whose server does not wait."""

from __future__ import annotations

from typing import Any

from fedsub.errors import MethodError
from fedsub.families.asynchronous.method import Asynchronous
from fedsub.method.average import OverClients, OverHolders
from fedsub.method.named.catalogue import composed, named
from fedsub.method.settings import DEFAULTS

# What is bound to rounds in which all begin and end together is no setting.
BOUND = "variates", "dp", "secure", "sampler", "replacement", "clients_fraction"


@named(
    "FedBuff", "asynchronous: a step when so many have answered", "X + c_m Σ a_i s(τ_i) Δ_im / Σ a_i, buffer of B",
    "Nguyen et al. 2022", shared=tuple(name for name in DEFAULTS if name not in BOUND),
)  # fmt: skip
def fedbuff(
    *, buffer: int | None = None, concurrency: int | None = None, staleness: str = "polynomial:0.5",
    over: str = "clients", weighting: str = "samples", at_once: bool = True, most_stale: int | None = None,
    deadline: float | None = None, **common: Any,
) -> Asynchronous:  # fmt: skip
    """FedBuff: ``clients_per_round`` clients train at once, and the server makes a step when ``buffer`` have answered.

    ``over``: the mean is taken over "clients", or as in FedSubAvg over the "holders" of each row; ``concurrency`` is
    another number of clients that train at once; the rest is explained by `fedsub.Asynchronous`.
    J. Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022.
    """
    if over not in ("clients", "holders"):
        raise MethodError(f"over of fedbuff must be clients or holders, got {over!r}.")
    average = OverHolders(weighting) if over == "holders" else OverClients(weighting)
    return Asynchronous(
        composed("fedbuff", average, common), buffer=buffer, concurrency=concurrency, staleness=staleness,
        at_once=at_once, most_stale=most_stale, deadline=deadline,
    )  # fmt: skip
