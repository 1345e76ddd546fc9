"""The server-side approximation of Scaffold."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from fedsub.checks import check_flag, check_mix, check_share
from fedsub.method.patterns import Groups
from fedsub.method.servers.base import Gaps, RowServer
from fedsub.trees import Tree


@dataclass(frozen=True)
class ScaffoldHistory(RowServer):
    """X ← X + lr · ((1−β) Δ + β h), then h ← (1−ρ) h + ρ Δ, with h = 0 at the start.

    Scaffold (Karimireddy et al., ICML 2020) steps by Δ + I η (c̄ − c), where −I η c is the history of the mean
    update and c̄ the mean of the cohort's control variates. Where clients cannot keep variates, c̄ is not to be
    had, and the server mixes update and history instead. **This rule is fedsub's own**: Ding et al. (NeurIPS
    2022) describe such an approximation in words only, so do not present its results as a reproduction of
    theirs. ρ is K/N, the share of clients in a round, unless ``rho`` is given; β = 0 is `Add`.

    Rows that nobody sent (Δ = 0) go on moving by β h while h decays, unless ``sparse_server``. ``groups`` sets
    lr by parameter pattern.
    """

    lr: float = 1.0
    beta: float = 0.5
    sparse_server: bool = False
    groups: Groups | None = None
    rho: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_mix("beta of ScaffoldHistory", self.beta, hint="0 is Add, 1 moves by the history only")
        check_flag("sparse_server", self.sparse_server)
        if self.rho is not None:
            check_share("rho of ScaffoldHistory", self.rho, hint="use clients per round / clients")

    def fitted(self, share: float, rounds: int | None = None) -> ScaffoldHistory:
        return self if self.rho is not None else replace(self, rho=share)

    @property
    def _kept(self) -> float:
        """The share of the history that one round leaves."""
        assert self.rho is not None, "fitted() comes first"
        return 1 - self.rho

    @property
    def lazy(self) -> bool:
        return self.beta > 0 and not self.sparse_server

    @property
    def slots(self) -> tuple[str, ...]:
        return ("h",) if self.beta > 0 else ()

    def move(self, update: Tensor, held: Tree) -> Tensor:
        if self.beta == 0:
            return update
        moved = (update * (1 - self.beta)).add_(held["h"], alpha=self.beta)
        held["h"].mul_(self._kept).add_(update, alpha=1 - self._kept)
        return moved

    def drift(self, held: Tree, gaps: Gaps) -> Tensor:
        h = held["h"]
        kept = self._kept
        # The first of the k rounds moves by β h itself: 1 + q + … + q^(k−1), q = 1 − ρ.
        moved = h * (1 + Gaps(gaps.rounds - 1).geometric(kept, h)) * self.beta
        h.mul_(gaps.power(kept, h))
        return moved

    def mean_drift(self, held: Tree, gaps: Gaps, fade: float) -> Tensor:
        h, kept = held["h"], self._kept
        if kept == 0:  # the first round's β h is all
            return h * self.beta
        return h * gaps.mean_geometric(kept, fade, h) * (self.beta / kept)
