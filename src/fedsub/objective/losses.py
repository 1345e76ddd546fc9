"""Losses: functions (module output, batch) -> one value per sample.

A loss of your own has the same form. Return one value per sample, not their mean: fedsub weights the
samples itself (batches may be shorter for some clients), and the batched engine needs them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

Batch = dict[str, Tensor]
Loss = Callable[[Tensor, Batch], Tensor]


@dataclass(frozen=True)
class Binary:
    """Cross-entropy in nats of logits [B] (or [B, 1]) against labels 0/1: softplus(z) − y·z."""

    label: str = "label"

    def __call__(self, output: Tensor, batch: Batch) -> Tensor:
        z = output.squeeze(-1) if output.ndim == 2 else output
        return F.softplus(z) - z * batch[self.label]


@dataclass(frozen=True)
class HalfCrossEntropy:
    """Half the cross-entropy of two logits [B, 2], the first for label 1: the mean over the two entries −y log ŷ.

    Ding et al. (NeurIPS 2022) train DIN on it. Evaluations report ``ce`` and ``half_ce`` as for `Binary`, whose
    gradient it has if the logit is the difference of the two. ``epsilon`` is added to the probabilities inside
    the logarithm (1e-8 in the released code): −½ log(softmax + ε).
    """

    label: str = "label"
    epsilon: float = 0.0

    def __call__(self, output: Tensor, batch: Batch) -> Tensor:
        z = output[..., 0] - output[..., 1]
        y = batch[self.label].to(z.dtype)
        if self.epsilon:
            return -0.5 * ((z * (2 * y - 1)).sigmoid() + self.epsilon).log()
        return 0.5 * (F.softplus(z) - z * y)


@dataclass(frozen=True)
class Squared:
    """Half the squared error of predictions [B]: ½(z − y)²."""

    label: str = "label"

    def __call__(self, output: Tensor, batch: Batch) -> Tensor:
        z = output.squeeze(-1) if output.ndim == 2 else output
        return 0.5 * (z - batch[self.label]) ** 2


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy of logits [B, classes] against integer class labels."""

    label: str = "label"

    def __call__(self, output: Tensor, batch: Batch) -> Tensor:
        picked = output.gather(-1, batch[self.label].long().unsqueeze(-1)).squeeze(-1)
        return output.logsumexp(-1) - picked


binary, half_cross_entropy, squared, cross_entropy = Binary, HalfCrossEntropy, Squared, CrossEntropy


def measured(loss: Loss) -> tuple[str, ...]:
    """The metrics that an evaluation has for a loss, such as ("ce", "accuracy")."""
    if isinstance(loss, Binary | HalfCrossEntropy):
        return ("ce", "half_ce", "accuracy", "auc")
    if isinstance(loss, Squared):
        return ("loss", "rmse", "mae")
    return ("ce", "accuracy") if isinstance(loss, CrossEntropy) else ("loss",)
