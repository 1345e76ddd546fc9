"""Power of choice: of a few candidates, those with the largest loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsub.errors import MethodError, nearest
from fedsub.method.groups import Cohort
from fedsub.method.sampling.base import BoundSampler, CountedSampler, by_size, check_count, largest
from fedsub.method.slots import Probe

VARIANTS = ("pow", "cpow", "rpow")


@dataclass(frozen=True)
class PowerOfChoice(CountedSampler):
    """The ``clients_per_round`` worst of ``candidates`` (pow-d; Cho, Wang, Joshi, 2020).

    d = ``candidates`` clients are drawn without replacement with probability ∝ samples; the m =
    ``clients_per_round`` of them with the largest loss F_k(w) take part, ties at random. The loss is

        "pow"   on all the candidate's data at the current model, which is sent to all d candidates
        "cpow"  the same on one mini-batch
        "rpow"  the last one seen in training, nothing is sent; a client never seen counts as +∞

    d = m is `BySize`; with all clients as candidates the m worst are taken. A loss that is not a number
    counts as +∞ when probed, and is not kept when seen in training. Where fewer than d but at least m clients
    may be drawn, all of them are candidates. Combine it with the plain mean, ``OverClients("clients")``:
    the size is in the draw.

    "Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice Selection Strategies".
    """

    clients_per_round: int = 3
    candidates: int = 6
    variant: str = "pow"

    def __post_init__(self) -> None:
        check_count("clients_per_round", self.clients_per_round)
        check_count("candidates", self.candidates)
        if self.candidates < self.clients_per_round:
            raise MethodError(
                f"candidates={self.candidates} is less than clients_per_round={self.clients_per_round}; "
                "clients are chosen among the candidates, so raise it."
            )
        if self.variant not in VARIANTS:
            raise MethodError(f"Unknown variant={self.variant!r}; {nearest(str(self.variant), VARIANTS)}")

    @property
    def probes(self) -> bool:
        return self.variant != "rpow"

    def bind(self, sizes: np.ndarray) -> BoundSampler:
        return _BoundPowerOfChoice(sizes, self)


class _BoundPowerOfChoice(BoundSampler):
    def __init__(self, sizes: np.ndarray, how: PowerOfChoice) -> None:
        super().__init__(sizes, candidates=how.candidates)
        self.how, self.least = how, how.clients_per_round
        if how.variant == "rpow":
            self.reports = ("loss",)
            self.state["loss"] = np.full(len(self.sizes), np.inf)

    def draw(self, round: int, seed: int, probe: Probe, pool: np.ndarray) -> Cohort:
        candidates = by_size(pool, self.sizes, self.how.candidates, seed, round)
        if self.how.variant == "rpow":
            losses = self.state["loss"][candidates]
        else:
            losses = np.asarray(probe(candidates, self.how.variant == "cpow"), np.float64)
        losses = np.where(np.isnan(losses), np.inf, losses)
        return Cohort.of(largest(candidates, losses, self.how.clients_per_round, seed, round))

    def observe(self, round: int, clients: np.ndarray, losses: np.ndarray, deviations: np.ndarray) -> None:
        if self.state:
            known = np.isfinite(losses)
            self.state["loss"][clients[known]] = losses[known]
