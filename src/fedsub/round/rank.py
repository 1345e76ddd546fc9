"""Ranks the items of clients' lists by a model, all of them or candidates that were drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsub.data.clients import Clients
from fedsub.data.held import held_deciles
from fedsub.errors import ConfigError, nearest
from fedsub.objective import ranking as measures
from fedsub.objective.metrics import twentieths
from fedsub.objective.problem import Problem
from fedsub.round import lists
from fedsub.round.filling import Filling
from fedsub.round.lists import Lists
from fedsub.round.predict import PersonalModel
from fedsub.round.ranking import Ranking
from fedsub.round.score import Scorer
from fedsub.trees import Model

Array = np.ndarray
SCORES = 1 << 22  # of lists times items at a time
PERSONAL = 1 << 18  # the same, where clients are computed side by side


class Ranker:
    """The lists of splits, made once, and their measures for any model."""

    def __init__(
        self, plan: Ranking, problem: Problem, splits: dict[str, Clients], population: Clients, scorer: Scorer
    ):
        self.plan, self.problem, self.splits = plan, problem, splits
        self.population, self.scorer = population, scorer
        self.label = getattr(problem.objective.loss, "label", None)
        self.least = plan.least_label(problem.objective.loss)
        self._filling: dict[str, Filling] = {}
        self._lists: dict[tuple[str, int | None], Lists] = {}
        if plan.split is not None and plan.split not in splits:
            raise ConfigError(f"Ranking is of the split {plan.split!r}; {nearest(plan.split, splits)}")
        for split in self.ranked:
            self._check(split)

    @property
    def ranked(self) -> list[str]:
        return [name for name in self.splits if self.plan.on(name)]

    def _check(self, split: str) -> None:
        data, item, columns = self.splits[split], self.plan.item, self.scorer.columns
        if item not in data.columns or data.columns[item].space is None:
            known = [name for name, column in data.columns.items() if column.space is not None]
            raise ConfigError(f"Ranking is by the id column {item!r}, which the data lacks; {nearest(item, known)}")
        if columns and item not in columns:
            raise ConfigError(f"Ranking is by column {item!r}, which the model does not read; {nearest(item, columns)}")
        if self.plan.exclude_seen and data.fingerprint == self.population.fingerprint:
            raise ConfigError(
                f"Every item of the split {split!r} was seen in training, so none is left to rank; rank another split, "
                "or give Ranking(exclude_seen=False)."
            )

    def __call__(self, split: str, model: Model | PersonalModel) -> dict[str, float]:
        """{"hr@10": …} over the clients of every evaluation."""
        made = self._made(split, self.plan.clients)
        return {name: float(values.mean()) for name, values in self._measured(made, split, model)[0].items()}

    def final(self, split: str, model: Model | PersonalModel) -> dict[str, Any]:
        """The measures, and under ``ranking`` how many lists there are, quantiles over clients, recall by item heat."""
        made = self._made(split, self.plan.final_clients)
        found, places = self._measured(made, split, model)
        told: dict[str, Any] = {
            "item": self.plan.item, "lists": len(made), "clients": made.clients,
            "without_positives": len(made.who) - made.clients, "positives": len(made.positive),
            "seen_positives": made.repeated, "candidates": self.plan.candidates,
        }  # fmt: skip
        told |= {f"{name}_quantiles": twentieths(values) for name, values in found.items()}
        told["deciles"] = self._by_heat(made, places)
        return {**{name: float(values.mean()) for name, values in found.items()}, "ranking": told}

    def sentences(self) -> list[str]:
        """What a reader of the measures must know."""
        said = dict.fromkeys(self._fill(split).sentence for split in self.ranked)
        return [sentence for sentence in said if sentence]

    def _fill(self, split: str) -> Filling:
        if split not in self._filling:
            parts = [self.population, self.splits[split]]
            self._filling[split] = Filling.find(self.plan.item, self.scorer.columns, parts)
        return self._filling[split]

    def _made(self, split: str, count: int | None) -> Lists:
        if (split, count) not in self._lists:
            self._lists[split, count] = made = lists.make(
                self.plan, self.least, split, self.splits[split], self.population, self._fill(split), count, self.label
            )
            if not len(made):
                raise ConfigError(
                    f"No client of the split {split!r} has a positive to rank ({len(made.who):,} were looked at, "
                    f"{made.repeated:,} positives had been seen in training); lower liked of Ranking, or rank more "
                    "clients (clients=None)."
                )
        return self._lists[split, count]

    def _measured(
        self, made: Lists, split: str, model: Model | PersonalModel
    ) -> tuple[dict[str, Array], Array]:  # fmt: skip
        """(each measure by client, the places of all positives)."""
        personal = isinstance(model, PersonalModel)
        above, tied, score = (np.zeros(len(made.positive)) for _ in range(3))
        width = len(self._fill(split).known) if made.drawn is None else made.drawn.shape[1] + 1
        step = max(1, (PERSONAL if personal else SCORES) // width)
        for first in range(0, len(made), step):
            some = np.arange(first, min(first + step, len(made)))
            which, row, item = made.positives_of(first, int(some[-1]) + 1)
            ask = self._all if made.drawn is None else self._candidates
            others, there, score[which] = ask(made, split, model, some, row, item)
            above[which], tied[which] = _beaten(others, there, row, score[which], step * width)
        places = measures.place(made.owner, score, above, tied)
        found = {}
        for kind in self.plan.metrics:
            for k in self.plan.depths:
                values = measures.by_list(kind, k, made.owner, places, len(made))
                found[f"{kind}@{k}"] = measures.mean_by_owner(values, made.client)
        return found, places

    def _all(self, made: Lists, split: str, model: Model | PersonalModel, some: Array, row: Array, item: Array):
        """(scores [lists, items], which of them are negatives, scores of the positives) of some lists."""
        filling = self._fill(split)
        items = np.flatnonzero(filling.known)
        place = np.cumsum(filling.known) - 1
        if isinstance(model, PersonalModel):
            scores = self._ask(split, model, made, some, np.broadcast_to(items, (len(some), len(items))))
        else:  # lists that show the model the same are ranked alike
            _, one, of = np.unique(made.context[some], return_index=True, return_inverse=True)
            scores = self._ask(split, model, made, some[one], np.broadcast_to(items, (len(one), len(items))))[of]
        there = np.ones(scores.shape, bool)
        owner, hidden = made.out_of(some)
        real = filling.known[hidden]
        there[owner[real], place[hidden[real]]] = False
        return scores, there, scores[row, place[item]]

    def _candidates(self, made: Lists, split: str, model: Model | PersonalModel, some: Array, row: Array, item: Array):
        """The same for the negatives that were drawn."""
        assert made.drawn is not None
        drawn = made.drawn[some]
        turn = np.arange(len(row)) - np.searchsorted(row, row)  # which of its list's positives each one is
        own = np.repeat(item[np.searchsorted(row, np.arange(len(some)))][:, None], int(turn.max()) + 1, 1)
        own[row, turn] = item
        items = np.concatenate([np.where(drawn < 0, own[:, :1], drawn), own], 1)
        scores = self._ask(split, model, made, some, items)
        return scores[:, : drawn.shape[1]], drawn >= 0, scores[row, drawn.shape[1] + turn]

    def _ask(self, split: str, model: Model | PersonalModel, made: Lists, some: Array, items: Array) -> Array:
        data = self.splits[split]
        arrays = self._fill(split).arrays(data, made.sample[some], np.array(items))
        return self.scorer.scores(model, data.client_ids[made.client[some]], arrays)

    def _by_heat(self, made: Lists, places: Array) -> list[dict[str, Any]]:
        """How many of the positives stand among the first, by the heat of the item; −1: in no training sample."""
        space = self.population.space_of(self.plan.item)
        tenth = held_deciles({space.name: space})[space.name].at(made.positive, -1)
        return [
            {
                "group": g, "positives": int((tenth == g).sum()),
                **{f"recall@{k}": float((places[tenth == g] <= k).mean()) for k in self.plan.depths},
            }
            for g in range(-1, 10) if (tenth == g).any()
        ]  # fmt: skip


def _beaten(scores: Array, there: Array, row: Array, score: Array, most: int) -> tuple[Array, Array]:
    """(negatives above, negatives beside) of each positive; its list is ``row``, its score ``score``."""
    negatives = np.where(there, scores, np.nan)  # which is neither above nor beside anything
    above, tied = np.zeros(len(row)), np.zeros(len(row))
    step = max(1, most // max(1, scores.shape[1]))
    for low in range(0, len(row), step):
        others, own = negatives[row[low : low + step]], score[low : low + step, None]
        above[low : low + step] = np.count_nonzero(others > own, axis=1)
        tied[low : low + step] = np.count_nonzero(others == own, axis=1)
    return above, tied
