"""The numbers that the FedSubAvg paper prints, as it prints them.

Ding et al., "Federated Submodel Optimization for Hot and Cold Data Features", NeurIPS 2022. The paper has no repeats
and no error bars. ``None`` in rounds: not reached within the task's ``rounds``.
"""

from __future__ import annotations

from dataclasses import dataclass

METHODS = ("CentralSGD", "FedAvg", "FedProx", "Scaffold", "FedAdam", "FedSubAvg")


@dataclass(frozen=True)
class Published:
    """A task's row of Tables 1 to 3. ``loss`` says in which convention the paper's target is."""

    title: str
    clients: int
    samples: int
    per_client: int
    dispersion: int
    target: str
    rounds: int
    to_target: dict[str, int | None]
    by_cohort: dict[int, int]
    best_auc: dict[str, float]
    loss: str = ""
    sparsity: float | None = None  # of the manuscript (its Table 1)


def _row(*rounds: int | None) -> dict[str, int | None]:
    return dict(zip(METHODS, rounds, strict=True))


PUBLISHED: dict[str, Published] = {
    "movielens": Published(
        "MovieLens-1M", 6_040, 1_000_209, 165, 4_331,
        "training loss 0.325", 200, _row(180, 170, 170, 180, 170, 100), {10: 100, 30: 110, 50: 100}, {},
        "half cross-entropy: the mean over two classes; 0.325 is a cross-entropy of 0.650 nats", 0.0416,
    ),
    "sentiment": Published(
        "Sent140", 1_473, 79_050, 54, 1_451,
        "training loss 0.380", 1_000, _row(980, None, None, None, None, 260), {10: 420, 30: 270, 50: 260}, {},
        "cross-entropy in nats: half of it would start below the target", 0.1315,
    ),
    "amazon": Published(
        "Amazon Electronics", 1_870, 123_147, 66, 232,
        "test AUC 0.6", 200, _row(20, None, None, None, 16, 53), {20: 95, 60: 57, 100: 53},
        {"CentralSGD": 0.654, "FedAvg": 0.519, "Scaffold": 0.514, "FedAdam": 0.633, "FedSubAvg": 0.641},
    ),
    "alibaba": Published(
        "Alibaba", 49_023, 16_864_641, 344, 3_142,
        "test AUC 0.6", 5_000, _row(265, None, None, None, None, 610), {20: 3_469, 60: 1_030, 100: 610},
        {"CentralSGD": 0.642, "FedAvg": 0.509, "FedProx": 0.514, "Scaffold": 0.507, "FedAdam": 0.554,
         "FedSubAvg": 0.626},
        sparsity=0.0049,
    ),
}  # fmt: skip


def rounds_text(published: Published, method: str) -> str:
    """The paper's rounds to the target, "200+" where it was not reached; "" for a method that it does not have."""
    if method not in published.to_target:
        return ""
    found = published.to_target[method]
    return f"{published.rounds}+" if found is None else str(found)
