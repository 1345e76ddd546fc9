"""A round of FedMAvg or SFMF on stacked clients; who is drawn, and how W is averaged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsub import rng
from fedsub.families.factorisation.local import FLOOR, gradient_h, gradient_w, h_steps, lipschitz_w, residual, w_steps
from fedsub.families.factorisation.settings import SFMF, FedMAvg
from fedsub.families.factorisation.stacks import Data, Stack


@dataclass(frozen=True)
class Outcome:
    """What a round did; arrays are by client, of all P."""

    sent: np.ndarray  # how often the client sends W_p or its gradient; int64 [P]
    lost: np.ndarray  # which of them never arrived, bool [P]
    bad: np.ndarray  # which of them held NaN or infinity, bool [P]
    loss: float  # ½ · squared error of a known entry at the start of the round, averaged over clients


def draw(shares: np.ndarray, count: int | None, *, seed: int, round: int) -> np.ndarray:
    """How often each client is drawn: ``count`` times with replacement with probabilities ω; None: everybody once."""
    if count is None:
        return (shares > 0).astype(np.int64)
    points = rng.uniform(rng.key(seed, rng.COHORT, round, np.arange(count)))
    edges = np.cumsum(shares)
    last = int(np.flatnonzero(shares)[-1])  # rounding may leave the last edge below 1
    return np.bincount(np.minimum(np.searchsorted(edges, points, side="right"), last), minlength=len(shares))


class FedMAvgRounds:
    """Changes W [M, k] and H [P, k, n] in place."""

    def __init__(self, data: Data, method: FedMAvg, w: Tensor, h: Tensor, *, seed: int = 0, lost: float = 0.0):
        self.data, self.method, self.w, self.h, self.seed, self.lost = data, method, w, h, seed, lost
        self.holders = data.holders().pow(method.temper).to(w.dtype) if method.submodel else None
        w.copy_(method.w_set(w, 1))

    def round(self, number: int) -> Outcome:
        method, data, count = self.method, self.data, len(self.data.columns)
        loss, largest, failed = 0.0, 0.0, np.zeros(count, bool)
        for stack in data.stacks:  # everybody, whether drawn or not
            before = self.h[stack.clients, :, : stack.x.shape[2]]
            local = stack.local(self.w)
            loss += _mean_error(stack, local, before)
            after, _ = h_steps(
                stack, local, before, steps=method.q1, gamma1=method.gamma1, project=method.h_set, l2=method.l2
            )
            constants = lipschitz_w(stack, after, method.l2)
            good = after.isfinite().all(2).all(1) & constants.isfinite()
            failed[stack.clients[~good].cpu().numpy()] = True
            self.h[stack.clients, :, : stack.x.shape[2]] = torch.where(good[:, None, None], after, before)
            largest = max(largest, float(torch.where(good, constants, 0).max()))
        sent = draw(data.shares, method.clients_per_round, seed=self.seed, round=number)
        lost = (sent > 0) & _drops(self.lost, self.seed, number, count)
        bad = self._average(number, np.where(lost | failed, 0, sent), max(method.gamma2 * largest, FLOOR))
        return Outcome(sent, lost, bad | (failed & (sent > 0) & ~lost), loss / int((data.columns > 0).sum()))

    def _average(self, number: int, arrived: np.ndarray, d: float) -> np.ndarray:
        """W ← P(W + mean of W_p − W). Only the W_p that are sent are computed: the others would be forgotten."""
        method, data, w = self.method, self.data, self.w
        weights = arrived * (data.shares if method.clients_per_round is None else 1.0)
        bad = np.zeros(len(weights), bool)
        total, held, weight = torch.zeros_like(w), torch.zeros(len(w), dtype=w.dtype, device=w.device), 0.0
        for stack in data.stacks:
            own = weights[stack.clients.cpu().numpy()]
            if not own.any():
                continue
            some = stack.take(torch.from_numpy(np.flatnonzero(own)).to(w.device))
            local = some.local(w)
            h = self.h[some.clients, :, : some.x.shape[2]]
            delta = w_steps(some, local, h, steps=method.w_steps(number), d=d, l2=method.l2) - local
            good = delta.isfinite().all(2).all(1)
            share = torch.from_numpy(own[own > 0]).to(w) * good
            some.add(total, torch.where(good[:, None, None], delta, 0) * share[:, None, None])
            some.add(held, (some.weight > 0) * share[:, None])
            weight += float(share.sum())
            bad[some.clients[~good].cpu().numpy()] = True
        if weight:
            w.copy_(method.w_set(w + total / self._divisor(held, weight), 1))
        return bad

    def _divisor(self, held: Tensor, weight: float) -> Tensor | float:
        """Of Σ a_p Δ_p: Σ a_p; in submodels Σ a_p · Ω_i^temper, or what the row's drawn holders weigh if larger."""
        if self.holders is None:
            return weight
        divisor = weight * self.holders
        if self.method.bounded:
            divisor = torch.maximum(divisor, held)
        return torch.where(divisor > 0, divisor, 1.0)[:, None]  # rows that nobody holds have no update


class SFMFRounds:
    """Changes W [M, k] and H [P, k, n] in place."""

    def __init__(self, data: Data, method: SFMF, w: Tensor, h: Tensor, *, seed: int = 0, lost: float = 0.0):
        self.data, self.method, self.w, self.h, self.seed, self.lost = data, method, w, h, seed, lost

    def round(self, number: int) -> Outcome:
        method, data, w = self.method, self.data, self.w
        sent = (data.columns > 0).astype(np.int64)
        lost = (sent > 0) & _drops(self.lost, self.seed, number, len(sent))
        bad, loss, total = np.zeros(len(sent), bool), 0.0, torch.zeros_like(w)
        for stack in data.stacks:
            before, local = self.h[stack.clients, :, : stack.x.shape[2]], stack.local(w)
            loss += _mean_error(stack, local, before)
            size = stack.columns[:, None, None]  # the sum of squares, not its mean over columns
            step = gradient_h(stack, local, before) * size + 2 * method.l2 * before
            gradient = gradient_w(stack, local, before) * size
            good = gradient.isfinite().all(2).all(1) & step.isfinite().all(2).all(1)
            bad[stack.clients[~good].cpu().numpy()] = True
            stays = torch.from_numpy(~lost[stack.clients.cpu().numpy()]).to(w.device) & good
            self.h[stack.clients, :, : stack.x.shape[2]] = torch.where(
                good[:, None, None], before - method.step * step, before
            )
            stack.add(total, torch.where(stays[:, None, None], gradient, 0))
        if (~lost & ~bad & (sent > 0)).any():
            w.sub_(method.step * (total + 2 * method.l2 * w))
        return Outcome(sent, lost, bad & ~lost, loss / int(sent.sum()))


def rounds_of(
    method: FedMAvg | SFMF, data: Data, w: Tensor, h: Tensor, *, seed: int = 0, lost: float = 0.0
) -> FedMAvgRounds | SFMFRounds:
    if isinstance(method, SFMF):
        return SFMFRounds(data, method, w, h, seed=seed, lost=lost)
    return FedMAvgRounds(data, method, w, h, seed=seed, lost=lost)


def _mean_error(stack: Stack, w: Tensor, h: Tensor) -> float:
    """Σ over clients of ½ · the mean squared error of their known entries."""
    squares = (residual(stack, w, h) * (torch.bmm(w, h) - stack.x)).sum((1, 2))
    if stack.constant is not None:
        squares = squares + stack.constant
    return 0.5 * float((squares / stack.per_column.sum(1)).sum())


def _drops(lost: float, seed: int, round: int, clients: int) -> np.ndarray:
    if not lost:
        return np.zeros(clients, bool)
    return rng.uniform(rng.key(seed, rng.LOSS, round, np.arange(clients))) < lost
