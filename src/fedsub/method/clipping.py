"""Gradients scaled down to a Euclidean norm, each client's by itself: g ← g · min(1, norm / ‖g‖)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedsub.method.groups import Group, Stretches
from fedsub.trees import Tree

FEW = 4  # where fewer than one client in so many is clipped, the others' values are not touched


def clip(grads: Tree, names: Sequence[str], norm: float, group: Group) -> None:
    """Scale the gradients of some parameters by their common norm, client by client; tables may change in place."""
    stretches = group.stretches
    if stretches is not None:
        _clip_arrays(grads, names, norm, group, stretches)
        return
    square = _squares(group, names[0], grads[names[0]])
    for name in names[1:]:
        square = square + _squares(group, name, grads[name])
    factors = (norm / square.sqrt()).clamp_max(1.0)  # 1 where there is no gradient: norm/0 is infinite
    _scale_all(grads, names, factors, group)


def _clip_arrays(
    grads: Tree, names: Sequence[str], norm: float, group: Group, stretches: Mapping[str, Stretches]
) -> None:
    """The same by numpy, which takes less time for so short arrays, and for the few clients that are above the norm.

    Whether a client is multiplied, and by what, depends on nobody else.
    """
    arrays, square = {name: grads[name].numpy() for name in names}, 0.0
    for name, values in arrays.items():
        where = stretches.get(name)
        if where is not None and where.filled:
            flat = values.reshape(-1)
            starts = where.starts if len(flat) == len(values) else where.starts * (len(flat) // len(values))
            square = square + np.add.reduceat(flat * flat, starts)
        elif values.size == group.count and where is None:
            flat = values.reshape(-1)
            square = square + flat * flat
        else:
            square = square + _squares(group, name, grads[name]).numpy()
    assert isinstance(square, np.ndarray)
    above = (square > norm * norm).nonzero()[0].tolist()
    if not above:
        return
    factors = {k: norm / math.sqrt(square[k]) for k in above}
    if FEW * len(above) >= group.count:
        of_all = np.ones_like(square)
        of_all[above] = list(factors.values())
        _scale_all(grads, names, torch.from_numpy(of_all), group)
        return
    for name, values in arrays.items():
        where = stretches.get(name)
        if where is None:  # a copy: two dense parameters may have been given the same tensor
            values = values.copy()
            grads[name] = torch.from_numpy(values)
        for k, factor in factors.items():
            values[k if where is None else where.of(k)] *= factor


def _scale_all(grads: Tree, names: Sequence[str], factors: Tensor, group: Group) -> None:
    for name in names:
        grads[name] = grads[name] * group.spread(factors, name, grads[name])


def _squares(group: Group, name: str, values: Tensor) -> Tensor:
    """Sum of the squares of one client's values of a parameter, per client, [c]."""
    if group.stacked and name not in group.counts:
        if values.numel() == group.count:
            return values.reshape(-1).square()
        flat = values.reshape(group.count, 1, -1)
        return torch.bmm(flat, flat.transpose(1, 2)).view(-1)
    return group.total(name, values.square())
