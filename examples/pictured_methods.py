"""Which methods each picture of examples/method_pictures.py shows, and with what settings."""

from dataclasses import dataclass

import numpy as np
from mixture_problem import L2, LAM
from pictured_tasks import EPOCHS, FILMS, STEPS

import fedsub as fs
from fedsub.families import mixture as mx


@dataclass
class Line:
    label: str
    method: fs.Method


@dataclass
class Picture:
    title: str
    lines: list[Line]
    task: str = "films"
    against: str = "rounds"  # or "up": bytes sent by clients, "clock": simulated seconds
    traffic: bool = False  # whether the key tells the bytes, relative to FedAvg's
    plain: dict | None = None  # settings of the FedAvg and FedSubAvg beside it


@dataclass
class Mixed:
    """Solvers of the mixture, or what makes them of the functions; the page's own first."""

    title: str
    lines: dict
    lam: float = LAM
    against: str = "communications"  # or "epochs": passes over the data
    upto: int = 150  # on that axis
    exact: bool = True  # whether there is an exact prox
    l2: float = L2


def pictures():
    m, f, s, e = fs.methods, FILMS, STEPS, EPOCHS
    some = "lr 0.3, 10 steps, 20 of 302 clients"
    return {
        "fedavg": Picture(f"FedAvg: {some}", [Line("FedAvg, 1 local step", m.fedavg(**{**f, "local_steps": 1}))]),
        "fedsubavg": Picture(
            f"FedSubAvg: {some}",
            [
                Line("FedSubAvg, temper=0.5", m.fedsubavg(**f, temper=0.5)),
                Line("FedSubAvg, max_coef=5", m.fedsubavg(**f, max_coef=5)),
            ],
        ),
        "fedbuff": Picture(
            f"FedBuff, steps of 10: {some}",
            [
                Line("FedBuff", m.fedbuff(**f, buffer=10)),
                Line("FedBuff over holders", m.fedbuff(**f, buffer=10, over="holders")),
            ],
            against="clock",
        ),
        "fedprox": Picture(
            "Drift: 4 local epochs, lr 0.05, all of 40 clients",
            [Line("FedProx, mu=0.01", m.fedprox(**e)), Line("FedProx, mu=0.3", m.fedprox(**e, mu=0.3))],
            "tastes",
            plain=e,
        ),
        "fedsgd": Picture(
            "FedSGD: one step on all local data, 20 of 302 clients",
            [Line("FedSGD, lr=0.3", m.fedsgd(**f)), Line("FedSGD, lr=3", m.fedsgd(lr=3.0, clients_per_round=20))],
        ),
        "local_sgd": Picture(
            "Local SGD: lr 0.3, H=10; the others 20 of 302 clients",
            [Line("Local SGD, all 302", m.local_sgd(lr=0.3))],
            traffic=True,
        ),
        "centralsgd": Picture(
            "CentralSGD: batches of 20·5 samples, 10 a round",
            [
                Line("CentralSGD, lr=0.3", m.centralsgd(**f)),
                Line("CentralSGD, lr=3", m.centralsgd(lr=3.0, clients_per_round=20)),
            ],
        ),
        "sampled_heat": Picture(f"Sampled heat: {some}", [Line("sampled heat", m.sampled_heat(**f))]),
        "scaffold": Picture(
            "Drift: 20 full-batch steps, lr 0.3, 20 of 40 clients",
            [
                Line("Scaffold", m.scaffold(**s)),
                Line("FedSubAvg + control variates", m.fedsubavg(**s, variates="II")),
            ],
            "tastes",
            traffic=True,
        ),
        "scaffold_server": Picture(
            "Drift: 20 full-batch steps, lr 0.3, 20 of 40 clients",
            [Line("Scaffold (server), ours", m.scaffold_server(**s)), Line("Scaffold", m.scaffold(**s))],
            "tastes",
        ),
        "fednova": Picture(
            "Unequal steps: 4 local epochs, lr 0.05, all of 40 clients",
            [
                Line("FedNova", m.fednova(**e)),
                Line("FedSubAvg + normalised steps", m.fedsubavg(**e, normalise=True)),
            ],
            "tastes",
            plain=e,
        ),
        **agreeing(),
        "fedavgm": Picture(
            f"FedAvgM: {some}",
            [
                Line("FedAvgM, momentum 0.9", m.fedavgm(**f)),
                Line("FedAvgM, 0.9, server_lr=0.1", m.fedavgm(**f, server_lr=0.1)),
            ],
        ),
        "fedadam": Picture(
            f"FedAdam: server_lr 0.01; {some}",
            [
                Line("FedAdam, τ=1e-3", m.fedadam(**f)),
                Line("FedAdam, τ=1e-5", m.fedadam(**f, tau=1e-5)),
                Line("FedAdam, τ=0.1", m.fedadam(**f, tau=0.1)),
            ],
        ),
        "fedyogi": Picture(
            f"FedYogi: server_lr 0.01; {some}",
            [Line("FedYogi, τ=1e-3", m.fedyogi(**f)), Line("FedAdam, τ=1e-3", m.fedadam(**f))],
        ),
        "fedadagrad": Picture(
            f"FedAdagrad: {some}",
            [
                Line("FedAdagrad, server_lr=0.1", m.fedadagrad(**f)),
                Line("FedAdagrad, server_lr=0.01", m.fedadagrad(**f, server_lr=0.01)),
            ],
        ),
        "frequency_aware": Picture(
            f"Frequency-aware: {some}",
            [
                Line("frequency-aware, server_lr=1", m.frequency_aware(**f)),
                Line("frequency-aware, server_lr=10", m.frequency_aware(**f, server_lr=10.0)),
            ],
        ),
        "signsgd": Picture(
            "SignSGD: 1 local step; the others 10; 20 of 302 clients",
            [
                Line("SignSGD, server_lr=0.001", m.signsgd(**f)),
                Line("SignSGD, server_lr=0.01", m.signsgd(**f, server_lr=0.01)),
            ],
            against="up",
        ),
        "ef_signsgd": Picture(
            f"EF-SignSGD: {some}",
            [
                Line("EF-SignSGD", m.ef_signsgd(**f)),
                Line("FedSubAvg, codec ef-sign", m.fedsubavg(**f, codec="ef-sign")),
            ],
            against="up",
        ),
        "power_of_choice": Picture(
            f"Power-of-choice, d=60: {some}",
            [
                Line("pow", m.power_of_choice(**f, candidates=60)),
                Line("rpow", m.power_of_choice(**f, candidates=60, variant="rpow")),
            ],
            traffic=True,
        ),
        "ucb_cs": Picture(f"UCB-CS, γ=0.7: {some}", [Line("UCB-CS", m.ucb_cs(**f))], traffic=True),
        "fedper": Picture(
            "FedPer: factorisation, 20 of 200 users, lr 0.3",
            [
                Line("FedPer, own user vector", m.fedper(**f, personal=["user", "offset"])),
                Line("FedSubAvg, own user vector", m.fedsubavg(**f, personal=["user", "offset"])),
            ],
            "stars",
        ),
        "fedsubadam": Picture(
            f"FedSubAvg + Adam: server_lr 0.01; {some}",
            [
                Line("FedSubAvg + Adam, τ=1e-3", m.fedsubadam(**f)),
                Line("FedAdam, τ=1e-3", m.fedadam(**f)),
                Line("FedSubAvg + Adam, τ=1e-5", m.fedsubadam(**f, tau=1e-5)),
                Line("FedAdam, τ=1e-5", m.fedadam(**f, tau=1e-5)),
            ],
        ),
        "fedsubadagrad": Picture(
            f"FedSubAvg + Adagrad: server_lr 0.1; {some}",
            [Line("FedSubAvg + Adagrad", m.fedsubadagrad(**f)), Line("FedAdagrad", m.fedadagrad(**f))],
        ),
        "fedmavg": Picture(
            "FedMAvg: rank 4, 20 of 200 users send",
            [
                Line("FedMAvg", m.fedmavg(clients_per_round=20)),
                Line("FedMAvg, submodel", m.fedmavg(clients_per_round=20, submodel=True)),
                Line("FedMAvg, submodel, temper=0.5", m.fedmavg(clients_per_round=20, submodel=True, temper=0.5)),
            ],
            "stars",
            traffic=True,
        ),
        "sfmf": Picture(
            "SFMF: rank 4, all 200 users send",
            [
                Line("SFMF, step 0.001", m.sfmf(l2=1.0)),
                Line("SFMF, step 0.003", m.sfmf(step=0.003, l2=1.0)),
                Line("FedMAvg, submodel, 20 users", m.fedmavg(clients_per_round=20, submodel=True)),
            ],
            "stars",
            traffic=True,
        ),
        "codecs": Picture(
            f"Codecs with FedSubAvg: {some}",
            [
                Line("ef-sign", m.fedsubavg(**f, codec="ef-sign")),
                Line("int8", m.fedsubavg(**f, codec="int8")),
                Line("topk:0.05", m.fedsubavg(**f, codec="topk:0.05")),
                Line("randomk:0.05", m.fedsubavg(**f, codec="randomk:0.05")),
            ],
            against="up",
        ),
        **without_server(),
        **mixed(),
    }


def agreeing():
    """Those that learn what others want until all agree, or take everybody's gradient first."""
    m, s, everyone = fs.methods, STEPS, {**STEPS, "clients_per_round": None}
    some = "20 full-batch steps, lr 0.3, 20 of 40 clients"
    return {
        "feddyn": Picture(
            f"Drift: {some}",
            [
                Line("FedDyn, alpha=0.1", m.feddyn(**s)),
                Line("FedSubAvg + prices, 0.1", m.fedsubavg(**s, variates="dynamic:0.1")),
            ],
            "tastes",
            traffic=True,
        ),
        "fedadmm": Picture(
            f"Drift: {some}",
            [Line("FedADMM, rho=0.1", m.fedadmm(**s)), Line("Scaffold", m.scaffold(**s))],
            "tastes",
            traffic=True,
        ),
        "fedsplit": Picture(
            f"Drift: {some}",
            [
                Line("FedSplit, rho=0.1", m.fedsplit(**s)),
                Line("FedSplit, relax=0.5", m.fedsplit(**s, relax=0.5)),
                Line("FedProx, mu=0.1", m.fedprox(**s, mu=0.1)),
            ],
            "tastes",
        ),
        "fsvrg": Picture(
            "20 steps, all of 40 clients; FSVRG moves in even rounds",
            [
                Line("FSVRG, lr=6 / 20 steps", m.fsvrg(**{**everyone, "lr": 6.0})),
                Line("FSVRG, holders", m.fsvrg(**{**everyone, "lr": 6.0}, holders=True)),
            ],
            "tastes",
            plain=everyone,
            traffic=True,
        ),
    }


def without_server():
    """Nodes that average with each other: the mean of all their models, beside a server to which all 302 answer."""
    m, f = fs.methods, {"lr": 0.3, "evaluated": "mean"}
    beside: dict = {"plain": {"lr": 0.3, "clients_per_round": None}, "traffic": True}
    some = "lr 0.3, 10 steps, all of 302 clients"
    return {
        "gossip": Picture(
            f"Gossip: {some}",
            [
                Line("gossip, 1 peer", m.gossip(**f)),
                Line("gossip, 4 peers", m.gossip(**f, peers=4)),
                Line("gossip, 4 peers, over peers", m.gossip(**f, peers=4, over="peers")),
            ],
            **beside,
        ),
        "segmented_gossip": Picture(
            f"Segmented gossip, 2 peers: {some}",
            [
                Line("4 segments", m.segmented_gossip(**f)),
                Line("1 segment: gossip", m.gossip(**f, peers=2)),
            ],
            **beside,
        ),
        "dpsgd": Picture(
            f"D-PSGD: {some}",
            [
                Line("ring", m.dpsgd(**f)),
                Line("random, 8 neighbours", m.dpsgd(**f, graph="regular:8")),
                Line("the same, drawn anew", m.dpsgd(**f, graph="regular:8", fresh=True)),
            ],
            **beside,
        ),
        "ring_all_reduce": Picture(
            f"Ring all-reduce: {some}",
            [
                Line("over holders", m.ring_all_reduce(**f)),
                Line("over peers", m.ring_all_reduce(**f, over="peers")),
            ],
            **beside,
        ),
    }


def mixed():
    """The ten methods of the mixture, for personal models of 20 clients."""
    few, many = 0.02, 4.0
    full, batches = "breast cancer, 20 clients, λ = 0.1", "breast cancer, 20 clients, batches of 5, λ = 0.1"

    def shorter(kind):  # a tenth of the step size, which depends on the functions
        return lambda f: kind(lam=LAM, alpha=kind(lam=LAM).begin(f, f.constants).number("alpha") / 10)

    return {
        "lgd": Mixed(
            "LGD: breast cancer, 20 clients, one model for all",
            {f"LGD, T = {t}": mx.LGD(local_steps=t) for t in (1, 5, 20)} | {"APGD2, λ = ∞": mx.APGD2(lam=np.inf)},
            lam=np.inf,
        ),
        "l2gd": Mixed(
            f"L2GD: {full}",
            {"L2GD": mx.L2GD(lam=LAM), "L2GD, a tenth of α": shorter(mx.L2GD), "L2GD+": mx.L2GDPlus(lam=LAM)},
        ),
        "l2gd_plus": Mixed(
            f"L2GD+: {full}",
            {"L2GD+": mx.L2GDPlus(lam=LAM), "L2GD": mx.L2GD(lam=LAM), "APGD1": mx.APGD1(lam=LAM)},
        ),
        "l2sgd": Mixed(
            f"L2SGD: {batches}",
            {"L2SGD": mx.L2SGD(lam=LAM), "L2SGD, a tenth of α": shorter(mx.L2SGD), "L2SGD+": mx.L2SGDPlus(lam=LAM)},
        ),
        "l2sgd2": Mixed(
            f"L2SGD2: {batches}",
            {"L2SGD2": mx.L2SGD2(lam=LAM), "L2SGD": mx.L2SGD(lam=LAM), "L2SGD+": mx.L2SGDPlus(lam=LAM)},
        ),
        "l2sgd_plus": Mixed(
            f"L2SGD+: {batches}",
            {"L2SGD+": mx.L2SGDPlus(lam=LAM), "L2SGD": mx.L2SGD(lam=LAM), "AL2SGD+": mx.AL2SGDPlus(lam=LAM)},
        ),
        "apgd1": Mixed(
            f"APGD1: breast cancer, 20 clients, λ = {few:g} = 0.05 L",
            {"APGD1": mx.APGD1(lam=few), "APGD2": mx.APGD2(lam=few), "L2GD+": mx.L2GDPlus(lam=few)},
            lam=few,
            upto=80,
        ),
        "apgd2": Mixed(
            f"APGD2: breast cancer, 20 clients, λ = {many:g} = 10 L",
            {"APGD2": mx.APGD2(lam=many), "APGD1": mx.APGD1(lam=many), "L2GD+": mx.L2GDPlus(lam=many)},
            lam=many,
        ),
        "iapgd": Mixed(
            f"IAPGD: {full}",
            {"IAPGD": mx.IAPGD(lam=LAM), "APGD1, prox to rounding": mx.APGD1(lam=LAM), "APGD2": mx.APGD2(lam=LAM)},
            against="epochs",
            upto=600,
            exact=False,
        ),
        "al2sgd_plus": Mixed(
            "AL2SGD+: breast cancer, batches of 5, λ = 0.1, l2 = 0.0001",
            {"AL2SGD+": mx.AL2SGDPlus(lam=LAM), "L2SGD+": mx.L2SGDPlus(lam=LAM), "APGD1": mx.APGD1(lam=LAM)},
            upto=1000,
            l2=1e-4,
        ),
    }
