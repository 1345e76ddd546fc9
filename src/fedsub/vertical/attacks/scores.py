"""Attacks on labels: from what a feature party has seen, a score for every sample that is higher for likely positives.

    norm         ‖g_i‖                                              O. Li et al., ICLR 2022, 3.1
    direction    mean of cos(g_i, g_k) over known positives k       the same, 3.2
    spectral     ⟨x_i − x̄, v⟩, v the first right singular vector    J. Sun, X. Yang, Y. Yao, C. Wang, "Label leakage and
                 of the centred rows, of gradients or activations   protection from forward embedding in vertical
                                                                    federated learning", 2022
    completion   a head on the trained bottom's activations,        C. Fu et al., "Label inference attacks against
                 fitted to a few known labels                       vertical federated learning", USENIX Security 2022

Which end of a score is the positive one, every attack learns from the labels that it knows (`Known`). A score is judged
on the samples whose label is not known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsub import rng
from fedsub.checks import check_whole
from fedsub.errors import DataError
from fedsub.objective.metrics import auc

Array = np.ndarray
RIDGE = 1e-2  # of the head: on standardised activations, per sample


@dataclass(frozen=True, eq=False)
class Known:
    """The samples whose labels the attacker has come by, as many of either class."""

    positive: Array
    negative: Array

    @classmethod
    def draw(cls, labels: Array, each: int, seed: int) -> Known:
        """``each`` of either class, fixed by the seed."""
        check_whole("known", each, 1, error=DataError)
        found = []
        for value in (1, 0):
            some = np.flatnonzero((labels > 0.5) == bool(value))
            if len(some) <= each:
                raise DataError(
                    f"There are {len(some):,} samples with the label {value}, and the attacker is to know {each}; "
                    "lower known."
                )
            found.append(some[rng.first_of_permutation(len(some), each, rng.key(seed, rng.SIDES, 1000, value))])
        return cls(*found)

    @property
    def all(self) -> Array:
        return np.concatenate([self.positive, self.negative])


def norm(gradients: Tensor, known: Known) -> Array:
    return _oriented(gradients.norm(dim=1).double().numpy(), known)


def direction(gradients: Tensor, known: Known) -> Array:
    """What points like known positives is positive, unless known negatives clearly do so more.

    A protection may turn positives apart: then what is like none of them is positive.
    """
    unit = (gradients / gradients.norm(dim=1, keepdim=True).clamp_min(torch.finfo(gradients.dtype).tiny)).double()
    scores = (unit @ unit[known.positive].mean(0)).numpy()
    count = len(known.positive)
    if min(count, len(known.negative)) < 2:  # too few to tell
        return scores
    itself = unit[known.positive].square().sum(1).numpy()
    others, theirs = (count * scores[known.positive] - itself) / (count - 1), scores[known.negative]
    error = (others.var(ddof=1) / count + theirs.var(ddof=1) / len(theirs)) ** 0.5
    return -scores if theirs.mean() - others.mean() > 2 * error else scores


def spectral(rows: Tensor, known: Known) -> Array:
    centred = rows.double() - rows.double().mean(0)
    _, _, right = torch.linalg.svd(centred.T @ centred)
    return _oriented((centred @ right[0]).numpy(), known)


def completion(activations: Tensor, known: Known) -> Array:
    """Logistic regression on standardised activations, with a ridge, by Newton's method."""
    z = activations.double()
    z = (z - z.mean(0)) / z.std(0).clamp_min(1e-12)
    x = torch.cat([z, torch.ones(len(z), 1, dtype=torch.float64)], 1)
    y = torch.cat([torch.ones(len(known.positive)), torch.zeros(len(known.negative))]).double()
    return (x @ fit(x[known.all], y)).numpy()


def fit(x: Tensor, y: Tensor, ridge: float = RIDGE) -> Tensor:
    """The w that minimises Σ log(1 + e^{−±xᵀw}) + ½ ridge · n ‖w‖²."""
    w = torch.zeros(x.shape[1], dtype=torch.float64)
    eye = ridge * len(x) * torch.eye(x.shape[1], dtype=torch.float64)
    for _ in range(50):
        p = torch.sigmoid(x @ w)
        gradient = x.T @ (p - y) + eye @ w
        step = torch.linalg.solve((x * (p * (1 - p))[:, None]).T @ x + eye, gradient)
        w = w - step
        if float(step.abs().max()) < 1e-10:
            break
    return w


def leak(scores: Array, labels: Array, known: Known) -> float:
    """AUC of a score on the samples whose label the attacker does not know."""
    unknown = np.ones(len(labels), bool)
    unknown[known.all] = False
    return auc(scores[unknown], labels[unknown])


def _oriented(scores: Array, known: Known) -> Array:
    return scores if scores[known.positive].mean() >= scores[known.negative].mean() else -scores
