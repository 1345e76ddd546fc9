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

import numpy as np
import torch
from torch import Tensor

from fedsub.checks import check_mix, check_number
from fedsub.errors import MethodError, nearest
from fedsub.method.part import Total
from fedsub.method.patterns import Groups, check_groups, check_patterns, setting
from fedsub.objective.population import Population
from fedsub.privacy.heat import PrivateHeat
from fedsub.privacy.spending import Spend
from fedsub.trees import Tree, over_holders

WEIGHTINGS = ("clients", "samples")


@dataclass(frozen=True)
class OverClients:
    """The mean over the cohort, by client or by number of samples (McMahan et al., AISTATS 2017)."""

    weighting: str = "clients"
    needs_held = False

    def __post_init__(self) -> None:
        _check(self.weighting, WEIGHTINGS)

    def weight(self, sizes: np.ndarray) -> np.ndarray:
        return _weight(self.weighting, sizes)

    def bind(self, population: Population, device: torch.device) -> BoundMean:
        return BoundMean(_whole(self.weighting, population))


@dataclass(frozen=True)
class OverHolders:
    """The mean over all clients that hold a parameter (FedSubAvg, Ding et al., NeurIPS 2022).

    The cohort's mean is multiplied by the coefficient N/n_m (or W/W_m), a constant per row; dense
    parameters are held by everyone, coefficient 1, and so is a row that nobody holds. ``temper`` raises
    the coefficient to a power (1 as in the paper, 0 is FedAvg), ``max_coef`` caps it; ``groups`` sets both by
    parameter pattern. ``heat`` replaces the exact count: a way to estimate it in private
    (``RandomizedResponse(epsilon=1)``, see `fedsub.privacy.heat`), which is asked once before training, or numbers,
    ``{space name: n_m or W_m}``.
    """

    weighting: str = "clients"
    temper: float = 1.0
    max_coef: float | None = None
    heat: PrivateHeat | dict[str, np.ndarray] | None = field(default=None, compare=False)
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
        if isinstance(self.heat, PrivateHeat):
            self.heat.check_fits(self.weighting != "clients")
        elif self.heat is not None and not isinstance(self.heat, dict):
            raise MethodError(
                "heat must be a mechanism such as fs.privacy.RandomizedResponse(epsilon=1), or a dict "
                f"{{space name: heat of each row}}, got a {type(self.heat).__name__}; leave it out to use the exact heat."
            )

    def weight(self, sizes: np.ndarray) -> np.ndarray:
        return _weight(self.weighting, sizes)

    def bind(self, population: Population, device: torch.device) -> BoundMean:
        given = self.heat if isinstance(self.heat, dict) else {}
        for name in given:
            if name not in population.rows:
                raise MethodError(f"heat names the space {name!r}, which no table uses; {_known(name, population)}")
        check_patterns(self.groups, population.names, "OverHolders")
        whole = float(len(population)) if self.weighting == "clients" else float(population.sizes.sum())
        found = {space: self._heat(population, space, given) for space in dict.fromkeys(population.tables.values())}
        raw = {space: _coefficients(heat, whole) for space, (heat, _) in found.items()}
        notes = [sentence for _, sentence in found.values() if sentence]
        spends: tuple[Spend, ...] = ()
        if isinstance(self.heat, PrivateHeat):
            spends = self.heat.spends(len(found))
            notes.insert(0, f"heat is estimated in private, by {self.heat.title}; {_cost(spends)}")
        made: dict[tuple[str, float, float | None, bool], Tensor] = {}  # tables that agree share one array
        coefficients = {}
        for table, space in population.tables.items():
            temper = setting(self.groups, table, "temper", self.temper)
            cap = setting(self.groups, table, "max_coef", self.max_coef)
            which = (space, temper, cap, table in population.double)
            if which not in made:
                made[which] = torch.from_numpy(_tempered(raw[space], temper, cap, which[3])).to(device)
            coefficients[table] = made[which]
        if self.weighting == "unbiased":
            # Σ w_i Δ_i / K · N/W is the mean over the cohort as if W/N were every client's size.
            scale = len(population) / float(population.sizes.sum())
            return BoundMean(float(len(population)), coefficients, scale, tuple(notes), spends)
        return BoundMean(whole, coefficients, notes=tuple(notes), spends=spends)

    def _heat(self, population: Population, space: str, given: dict[str, np.ndarray]) -> tuple[np.ndarray, str]:
        """Heat of a space's rows, and a sentence on it if it is not counted exactly."""
        weighted = self.weighting != "clients"
        whole = float(population.sizes.sum()) if weighted else float(len(population))
        if isinstance(self.heat, PrivateHeat):
            estimate = population.private_heat(self.heat, space, weighted)
            heat, unsure = estimate.heat, estimate.deviation > 0
            said = f", estimated with a standard deviation of {np.median(estimate.deviation):,.4g}"
        elif space in given:
            heat = _given(given[space], space, population.rows[space])
            said, unsure = ", as given", np.ones(len(heat), bool)
        else:
            return (population.weighted_heat(space) if weighted else population.heat(space)), ""
        # An estimate may leave the possible range; exact rule: between 1 and the population.
        low, high = (int(np.count_nonzero(beyond & unsure)) for beyond in (heat < 1, heat > whole))
        sentence = (
            f"heat of {space}{said}: {low:,} of {len(heat):,} coefficients are clipped to {whole:,.0f}, as the heat was "
            f"below 1, and {high:,} to 1"
        )
        return np.where(unsure, np.clip(heat, 1.0, whole), heat), sentence


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

    def weight(self, sizes: np.ndarray) -> np.ndarray:
        return _weight(self.weighting, sizes)

    def bind(self, population: Population, device: torch.device) -> BoundSampledMean:
        return BoundSampledMean(_whole(self.weighting, population))


@dataclass
class BoundMean:
    """Σ a_i Δ_i / Σ a_i, times a constant per row; with ``scale``, Σ a_i Δ_i · scale / count instead."""

    whole: float  # Σ a_i over everybody, or (with ``scale``) how many there are
    coefficients: dict[str, Tensor] = field(default_factory=dict)
    scale: float | None = None
    notes: tuple[str, ...] = ()  # for the run's events
    spends: tuple[Spend, ...] = ()  # what it cost clients in privacy to learn the coefficients

    @property
    def kept(self) -> dict[str, Tensor]:
        """What a checkpoint keeps by table: an estimate, so that clients are not asked again."""
        return self.coefficients if self.spends else {}

    def share(self, total: Total) -> float:
        """K/N, or Σ w_i over the cohort by that over everybody."""
        return (total.weight if self.scale is None else total.count) / self.whole

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
class BoundSampledMean:
    whole: float

    def share(self, total: Total) -> float:
        return total.weight / self.whole

    def __call__(self, total: Total) -> Tree:
        return {
            name: over_holders(value, total.held[name]) if name in total.held else value.div_(total.weight)
            for name, value in total.values.items()
        }


def _cost(spends: tuple[Spend, ...]) -> str:
    """What it costs a client, in words."""
    return "for all rows of a client it costs " + " and ".join(map(str, spends))


def _given(values: object, space: str, rows: int) -> np.ndarray:
    """Heat that somebody brings, checked."""
    try:
        heat = np.asarray(values, np.float64)
    except (TypeError, ValueError) as err:
        raise MethodError(f"heat[{space!r}] must hold one number per row; {err}.") from err
    if heat.shape != (rows,):
        raise MethodError(f"heat[{space!r}] has shape {heat.shape}, the space has {rows:,} rows.")
    return np.nan_to_num(heat, nan=1.0)


def _coefficients(heat: np.ndarray, whole: float) -> np.ndarray:
    return np.divide(whole, heat, out=np.ones_like(heat), where=heat > 0)


def _tempered(coefficient: np.ndarray, temper: float, cap: float | None, double: bool) -> np.ndarray:
    if temper != 1.0:
        coefficient = coefficient**temper
    if cap is not None:
        coefficient = np.minimum(coefficient, cap)
    return coefficient.astype(np.float64 if double else np.float32)


def _weight(weighting: str, sizes: np.ndarray) -> np.ndarray:
    """a_i of clients with so many samples, float64."""
    return np.ones(len(sizes)) if weighting == "clients" else sizes.astype(np.float64)


def _whole(weighting: str, population: Population) -> float:
    return float(len(population)) if weighting == "clients" else float(population.sizes.sum())


def _known(name: object, population: Population) -> str:
    return nearest(str(name), population.rows) if population.rows else "the objective has no tables."


def _check(weighting: str, valid: tuple[str, ...]) -> None:
    if weighting not in valid:
        raise MethodError(f"weighting must be one of {', '.join(valid)}; got {weighting!r}.")
