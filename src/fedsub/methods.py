"""Named methods: short functions that return a composition of slots.

Arguments are spelt alike everywhere: ``lr``, ``local_steps`` or ``local_epochs``, ``batch_size``,
``clients_per_round``, ``server_lr``. `CATALOGUE` lists them for the command line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack, get_type_hints

from fedsub.average import OverClients, OverHolders, OverSampledHolders
from fedsub.batches import check_number
from fedsub.core import Average, Method, Part
from fedsub.errors import ConfigError, MethodError, nearest
from fedsub.local import SGD
from fedsub.parts import Prox
from fedsub.samplers import Everyone, Uniform
from fedsub.server import Add


class Common(TypedDict, total=False):
    """Settings that the federated methods share; see `DEFAULTS`."""

    lr: float
    local_steps: int
    local_epochs: int | None  # instead of local_steps
    batch_size: int | None  # None: all local data
    clients_per_round: int | None  # None: everyone
    server_lr: float
    batches: str
    replacement: bool


DEFAULTS = Common(
    lr=0.1, local_steps=10, local_epochs=None, batch_size=5, clients_per_round=50, server_lr=1.0, batches="shuffled",
    replacement=False,
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A line of the catalogue."""

    make: Callable[..., Method]
    title: str
    summary: str
    formula: str
    paper: str

    @property
    def defaults(self) -> dict[str, Any]:
        """Every setting of the method and its default."""
        own = inspect.signature(self.make).parameters.values()
        common = DEFAULTS if any(p.kind is p.VAR_KEYWORD for p in own) else {}
        return {**{p.name: p.default for p in own if p.kind is not p.VAR_KEYWORD}, **common}

    @property
    def types(self) -> dict[str, Any]:
        """The type of every setting."""
        hints = {**get_type_hints(Common), **get_type_hints(self.make)}
        return {name: hints[name] for name in self.defaults}


def _method(name: str, average: Average, common: Common, parts: tuple[Part, ...] = ()) -> Method:
    """A method with local SGD and a plain server, from the shared settings."""
    for setting in common:
        if setting not in DEFAULTS:
            raise ConfigError(f"{name} has no setting {setting!r}; {nearest(setting, CATALOGUE[name].defaults)}")
    if common.get("local_steps") is not None and common.get("local_epochs") is not None:
        raise MethodError(
            f"{name} was given local_steps={common.get('local_steps')} and local_epochs={common.get('local_epochs')}; "
            "give one of them."
        )
    s: dict[str, Any] = {**DEFAULTS, **common}
    steps = None if s["local_epochs"] is not None else s["local_steps"]
    everyone = s["clients_per_round"] is None
    return Method(
        local=SGD(s["lr"], steps, s["local_epochs"], s["batch_size"], s["batches"]),
        parts=parts,
        average=average,
        server=Add(s["server_lr"]),
        sampler=Everyone() if everyone else Uniform(s["clients_per_round"], s["replacement"]),
        name=name,
    )


def fedavg(*, weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """FedAvg: the mean of the cohort's updates, by samples (default) or by client.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017.
    """
    return _method("fedavg", OverClients(weighting), common)


def fedsubavg(
    *, weighting: str = "samples", temper: float = 1.0, max_coef: float | None = None, **common: Unpack[Common]
) -> Method:
    """FedSubAvg: each parameter's mean is taken over all clients that hold it.

    ``weighting``: "samples" (as in the published experiments), "clients" (Algorithm 1) or "unbiased".
    Ding et al., "Federated Submodel Optimization for Hot and Cold Data Features", NeurIPS 2022.
    """
    return _method("fedsubavg", OverHolders(weighting, temper=temper, max_coef=max_coef), common)


def fedprox(*, mu: float = 0.01, weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """FedProx: FedAvg with a proximal term that keeps clients near what they were sent.

    Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.
    """
    return _method("fedprox", OverClients(weighting), common, (Prox(mu),))


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
    return _method("fedsgd", OverClients(weighting), common)


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
    return _method("local_sgd", OverClients(weighting), common)


def centralsgd(
    *,
    lr: float = 0.1,
    local_steps: int = 10,
    batch_size: int = 5,
    clients_per_round: int = 50,
    batches: str = "shuffled",
) -> Method:
    """CentralSGD: all data in one place, as many samples a round as the federated methods use.

    One batch holds batch_size · clients_per_round samples. A baseline, not a federated method.
    """
    for setting, value in {"batch_size": batch_size, "clients_per_round": clients_per_round}.items():
        check_number(f"{setting} of centralsgd", value, whole=True)
        if value < 1:
            raise MethodError(f"{setting} of centralsgd must be at least 1, got {value}.")
    size = batch_size * clients_per_round
    common = Common(lr=lr, local_steps=local_steps, batch_size=size, clients_per_round=None, batches=batches)
    return replace(_method("centralsgd", OverClients(), common), pooled=True)


def sampled_heat(*, weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """Mean over the holders within the cohort; needs no global heat, but is not FedSubAvg.

    Niu et al., "Billion-Scale Federated Learning on Mobile Clients", MobiCom 2020.
    """
    return _method("sampled_heat", OverSampledHolders(weighting), common)


CATALOGUE: dict[str, Entry] = {
    "fedavg": Entry(fedavg, "FedAvg", "mean of the clients' updates", "X + Σ w_i Δ_i / Σ w_i", "McMahan et al. 2017"),
    "fedsubavg": Entry(
        fedsubavg, "FedSubAvg", "mean of each row over the clients that hold it", "X_m + (W/W_m) Σ w_i Δ_im / Σ w_i",
        "Ding et al. 2022",
    ),
    "fedprox": Entry(fedprox, "FedProx", "FedAvg with a pull to what was sent", "step g + μ (x − X)", "Li et al. 2020"),
    "fedsgd": Entry(fedsgd, "FedSGD", "one gradient step a round", "X − lr Σ w_i g_i / Σ w_i", "McMahan et al. 2017"),
    "local_sgd": Entry(local_sgd, "Local SGD", "everyone, averaged every H steps", "(1/K) Σ x_k", "Stich 2019"),
    "centralsgd": Entry(
        centralsgd, "CentralSGD", "all data in one place (baseline)", "X − lr g, batch K·B", "baseline"
    ),
    "sampled_heat": Entry(
        sampled_heat, "Sampled heat", "mean over the cohort's holders of a row", "X_m + Σ w_i Δ_im / Σ_held w_i",
        "Niu et al. 2020",
    ),
}  # fmt: skip


def make(name: str, **arguments: Any) -> Method:
    """A named method with arguments; those it does not take are an error that names the nearest one."""
    key = name.lower().replace("-", "_")
    if key not in CATALOGUE:
        raise ConfigError(f"There is no method {name!r}; {nearest(key, CATALOGUE)}")
    entry = CATALOGUE[key]
    for argument in arguments:
        if argument not in entry.defaults:
            raise ConfigError(f"{entry.title} has no setting {argument!r}; {nearest(argument, entry.defaults)}")
    return entry.make(**arguments)
