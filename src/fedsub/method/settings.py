"""The settings that the federated methods share, and their defaults as a configuration file writes them."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from fedsub.method.part import Part
from fedsub.method.sampling.availability import Availability
from fedsub.method.schedules import Schedule
from fedsub.method.slots import Local, Sampler, Server
from fedsub.privacy.heat import PrivateHeat


class Common(TypedDict, total=False):
    """Settings that the federated methods share; see `DEFAULTS`.

    Solver, server, sampler, codec, schedule and variates are objects, or words that `fedsub.method.spelling` reads.
    A word takes what belongs to it from the settings beside it; an object has its own.
    """

    lr: float
    local_steps: int
    local_epochs: int | None  # instead of local_steps
    batch_size: int | None  # None: all local data
    clients_per_round: int | None  # None: everyone
    clients_fraction: float | None  # C, instead: K = max(⌈C N⌉, 1)
    server_lr: float | None  # None: what suits the server
    batches: str
    replacement: bool
    solver: str | Local  # local: "sgd" or "adam"
    momentum: float  # local, reset every round
    step_decay: float  # local: every step's rate is that times the one before
    weight_decay: float
    clip_norm: float | None
    schedule: str | Schedule | None  # "exponential:0.999", "diminishing:100", "cosine:400"
    mu: float  # proximal term
    variates: str | Part | None  # Scaffold's: "II", "I", "I:1"; "dynamic:0.1", "admm:0.1", "split:0.1", "svrg"
    normalise: bool  # FedNova's normalised steps
    personal: str | list[str] | None  # parameters that stay with the client: patterns, or "last" (layer)
    personal_init: str  # "random" or "shared"
    clip_rows: float | None  # at the server: largest step of a row
    server: str | Server
    server_momentum: float
    beta1: float | None  # None: what suits the server
    beta2: float
    tau: float
    sparse_server: bool
    iterates: str | None  # what is evaluated and kept: None, the last one; "tail:0.25", "tail:100", "ema:0.99"
    dp: str | Part | None  # differential privacy: "central:clip=0.5,noise=1", "local:clip=0.5,noise=4"
    codec: str | Part | None  # "sign", "ef-sign", "topk:0.01", "randomk:0.01", "int8"
    secure: str | Part | None  # a secure sum: "union:0.5", "perturbed:0.5,preset=2"; the number is the clip
    sampler: str | Sampler  # "uniform", "by-size", "poisson", "pow-d:20", "cpow-d:20", "rpow-d:20", "ucb:0.7"
    groups: dict[str, dict[str, float]] | None  # by pattern: lr, weight_decay, server_lr, temper, …


Heat = str | PrivateHeat | dict[str, np.ndarray] | None  # of an average over holders; see `spelling.heat`

DEFAULTS = Common(
    lr=0.1, local_steps=10, local_epochs=None, batch_size=5, clients_per_round=50, clients_fraction=None,
    server_lr=None, batches="shuffled", replacement=False, solver="sgd", momentum=0.0, step_decay=1.0,
    weight_decay=0.0, clip_norm=None, schedule=None, mu=0.0, variates=None, normalise=False, personal=None,
    personal_init="random", clip_rows=None, server="add", server_momentum=0.0, beta1=None, beta2=0.99, tau=1e-3,
    sparse_server=False, iterates=None, dp=None, codec=None, secure=None, sampler="uniform", groups=None,
)  # fmt: skip

# What no file can write.
OBJECTS = (Availability, Local, Part, Sampler, Schedule, Server, PrivateHeat, dict[str, np.ndarray])
