"""A network of whole numbers trained one step on several workers, message by message, and what they send.

Whole numbers make sums exact in any order, so that outputs and gradients must equal those of one worker.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedsub.study.costs.collectives import chunk_sizes, simulate_ring
from fedsub.study.costs.model_parallel import stages_of

Array = np.ndarray


class Trained(NamedTuple):
    """``output``, ``gradients`` by layer, values ``sent`` by worker, time ``slots`` and in how many each works."""

    output: Array
    gradients: list[Array]
    sent: Array
    slots: int = 0
    busy: Array | None = None


def alone(weights: list[Array], x: Array, slopes: Array) -> Trained:
    """One worker: y = relu(… relu(x W_1) …), and the gradients of Σ slopes · y."""
    inputs, gradients = [x], []
    for w in weights:
        inputs.append(np.maximum(inputs[-1] @ w, 0))
    for w, before, after in zip(weights[::-1], inputs[-2::-1], inputs[:0:-1], strict=True):
        slopes = slopes * (after > 0)
        gradients.append(before.T @ slopes)
        slopes = slopes @ w.T
    return Trained(inputs[-1], gradients[::-1], np.zeros(1, np.int64))


def simulate_pipeline(weights: list[Array], x: Array, slopes: Array, workers: int, micro_batches: int) -> Trained:
    """Stages work in time slots, on the first micro-batch that has reached them; in one slot a stage does one.

    All pieces go forward, then back. A message is there in the next slot.
    """
    stages = stages_of(len(weights), workers)
    pieces = np.array_split(np.arange(len(x)), micro_batches)
    sent, busy = np.zeros(workers, np.int64), np.zeros(workers, np.int64)
    saved: dict[tuple[int, int], list[Array]] = {}  # by worker and piece: its layers' inputs, and its output
    gradients = [np.zeros_like(w) for w in weights]
    output = np.zeros((len(x), weights[-1].shape[1]), x.dtype)

    def forward(worker: int, piece: int, value: Array) -> Array:
        inputs = [value]
        for w in weights[stages[worker]]:
            inputs.append(np.maximum(inputs[-1] @ w, 0))
        saved[worker, piece] = inputs
        return inputs[-1]

    def back(worker: int, piece: int, value: Array) -> Array:
        inputs = saved[worker, piece]
        for at in reversed(range(stages[worker].start, stages[worker].stop)):
            local = at - stages[worker].start
            value = value * (inputs[local + 1] > 0)
            gradients[at] += inputs[local].T @ value
            value = value @ weights[at].T
        return value

    slots = 0
    for work, order in ((forward, range(workers)), (back, range(workers)[::-1])):
        first, last = order[0], order[-1]
        source = x if work is forward else slopes
        waiting = {worker: [] for worker in order}
        waiting[first] = [(piece, source[rows]) for piece, rows in enumerate(pieces)]
        done = 0
        while done < micro_batches:
            arrived = []
            for worker in order:
                if not waiting[worker]:
                    continue
                piece, value = waiting[worker].pop(0)
                busy[worker] += 1
                value = work(worker, piece, value)
                if worker == last:
                    done += 1
                    if work is forward:
                        output[pieces[piece]] = value
                else:
                    sent[worker] += value.size
                    arrived.append((worker + (order[1] - order[0]), (piece, value)))
            for worker, message in arrived:
                waiting[worker].append(message)
            slots += 1
    return Trained(output, gradients, sent, slots, busy)


def simulate_tensor_split(
    weights: list[Array], x: Array, slopes: Array, workers: int, *, paired: bool = False
) -> Trained:
    """Every worker holds a part of each layer; sums go around a ring (`simulate_ring`), parts are passed on."""
    sent = np.zeros(workers, np.int64)

    def reduced(parts: list[Array]) -> Array:
        ring = simulate_ring([part.reshape(-1) for part in parts])
        sent[:] += ring.sent
        return ring.results[0].reshape(parts[0].shape)

    def gathered(parts: list[Array]) -> Array:
        """Around the ring: in each of K − 1 steps everybody passes on the part that it got last."""
        has = [{k} for k in range(workers)]
        moving = list(range(workers))
        for _ in range(workers - 1):
            for k, part in enumerate(moving):
                sent[k] += parts[part].size
                has[(k + 1) % workers].add(part)
            moving = [moving[k - 1] for k in range(workers)]
        assert all(len(own) == workers for own in has)
        return np.concatenate(parts, axis=1)

    by_outputs = [paired and i % 2 == 0 for i in range(len(weights))]
    cuts = [_cuts(w.shape[1 if columns else 0], workers) for w, columns in zip(weights, by_outputs, strict=True)]
    inputs: list[Array] = [x]  # what everybody has before each layer; of a pair's second one its parts, side by side
    for w, columns, cut in zip(weights, by_outputs, cuts, strict=True):
        if columns:
            parts = [inputs[-1] @ w[:, own] for own in cut]
            inputs.append(np.maximum(np.concatenate(parts, axis=1), 0))  # everybody keeps its own part
        else:
            inputs.append(np.maximum(reduced([inputs[-1][:, own] @ w[own] for own in cut]), 0))
    gradients: list[Array] = []
    for i in reversed(range(len(weights))):
        slopes = slopes * (inputs[i + 1] > 0)
        w, cut = weights[i], cuts[i]
        if by_outputs[i]:
            gradients.append(np.concatenate([inputs[i].T @ slopes[:, own] for own in cut], axis=1))
            slopes = reduced([slopes[:, own] @ w[:, own].T for own in cut]) if i else slopes
        else:
            gradients.append(np.concatenate([inputs[i][:, own].T @ slopes for own in cut]))
            parts = [slopes @ w[own].T for own in cut]
            slopes = gathered(parts) if i and not paired else np.concatenate(parts, axis=1)
    return Trained(inputs[-1], gradients[::-1], sent)


def _cuts(width: int, workers: int) -> list[slice]:
    sizes = chunk_sizes(workers, width)
    return [slice(end - size, end) for end, size in zip(np.cumsum(sizes).tolist(), sizes.tolist(), strict=True)]
