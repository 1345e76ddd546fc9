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

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedsub.checks import check_mix, check_number
from fedsub.data.held import Held
from fedsub.errors import MethodError
from fedsub.method.heat import RESOLVABLE, GivenHeat, RowHeat, check_names, check_source, sentences, whole_of
from fedsub.method.part import Total
from fedsub.method.patterns import Groups, check_groups, check_patterns, setting
from fedsub.method.slots import Average, BoundAverage
from fedsub.objective.population import Population
from fedsub.privacy.heat import PrivateHeat
from fedsub.privacy.spending import Spend
from fedsub.trees import Tree, over_holders, rows_of

WEIGHTINGS = ("clients", "samples")


class Averaging:
    """What an average says of itself unless it says otherwise. Subclasses are frozen dataclasses."""

    needs_held: bool = False  # whether Σ a_i by row is needed

    @property
    def corrects(self) -> bool:
        """Whether the mean of a row is multiplied by a positive number of the row's own."""
        return False

    @property
    def unbiased(self) -> bool:
        """Whether it divides by how many clients came, whatever they weigh."""
        return False

    def grouped(self, name: str, groups: Groups) -> Average:
        """The average with settings by parameter pattern, for the method ``name``."""
        raise MethodError(
            f"groups set temper or max_coef, the heat correction's exponent and cap, which {name} does not have; "
            "use fedsubavg."
        )

    def spends(self, population: Population) -> tuple[Spend, ...]:
        """What it costs clients in privacy, once, that it learns what it must know of them."""
        return ()

    def weight(self, sizes: np.ndarray) -> np.ndarray:
        """a_i of clients with so many samples, float64."""
        raise NotImplementedError

    def bind(self, population: Population, device: torch.device) -> BoundAverage:
        """The server's half."""
        raise NotImplementedError


@dataclass(frozen=True)
class OverClients(Averaging):
    """The mean over the cohort, by client or by number of samples (McMahan et al., AISTATS 2017)."""

    weighting: str = "clients"

    def __post_init__(self) -> None:
        _check(self.weighting, WEIGHTINGS)

    def weight(self, sizes: np.ndarray) -> np.ndarray:
        return _weight(self.weighting, sizes)

    def bind(self, population: Population, device: torch.device) -> BoundMean:
        return BoundMean(_whole(self.weighting, population))


@dataclass(frozen=True)
class OverHolders(Averaging):
    """The mean over all clients that hold a parameter (FedSubAvg, Ding et al., NeurIPS 2022).

    The cohort's mean is multiplied by the coefficient N/n_m (or W/W_m), a constant per row; dense
    parameters are held by everyone, coefficient 1, and so is a row that nobody holds. ``temper`` raises
    the coefficient to a power (1 as in the paper, 0 is FedAvg), ``max_coef`` caps it; ``groups`` sets both by
    parameter pattern. ``heat`` replaces the exact count: a way to estimate it in private
    (``RandomizedResponse(epsilon=1)``, see `fedsub.privacy.heat`), which is asked once before training, or numbers,
    ``{space name: n_m or W_m}``. ``max_coef="resolvable"`` takes an estimate for at least its standard deviation.
    """

    weighting: str = "clients"
    temper: float = 1.0
    max_coef: float | str | None = None
    heat: PrivateHeat | dict[str, np.ndarray] | None = None
    groups: Groups | None = None

    def __post_init__(self) -> None:
        _check(self.weighting, (*WEIGHTINGS, "unbiased"))
        check_groups(self.groups, ("temper", "max_coef"), "OverHolders")
        for pattern, values in (self.groups or {}).items():
            check_mix(f"groups[{pattern!r}]['temper'] of OverHolders", values.get("temper", 1.0))
            check_number(f"groups[{pattern!r}]['max_coef'] of OverHolders", values.get("max_coef", 1.0), least=1)
        check_mix("temper", self.temper, hint="0 is FedAvg, 1 is FedSubAvg")
        if self.max_coef not in (None, RESOLVABLE):  # 1 is the coefficient of dense parameters
            check_number("max_coef", self.max_coef, least=1)
        check_source(self.heat, self.weighting != "clients", self.max_coef)
        if isinstance(self.heat, dict):
            object.__setattr__(self, "heat", GivenHeat(self.heat))

    @property
    def corrects(self) -> bool:
        settings = [(self.temper, self.max_coef)]
        for values in (self.groups or {}).values():
            settings.append((values.get("temper", self.temper), values.get("max_coef", self.max_coef)))
        return any(temper > 0 and cap != 1 for temper, cap in settings)

    @property
    def unbiased(self) -> bool:
        return self.weighting == "unbiased"

    def grouped(self, name: str, groups: Groups) -> Average:
        return replace(self, groups=groups)

    def spends(self, population: Population) -> tuple[Spend, ...]:
        return self.heat.spends(len(_spaces(population))) if isinstance(self.heat, PrivateHeat) else ()

    def weight(self, sizes: np.ndarray) -> np.ndarray:
        return _weight(self.weighting, sizes)

    def bind(self, population: Population, device: torch.device) -> BoundMean:
        check_names(self.heat, population)
        check_patterns(self.groups, population.names, "OverHolders")
        weighted, resolvable = self.weighting != "clients", self.max_coef == RESOLVABLE
        whole = whole_of(population, weighted)
        found = {space: RowHeat.of(self.heat, population, space, weighted, resolvable) for space in _spaces(population)}
        raw = {space: heat.coefficients(whole) for space, heat in found.items()}
        spends = self.spends(population)
        notes = tuple(sentences(self.heat, found, whole, spends))
        made: dict[tuple[str, float, float | None, bool], Tensor | OfHeld] = {}  # tables that agree share one array
        coefficients = {}
        for table, space in population.tables.items():
            temper = setting(self.groups, table, "temper", self.temper)
            cap = setting(self.groups, table, "max_coef", None if resolvable else self.max_coef)
            which = (space, temper, cap, table in population.double)
            if which not in made:
                values = torch.from_numpy(_tempered(raw[space], temper, cap, which[3])).to(device)
                held = found[space].held
                made[which] = values if held is None else OfHeld(population.rows[space], held, values)
            coefficients[table] = made[which]
        if self.weighting == "unbiased":
            # Σ w_i Δ_i / K · N/W is the mean over the cohort as if W/N were every client's size.
            scale = population.present / float(population.sizes.sum())
            return BoundMean(float(population.present), coefficients, scale, notes, spends)
        return BoundMean(whole, coefficients, notes=notes, spends=spends)


@dataclass(frozen=True)
class OverSampledHolders(Averaging):
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


@dataclass(frozen=True)
class OfHeld:
    """A coefficient of every row that somebody holds, and 1 of all others (a `fedsub.trees.RowSource`)."""

    size: int
    held: np.ndarray  # sorted
    values: Tensor

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.size,))

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        return self.values.device

    def take(self, rows: Tensor) -> Tensor:
        return torch.from_numpy(Held(self.held, self.values.numpy()).at(rows.numpy(), missing=1.0))


@dataclass
class BoundMean:
    """Σ a_i Δ_i / Σ a_i, times a constant per row; with ``scale``, Σ a_i Δ_i · scale / count instead."""

    whole: float  # Σ a_i over everybody, or (with ``scale``) how many there are
    coefficients: dict[str, Tensor | OfHeld] = field(default_factory=dict)
    scale: float | None = None
    notes: tuple[str, ...] = ()  # for the run's events
    spends: tuple[Spend, ...] = ()  # what it cost clients in privacy to learn the coefficients

    @property
    def kept(self) -> dict[str, Tensor]:
        """What a checkpoint keeps by table: an estimate, so that clients are not asked again."""
        own = {name: value for name, value in self.coefficients.items() if isinstance(value, Tensor)}
        return own if self.spends else {}

    def share(self, total: Total) -> float:
        """K/N, or Σ w_i over the cohort by that over everybody."""
        return (total.weight if self.scale is None else total.count) / self.whole

    def cut(self, rows: Mapping[str, Tensor]) -> BoundMean:
        """The same for some rows of each table, numbered anew."""
        return replace(self, coefficients={n: rows_of(c, rows[n]) for n, c in self.coefficients.items()})

    def __call__(self, total: Total) -> Tree:
        divisor = total.weight if self.scale is None else total.count / self.scale
        mean = {}
        for name, value in total.values.items():
            out = value.div_(divisor)
            if name in self.coefficients:
                coefficient = rows_of(self.coefficients[name], total.rows[name]).to(value.dtype)
                out.mul_(coefficient.reshape(-1, *[1] * (value.ndim - 1)))
            mean[name] = out
        return mean


@dataclass
class BoundSampledMean:
    whole: float

    def cut(self, rows: Mapping[str, Tensor]) -> BoundSampledMean:
        return self

    def share(self, total: Total) -> float:
        return total.weight / self.whole

    def __call__(self, total: Total) -> Tree:
        return {
            name: over_holders(value, total.held[name]) if name in total.held else value.div_(total.weight)
            for name, value in total.values.items()
        }


def _spaces(population: Population) -> tuple[str, ...]:
    """Those that number a table's rows."""
    return tuple(dict.fromkeys(population.tables.values()))


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
    return float(population.present) if weighting == "clients" else float(population.sizes.sum())


def _check(weighting: str, valid: tuple[str, ...]) -> None:
    if weighting not in valid:
        raise MethodError(f"weighting must be one of {', '.join(valid)}; got {weighting!r}.")
