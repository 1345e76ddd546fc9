"""The two methods and their settings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from fedsub.checks import check_flag, check_mix, check_number, check_positive, check_whole
from fedsub.errors import MethodError
from fedsub.families.factorisation.projections import Projection
from fedsub.method.training import Algorithm, Options, Prepared
from fedsub.trees import Tree

if TYPE_CHECKING:
    from fedsub.objective.problem import Problem


@dataclass(frozen=True, kw_only=True)
class FedMAvg(Algorithm):
    """Federated matrix factorisation by model averaging: X_p ≈ W H_p with W shared and H_p private.

    Round s: every client gets W, takes ``q1`` projected gradient steps on H_p and Q2 = ⌊q2_hat / s⌋ + 1 gradient
    steps on its copy W_p. ``clients_per_round`` clients, drawn with replacement with probabilities ω_p = N_p / N, send
    W_p, and W becomes the projection of their mean; None: all clients send, and the mean is weighted by ω. Steps
    are 1/c_p and 1/d with c_p = (γ1/2) L_H,p and d = γ2 max L_W,p (`fedsub.families.factorisation.local`).

    ``projection`` is the set of the columns of H (none, nonnegative, simplex, ball:2.5, one-hot), ``projection_w`` that
    of the rows of W (none, nonnegative, ball:2.5; by default nonnegative if H is, else none). ``l2`` adds the ridge
    λ (‖w_i‖² + ‖h_j‖²) for every known entry.

    ``submodel``: a client exchanges only the rows of W that it has data of, and a row's mean is taken over the clients
    that hold it: W_i + Σ_A (1/m) Δ_pi / Ω_i^temper with Ω_i = Σ ω_p over all holders. ``temper`` = 0 gives the numbers
    of the full method, in which a row with few holders hardly moves. ``temper`` = 1 is the unbiased mean over the
    holders, but a row with few of them moves by far more than they asked for in a round in which they are drawn.
    ``bounded`` (default) divides by the share of the drawn holders where that is larger: then a row never leaves the
    hull of what was sent.

    S. Wang, R. C. Suwandi, T.-H. Chang, "Demystifying Model Averaging for Communication-Efficient Federated Matrix
    Factorization", ICASSP 2021. The submodel form and the ridge are fedsub's.
    """

    clients_per_round: int | None = None
    q1: int = 5
    q2_hat: int = 20
    gamma1: float = 2.0
    gamma2: float = 1.0
    projection: str = "none"
    projection_w: str | None = None
    l2: float = 0.0
    submodel: bool = False
    temper: float = 1.0
    bounded: bool = True
    name: str = "fedmavg"
    pooled: bool = False

    def __post_init__(self) -> None:
        counts = {"q1": (self.q1, 1), "q2_hat": (self.q2_hat, 0)}
        if self.clients_per_round is not None:
            counts["clients_per_round"] = self.clients_per_round, 1
        for setting, (value, low) in counts.items():
            check_whole(f"{setting} of fedmavg", value, low)
        check_positive("gamma2 of fedmavg", self.gamma2)
        check_number("gamma1 of fedmavg", self.gamma1, least=1)
        if self.gamma1 == 1:
            raise MethodError("gamma1 of fedmavg must be above 1, got 1: steps on H are 1/c with c = (gamma1/2) L.")
        check_number("l2 of fedmavg", self.l2, least=0)
        check_mix("temper of fedmavg", self.temper)
        for setting in ("submodel", "bounded"):
            check_flag(f"{setting} of fedmavg", getattr(self, setting))
        if self.w_set.kind in ("simplex", "one-hot"):
            raise MethodError(f"projection_w may be none, nonnegative or ball:RADIUS, got {self.projection_w!r}.")
        _ = self.h_set

    @cached_property
    def h_set(self) -> Projection:
        return Projection.parse(self.projection)

    @cached_property
    def w_set(self) -> Projection:
        if self.projection_w is not None:
            return Projection.parse(self.projection_w)
        return Projection("nonnegative" if self.projection == "nonnegative" else "none")

    def w_steps(self, round: int) -> int:
        """Q2 of a round s = 1, 2, …: ⌊q2_hat / s⌋ + 1."""
        return self.q2_hat // round + 1

    def prepare(self, problem: Problem, params: Tree, options: Options) -> Prepared:
        from fedsub.families.factorisation.trainer import prepare

        return prepare(self, problem, params, options)


@dataclass(frozen=True, kw_only=True)
class SFMF(Algorithm):
    """Distributed matrix factorisation: every user, every round, one gradient step on its vector and on all items'.

        h_p ← h_p − γ (∇_h ‖X_p − W h_p‖² + 2 λ h_p)        W ← W − γ (Σ_p ∇_W ‖X_p − W h_p‖² + 2 λ W)

    γ is ``step``, λ is ``l2``; both gradients are taken at the same point. With ``submodel`` users exchange the rows
    of items they rated (the paper's PartText), otherwise whole gradients (FullText), which hides what they rated. The
    paper encrypts what is sent, which changes no number; that is left out.

    D. Chai, L. Wang, K. Chen, Q. Yang, "Secure Federated Matrix Factorization", 2019.
    """

    step: float = 0.001
    l2: float = 10.0
    submodel: bool = False
    name: str = "sfmf"
    pooled: bool = False

    def __post_init__(self) -> None:
        check_positive("step of sfmf", self.step)
        check_number("l2 of sfmf", self.l2, least=0)
        check_flag("submodel of sfmf", self.submodel)

    def prepare(self, problem: Problem, params: Tree, options: Options) -> Prepared:
        from fedsub.families.factorisation.trainer import prepare

        return prepare(self, problem, params, options)
