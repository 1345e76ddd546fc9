"""Averages: over whom the mean of the clients' updates is taken.

FedSubAvg is a choice of average, not a special server: the mean of a row is taken over the clients that
hold it. With N clients, cohort C of size K, n_m clients that hold parameter m and w_i samples at client i:

    OverClients("clients")   (1/K) Σ Δ_i                                  FedAvg
    OverClients("samples")   Σ w_i Δ_i / Σ w_i                            FedAvg by data
    OverHolders("clients")   (N / n_m) · (1/K) Σ Δ_i                      FedSubAvg, Algorithm 1
    OverHolders("samples")   (W / W_m) · Σ w_i Δ_i / Σ w_i                FedSubAvg as published runs used it
    OverHolders("unbiased")  (N / (K W_m)) Σ w_i Δ_i                      Horvitz–Thompson, exactly unbiased
    OverSampledHolders       Σ_{i holds m} a_i Δ_i / Σ_{i holds m} a_i    by the *sampled* holders only

where W = Σ w_i over all clients and W_m over those that hold m.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedsub.checks import check_mix, check_number
from fedsub.data.heat import row_heat, weighted_heat
from fedsub.errors import MethodError, nearest
from fedsub.method.batches import precision
from fedsub.method.patterns import Groups, check_groups, check_patterns, setting
from fedsub.method.slots import Total
from fedsub.objective.problem import Problem
from fedsub.trees import Tree

WEIGHTINGS = ("clients", "samples")


@dataclass(frozen=True)
class OverClients:
    """The mean over the cohort, by client or by number of samples (McMahan et al., AISTATS 2017)."""

    weighting: str = "clients"
    needs_held = False

    def __post_init__(self) -> None:
        _check(self.weighting, WEIGHTINGS)

    def bind(self, problem: Problem, device: torch.device) -> BoundMean:
        return BoundMean(len(problem.clients), _client_weights(problem, self.weighting))


@dataclass(frozen=True)
class OverHolders:
    """The mean over all clients that hold a parameter (FedSubAvg, Ding et al., NeurIPS 2022).

    The cohort's mean is multiplied by the coefficient N/n_m (or W/W_m), a constant per row; dense
    parameters are held by everyone, coefficient 1, and so is a row that nobody holds. ``temper`` raises
    the coefficient to a power (1 as in the paper, 0 is FedAvg), ``max_coef`` caps it; ``groups`` sets both by
    parameter pattern. ``heat`` replaces the exact count (``{space name: n_m or W_m}``), for example by a private
    estimate.
    """

    weighting: str = "clients"
    temper: float = 1.0
    max_coef: float | None = None
    heat: dict[str, np.ndarray] | None = field(default=None, compare=False)
    groups: Groups | None = None
    needs_held = False

    def __post_init__(self) -> None:
        _check(self.weighting, (*WEIGHTINGS, "unbiased"))
        check_groups(self.groups, ("temper", "max_coef"), "OverHolders")
        for pattern, values in (self.groups or {}).items():
            check_mix(f"groups[{pattern!r}]['temper'] of OverHolders", values.get("temper", 1.0))
            check_number(f"groups[{pattern!r}]['max_coef'] of OverHolders", values.get("max_coef", 1.0), least=1)
        check_mix("temper", self.temper, hint="0 is FedAvg, 1 is FedSubAvg")
        if self.max_coef is not None:  # 1 is the coefficient of dense parameters
            check_number("max_coef", self.max_coef, least=1)
        if self.heat is not None and not isinstance(self.heat, dict):
            raise MethodError(
                f"heat must be a dict {{space name: heat of each row}}, got a {type(self.heat).__name__}; "
                "leave it out to use the exact heat."
            )

    def bind(self, problem: Problem, device: torch.device) -> BoundMean:
        for name in self.heat or ():
            if name not in problem.spaces:
                raise MethodError(f"heat names the space {name!r}, which no table uses; {_known(name, problem)}")
        check_patterns(self.groups, problem.names, "OverHolders")
        raw = {name: self._coefficients(problem, name) for name in problem.spaces}
        made: dict[tuple, Tensor] = {}  # tables that agree share one array
        coefficients = {}
        for table, space in problem.tables.items():
            temper = setting(self.groups, table, "temper", self.temper)
            cap = setting(self.groups, table, "max_coef", self.max_coef)
            dtype = precision({table: problem.objective.module.get_parameter(table)})
            which = (space.name, temper, cap, dtype)
            if which not in made:
                made[which] = torch.from_numpy(_tempered(raw[space.name], temper, cap).astype(dtype)).to(device)
            coefficients[table] = made[which]
        if self.weighting == "unbiased":
            # Σ w_i Δ_i / K · N/W is the mean over the cohort as if W/N were every client's size.
            sizes = problem.clients.sizes
            scale = len(sizes) / float(sizes.sum())
            return BoundMean(len(problem.clients), _client_weights(problem, "samples"), coefficients, scale=scale)
        return BoundMean(len(problem.clients), _client_weights(problem, self.weighting), coefficients)

    def _coefficients(self, problem: Problem, name: str) -> np.ndarray:
        space, sizes = problem.spaces[name], problem.clients.sizes
        if self.weighting == "clients":
            heat, population = row_heat(space).astype(np.float64), float(len(sizes))
        else:
            heat, population = weighted_heat(space, sizes), float(sizes.sum())
        if self.heat is not None and name in self.heat:
            try:
                given = np.asarray(self.heat[name], np.float64)
            except (TypeError, ValueError) as err:
                raise MethodError(f"heat[{name!r}] must hold one number per row; {err}.") from err
            if given.shape != heat.shape:
                raise MethodError(f"heat[{name!r}] has shape {given.shape}, the space has {space.size:,} rows.")
            # An estimate may leave the possible range; exact rule: between 1 and the population.
            heat = np.clip(np.nan_to_num(given, nan=1.0), 1.0, population)
        return np.divide(population, heat, out=np.ones_like(heat), where=heat > 0)


@dataclass(frozen=True)
class OverSampledHolders:
    """The mean over those clients *of the cohort* that hold the row.

    Needs no global heat, but a row that one sampled client holds takes that client's whole step: a
    different algorithm from FedSubAvg (it was called so in the MobiCom 2020 code of Niu et al.).
    """

    weighting: str = "clients"
    needs_held = True

    def __post_init__(self) -> None:
        _check(self.weighting, WEIGHTINGS)

    def bind(self, problem: Problem, device: torch.device) -> BoundSampledMean:
        return BoundSampledMean(len(problem.clients), _client_weights(problem, self.weighting))


@dataclass
class _Weighted:
    """The clients' weights a_i, and how much of all weight took part."""

    population: int
    per_client: np.ndarray | None

    def weights(self, clients: np.ndarray) -> np.ndarray:
        return np.ones(len(clients)) if self.per_client is None else self.per_client[clients]

    def share(self, total: Total) -> float:
        """K/N, or Σ w_i over the cohort by that over everybody."""
        return total.weight / self.whole

    @cached_property
    def whole(self) -> float:
        return self.population if self.per_client is None else float(self.per_client.sum())


@dataclass
class BoundMean(_Weighted):
    """Σ a_i Δ_i / Σ a_i, times a constant per row; with ``scale``, Σ a_i Δ_i · scale / count instead."""

    coefficients: dict[str, Tensor] = field(default_factory=dict)
    scale: float | None = None

    def share(self, total: Total) -> float:
        return super().share(total) if self.scale is None else total.count / self.population

    def __call__(self, total: Total) -> Tree:
        divisor = total.weight if self.scale is None else total.count / self.scale
        mean = {}
        for name, value in total.values.items():
            out = value.div_(divisor)
            if name in self.coefficients:
                coefficient = self.coefficients[name].index_select(0, total.rows[name]).to(value.dtype)
                out.mul_(coefficient.reshape(-1, *[1] * (value.ndim - 1)))
            mean[name] = out
        return mean


@dataclass
class BoundSampledMean(_Weighted):
    def __call__(self, total: Total) -> Tree:
        mean = {}
        for name, value in total.values.items():
            if name in total.held:
                # A row whose only holders were left out (weight 0) has the sum 0: it stays as it is.
                held = total.held[name].masked_fill(total.held[name] == 0, 1.0)
                mean[name] = value.div_(held.to(value.dtype).reshape(-1, *[1] * (value.ndim - 1)))
            else:
                mean[name] = value.div_(total.weight)
        return mean


def _tempered(coefficient: np.ndarray, temper: float, cap: float | None) -> np.ndarray:
    if temper != 1.0:
        coefficient = coefficient**temper
    if cap is not None:
        coefficient = np.minimum(coefficient, cap)
    return coefficient


def _client_weights(problem: Problem, weighting: str) -> np.ndarray | None:
    return None if weighting == "clients" else problem.clients.sizes.astype(np.float64)


def _known(name: object, problem: Problem) -> str:
    return nearest(str(name), problem.spaces) if problem.spaces else "the objective has no tables."


def _check(weighting: str, valid: tuple[str, ...]) -> None:
    if weighting not in valid:
        raise MethodError(f"weighting must be one of {', '.join(valid)}; got {weighting!r}.")
