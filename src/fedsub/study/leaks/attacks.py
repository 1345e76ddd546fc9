"""Rows and labels from an update, in closed form.

*Rows.* A local step moves the rows that its batch names and no others, so that the rows of an update that are not 0 are
those that the client trained on (`Seen.changed`). Who ranks rows by ‖Δ_m‖ finds them under noise, too.

*Labels.* With logits z_s of samples s, one step on the mean of n losses is

    Δ = −(η/n) Σ_s (∂ℓ_s/∂z_s) J_s,    J_s = ∂z_s/∂x,    and ∂ℓ_s/∂z_s = p_s − y_s  for a cross-entropy

The server knows x, hence J_s of any sample whose features it knows; Δ is then linear in the residuals y_s − p_s, and
they come out of least squares (`residuals`). Their sign is the label: 0 < p < 1. In logistic regression with a row that
only one sample names, that row's own sign is enough. It is the multi-class rule of B. Zhao, K. R. Mopuri and H. Bilen,
"iDLG: Improved Deep Leakage from Gradients", 2020, for batches, by the model's own Jacobian. After several local steps
it holds to first order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsub.errors import MethodError
from fedsub.objective.losses import Batch, Binary, CrossEntropy, HalfCrossEntropy, Loss
from fedsub.objective.metrics import auc
from fedsub.objective.problem import Problem
from fedsub.round.engines.base import Filled, columns_to, template
from fedsub.study.leaks.seen import Seen
from fedsub.trees import Tree

Array = np.ndarray
RIDGE = 1e-6  # of least squares, times the mean of the squared lengths of J_s
MOST = 1000  # residuals that are solved for at once; samples beyond that are left out
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Guess:
    """``scores`` [n, c]: the residual of every logit, higher for likelier classes; one column if there are two classes.

    ``before`` are the logits at the model that was sent: what can be said without any update.
    """

    samples: Array
    labels: Array
    scores: Array
    before: Array

    @property
    def right(self) -> Array:
        """Of every sample whether its label is guessed."""
        return self._right(self.scores)

    @property
    def right_before(self) -> Array:
        return self._right(self.before)

    def _right(self, values: Array) -> Array:
        if values.shape[1] == 1:
            return (values[:, 0] > 0) == (self.labels > 0.5)
        return values.argmax(1) == self.labels


def moved(update: Tree, problem: Problem, space: str) -> Array:
    """‖Δ_m‖ over all tables of a space, by the client's rows, without that of padding."""
    total: Array | None = None
    for name, own in problem.tables.items():
        if own.name == space and name in update:
            value = update[name].double()
            squares = value.reshape(len(value), math.prod(value.shape[1:])).square().sum(1).numpy()
            total = squares if total is None else total + squares
    if total is None:
        raise MethodError(f"Nothing that is sent has rows of {space!r}.")
    return np.sqrt(total[1 if problem.spaces[space].padding else 0 :])


def classifies(loss: Loss) -> bool:
    """Whether labels are classes that a residual tells."""
    return isinstance(loss, Binary | HalfCrossEntropy | CrossEntropy)


class Known:
    """The module with a submodel in double precision, at the model that the server sent."""

    def __init__(self, problem: Problem, seen: Seen):
        self.problem, self.seen = problem, seen
        self.filled = Filled(template(problem, CPU).double())
        self.filled.module.eval()
        own = dict(problem.objective.module.named_parameters())
        private = {n: self._own(n, own[n]) for n in problem.names if n not in seen.sent}
        self.params = self.filled.fill({n: v.detach().double().clone() for n, v in (seen.sent | private).items()})
        self.shared = [name for name in problem.names if name in seen.update]

    def _own(self, name: str, value: Tensor) -> Tensor:
        """Of parameters that never leave the client the server knows where they began, at most."""
        if name not in self.problem.tables:
            return value
        return value[torch.from_numpy(self.problem.tables[name].rows_of(self.seen.client).astype(np.int64))]

    def batch(self, samples: Array) -> Batch:
        """Their features and labels, floats in double precision."""
        arrays = self.problem.clients.gather(samples, self.seen.columns, local=True)
        return {n: v.double() if v.is_floating_point() else v for n, v in columns_to(arrays, CPU).items()}

    def output(self, batch: Batch) -> Tensor:
        real = torch.ones(len(next(iter(batch.values()))), dtype=torch.float64)
        return self.problem.objective.output(self.filled.module, {**batch, "sample_mask": real})

    def gradient(self, total: Tensor, *, graph: bool) -> list[Tensor]:
        """By parameter that is sent; 0 where ``total`` does not depend on it."""
        values = [self.params[name] for name in self.shared]
        found = torch.autograd.grad(total, values, create_graph=graph, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(v) if g is None else g for v, g in zip(values, found, strict=True)]

    def observed(self) -> list[Tensor]:
        """−Δ, in the order of `gradient`."""
        return [-self.seen.update[name].detach().double() for name in self.shared]


def residuals(problem: Problem, seen: Seen) -> Guess | None:
    """Labels of the samples that a client trained on, from its update and their features; None if it has no classes."""
    loss = problem.objective.loss
    if not isinstance(loss, Binary | HalfCrossEntropy | CrossEntropy):
        return None
    known = Known(problem, seen)
    samples = seen.samples[: max(1, MOST // _classes(known, loss))]
    batch = known.batch(samples)
    with torch.enable_grad():
        logits = _logits(loss, known.output(batch))
        slopes = [torch.cat([g.reshape(-1) for g in known.gradient(z, graph=False)]) for z in logits.reshape(-1)]
    jacobian, delta = torch.stack(slopes), -torch.cat([g.reshape(-1) for g in known.observed()])
    gram = jacobian @ jacobian.T
    gram += RIDGE * gram.diagonal().mean().clamp_min(1e-300) * torch.eye(len(gram), dtype=torch.float64)
    found = torch.linalg.solve(gram, jacobian @ delta).reshape(logits.shape)
    labels = batch[loss.label].reshape(len(samples)).numpy()
    return Guess(samples, labels, found.numpy(), logits.detach().numpy())


def auc_of(scores: Array, labels: Array) -> float:
    """`auc` of scores [n, 1]; NaN for several classes."""
    return auc(scores[:, 0], labels) if scores.shape[1] == 1 else float("nan")


def _classes(known: Known, loss: Loss) -> int:
    with torch.no_grad():
        return _logits(loss, known.output(known.batch(known.seen.samples[:1]))).shape[1]


def _logits(loss: Loss, output: Tensor) -> Tensor:
    """[n, classes], or [n, 1] of two classes."""
    if isinstance(loss, HalfCrossEntropy):
        return (output[..., 0] - output[..., 1])[:, None]
    return output if isinstance(loss, CrossEntropy) else output.reshape(len(output), 1)
