"""Generated convex problems whose truth is known.

Client i has n samples a ~ N(shift · u_i, I) and the true weights

    w_i = signal · (w + heterogeneity · v_i)         u_i, v_i, w ~ N(0, I / d), so each has a norm of about 1

and its labels are 1 with probability σ(w_i · a) (logistic) or w_i · a + noise · N(0, 1) (least squares). It is the
way of "Synthetic(α, β)" (Li et al., MLSys 2020): heterogeneity moves the models of clients apart, shift their data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Literal

import numpy as np

from fedsub.checks import is_number, is_whole
from fedsub.data.clients import Array, Clients
from fedsub.data.convex.divide import FEATURES, LABEL, Count, Seed, check_size
from fedsub.data.datasets.options import Says
from fedsub.errors import DataError

Samples = Annotated[int, Says("samples of each client")]
Dim = Annotated[int, Says("number of features")]
Heterogeneity = Annotated[float, Says("how far clients' truths are apart; 0: all have one", least=0)]
Shift = Annotated[float, Says("how far the means of clients' features are apart", least=0)]
Signal = Annotated[float, Says("length of the true weights", least=0)]
Noise = Annotated[float, Says("standard deviation of what the truth leaves open", least=0)]


@dataclass(frozen=True)
class Planted:
    """A generated problem: ``make()`` gives the data, ``weights`` the truth of every client, [clients, dim]."""

    kind: Literal["logistic", "least-squares"]
    clients: int = 20
    samples: int = 50
    dim: int = 20
    heterogeneity: float = 1.0
    shift: float = 0.0
    signal: float = 3.0
    noise: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("logistic", "least-squares"):
            raise DataError(f'kind={self.kind!r}, expected "logistic" or "least-squares".')
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            whole, least = field.name in ("clients", "samples", "dim", "seed"), int(field.name in _AT_LEAST_ONE)
            if not (is_whole(value) if whole else is_number(value)) or value < least:
                word = "whole number" if whole else "number"
                raise DataError(f"{field.name}={value!r} must be a {word}, {least} or more.")
        check_size(self.clients * self.samples, self.dim, "This problem")

    @cached_property
    def weights(self) -> Array:
        """The true weights of every client, float64 [clients, dim]."""
        draw = np.random.default_rng((self.seed, 0))
        common = draw.normal(size=self.dim)
        own = draw.normal(size=(self.clients, self.dim))
        return self.signal * (common + self.heterogeneity * own) / math.sqrt(self.dim)

    def make(self) -> Clients:
        """Columns ``features`` and ``label``; all clients have ``samples`` samples."""
        draw = np.random.default_rng((self.seed, 1))
        means = self.shift * draw.normal(size=(self.clients, 1, self.dim)) / math.sqrt(self.dim)
        x = (means + draw.normal(size=(self.clients, self.samples, self.dim))).astype(np.float32)
        z = np.einsum("cnd,cd->cn", x.astype(np.float64), self.weights)
        if self.kind == "logistic":
            y = draw.random(z.shape) < 0.5 * (1 + np.tanh(z / 2))  # σ(z), without overflow
        else:
            y = z + self.noise * draw.normal(size=z.shape)
        arrays = {FEATURES: x.reshape(-1, self.dim), LABEL: y.reshape(-1).astype(np.float64)}
        offsets = np.arange(self.clients + 1) * self.samples
        made = Clients.from_arrays(arrays, offsets=offsets, ids=(), label=LABEL, values=[FEATURES], binary_label=False)
        return replace(made, source=f"generated ({self.kind})")


_AT_LEAST_ONE = ("clients", "samples", "dim")


def generate_logistic(
    *,
    clients: Count = 20,
    samples: Samples = 50,
    dim: Dim = 20,
    heterogeneity: Heterogeneity = 1.0,
    shift: Shift = 0.0,
    signal: Signal = 3.0,
    seed: Seed = 0,
) -> Clients:
    """Labels 0 and 1 from planted logistic models; `Planted("logistic", …).weights` is the truth."""
    return Planted("logistic", clients, samples, dim, heterogeneity, shift, signal, seed=seed).make()


def generate_least_squares(
    *,
    clients: Count = 20,
    samples: Samples = 50,
    dim: Dim = 20,
    heterogeneity: Heterogeneity = 1.0,
    shift: Shift = 0.0,
    signal: Signal = 1.0,
    noise: Noise = 0.1,
    seed: Seed = 0,
) -> Clients:
    """Labels from planted linear models with noise; `Planted("least-squares", …).weights` is the truth."""
    return Planted("least-squares", clients, samples, dim, heterogeneity, shift, signal, noise, seed).make()
