"""Named methods: short functions that return a composition of slots.

Arguments are spelt alike everywhere: ``lr``, ``local_steps`` or ``local_epochs``, ``batch_size``,
``clients_per_round``, ``server_lr``. `CATALOGUE` lists them for the command line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Unpack, get_type_hints

from fedsub.average import OverClients, OverHolders, OverSampledHolders
from fedsub.batches import check_number
from fedsub.compose import DEFAULTS, Common, compose
from fedsub.core import Algorithm, Average, Method
from fedsub.errors import ConfigError, MethodError, nearest
from fedsub.factorisation.settings import SFMF, FedMAvg
from fedsub.mixture.named import (
    al2sgd_plus,
    apgd1,
    apgd2,
    iapgd,
    l2gd,
    l2gd_plus,
    l2sgd,
    l2sgd2,
    l2sgd_plus,
    lgd,
)
from fedsub.names import normal


@dataclass(frozen=True)
class Entry:
    """A line of the catalogue."""

    make: Callable[..., Algorithm]
    title: str
    summary: str
    formula: str
    paper: str
    fixed: Mapping[str, Any] = field(default_factory=dict)  # shared settings that make the method what it is
    model: str | None = None  # the one built-in model that it is for; None: any model

    @property
    def defaults(self) -> dict[str, Any]:
        """Every setting of the method and its default."""
        own = inspect.signature(self.make).parameters.values()
        common = DEFAULTS if any(p.kind is p.VAR_KEYWORD for p in own) else {}
        own = {p.name: p.default for p in own if p.kind is not p.VAR_KEYWORD}
        return {**own, **{name: value for name, value in common.items() if name not in own}, **self.fixed}

    @property
    def types(self) -> dict[str, Any]:
        """The type of every setting."""
        hints = {**get_type_hints(Common), **get_type_hints(self.make)}
        return {name: hints[name] for name in self.defaults}


def _method(name: str, average: Average, common: Mapping[str, Any], **derived: Any) -> Method:
    """A method from the shared settings, and those that make it what it is or follow from its own settings."""
    fixed = {**CATALOGUE[name].fixed, **derived}
    for setting, value in fixed.items():
        if common.get(setting, value) not in (value, DEFAULTS[setting] if setting in derived else value):
            raise MethodError(
                f"{name} is what it is by {setting}={value!r}, and was given {common[setting]!r}; "
                "start from fedavg or fedsubavg for other combinations."
            )
    return compose(name, average, {**common, **fixed}, CATALOGUE[name].defaults)


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


def fedprox(*, mu: float = 0.01, weighting: str = "samples", **common: Any) -> Method:
    """FedProx: FedAvg with a proximal term that keeps clients near what they were sent.

    Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.
    """
    return _method("fedprox", OverClients(weighting), {**common, "mu": mu})


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
    clip_norm: float | None = None,
    schedule: str | None = None,
) -> Method:
    """CentralSGD: all data in one place, as many samples a round as the federated methods use.

    One batch holds batch_size · clients_per_round samples. A baseline, not a federated method.
    """
    for setting, value in {"batch_size": batch_size, "clients_per_round": clients_per_round}.items():
        check_number(f"{setting} of centralsgd", value, whole=True)
        if value < 1:
            raise MethodError(f"{setting} of centralsgd must be at least 1, got {value}.")
    size = batch_size * clients_per_round
    common = Common(
        lr=lr, local_steps=local_steps, batch_size=size, clients_per_round=None, batches=batches, clip_norm=clip_norm,
        schedule=schedule,
    )  # fmt: skip
    return replace(_method("centralsgd", OverClients(), common), pooled=True)


def sampled_heat(*, weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """Mean over the holders within the cohort; needs no global heat, but is not FedSubAvg.

    Niu et al., "Billion-Scale Federated Learning on Mobile Clients", MobiCom 2020.
    """
    return _method("sampled_heat", OverSampledHolders(weighting), common)


def scaffold(*, option: str = "II", weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """Scaffold: control variates take client drift out of the local steps.

    ``option`` "II" (default) or "I" (gradients at X over half of the round's batches; over all of them with "I:1").
    Twice the traffic of FedAvg.
    Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020.
    """
    return _method("scaffold", OverClients(weighting), common, variates=option)


def scaffold_server(*, weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """Scaffold's idea at the server alone, for large models: the step is mixed with the mean of past updates.

    Our own reading of one sentence in Ding et al. 2022, not a reproduction: X + (1−β) Δ̄ + β h and
    h ← (1−ρ) h + ρ Δ̄, with ρ the share of clients in a round. Clients keep and send nothing more.
    """
    return _method("scaffold_server", OverClients(weighting), common)


def fednova(*, weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """FedNova: updates are divided by the clients' numbers of steps, so that busy clients do not count for more.

    Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", 2020.
    """
    return _method("fednova", OverClients(weighting), common)


def fedavgm(*, server_momentum: float = 0.9, weighting: str = "samples", **common: Any) -> Method:
    """FedAvgM: FedAvg with momentum at the server.

    Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution", 2019.
    """
    return _method("fedavgm", OverClients(weighting), {**common, "server_momentum": server_momentum})


def fedadam(*, weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """FedAdam: the mean update is the gradient of an Adam step at the server (no bias correction, v starts at τ²).

    Reddi et al., "Adaptive Federated Optimization", ICLR 2021.
    """
    return _method("fedadam", OverClients(weighting), common)


def fedyogi(*, weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """FedYogi: as FedAdam, with second moments that change by at most the last square. Reddi et al., 2021."""
    return _method("fedyogi", OverClients(weighting), common)


def fedadagrad(*, weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """FedAdagrad: as FedAdam, with the sum of all squares instead of a running mean. Reddi et al., 2021."""
    return _method("fedadagrad", OverClients(weighting), common)


def frequency_aware(*, weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """A row's step shrinks with the square root of how often it was updated: rare rows keep long steps.

    The frequency-aware learning rates of centralised recommenders, as a server; it needs no heat.
    """
    return _method("frequency_aware", OverClients(weighting), common)


def signsgd(*, server_lr: float = 0.001, local_steps: int = 1, **common: Any) -> Method:
    """SignSGD with majority vote: clients send one bit per value, the server steps by the sign of their sum.

    Bernstein et al., "signSGD with Majority Vote is Communication Efficient and Fault Tolerant", ICLR 2019.
    """
    settings = {**common, "server_lr": server_lr, "local_steps": local_steps}
    if common.get("local_epochs") is not None:
        settings.pop("local_steps")
    return _method("signsgd", OverClients("clients"), settings)


def ef_signsgd(*, weighting: str = "samples", **common: Unpack[Common]) -> Method:
    """EF-SignSGD: one bit per value and a scale; what the bits lose is kept and added next time.

    Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
    """
    return _method("ef_signsgd", OverClients(weighting), common)


def power_of_choice(*, candidates: int = 100, variant: str = "pow", **common: Unpack[Common]) -> Method:
    """Power-of-choice: of ``candidates`` drawn by data size, those with the largest loss take part.

    ``variant``: "pow" (asks for the loss on all data), "cpow" (on one batch), "rpow" (last training loss, free).
    Cho, Wang and Joshi, "Client Selection in Federated Learning", 2020.
    """
    return _method("power_of_choice", OverClients("clients"), common, sampler=f"{variant}-d:{candidates}")


def ucb_cs(*, gamma: float = 0.7, **common: Unpack[Common]) -> Method:
    """UCB-CS: a bandit chooses the clients whose discounted loss, plus a bonus for the unknown, is largest.

    Cho, Gupta, Joshi and Yağan, "Bandit-based Communication-Efficient Client Selection", 2020.
    """
    return _method("ucb_cs", OverClients("clients"), common, sampler=f"ucb:{gamma}")


def fedper(
    *, personal: str | list[str] = "last", personal_init: str = "random", weighting: str = "samples",
    **common: Any,
) -> Method:  # fmt: skip
    """FedPer: FedAvg on the shared layers; every client keeps layers of its own, which never leave it.

    ``personal`` names them: patterns, or "last". M. G. Arivazhagan et al., "Federated Learning with Personalization
    Layers", 2019. For shared tables with the heat correction: ``fedsubavg(personal="head.*")``.
    """
    settings: dict[str, Any] = {"personal": personal, "personal_init": personal_init, **common}
    return _method("fedper", OverClients(weighting), settings)


def fedsubadam(
    *, weighting: str = "samples", temper: float = 1.0, max_coef: float | None = None, **common: Unpack[Common]
) -> Method:
    """FedSubAvg's corrected update as the gradient of an Adam step at the server.

    For a constant coefficient c this is FedAdam with τ/c in place of τ: the correction becomes a τ per row.
    """
    return _method("fedsubadam", OverHolders(weighting, temper=temper, max_coef=max_coef), common)


def fedsubadagrad(
    *, weighting: str = "samples", temper: float = 1.0, max_coef: float | None = None, **common: Unpack[Common]
) -> Method:
    """FedSubAvg's corrected update as the gradient of an Adagrad step at the server."""
    return _method("fedsubadagrad", OverHolders(weighting, temper=temper, max_coef=max_coef), common)


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


def sfmf(*, step: float = 0.001, l2: float = 10.0, submodel: bool = False) -> SFMF:
    """SFMF: every user, every round, one gradient step of matrix factorisation; the baseline of FedMAvg.

    Chai, Wang, Chen and Yang, "Secure Federated Matrix Factorization", 2019; without its encryption.
    """
    return SFMF(step=step, l2=l2, submodel=submodel)


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
    "scaffold": Entry(
        scaffold, "Scaffold", "control variates against client drift", "step g − c_i + c", "Karimireddy et al. 2020"
    ),
    "scaffold_server": Entry(
        scaffold_server, "Scaffold (server)", "history of updates mixed in, ours", "X + (1−β) Δ + β h", "ours",
        fixed={"server": "history"},
    ),
    "fednova": Entry(
        fednova, "FedNova", "updates divided by local steps", "X + τ_eff Σ p_i Δ_i / ‖a_i‖₁", "Wang et al. 2020",
        fixed={"normalise": True},
    ),
    "fedavgm": Entry(
        fedavgm, "FedAvgM", "momentum at the server", "b ← β b + Δ, X + b", "Hsu et al. 2019",
        fixed={"server": "add"},
    ),
    "fedadam": Entry(
        fedadam, "FedAdam", "Adam at the server", "X + η m / (√v + τ)", "Reddi et al. 2021",
        fixed={"server": "adam"},
    ),
    "fedyogi": Entry(
        fedyogi, "FedYogi", "Yogi at the server", "X + η m / (√v + τ)", "Reddi et al. 2021",
        fixed={"server": "yogi"},
    ),
    "fedadagrad": Entry(
        fedadagrad, "FedAdagrad", "Adagrad at the server", "v ← v + Δ², X + η Δ / (√v + τ)", "Reddi et al. 2021",
        fixed={"server": "adagrad"},
    ),
    "frequency_aware": Entry(
        frequency_aware, "Frequency-aware", "steps shrink with a row's updates", "X_m + η Δ_m / √(updates of m)",
        "ours",
        fixed={"server": "frequency"},
    ),
    "signsgd": Entry(
        signsgd, "SignSGD", "majority vote of signs, one bit a value", "X + δ sign(Σ sign Δ_i)",
        "Bernstein et al. 2019",
        fixed={"codec": "sign"},
    ),
    "ef_signsgd": Entry(
        ef_signsgd, "EF-SignSGD", "signs with error feedback", "C(p) = ‖p‖₁/d · sign(p), p = Δ + e",
        "Karimireddy et al. 2019",
        fixed={"codec": "ef-sign"},
    ),
    "power_of_choice": Entry(
        power_of_choice, "Power-of-choice", "clients with the largest loss of d candidates", "m worst of d ∝ w_i",
        "Cho et al. 2020",
    ),
    "ucb_cs": Entry(
        ucb_cs, "UCB-CS", "a bandit selects clients", "p_k (L/N + √(2σ² ln T / N))", "Cho et al. 2020"
    ),
    "fedper": Entry(
        fedper, "FedPer", "clients keep layers of their own", "W_B + Σ γ_i Δ_B,i; W_i stays", "Arivazhagan et al. 2019",
    ),
    "fedsubadam": Entry(
        fedsubadam, "FedSubAvg + Adam", "heat correction, Adam at the server", "FedAdam on (W/W_m) Δ_m", "fedsub",
        fixed={"server": "adam"},
    ),
    "fedsubadagrad": Entry(
        fedsubadagrad, "FedSubAvg + Adagrad", "heat correction, Adagrad at the server", "FedAdagrad on (W/W_m) Δ_m",
        "fedsub",
        fixed={"server": "adagrad"},
    ),
    "fedmavg": Entry(
        fedmavg, "FedMAvg", "matrix factorisation, W averaged, H private", "W ← P(1/m Σ W_p), H_p ← P(H_p − ∇/c_p)",
        "Wang et al. 2021",
        model="factorisation",
    ),
    "sfmf": Entry(
        sfmf, "SFMF", "matrix factorisation by summed gradients (baseline)", "W − γ (Σ ∇_W + 2λW)",
        "Chai et al. 2019",
        model="factorisation",
    ),
    "lgd": Entry(
        lgd, "LGD", "local gradient steps, then the mean", "T times x_i − α∇f_i, then x_i ← x̄",
        "Hanzely, Richtárik 2020",
    ),
    "l2gd": Entry(
        l2gd, "L2GD", "personal models pulled to their mean", "x_i − β∇f_i, or (1−γ) x_i + γ x̄",
        "Hanzely, Richtárik 2020",
    ),
    "l2gd_plus": Entry(
        l2gd_plus, "L2GD+", "L2GD with control variates", "x_i − (α/n)[(g−J)/(1−p) + J + Ψ]",
        "Hanzely, Richtárik 2020",
    ),
    "l2sgd": Entry(
        l2sgd, "L2SGD", "L2GD on batches", "x_i − β∇f_ij, or (1−γ) x_i + γ x̄", "Hanzely, Richtárik 2020"
    ),
    "l2sgd2": Entry(
        l2sgd2, "L2SGD2", "L2SGD with variates for f and ψ", "L2GD+ with ∇f_ij", "Hanzely, Richtárik 2020"
    ),
    "l2sgd_plus": Entry(
        l2sgd_plus, "L2SGD+", "L2SGD with variates for every batch", "x_i − (α/n)[(g−J_j)/(1−p) + J̄ + Ψ]",
        "Hanzely, Richtárik 2020",
    ),
    "apgd1": Entry(
        apgd1, "APGD1", "personal models by accelerated local proxes", "x_i = prox_{f_i/λ}(ȳ)",
        "Hanzely et al. 2020",
    ),
    "apgd2": Entry(
        apgd2, "APGD2", "personal models by accelerated gradients", "x_i = (L v_i + λ v̄)/(L+λ)",
        "Hanzely et al. 2020",
    ),
    "iapgd": Entry(
        iapgd, "IAPGD", "APGD1 with inexact proxes", "x_i ≈ prox_{f_i/λ}(ȳ)", "Hanzely et al. 2020"
    ),
    "al2sgd_plus": Entry(
        al2sgd_plus, "AL2SGD+", "accelerated L2SGD+", "loopless Katyusha on f + λψ", "Hanzely et al. 2020"
    ),
}  # fmt: skip


def make(name: str, **arguments: Any) -> Algorithm:
    """A named method with arguments; those it does not take are an error that names the nearest one."""
    key = normal(name)
    if key not in CATALOGUE:
        raise ConfigError(f"There is no method {name!r}; {nearest(key, CATALOGUE)}")
    entry = CATALOGUE[key]
    for argument in arguments:
        if argument not in entry.defaults:
            raise ConfigError(f"{entry.title} has no setting {argument!r}; {nearest(argument, entry.defaults)}")
    return entry.make(**arguments)
