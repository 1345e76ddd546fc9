"""`factorise`: matrices or ratings in, factors out; no run directory, no module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsub import rng
from fedsub.checks import check_whole
from fedsub.errors import ConfigError
from fedsub.families.factorisation.measures import measure
from fedsub.families.factorisation.rounds import rounds_of
from fedsub.families.factorisation.settings import SFMF, FedMAvg
from fedsub.families.factorisation.stacks import Data, from_blocks, from_ratings

Watch = Callable[[np.ndarray, list[np.ndarray]], dict[str, float]]


@dataclass(frozen=True)
class Factors:
    """W [M, k], H_p [k, N_p] of every client, and ``history``: round, objective, g_h and g_w."""

    w: np.ndarray
    h: list[np.ndarray]
    history: list[dict[str, float]]


def factorise(
    blocks: Sequence[Any],
    rank: int,
    *,
    rounds: int = 100,
    method: FedMAvg | SFMF | None = None,
    masks: Sequence[Any] | None = None,
    start: Any = None,
    seed: int = 0,
    every: int = 1,
    watch: Watch | None = None,
) -> Factors:
    """Factorise clients' matrices X_p [M, N_p] ≈ W H_p with ``method`` (default `FedMAvg()`, everybody sends).

    ``masks`` mark the known entries. ``start`` is W at first (default: normal numbers of variance 1/rank); H_p starts
    at 0. Measured every ``every`` rounds; ``watch(W, [H_p])`` returns more to be kept in the history.
    """
    widths = [np.shape(block)[1] if np.ndim(block) == 2 else 0 for block in blocks]
    return _run(from_blocks(blocks, masks), widths, rank, rounds, method, start, seed, every, watch)


def factorise_ratings(
    user: Any,
    item: Any,
    value: Any,
    rank: int,
    *,
    rounds: int = 100,
    method: FedMAvg | SFMF | None = None,
    users: int | None = None,
    items: int | None = None,
    start: Any = None,
    seed: int = 0,
    every: int = 1,
    watch: Watch | None = None,
) -> Factors:
    """The same for ratings as flat arrays; client p is a user, h_p has one column. Centre the values first."""
    users = int(np.max(user, initial=-1)) + 1 if users is None else users
    items = int(np.max(item, initial=-1)) + 1 if items is None else items
    data = from_ratings(user, item, value, users=users, items=items)
    return _run(data, [1] * users, rank, rounds, method, start, seed, every, watch)


def normal(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Standard normal numbers from counters (Box and Muller)."""
    place = np.arange(int(np.prod(shape)))
    radius, angle = (rng.uniform(rng.key(seed, rng.OTHER, half, place)) for half in (0, 1))
    return (np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)).reshape(shape)


def _run(data: Data, widths, rank, rounds, method, start, seed, every, watch) -> Factors:
    from fedsub.round.quiet import one_thread

    method = FedMAvg() if method is None else method
    if not isinstance(method, FedMAvg | SFMF):
        raise ConfigError(f"method must be FedMAvg(…) or SFMF(…), got {method!r}.")
    for name, value in {"rank": rank, "rounds": rounds, "every": every}.items():
        check_whole(name, value, 1, error=ConfigError)
    w = _start(start, data.rows, rank, seed)
    h = torch.zeros(len(data.columns), rank, max(widths), dtype=w.dtype)
    trainer = rounds_of(method, data, w, h, seed=seed)
    judge = method if isinstance(method, FedMAvg) else FedMAvg(l2=0.0)
    history = []
    with one_thread():
        for number in range(rounds + 1):
            if number:
                trainer.round(number)
            if number % every == 0 or number == rounds:
                more = {} if watch is None else watch(w.numpy(), _cut(h, widths))
                history.append({"round": number, **measure(data, judge, w, h), **more})
    return Factors(w.numpy(), _cut(h, widths), history)


def _cut(h: Tensor, widths: list[int]) -> list[np.ndarray]:
    """Every client's own columns."""
    return [h[p, :, :n].numpy() for p, n in enumerate(widths)]


def _start(start: Any, rows: int, rank: int, seed: int) -> Tensor:
    if start is None:
        return torch.from_numpy(normal((rows, rank), seed) / np.sqrt(rank))
    found = torch.tensor(np.asarray(start, float))
    if found.shape != (rows, rank) or not found.isfinite().all():
        raise ConfigError(f"start must hold finite numbers of the shape {(rows, rank)}, got {tuple(found.shape)}.")
    return found
