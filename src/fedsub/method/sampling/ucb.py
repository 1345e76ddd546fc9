"""UCB-CS: client selection as a bandit whose reward is the training loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedsub.checks import check_flag, check_share, check_whole
from fedsub.method.groups import Cohort
from fedsub.method.sampling.base import BoundSampler, CountedSampler, largest
from fedsub.method.slots import Probe


@dataclass(frozen=True)
class UCB(CountedSampler):
    """The ``clients_per_round`` clients with the largest index A (UCB-CS; Cho, Gupta, Joshi, Yağan, 2020).

    After t rounds, with γ = ``gamma``, p_k the share of client k in the data, S(t') the clients that delivered
    in round t', ℓ_k(t') the mean and σ_k the standard deviation of the loss over their local steps:

        L_t(k) = Σ_t' γ^(t−t') 1[k ∈ S(t')] ℓ_k(t')
        N_t(k) = Σ_t' γ^(t−t') 1[k ∈ S(t')]
        T_t    = Σ_{t'=1..t} γ^(t−t')
        A_t(k) = p_k [ L_t(k) / N_t(k) + √(2 σ_t² ln T_t / N_t(k)) ]     +∞ while N_t(k) = 0

    σ_t is the largest of the clients' latest σ_k. Ties are broken at random. Every client's A is computed
    anew in every round, so that the bonus of one that is not chosen grows. With ``stale_discount`` A is
    computed only when a client delivers and is multiplied by γ in every later round: the pseudo-code's reading,
    in which a client that is not chosen sinks and may never come back.

    A loss that is not finite is no observation; a deviation that is not finite counts as 0. A client that is
    chosen but never delivers keeps A = +∞ and is asked again.

    "Bandit-based Communication-Efficient Client Selection Strategies for Federated Learning".
    """

    clients_per_round: int = 3
    gamma: float = 0.7
    stale_discount: bool = False

    def __post_init__(self) -> None:
        check_whole("clients_per_round", self.clients_per_round, 1)
        check_share("gamma", self.gamma)
        check_flag("stale_discount", self.stale_discount)

    def bind(self, sizes: np.ndarray) -> BoundSampler:
        return _BoundUCB(sizes, self)


class _BoundUCB(BoundSampler):
    """The state of client k is as of round seen[k], the last in which it delivered; discounts since then are
    applied when it is read. So nothing fades to 0, and rounds without an observation need no care.

        mean   L/N, in which the discount cancels     sigma  the latest σ_k
        count  N at seen[k], at least 1; 0: never      index  A at seen[k], with stale_discount only
    """

    reports = ("loss", "deviation")

    def __init__(self, sizes: np.ndarray, how: UCB) -> None:
        super().__init__(sizes, clients_per_round=how.clients_per_round)
        self.least, self.gamma = how.clients_per_round, float(how.gamma)
        self.share = self.sizes / self.sizes.sum()
        names = ("mean", "count", "sigma", "index") if how.stale_discount else ("mean", "count", "sigma")
        self.state = {name: np.zeros(len(self.sizes)) for name in names}
        self.state["seen"] = np.zeros(len(self.sizes), np.int64)

    def meet(self, sizes: np.ndarray) -> None:
        super().meet(sizes)
        self.share = self.sizes / self.sizes.sum()

    def draw(self, round: int, seed: int, probe: Probe, pool: np.ndarray) -> Cohort:
        past = round - 1
        if "index" in self.state:
            scores = self.state["index"][pool] * self._fade(pool, past)
        else:
            scores = self._index(pool, past)
        scores[self.state["count"][pool] == 0] = np.inf
        return Cohort.of(largest(pool, scores, self.least, seed, round))

    def observe(self, round: int, clients: np.ndarray, losses: np.ndarray, deviations: np.ndarray) -> None:
        known, state = np.isfinite(losses), self.state
        clients, losses, deviations = clients[known], losses[known], deviations[known]
        state["count"][clients] = state["count"][clients] * self._fade(clients, round) + 1
        state["seen"][clients] = round
        state["mean"][clients] += (losses - state["mean"][clients]) / state["count"][clients]
        state["sigma"][clients] = np.where(np.isfinite(deviations), deviations, 0.0)
        if "index" in state:
            state["index"][clients] = self._index(clients, round)

    def _fade(self, clients: np.ndarray, t: int) -> np.ndarray:
        """γ to the number of rounds from a client's last observation to round t."""
        return self.gamma ** np.maximum(t - self.state["seen"][clients], 0)

    def _index(self, clients: np.ndarray, t: int) -> np.ndarray:
        """A_t of clients that have been observed."""
        mean, sigma = self.state["mean"][clients], self.state["sigma"].max()
        scale = sigma * math.sqrt(2 * math.log(max(1.0, self._time(t))))
        if scale > 0:  # a bonus of 0 stays 0, however far N has faded
            with np.errstate(divide="ignore"):
                mean = mean + scale / np.sqrt(self.state["count"][clients] * self._fade(clients, t))
        return self.share[clients] * mean

    def _time(self, t: int) -> float:
        """T_t, a geometric sum."""
        return float(t) if self.gamma == 1 else -math.expm1(t * math.log(self.gamma)) / (1 - self.gamma)
