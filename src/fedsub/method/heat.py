"""The heat of rows as an average uses it: counted, given as numbers, or estimated in private."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedsub.errors import MethodError, nearest
from fedsub.objective.population import Population
from fedsub.privacy.heat import PrivateHeat
from fedsub.privacy.spending import Spend

RESOLVABLE = "resolvable"


class GivenHeat(dict[str, np.ndarray]):
    """Heat that somebody brings, by space; two of them are equal if their numbers are."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, dict) or self.keys() != other.keys():
            return False
        return all(np.array_equal(np.asarray(self[name]), np.asarray(other[name])) for name in self)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self))


HeatSource = PrivateHeat | Mapping[str, np.ndarray] | None


@dataclass(frozen=True)
class RowHeat:
    """Of one space; 0 where nobody holds a row. ``low`` and ``high`` rows were clipped to ``least`` and to all."""

    values: np.ndarray  # float64 [rows], or of the rows that are ``held``
    counted: bool = True
    least: float = 1.0
    deviation: float = 0.0
    low: int = 0
    high: int = 0
    held: np.ndarray | None = None  # sorted; None: all rows

    @classmethod
    def of(cls, source: HeatSource, population: Population, space: str, weighted: bool, resolvable: bool) -> RowHeat:
        if space in population.scattered:
            return cls._scattered(source, population, space, weighted)
        whole = whole_of(population, weighted)
        if isinstance(source, PrivateHeat):
            estimate = population.private_heat(source, space, weighted)
            values, unsure = estimate.heat, estimate.deviation > 0
            deviation = float(np.median(estimate.deviation))
        elif source is not None and space in source:
            values, deviation = _given(source[space], space, population.rows[space]), 0.0
            unsure = np.ones(len(values), bool)
        else:
            return cls(population.weighted_heat(space) if weighted else population.heat(space))
        least = max(1.0, deviation) if resolvable else 1.0
        # An estimate may leave the possible range; exact rule: between 1 and the population.
        low, high = (int(np.count_nonzero(beyond & unsure)) for beyond in (values < least, values > whole))
        return cls(
            np.where(unsure, np.clip(values, min(least, whole), whole), values), False, least, deviation, low, high
        )

    @classmethod
    def _scattered(cls, source: HeatSource, population: Population, space: str, weighted: bool) -> RowHeat:
        if source is not None and (isinstance(source, PrivateHeat) or space in source):
            raise MethodError(
                f"heat of {space!r}, whose tables are lazy, is counted from the rows that clients hold; it can neither "
                "be estimated in private nor given, which takes a number for every row. Leave heat out, or use a "
                "table that is not lazy."
            )
        assert population.held is not None
        found = population.held(space, weighted)
        return cls(found.values.astype(np.float64), held=found.rows)

    def coefficients(self, whole: float) -> np.ndarray:
        """N/n_m, and 1 for a row that nobody holds."""
        return np.divide(whole, self.values, out=np.ones_like(self.values), where=self.values > 0)


def whole_of(population: Population, weighted: bool) -> float:
    """W, or N."""
    return float(population.sizes.sum()) if weighted else float(population.present)


def check_source(source: HeatSource, weighted: bool, max_coef: object) -> None:
    """Refuse what cannot be an average's heat."""
    if isinstance(source, PrivateHeat):
        source.check_fits(weighted)
    elif max_coef == RESOLVABLE:
        raise MethodError("max_coef='resolvable' is for private heat, whose error is known; give a number.")
    elif source is not None and not isinstance(source, dict):
        raise MethodError(
            "heat must be a mechanism such as fs.privacy.RandomizedResponse(epsilon=1), or a dict {space name: heat of "
            f"each row}}, got a {type(source).__name__}; leave it out to use the exact heat."
        )


def check_names(source: HeatSource, population: Population) -> None:
    for name in source if isinstance(source, dict) else ():
        if name not in population.rows:
            known = nearest(str(name), population.rows) if population.rows else "the objective has no tables."
            raise MethodError(f"heat names the space {name!r}, which no table uses; {known}")


def sentences(source: HeatSource, found: Mapping[str, RowHeat], whole: float, spends: tuple[Spend, ...]) -> list[str]:
    """For the events of a run: how heat was learned, what it cost, and how many coefficients were clipped."""
    clipped = {space: one for space, one in found.items() if not one.counted}
    if not clipped:
        return []
    out = []
    if isinstance(source, PrivateHeat):
        cost = " and ".join(map(str, spends))
        out.append(f"heat is estimated in private, by {source.title}; for all rows of a client it costs {cost}")
    least = max(one.least for one in clipped.values())
    low = sum(one.low for one in clipped.values())
    rows = sum(len(one.values) for one in clipped.values())
    by_space = ", ".join(f"{space} {one.low:,} of {len(one.values):,}" for space, one in clipped.items())
    high = sum(one.high for one in clipped.values())
    sentence = (
        f"of {rows:,} heat coefficients {low:,} are clipped to {whole / least:,.4g}, as the heat was below "
        f"{least:,.4g} ({by_space}), and {high:,} to 1"
    )
    deviation = max(one.deviation for one in clipped.values())
    if deviation > least:
        sentence += (
            f"; the estimates have a standard deviation of {deviation:,.4g}: max_coef='{RESOLVABLE}' caps coefficients "
            f"at {whole / deviation:,.4g}, where heat drowns in the noise"
        )
    return [*out, sentence]


def _given(values: object, space: str, rows: int) -> np.ndarray:
    """Heat that somebody brings, checked."""
    try:
        heat = np.asarray(values, np.float64)
    except (TypeError, ValueError) as err:
        raise MethodError(f"heat[{space!r}] must hold one number per row; {err}.") from err
    if heat.shape != (rows,):
        raise MethodError(f"heat[{space!r}] has shape {heat.shape}, the space has {rows:,} rows.")
    return np.nan_to_num(heat, nan=1.0)
