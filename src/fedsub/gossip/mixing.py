"""How a node makes one model of its own and those that it heard.

Node i of a set of weights a_j has trained to x_i, began the round at s_i, and heard J_i, of whom H hold row m:

    over "holders"   x_im + Σ_{j ∈ H} a_j (x_jm − x_im) / (a_i + Σ_{j ∈ H} a_j)        the mean of those who hold it
    over "peers"     (a_i x_im + Σ_{j ∈ H} a_j x_jm + Σ_{j ∈ J_i − H} a_j s_im) / (a_i + Σ_{j ∈ J_i} a_j)

Both are convex combinations. Over peers one that does not hold the row stands for no change, as in FedAvg; a row of few
holders hardly moves, by h_m = (1 + R (n_m − 1)/(N − 1)) / (1 + R) of its holders' mean step, where n_m of N nodes hold
it and each hears R. Over holders the factor is 1: that is the heat correction of FedSubAvg, which needs no count of
holders here. If all hear all, h_m is n_m / N, and the two are FedAvg and FedSubAvg with full participation.

With Metropolis weights (D-PSGD) node i hears all its neighbours j, as many as d_i:

    over "holders"   x_im + Σ_{j ∈ H} (x_jm − x_im) / (1 + max(d_im, d_jm))            d_im: neighbours that hold row m
    over "peers"     x_im + Σ_{j ∈ H} W_ij (x_jm − x_im) + Σ_{j ∉ H} W_ij (s_im − x_im),  W_ij = 1/(1 + max(d_i, d_j))

The first keeps every row's mean over its holders: the weights of both directions are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedsub.gossip.holdings import Shared
from fedsub.gossip.peers import Pulls
from fedsub.trees import add_rows, take_rows


@dataclass(frozen=True)
class Heard:
    """Whom nodes hear in a round, and with which weight. ``own`` [nodes] is a_i; None: Metropolis weights."""

    nodes: int
    segments: int
    pulls: Pulls
    own: np.ndarray | None

    @cached_property
    def degrees(self) -> np.ndarray:
        return np.bincount(self.pulls.to, minlength=self.nodes)

    @cached_property
    def weights(self) -> np.ndarray:
        """Of every pull: a_j, or W_ij."""
        if self.own is not None:
            return self.own[self.pulls.of]
        return 1.0 / (1 + np.maximum(self.degrees[self.pulls.to], self.degrees[self.pulls.of]))

    @cached_property
    def asked(self) -> np.ndarray:
        """The sum of these by node and segment, float64 [nodes, S]."""
        at = self.pulls.to * self.segments + self.pulls.segment
        return np.bincount(at, self.weights, self.nodes * self.segments).reshape(self.nodes, self.segments)


@dataclass(frozen=True)
class Places:
    """Entries of what clients keep that are mixed together: the node of each, and its segment or that of all."""

    owners: np.ndarray
    segment: int | np.ndarray


def mix(x: Tensor, before: Tensor | None, shared: Shared, places: Places, heard: Heard) -> Tensor:
    """New values of all entries ``x`` [n, …]. ``before``: what they were before the round, for means over peers."""
    at, there = _tensor(shared.at, x), _tensor(shared.there, x)
    weights = heard.weights[shared.pull]
    if heard.own is None and before is None:
        by_row = np.bincount(shared.at, minlength=len(x))
        weights = 1.0 / (1 + np.maximum(by_row[shared.at], by_row[shared.there]))
    apart = take_rows(x, there).sub_(take_rows(x, at)).mul_(_column(weights, x))
    move = torch.zeros_like(x)
    add_rows(move, at, apart)
    if heard.own is None and before is None:
        return move.add_(x)
    of_holders = np.bincount(shared.at, weights, len(x))
    own = 1.0 if heard.own is None else heard.own[places.owners]
    if before is None:
        return move.div_(_column(_above_zero(own + of_holders), x)).add_(x)
    asked = heard.asked[places.owners, places.segment]
    move.add_((before - x).mul_(_column(asked - of_holders, x)))
    return (move if heard.own is None else move.div_(_column(_above_zero(own + asked), x))).add_(x)


def mean_of_all(x: Tensor, before: Tensor | None, rows: np.ndarray, size: int, own: np.ndarray, whole: float) -> Tensor:
    """New values where everybody heard everybody: ``rows`` [n] is what entries are of, ``own`` [n] their weights.

    ``whole`` is the weight of all. All holders of a row have the same bits afterwards, over holders.
    """
    at, weights = _tensor(rows, x), torch.from_numpy(own).to(x.device)
    held = torch.zeros(size, dtype=torch.float64, device=x.device).index_add_(0, at, weights)
    total = torch.zeros(size, *x.shape[1:], dtype=torch.float64, device=x.device)
    add_rows(total, at, x.double() * weights.reshape(-1, *[1] * (x.ndim - 1)))
    shape = (-1, *[1] * (x.ndim - 1))
    if before is None:
        mean = total.div_(held.clamp_min_(torch.finfo(torch.float64).tiny).reshape(shape)).to(x.dtype)
        return take_rows(mean, at)
    rest = (whole - held)[at].reshape(shape)
    return take_rows(total, at).add_(rest * before.double()).div_(whole).to(x.dtype)


def _above_zero(weights: np.ndarray) -> np.ndarray:
    """Of nodes without data, which hear nobody."""
    return np.where(weights > 0, weights, 1.0)


def _tensor(places: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(places.astype(np.int64, copy=False)).to(like.device)


def _column(weights: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(weights).to(device=like.device, dtype=like.dtype).reshape(-1, *[1] * (like.ndim - 1))
