"""Evaluation of the full model on fixed samples of each split, also by heat decile and by client."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsub.checks import check_whole
from fedsub.data.clients import Clients, Space
from fedsub.data.held import Held, held_deciles, held_heat
from fedsub.errors import ConfigError, nearest
from fedsub.objective import metrics
from fedsub.objective.losses import Binary, CrossEntropy, HalfCrossEntropy, Loss, Squared, measured
from fedsub.objective.metric import Answers, Metric, metrics_of
from fedsub.objective.problem import Problem
from fedsub.round.engines.base import columns_to
from fedsub.round.norms import GradientNorms, Norms
from fedsub.round.predict import Elsewhere, Evaluated, PersonalModel
from fedsub.round.rank import Ranker
from fedsub.round.ranking import Ranking
from fedsub.round.sampled import Sampled
from fedsub.round.score import Scorer
from fedsub.trees import Model, whole


@dataclass(frozen=True)
class Seen:
    """A slice: the samples of ``split`` whose ids in ``columns`` all occur in training; ``unseen``: the others."""

    split: str
    columns: tuple[str, ...]
    unseen: bool = False

    def mask(self, clients: Clients, samples: np.ndarray, population: Clients) -> np.ndarray:
        """Which of ``samples`` belong to it; bool, one each."""
        arrays = clients.gather(samples, self.columns, local=False)
        seen = np.ones(len(samples), bool)
        for column, ids in arrays.items():
            space = clients.columns[column].space
            if space is None:
                raise ConfigError(f"A slice is by ids, and {column!r} is a plain column; name an id column.")
            one = population.spaces[space]
            known = (held_heat(one, population.sizes).at(ids) > 0) | ((ids == 0) & one.padding)
            seen &= known.reshape(len(ids), -1).all(1)
        return ~seen if self.unseen else seen


@dataclass(frozen=True)
class Evaluate:
    """When and on what: every ``every`` rounds, on ``samples`` random samples of each split (None: all).

    ``samples`` may also be by split, {"train": 2000}; of splits that are not named, all.

    The samples are the same in every round and for every method and seed, so curves can be compared.
    The last evaluation uses up to ``final_samples`` (None: all) and adds heat deciles and the spread
    over clients. ``slices`` are parts of splits that are measured besides, under their own names, from the same
    predictions: {"test_seen": Seen("test", ("item",))} gives ``test_seen.auc``.

    ``metrics`` are functions of your own (`fedsub.objective.metric`), a list or a dict from name to function.
    ``ranking``, a `Ranking`, adds measures of lists of items, such as ``test.ndcg@10``. ``norms``, a `Norms` or its
    ``at``, adds ``train.squared_norm`` and ``train.elementwise_norm``: ‖∇f‖² and ∇fᵀ D ∇f on all training
    data, in rounds of their own.
    """

    every: int = 10
    samples: int | Mapping[str, int | None] | None = 10_000
    final_samples: int | None = 200_000
    slices: Mapping[str, Seen] = field(default_factory=dict)
    metrics: Sequence[Any] | Mapping[str, Any] = ()
    ranking: Ranking | None = None
    norms: Norms | int | Sequence[int] | None = None

    def __post_init__(self) -> None:
        for name in ("every", "samples", "final_samples"):
            value = getattr(self, name)
            for count in value.values() if isinstance(value, Mapping) and name == "samples" else [value]:
                if count is None and name != "every":
                    continue
                check_whole(f"{name} of Evaluate", count, 1, error=ConfigError)
        object.__setattr__(self, "metrics", metrics_of(self.metrics))
        if self.ranking is not None and not isinstance(self.ranking, Ranking):
            raise ConfigError(f'ranking of Evaluate must be a Ranking, such as Ranking("item"); got {self.ranking!r}.')
        if self.norms is not None and not isinstance(self.norms, Norms):
            object.__setattr__(self, "norms", Norms(self.norms))

    @property
    def own(self) -> tuple[Metric, ...]:
        """The metrics of the user's own."""
        assert isinstance(self.metrics, tuple)
        return self.metrics

    def count(self, split: str) -> int | None:
        """How many samples of a split are looked at; None: all."""
        return self.samples.get(split) if isinstance(self.samples, Mapping) else self.samples

    def measured(self, loss: Loss, split: str) -> tuple[str, ...]:
        """The metrics that an evaluation has for a split, such as ("ce", "accuracy")."""
        ranked = self.ranking.names if self.ranking is not None and self.ranking.on(split) else ()
        return (*measured(loss), *(metric.name for metric in self.own), *ranked)

    @property
    def directions(self) -> dict[str, str]:
        """Which values are better, "higher" or "lower", of the metrics that it adds."""
        ranked = self.ranking.names if self.ranking is not None else ()
        return {metric.name: metric.better for metric in self.own} | dict.fromkeys(ranked, "higher")

    def describe(self) -> dict[str, Any]:
        """All that its numbers depend on, as plain JSON values."""
        samples = dict(self.samples) if isinstance(self.samples, Mapping) else self.samples
        found: dict[str, Any] = {"every": self.every, "samples": samples, "final_samples": self.final_samples}
        if self.slices:
            found["slices"] = {
                name: {**vars(part), "columns": list(part.columns)} for name, part in self.slices.items()
            }
        if self.own:
            found["metrics"] = {metric.name: metric.describe() for metric in self.own}
        found |= {"ranking": self.ranking.describe()} if self.ranking is not None else {}
        return found | ({"norms": self.norms.describe()} if isinstance(self.norms, Norms) else {})


class Evaluator:
    """Evaluates parameters on named splits. ``population`` gives the heat by which features are grouped."""

    def __init__(
        self,
        problem: Problem,
        splits: dict[str, Clients],
        plan: Evaluate,
        columns: tuple[str, ...],
        population: Clients | None = None,
    ):
        self.problem, self.splits, self.plan, self.columns = problem, splits, plan, columns
        self.population = population or problem.clients
        self.scorer = Scorer(problem, columns)
        self._decile: dict[str, Held] | None = None
        self._masks: dict[tuple[str, int], np.ndarray] = {}
        self._sampled: dict[tuple[str, int], Sampled] = {}
        self.training = False  # from then on a metric of your own that fails ends nothing
        self._failed, self._told = dict[str, str](), False
        self._slopes: dict[str, GradientNorms] = {}
        for name, part in plan.slices.items():
            if part.split not in splits or name in splits:
                seen = f"is of the split {part.split!r}" if part.split not in splits else "is called like a split"
                raise ConfigError(f"The slice {name!r} {seen}; {nearest(part.split, splits)}")
        for name, clients in splits.items():
            for space in problem.spaces.values():
                if not same_numbering(clients.spaces.get(space.name), space):
                    raise ConfigError(
                        f"The split {name!r} numbers the rows of {space.name!r} otherwise than the training data, so "
                        "its ids would mean other rows; make all splits from the same data, with Clients.split."
                    )
        self.ranker = (
            None if plan.ranking is None else Ranker(plan.ranking, problem, splits, self.population, self.scorer)
        )

    def __call__(self, model: Evaluated) -> dict[str, float]:
        """Scalars by split: {"train.ce": …, "test.auc": …}. Of personal models, each is asked for its client's."""
        out: dict[str, float] = {}
        for name, clients in self.splits.items():
            answers = self._predict(model, self._choose(name, clients, self.plan.count(name)))
            out |= {f"{name}.{k}": v for k, v in self._measure(answers).items()}
            if self.ranker is not None and name in self.ranker.ranked:
                out |= {f"{name}.{k}": v for k, v in self.ranker(name, _at_hand(model)).items()}
            for part, mask in self._slices(name, clients, answers.samples):
                out |= {f"{part}.{k}": v for k, v in self._measure(answers.take(mask)).items()}
        return out

    def norms(self, model: Evaluated, weighting: str | None = None) -> dict[str, float]:
        """{"train.squared_norm": ‖∇f‖², "train.elementwise_norm": ∇fᵀ D ∇f}, of the population's data."""
        if weighting is None:
            weighting = (self.plan.norms if isinstance(self.plan.norms, Norms) else Norms()).weighting
        model = _at_hand(model)
        model = model if isinstance(model, PersonalModel) else whole(model, "The gradient's norm")
        if weighting not in self._slopes:
            self._slopes[weighting] = GradientNorms(self.problem, self.population, self.columns, weighting)
        return {f"train.{name}": value for name, value in self._slopes[weighting](model).items()}

    def final(self, model: Evaluated) -> dict[str, Any]:
        """Everything, by split: scalars, ``deciles`` (0 = coldest tenth of features), ``spread`` and ``by_client``.

        ``gain`` of personal models is over the shared one, on the same samples.
        """
        out: dict[str, Any] = {}
        for name, clients in self.splits.items():
            chosen = self._choose(name, clients, self.plan.final_samples)
            answers = self._predict(model, chosen, with_heat=bool(self.problem.spaces))
            by_decile = metrics.by_group(
                answers.heat,
                np.arange(-1, 10) if self.problem.spaces else np.arange(0),
                lambda m: self._measure(answers.take(m), part=True),  # noqa: B023
            )
            out[name] = {
                "samples": len(chosen),
                **self._measure(answers),
                "deciles": by_decile,
                "spread": metrics.spread(answers.losses, answers.owners),
                "by_client": self._by_client(answers),
            }
            if isinstance(model, PersonalModel):
                shared = self._predict(model.shared, chosen)
                out[name]["shared"] = {**self._measure(shared), "by_client": self._by_client(shared)}
                out[name]["gain"] = metrics.gain(answers.losses, shared.losses, answers.owners)
            if self.ranker is not None and name in self.ranker.ranked:
                out[name] |= self.ranker.final(name, _at_hand(model))
            for part, mask in self._slices(name, clients, chosen.samples):
                out[part] = {"samples": int(mask.sum()), **self._measure(answers.take(mask))}
        return out

    def sentences(self) -> list[str]:
        """What happened that a reader of the numbers must know, told once."""
        said = self.ranker.sentences() if self.ranker is not None and not self._told else []
        failed, self._told = [sentence for sentence in self._failed.values() if sentence], True
        self._failed = dict.fromkeys(self._failed, "")
        return said + failed

    def _by_client(self, answers: Answers) -> dict[str, Any]:
        found = metrics.by_client(answers.losses, answers.scores, answers.labels, answers.owners)
        for metric in self.plan.own:
            if metric.by_client:
                found |= metric.over_clients(answers)
        return found

    def _slices(self, split: str, clients: Clients, chosen: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """(name, which of the chosen samples) of the split's slices that have any."""
        out = []
        for name, part in self.plan.slices.items():
            if part.split != split:
                continue
            place = (name, len(chosen))  # the samples of an evaluation follow from their number
            if place not in self._masks:
                self._masks[place] = part.mask(clients, chosen, self.population)
            if self._masks[place].any():
                out.append((name, self._masks[place]))
        return out

    def _choose(self, name: str, clients: Clients, count: int | None) -> Sampled:
        place = (name, clients.samples if count is None else min(count, clients.samples))
        if place not in self._sampled:
            self._sampled[place] = Sampled(name, clients, count, self.columns, self._numbers(clients))
        return self._sampled[place]

    def _numbers(self, clients: Clients) -> int:
        """How many numbers the looked-up rows of a sample and its values are."""
        shapes = {name: p.shape for name, p in self.problem.objective.module.named_parameters()}
        row = dict.fromkeys(self.problem.spaces, 0)
        for name, space in self.problem.tables.items():
            row[space.name] += math.prod(shapes[name][1:])
        columns = [clients.columns[name] for name in self.columns]
        return max(1, sum(c.width * (row.get(c.space, 1) if c.space else 1) for c in columns))

    def _predict(self, model: Evaluated, chosen: Sampled, *, with_heat: bool = False) -> Answers:
        """What the model says to the chosen samples, with the decile of each one's coldest feature if asked for."""
        label, clients = getattr(self.problem.objective.loss, "label", None), chosen.clients
        if isinstance(model, PersonalModel | Elsewhere):
            predict = model.answer if isinstance(model, Elsewhere) else partial(self.scorer.personal(model), model)
            losses, said = predict(clients, chosen.samples)
            columns = tuple(c for c in self.columns if c == label or (with_heat and clients.columns[c].space))
            arrays = clients.gather(chosen.samples, columns, local=False)
            heat = self._coldest(clients, arrays) if with_heat else np.zeros(0)
            labels = arrays[label] if label else np.zeros(len(chosen))
            return self._answers(losses, self._outputs(said, len(chosen)), labels, heat, chosen)
        device = next(iter(model.values())).device
        found: list[tuple[np.ndarray, ...]] = []
        with torch.no_grad():
            for arrays in chosen.batches():
                count = len(next(iter(arrays.values())))
                labels = arrays[label].copy() if label else np.zeros(count)
                heat = self._coldest(clients, arrays) if with_heat else np.zeros(0)
                module, some = self.scorer.over(model, arrays)
                batch, real = columns_to(some, device), torch.ones(count, device=device)
                value, output = module.losses(self.problem.objective, batch, real)
                losses = value.expand(count).double().cpu().numpy()
                found.append((losses, self._outputs(output, count), labels, heat))
        if not found:
            found = [(np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0))]
        losses, outputs, labels, heat = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return self._answers(losses, outputs, labels, heat, chosen)

    def _outputs(self, said: Any, count: int) -> np.ndarray:
        """Outputs where something reads them: these losses are measured by more than their value, and so are yours."""
        scored = isinstance(self.problem.objective.loss, Binary | HalfCrossEntropy | CrossEntropy)
        own = self.plan.own and isinstance(said, Tensor) and said.ndim > 0 and len(said) == count
        return _plain(said) if scored or own else np.zeros(count)

    def _answers(self, losses, outputs, labels, heat, chosen: Sampled) -> Answers:
        loss, scores = self.problem.objective.loss, None
        if isinstance(loss, Binary):
            scores = outputs.reshape(len(losses), -1)[:, 0] if len(losses) else np.zeros(0)
        elif isinstance(loss, HalfCrossEntropy):
            scores = outputs[:, 0] - outputs[:, 1] if len(losses) else np.zeros(0)
        elif isinstance(loss, Squared) and outputs.ndim == 2:
            outputs = outputs[:, 0]
        return Answers(losses, outputs, labels, chosen.owners, chosen.samples, chosen.clients, scores, heat)

    def _measure(self, answers: Answers, part: bool = False) -> dict[str, float]:
        """The metrics of some samples; ``part``: of a group, for which metrics of your own may be undefined."""
        return self._built_in(answers) | {metric.name: self._own(metric, answers, part) for metric in self.plan.own}

    def _built_in(self, answers: Answers) -> dict[str, float]:
        loss, losses = self.problem.objective.loss, answers.losses
        if answers.scores is not None:
            doubled = losses * (2 if isinstance(loss, HalfCrossEntropy) else 1)
            return metrics.binary(doubled, answers.scores, answers.labels)
        if isinstance(loss, CrossEntropy):
            right = answers.outputs.argmax(-1) == answers.labels
            return {"ce": float(losses.mean()), "accuracy": float(right.mean())}
        if isinstance(loss, Squared):
            return metrics.errors(losses)
        return {"loss": float(losses.mean())}

    def _own(self, metric: Metric, answers: Answers, part: bool) -> float:
        """A metric of your own. What it cannot do before training is an error, later it is NaN: a run is not lost."""
        try:
            return metric(answers)
        except ConfigError as error:
            if part:
                return float("nan")
            if not self.training:
                raise
            self._failed.setdefault(metric.name, f"{error} Its value is NaN there")
            return float("nan")

    def _coldest(self, clients: Clients, arrays: dict[str, np.ndarray]) -> np.ndarray:
        """The decile of each sample's coldest feature, −1 if a feature was never seen in training."""
        if self._decile is None:
            self._decile = held_deciles({name: self.population.spaces[name] for name in self.problem.spaces})
        out = None
        for column, ids in arrays.items():
            space = clients.columns[column].space
            if space is None or space not in self._decile:
                continue
            decile = self._decile[space].at(ids, -1).reshape(len(ids), -1)
            if clients.spaces[space].padding:  # padding is no feature: it must never be the coldest
                decile = np.where(ids.reshape(len(ids), -1) == 0, 9, decile)
            coldest = decile.min(1)
            out = coldest if out is None else np.minimum(out, coldest)
        assert out is not None
        return out


def _at_hand(model: Evaluated) -> Model | PersonalModel:
    """For what needs all parts of a model, or samples that nobody has."""
    if isinstance(model, Elsewhere):
        raise ConfigError(
            "Other parties hold parts of this model and of its data: lists of items and the gradient's norms cannot be "
            "measured; leave ranking= and norms= out."
        )
    return model


def same_numbering(one: Space | None, other: Space) -> bool:
    """Whether the rows of two spaces stand for the same ids."""
    if one is None or one.size != other.size or one.padding != other.padding:
        return False
    if one.vocabulary is None or other.vocabulary is None:
        return one.vocabulary is other.vocabulary
    return one.vocabulary is other.vocabulary or np.array_equal(one.vocabulary, other.vocabulary)


def _plain(output: Tensor) -> np.ndarray:
    return output.double().cpu().numpy()
