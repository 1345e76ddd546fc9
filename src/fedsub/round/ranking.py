"""`Ranking`: does a client's list of items begin with those that it liked in a split?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedsub.checks import check_seed, check_whole, is_number
from fedsub.errors import ConfigError, nearest
from fedsub.objective.losses import Binary, CrossEntropy, HalfCrossEntropy, Loss
from fedsub.objective.ranking import KINDS


@dataclass(frozen=True)
class Ranking:
    """Lists of items for clients: ``hr@k``, ``ndcg@k``, ``mrr@k``, ``recall@k`` (`fedsub.objective.ranking`).

    item           the id column whose values are ranked
    k              how many items count, or several such numbers
    metrics        which measures, of hr, ndcg, mrr, recall and precision
    candidates     None: all items; else so many negatives, drawn for each list, beside its positives
    liked          positives are samples whose label is at least this; "all": every sample. Default 1 for labels 0 and 1
    exclude_seen   items of a client's training samples are in none of its lists
    split          the split whose positives are looked for; None: every one but "train"
    clients        how many clients get lists in each evaluation, the same ones every time; None: all
    final_clients  and in the last one
    seed           of the draws of negatives and clients; the same for every method and seed of a run

    The positives of a client make one list, if all its samples show the model the same in other columns; else samples
    that do share a list. Measures are means over clients, of each client's mean over its lists.
    """

    item: str = "item"
    k: int | Sequence[int] = (10,)
    metrics: Sequence[str] = ("hr", "ndcg", "mrr", "recall")
    candidates: int | None = None
    liked: float | str | None = None
    exclude_seen: bool = True
    split: str | None = None
    clients: int | None = 1000
    final_clients: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.item, str) or not self.item:
            raise ConfigError(f"item of Ranking must be the name of a column, got {self.item!r}.")
        given = self.k if isinstance(self.k, Sequence) and not isinstance(self.k, str) else (self.k,)
        for number in given:
            check_whole("k of Ranking", number, 1, error=ConfigError)
        if not given:
            raise ConfigError("k of Ranking is empty; say how many items count, such as k=10.")
        kinds = (self.metrics,) if isinstance(self.metrics, str) else tuple(self.metrics)
        for kind in kinds:
            if kind not in KINDS:
                raise ConfigError(f"Ranking has no measure {kind!r}; {nearest(str(kind), KINDS)}")
        if not kinds:
            raise ConfigError(f"metrics of Ranking is empty; name some of {', '.join(KINDS)}.")
        for name in ("candidates", "clients", "final_clients"):
            if getattr(self, name) is not None:
                check_whole(f"{name} of Ranking", getattr(self, name), 1, error=ConfigError)
        check_seed("seed of Ranking", self.seed)
        if not isinstance(self.exclude_seen, bool):
            raise ConfigError(f"exclude_seen of Ranking is {self.exclude_seen!r}, expected True or False.")
        if self.liked is not None and self.liked != "all" and not is_number(self.liked):
            raise ConfigError(
                f'liked of Ranking is {self.liked!r}, expected the smallest label of a positive, such as 4, or "all".'
            )
        object.__setattr__(self, "k", tuple(sorted({int(number) for number in given})))
        object.__setattr__(self, "metrics", tuple(dict.fromkeys(kinds)))

    @property
    def depths(self) -> tuple[int, ...]:
        assert isinstance(self.k, tuple)
        return self.k

    @property
    def names(self) -> tuple[str, ...]:
        """What it measures: hr@5, hr@10, ndcg@5 …"""
        return tuple(f"{kind}@{k}" for kind in self.metrics for k in self.depths)

    def on(self, split: str) -> bool:
        """Whether a split is ranked."""
        return split == self.split or (self.split is None and split != "train")

    def least_label(self, loss: Loss) -> float | None:
        """The smallest label of a positive; None: every sample is one."""
        if isinstance(loss, CrossEntropy):
            raise ConfigError(
                "Ranking needs one score a sample, and losses.cross_entropy has one per class; rank items with "
                "losses.binary or losses.squared, or a loss of your own over one score."
            )
        if self.liked == "all":
            return None
        if self.liked is not None:
            return float(self.liked)
        if isinstance(loss, Binary | HalfCrossEntropy):
            return 1.0
        raise ConfigError(
            "Ranking does not know which samples a client liked: say the smallest label of those, such as "
            'Ranking(liked=4), or liked="all" (evaluate.ranking.liked).'
        )

    def describe(self) -> dict[str, Any]:
        return {**vars(self), "k": list(self.depths), "metrics": list(self.metrics)}
