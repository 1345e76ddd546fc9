"""Evaluation of the full model on fixed samples of each split, also by heat decile and by client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsub import rng
from fedsub.checks import check_whole
from fedsub.data.clients import Clients, Space
from fedsub.data.heat import deciles, row_heat
from fedsub.errors import ConfigError, nearest
from fedsub.objective import metrics
from fedsub.objective.losses import Binary, CrossEntropy, HalfCrossEntropy, Squared
from fedsub.objective.problem import Problem
from fedsub.round.engines.base import Filled, columns_to, template
from fedsub.round.predict import PersonalModel, Predictor
from fedsub.trees import Tree

BATCH = 1024  # modest batches stay in the cache


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
            held = row_heat(population.spaces[space], population.sizes) > 0
            seen &= held[ids].reshape(len(ids), -1).all(1)
        return ~seen if self.unseen else seen


@dataclass(frozen=True)
class Evaluate:
    """When and on what: every ``every`` rounds, on ``samples`` random samples of each split (None: all).

    ``samples`` may also be by split, {"train": 2000}; of splits that are not named, all.

    The samples are the same in every round and for every method and seed, so curves can be compared.
    The last evaluation uses up to ``final_samples`` (None: all) and adds heat deciles and the spread
    over clients. ``slices`` are parts of splits that are measured besides, under their own names, from the same
    predictions: {"test_seen": Seen("test", ("item",))} gives ``test_seen.auc``.
    """

    every: int = 10
    samples: int | Mapping[str, int | None] | None = 10_000
    final_samples: int | None = 200_000
    slices: Mapping[str, Seen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("every", "samples", "final_samples"):
            value = getattr(self, name)
            for count in value.values() if isinstance(value, Mapping) and name == "samples" else [value]:
                if count is None and name != "every":
                    continue
                check_whole(f"{name} of Evaluate", count, 1, error=ConfigError)

    def count(self, split: str) -> int | None:
        """How many samples of a split are looked at; None: all."""
        return self.samples.get(split) if isinstance(self.samples, Mapping) else self.samples


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
        self._module: Filled | None = None
        self._personal: Predictor | None = None
        self._decile: dict[str, np.ndarray] | None = None
        self._masks: dict[tuple[str, int], np.ndarray] = {}
        for name, part in plan.slices.items():
            if part.split not in splits or name in splits:
                seen = f"is of the split {part.split!r}" if part.split not in splits else "is called like a split"
                raise ConfigError(f"The slice {name!r} {seen}; {nearest(part.split, splits)}")
        for name, clients in splits.items():
            for space in problem.spaces.values():
                if not _same_numbering(clients.spaces.get(space.name), space):
                    raise ConfigError(
                        f"The split {name!r} numbers the rows of {space.name!r} otherwise than the training data, so "
                        "its ids would mean other rows; make all splits from the same data, with Clients.split."
                    )

    def __call__(self, model: Tree | PersonalModel) -> dict[str, float]:
        """Scalars by split: {"train.ce": …, "test.auc": …}. Of personal models, each is asked for its client's."""
        out: dict[str, float] = {}
        for name, clients in self.splits.items():
            chosen = self._choose(name, clients, self.plan.count(name))
            losses, outputs, labels, _ = self._predict(model, clients, chosen)
            out |= {f"{name}.{k}": v for k, v in self._measure(losses, outputs, labels).items()}
            for part, mask in self._slices(name, clients, chosen):
                found = self._measure(losses[mask], outputs[mask], labels[mask])
                out |= {f"{part}.{k}": v for k, v in found.items()}
        return out

    def final(self, model: Tree | PersonalModel) -> dict[str, Any]:
        """Everything, by split: scalars, ``deciles`` (0 = coldest tenth of features), ``spread`` and ``by_client``.

        ``gain`` of personal models is over the shared one, on the same samples.
        """
        out: dict[str, Any] = {}
        for name, clients in self.splits.items():
            chosen = self._choose(name, clients, self.plan.final_samples)
            losses, outputs, labels, heat = self._predict(model, clients, chosen, with_heat=bool(self.problem.spaces))
            owners = clients.clients_of(chosen)
            by_decile = metrics.by_group(
                heat,
                np.arange(-1, 10) if self.problem.spaces else np.arange(0),
                lambda m: self._measure(losses[m], outputs[m], labels[m]),  # noqa: B023
            )
            out[name] = {
                "samples": len(chosen),
                **self._measure(losses, outputs, labels),
                "deciles": by_decile,
                "spread": metrics.spread(losses, owners),
                "by_client": metrics.by_client(losses, self._scores(outputs, len(losses)), labels, owners),
            }
            if isinstance(model, PersonalModel):
                before, said, _, _ = self._predict(model.shared, clients, chosen)
                of_all = metrics.by_client(before, self._scores(said, len(losses)), labels, owners)
                out[name]["shared"] = {**self._measure(before, said, labels), "by_client": of_all}
                out[name]["gain"] = metrics.gain(losses, before, owners)
            for part, mask in self._slices(name, clients, chosen):
                found = self._measure(losses[mask], outputs[mask], labels[mask])
                out[part] = {"samples": int(mask.sum()), **found}
        return out

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

    def _full(self, params: Tree) -> Filled:
        """The module with the full tables; values are shared, not copied: a table may fill half the memory."""
        if self._module is None:
            self._module = Filled(template(self.problem, next(iter(params.values())).device))
            self._module.module.eval()
        self._module.fill(params)
        return self._module

    def _choose(self, name: str, clients: Clients, count: int | None) -> np.ndarray:
        if count is None or count >= clients.samples:
            return np.arange(clients.samples)
        word = rng.key(rng.EVALUATION, len(name), *name.encode())
        return np.sort(rng.first_of_permutation(clients.samples, count, word))

    def _predict(
        self, model: Tree | PersonalModel, clients: Clients, chosen: np.ndarray, *, with_heat: bool = False
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(losses, outputs, labels, decile of the coldest feature) of the chosen samples."""
        label = getattr(self.problem.objective.loss, "label", None)
        # Only these losses are measured by more than their value; other outputs may be anything.
        scored = isinstance(self.problem.objective.loss, Binary | HalfCrossEntropy | CrossEntropy)
        if isinstance(model, PersonalModel):
            losses, said = self._predictor(model)(model, clients, chosen)
            columns = tuple(c for c in self.columns if c == label or (with_heat and clients.columns[c].space))
            arrays = clients.gather(chosen, columns, local=False)
            heat = self._coldest(clients, arrays) if with_heat else np.zeros(0)
            outputs = _plain(said) if scored else np.zeros(len(chosen))
            return losses, outputs, arrays[label] if label else np.zeros(len(chosen)), heat
        module = self._full(model)
        device = next(iter(model.values())).device
        found: list[tuple[np.ndarray, ...]] = []
        with torch.no_grad():
            for low in range(0, len(chosen), BATCH):
                samples = chosen[low : low + BATCH]
                arrays = clients.gather(samples, self.columns, local=False)
                batch = columns_to(arrays, device)
                real = torch.ones(len(samples), device=device)
                value, output = module.losses(self.problem.objective, batch, real)
                found.append((
                    value.expand(len(samples)).double().cpu().numpy(),
                    _plain(output) if scored else np.zeros(len(samples)),
                    arrays[label] if label else np.zeros(len(samples)),
                    self._coldest(clients, arrays) if with_heat else np.zeros(0),
                ))  # fmt: skip
        if not found:
            return np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0)
        losses, outputs, labels, heat = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return losses, outputs, labels, heat

    def _predictor(self, model: PersonalModel) -> Predictor:
        if self._personal is None:
            self._personal = Predictor(self.problem, self.columns, next(iter(model.shared.values())).device)
        return self._personal

    def _scores(self, outputs: np.ndarray, count: int) -> np.ndarray | None:
        """One number a sample by which positives are ranked, for losses of two classes."""
        loss = self.problem.objective.loss
        if isinstance(loss, Binary):
            return outputs.reshape(count, -1)[:, 0]
        return outputs[:, 0] - outputs[:, 1] if isinstance(loss, HalfCrossEntropy) else None

    def _measure(self, losses, outputs, labels) -> dict[str, float]:
        loss = self.problem.objective.loss
        scores = self._scores(outputs, len(losses))
        if scores is not None:
            return metrics.binary(losses * (2 if isinstance(loss, HalfCrossEntropy) else 1), scores, labels)
        if isinstance(loss, CrossEntropy):
            return {"ce": float(losses.mean()), "accuracy": float((outputs.argmax(-1) == labels).mean())}
        if isinstance(loss, Squared):
            return metrics.errors(losses)
        return {"loss": float(losses.mean())}

    def _coldest(self, clients: Clients, arrays: dict[str, np.ndarray]) -> np.ndarray:
        """The decile of each sample's coldest feature, −1 if a feature was never seen in training."""
        if self._decile is None:
            self._decile = self._feature_deciles()
        out = None
        for column, ids in arrays.items():
            space = clients.columns[column].space
            if space is None or space not in self._decile:
                continue
            decile = self._decile[space][ids].reshape(len(ids), -1)
            if clients.spaces[space].padding:  # padding is no feature: it must never be the coldest
                decile = np.where(ids.reshape(len(ids), -1) == 0, 9, decile)
            coldest = decile.min(1)
            out = coldest if out is None else np.minimum(out, coldest)
        assert out is not None
        return out

    def _feature_deciles(self) -> dict[str, np.ndarray]:
        """Deciles over the features of all spaces together, by heat in the training data."""
        heats = {}
        for name in self.problem.spaces:
            space = self.population.spaces[name]
            heat = row_heat(space)
            if space.padding:
                heat[0] = 0
            heats[name] = heat
        together = deciles(np.concatenate(list(heats.values())))
        edges = np.cumsum([len(h) for h in heats.values()])[:-1]
        return dict(zip(heats, np.split(together, edges), strict=True))


def _same_numbering(one: Space | None, other: Space) -> bool:
    if one is None or one.size != other.size or one.padding != other.padding:
        return False
    if one.vocabulary is None or other.vocabulary is None:
        return one.vocabulary is other.vocabulary
    return one.vocabulary is other.vocabulary or np.array_equal(one.vocabulary, other.vocabulary)


def _plain(output: Tensor) -> np.ndarray:
    return output.double().cpu().numpy()
