"""Named methods: short functions that return a composition of slots.

Arguments are spelt alike everywhere: ``lr``, ``local_steps`` or ``local_epochs``, ``batch_size``,
``clients_per_round``, ``server_lr``. `CATALOGUE` lists them for the command line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedsub.average import OverClients, OverHolders, OverSampledHolders
from fedsub.core import Method, Sampler
from fedsub.errors import ConfigError, nearest
from fedsub.local import SGD
from fedsub.parts import Prox
from fedsub.samplers import Everyone, Uniform
from fedsub.server import Add


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
        return {k: p.default for k, p in inspect.signature(self.make).parameters.items()}


def _local(lr, local_steps, local_epochs, batch_size, batches) -> SGD:
    steps = None if local_epochs is not None else local_steps
    return SGD(lr, steps, local_epochs, batch_size, batches)


def _sampler(clients_per_round: int | None, replacement: bool) -> Sampler:
    return Everyone() if clients_per_round is None else Uniform(clients_per_round, replacement)


def fedavg(
    lr: float = 0.1,
    local_steps: int = 10,
    local_epochs: int | None = None,
    batch_size: int | None = 5,
    clients_per_round: int | None = 50,
    weighting: str = "samples",
    server_lr: float = 1.0,
    batches: str = "shuffled",
    replacement: bool = False,
) -> Method:
    """FedAvg: the mean of the cohort's updates, by samples (default) or by client.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017.
    """
    return Method(
        local=_local(lr, local_steps, local_epochs, batch_size, batches),
        average=OverClients(weighting),
        server=Add(server_lr),
        sampler=_sampler(clients_per_round, replacement),
        name="fedavg",
    )


def fedsubavg(
    lr: float = 0.1,
    local_steps: int = 10,
    local_epochs: int | None = None,
    batch_size: int | None = 5,
    clients_per_round: int | None = 50,
    weighting: str = "samples",
    temper: float = 1.0,
    max_coef: float | None = None,
    server_lr: float = 1.0,
    batches: str = "shuffled",
    replacement: bool = False,
) -> Method:
    """FedSubAvg: each parameter's mean is taken over all clients that hold it.

    ``weighting``: "samples" (as in the published experiments), "clients" (Algorithm 1) or "unbiased".
    Ding et al., "Federated Submodel Optimization for Hot and Cold Data Features", NeurIPS 2022.
    """
    return Method(
        local=_local(lr, local_steps, local_epochs, batch_size, batches),
        average=OverHolders(weighting, temper=temper, max_coef=max_coef),
        server=Add(server_lr),
        sampler=_sampler(clients_per_round, replacement),
        name="fedsubavg",
    )


def fedprox(
    lr: float = 0.1,
    mu: float = 0.01,
    local_steps: int = 10,
    local_epochs: int | None = None,
    batch_size: int | None = 5,
    clients_per_round: int | None = 50,
    weighting: str = "samples",
    server_lr: float = 1.0,
    batches: str = "shuffled",
    replacement: bool = False,
) -> Method:
    """FedProx: FedAvg with a proximal term that keeps clients near what they were sent.

    Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.
    """
    return Method(
        local=_local(lr, local_steps, local_epochs, batch_size, batches),
        parts=(Prox(mu),),
        average=OverClients(weighting),
        server=Add(server_lr),
        sampler=_sampler(clients_per_round, replacement),
        name="fedprox",
    )


def fedsgd(
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
    return Method(
        local=SGD(lr, 1, None, batch_size, batches),
        average=OverClients(weighting),
        server=Add(),
        sampler=_sampler(clients_per_round, replacement),
        name="fedsgd",
    )


def local_sgd(
    lr: float = 0.1,
    local_steps: int = 10,
    batch_size: int | None = 5,
    weighting: str = "clients",
    batches: str = "shuffled",
) -> Method:
    """Local SGD: every worker, every round, takes H = local_steps steps; then all are averaged.

    Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019.
    """
    return Method(
        local=SGD(lr, local_steps, None, batch_size, batches),
        average=OverClients(weighting),
        server=Add(),
        sampler=Everyone(),
        name="local_sgd",
    )


def centralsgd(
    lr: float = 0.1,
    local_steps: int = 10,
    batch_size: int = 5,
    clients_per_round: int = 50,
    batches: str = "shuffled",
) -> Method:
    """CentralSGD: all data in one place, as many samples a round as the federated methods use.

    One batch holds batch_size · clients_per_round samples. A baseline, not a federated method.
    """
    return Method(
        local=SGD(lr, local_steps, None, batch_size * clients_per_round, batches),
        average=OverClients(),
        server=Add(),
        sampler=Everyone(),
        pooled=True,
        name="centralsgd",
    )


def sampled_heat(
    lr: float = 0.1,
    local_steps: int = 10,
    local_epochs: int | None = None,
    batch_size: int | None = 5,
    clients_per_round: int | None = 50,
    weighting: str = "samples",
    server_lr: float = 1.0,
    batches: str = "shuffled",
    replacement: bool = False,
) -> Method:
    """Mean over the holders within the cohort; needs no global heat, but is not FedSubAvg.

    Niu et al., "Billion-Scale Federated Learning on Mobile Clients", MobiCom 2020.
    """
    return Method(
        local=_local(lr, local_steps, local_epochs, batch_size, batches),
        average=OverSampledHolders(weighting),
        server=Add(server_lr),
        sampler=_sampler(clients_per_round, replacement),
        name="sampled_heat",
    )


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
    known = set(inspect.signature(entry.make).parameters)
    for argument in arguments:
        if argument not in known:
            raise ConfigError(f"{entry.title} has no setting {argument!r}; {nearest(argument, known)}")
    return entry.make(**arguments)
