"""A linear model of dense features, for convex problems."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fedsub.data.clients import Clients
from fedsub.errors import ConfigError, nearest
from fedsub.objective.losses import Batch, Binary, CrossEntropy, Loss, Squared
from fedsub.objective.models.columns import plain_columns, side_by_side, width
from fedsub.objective.objective import Objective

LOSSES = {"binary": Binary, "squared": Squared, "cross_entropy": CrossEntropy}


class LinearModel(nn.Module):
    """A sample's features a, all plain columns side by side, give a · weight (+ ``bias``). Starts at zero.

    One number a sample, or with ``classes`` one a class: ``weight`` is [d] or [d, classes].
    """

    def __init__(self, clients: Clients, columns: tuple[str, ...], *, bias: bool = False, classes: int | None = None):
        super().__init__()
        self.columns = columns
        out = () if classes is None else (classes,)
        self.weight = nn.Parameter(torch.zeros(sum(width(clients, name) for name in columns), *out))
        self.bias = nn.Parameter(torch.zeros(out)) if bias else None

    def forward(self, batch: Batch) -> Tensor:
        out = side_by_side(batch, self.columns).to(self.weight.dtype) @ self.weight
        return out if self.bias is None else out + self.bias


def linear(clients: Clients, label: str, *, bias: bool = False, loss: str | None = None) -> Objective:
    """The objective of kind "linear"; ``loss`` None is "binary", which needs labels 0 and 1."""
    columns, labels = plain_columns(clients), clients.column(label).values
    if not columns:
        raise ConfigError('The model "linear" needs plain columns as features (values=…, --value), and there are none.')
    if loss is not None and loss not in LOSSES:
        raise ConfigError(f'The model "linear" has no loss {loss!r}; {nearest(str(loss), LOSSES)}')
    if loss is None and not np.isin(labels, (0, 1)).all():
        seen = labels[~np.isin(labels, (0, 1))][0]
        raise ConfigError(
            f'Column {label!r} holds {seen:g}, so the model "linear" must be told its loss: "squared" for values, '
            '"cross_entropy" for class numbers.'
        )
    made: Loss = LOSSES[loss or "binary"](label)
    classes = int(labels.max()) + 1 if loss == "cross_entropy" else None
    unused = tuple(c for space in clients.spaces.values() for c in space.columns)
    return Objective(LinearModel(clients, columns, bias=bias, classes=classes), made, unused=unused)
