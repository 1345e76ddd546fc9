"""An empirical audit of differential privacy: what does an attacker who sees the model really learn of clients?

Canaries are clients made to be seen: each has a row that nobody else holds and always sends an update that is as long
as it may be, all of it in that row. A coin decides for each whether it is in the population at all. One run is
trained, by the machinery that trains every other run, and an attacker who knows all but the coins guesses them from the
rows: those that went furthest its way were there, those that went furthest the other way were not; in the middle it
does not guess. So many correct guesses would be unlikely if training were (ε, δ)-private for a small ε: the largest ε
that is refuted is a lower bound (T. Steinke, M. Nasr and M. Jagielski, "Privacy Auditing with One (1) Training Run",
NeurIPS 2023, Theorem 5.2).

It bounds from below what the accountant bounds from above. A bound above the accountant's is a bug; one far below it is
no proof of safety.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedsub import rng
from fedsub.checks import check_share, check_whole
from fedsub.data.clients import Clients
from fedsub.errors import MethodError
from fedsub.method.average import OverClients
from fedsub.method.local import SGD
from fedsub.method.parts import CentralDP
from fedsub.method.sampling import Everyone, Poisson
from fedsub.method.servers import Add
from fedsub.method.slots import Method
from fedsub.objective.losses import Batch, Binary
from fedsub.objective.objective import Objective
from fedsub.round.evaluate import Evaluate
from fedsub.running.run import run

# Rows stay near 0, where the gradient of the loss has the same size (½) whatever happens. A clip norm that moves ends
# at that size, which divided by the clients of a round still is little.
CLIP = 1e-3


@dataclass(frozen=True)
class Audit:
    """``lower``: the largest ε that is refuted at this confidence; ``upper``: the accountant's, perhaps infinite."""

    lower: float
    upper: float
    delta: float
    canaries: int
    guesses: int
    correct: int
    confidence: float


class _Rows(nn.Module):
    def __init__(self, rows: int):
        super().__init__()
        self.rows = nn.Embedding(rows, 1, _weight=torch.zeros(rows, 1))

    def forward(self, batch: Batch) -> Tensor:
        return self.rows(batch["row"]).view(-1)


def audit(
    noise: float,
    *,
    rounds: int = 50,
    rate: float = 0.5,
    canaries: int = 1000,
    guesses: float = 0.2,
    delta: float = 1e-5,
    accountant: str = "pld",
    eager: bool = False,
    quantile: float | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Audit:
    """Train with `CentralDP` on canaries and say what the trained rows give away.

    ``guesses`` is the share of canaries of which the attacker says anything: half of them the highest rows, half the
    lowest. With ``quantile`` the clip norm moves (`CentralDP`).
    """
    check_whole("canaries", canaries, 20)
    for name, share in (("rate", rate), ("guesses", guesses), ("confidence", confidence)):
        check_share(name, share)
    there = np.flatnonzero(rng.uniform(rng.key(seed, rng.CANARY, np.arange(canaries))) < 0.5)
    expected = round(rate * len(there))
    if not expected:
        raise MethodError(f"rate={rate:g} of {len(there)} canaries is nobody; raise it, or take more canaries.")
    clients = Clients.from_arrays(
        {"row": there, "label": there % 2}, offsets=np.arange(len(there) + 1),
        ids={"row": ["row"]}, label="label", sizes={"row": canaries},
    )  # fmt: skip
    part = CentralDP(CLIP, noise, delta=delta, accountant=accountant, eager=eager, quantile=quantile)
    method = Method(
        local=SGD(lr=1.0, local_steps=1, batch_size=1), parts=(part,), average=OverClients("clients"), server=Add(),
        sampler=Everyone() if rate == 1 else Poisson(expected), name="audit",
    )  # fmt: skip
    objective = Objective(_Rows(canaries), Binary("label"), {"rows.weight": "row"})
    result = run(method, objective, clients, rounds=rounds, seed=seed, evaluate=Evaluate(every=rounds))
    ways = np.arange(canaries) % 2 * 2 - 1  # rows of label 1 rise, those of label 0 fall
    scores = result.params["rows.weight"].view(-1).double().numpy() * ways
    order, each = np.argsort(scores, kind="stable"), max(1, int(guesses * canaries / 2))
    inside = np.isin(np.arange(canaries), there)
    correct = int(inside[order[-each:]].sum() + (~inside[order[:each]]).sum())
    lower = refuted(canaries, 2 * each, correct, delta, confidence)
    return Audit(lower, result.privacy["epsilon"], delta, canaries, 2 * each, correct, confidence)


def refuted(canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95) -> float:
    """The largest ε for which so many correct guesses have a chance of at most 1 − confidence; 0 if there is none."""
    if chance(canaries, guesses, correct, 0.0, delta) > 1 - confidence:
        return 0.0
    low, high = 0.0, 1.0
    while chance(canaries, guesses, correct, high, delta) <= 1 - confidence:
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (
            (middle, high) if chance(canaries, guesses, correct, middle, delta) <= 1 - confidence else (low, middle)
        )
    return low


def chance(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """An upper bound on the chance of so many correct guesses, if training is (ε, δ)-private (Theorem 5.2)."""
    likely = 1 / (1 + math.exp(-epsilon))
    k = np.arange(guesses + 1)
    ways = np.array([math.lgamma(guesses + 1) - math.lgamma(i + 1) - math.lgamma(guesses - i + 1) for i in k.tolist()])
    mass = np.exp(ways + k * math.log(likely) + (guesses - k) * math.log1p(-likely))
    beta = float(mass[correct:].sum())
    below = np.cumsum(mass[:correct][::-1]) / np.arange(1, correct + 1)  # Pr[correct − i ≤ B < correct] / i
    return min(1.0, beta + 2 * canaries * delta * float(below.max(initial=0.0)))
