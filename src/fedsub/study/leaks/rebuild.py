"""Features from an update: samples are made up until they would have led to it.

    min  ‖∇(x̂, ŷ) − g‖² / ‖g‖²        x̂: the numbers of n samples, ŷ: their labels, as probabilities
    min  1 − cos(∇(x̂, ŷ), g)          where the length of g is not known: signs, Adam

∇ is the gradient of the mean loss at the model that was sent, and g = −Δ/(η · steps) the mean gradient of the local
steps, which is exact for one step. L. Zhu, Z. Liu and S. Han, "Deep Leakage from Gradients", NeurIPS 2019; the angle:
J. Geiping et al., "Inverting Gradients", NeurIPS 2020. L-BFGS from a few random starts; the one that matches best is
kept. Ids are not made up: rows that are asked for, or that moved, tell them. The server is taken to know the mean, the
spread and the range of every number in general.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsub import rng
from fedsub.objective.losses import Batch, Binary, CrossEntropy, HalfCrossEntropy, Loss, Squared
from fedsub.objective.problem import Problem
from fedsub.study.leaks.attacks import Known
from fedsub.study.leaks.seen import Seen

Array = np.ndarray
MOST = 64  # samples that are made up at once
MATCHES = 1e-8  # what is left of a match that needs no other start: single precision leaves about 1e-12


@dataclass(frozen=True)
class Rebuilt:
    """``values`` [n, d]: the numbers of every sample, columns side by side; ``truth`` the same, matched with them.

    ``error``: root mean square of their difference in standard deviations of the data, over that of a guess by the
    mean of the data. 0: every number is there; 1: nothing was learnt. ``mismatch`` is what was minimised.
    """

    values: Array
    truth: Array
    labels: Array  # their rebuilt labels: probabilities, numbers, or classes
    error: float
    mismatch: float


def features(problem: Problem, columns: tuple[str, ...]) -> tuple[str, ...]:
    """The columns of numbers, which no row tells."""
    data = problem.clients
    found = (data.columns[name] for name in columns if name in data.columns)
    floats = (c for c in found if c.space is None and c.name != data.label and not c.ragged)
    return tuple(c.name for c in floats if np.issubdtype(c.values.dtype, np.floating))


def rebuild(
    problem: Problem, seen: Seen, *, angle: bool = False, starts: int = 4, steps: int = 150,
    seed: int = 0,
) -> Rebuilt | None:  # fmt: skip
    """The numbers of the samples that a client trained on; None where there are none, or more than `MOST` samples."""
    names = features(problem, seen.columns)
    if not names or len(seen.samples) > MOST:
        return None
    known = Known(problem, seen)
    batch, loss = known.batch(seen.samples), problem.objective.loss
    usual = _usual(problem, names)
    mean, spread = usual.mean, usual.spread
    truth = torch.cat([batch[name].reshape(len(seen.samples), -1) for name in names], 1)
    goal = _target(problem, known, angle)
    best: tuple[float, Tensor, Tensor] | None = None
    for start in range(starts):
        word = rng.key(seed, rng.LEAKS, seen.client, start)
        x = (mean + spread * _normal(truth.shape, word)).requires_grad_()
        y = _normal(_label_shape(loss, known, batch), rng.mix(word)).requires_grad_()
        mismatch = _match(known, batch, names, loss, goal, x, y, spread, angle, steps)
        if best is None or mismatch < best[0]:
            best = mismatch, x.detach(), y.detach()
        if mismatch < MATCHES:
            break
    assert best is not None
    order = _matched(best[1], truth, spread)
    values = best[1][order].clamp(usual.low, usual.high)
    apart, by_mean = ((v - truth) / spread for v in (values, mean.expand_as(truth)))
    error = float((apart.square().mean() / by_mean.square().mean().clamp_min(1e-300)).sqrt())
    return Rebuilt(values.numpy(), truth.numpy(), _told(loss, best[2])[order].numpy(), error, best[0])


def _match(
    known: Known, batch: Batch, names: tuple[str, ...], loss: Loss, goal: Tensor, x: Tensor, y: Tensor, spread: Tensor,
    angle: bool, steps: int,
) -> float:  # fmt: skip
    """Move x and y until their gradient is the goal; returns what is left."""
    free = [x, y] if y.numel() else [x]
    optimiser = torch.optim.LBFGS(free, max_iter=steps, history_size=50, line_search_fn="strong_wolfe",
                                  tolerance_grad=1e-14, tolerance_change=1e-18)  # fmt: skip

    def distance() -> Tensor:
        filled, at = dict(batch), 0
        for name in names:
            width = batch[name].reshape(len(x), -1).shape[1]
            filled[name] = x[:, at : at + width].reshape(batch[name].shape)
            at += width
        losses = _soft(loss, known.output(filled), y, filled)
        found = torch.cat([g.reshape(-1) for g in known.gradient(losses.mean(), graph=True)])
        if angle:
            return 1 - torch.nn.functional.cosine_similarity(found, goal, dim=0)
        return (found - goal).square().sum() / goal.square().sum().clamp_min(1e-300)

    def closure() -> Tensor:
        optimiser.zero_grad()
        left = distance()
        left.backward(inputs=free)
        return left

    with torch.enable_grad():
        optimiser.step(closure)
        left = float(distance().detach())
    return left if np.isfinite(left) and bool(torch.isfinite(x).all()) else float("inf")


def _target(problem: Problem, known: Known, angle: bool) -> Tensor:
    """g, without the objective's l2, which the server knows."""
    scale = 1.0 if angle else 1.0 / (known.seen.rate * known.seen.steps)
    parts = []
    for name, value in zip(known.shared, known.observed(), strict=True):
        pull = 0.0 if angle else problem.objective.l2_of(name)
        parts.append((value * scale - pull * known.params[name].detach()).reshape(-1))
    return torch.cat(parts)


@dataclass(frozen=True)
class _Usual:
    """What is known of every number in general; beyond ``low`` and ``high`` none is believed."""

    mean: Tensor
    spread: Tensor
    low: Tensor
    high: Tensor


def _usual(problem: Problem, names: tuple[str, ...]) -> _Usual:
    """Of all data."""
    columns = [problem.clients.columns[name].values for name in names]
    whole = np.concatenate([np.asarray(v, np.float64).reshape(len(v), -1) for v in columns], 1)
    spread = whole.std(0)
    found = (whole.mean(0), np.where(spread > 0, spread, 1.0), whole.min(0), whole.max(0))
    return _Usual(*map(torch.from_numpy, found))


def _soft(loss: Loss, output: Tensor, y: Tensor, batch: Batch) -> Tensor:
    """The loss against labels that may lie between classes."""
    if not y.numel():
        return loss(output, batch)
    if isinstance(loss, CrossEntropy):
        return -(y.softmax(-1) * output.log_softmax(-1)).sum(-1)
    assert isinstance(loss, Binary | HalfCrossEntropy | Squared)
    return loss(output, {**batch, loss.label: _told(loss, y)})


def _told(loss: Loss, y: Tensor) -> Tensor:
    """The label that a free number, or row of them, stands for."""
    if isinstance(loss, CrossEntropy):
        return y.argmax(-1)
    return y.sigmoid() if isinstance(loss, Binary | HalfCrossEntropy) else y


def _label_shape(loss: Loss, known: Known, batch: Batch) -> tuple[int, ...]:
    """Labels of a loss of the user's own are taken as known."""
    count = len(known.seen.samples)
    if isinstance(loss, CrossEntropy):
        with torch.no_grad():
            return tuple(known.output(batch).shape)
    return (count,) if isinstance(loss, Binary | HalfCrossEntropy | Squared) else (0,)


def _matched(found: Tensor, truth: Tensor, spread: Tensor) -> Tensor:
    """For every true sample the nearest rebuilt one that is left; nearest pairs first."""
    apart = torch.cdist(truth / spread, found / spread)
    order = torch.zeros(len(truth), dtype=torch.int64)
    for _ in range(len(truth)):
        at = int(apart.argmin())
        row, column = divmod(at, len(truth))
        order[row] = column
        apart[row], apart[:, column] = float("inf"), float("inf")
    return order


def _normal(shape: tuple[int, ...], word: np.uint64) -> Tensor:
    with np.errstate(over="ignore"):
        words = word + np.arange(math.prod(shape), dtype=np.uint64)
    return torch.from_numpy(rng.normal(words)).reshape(shape)
