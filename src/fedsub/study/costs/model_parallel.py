"""One model on several workers: its layers one behind the other (pipeline), or every layer cut (tensor split).

Counted are values, of one training step of a batch of B samples through layers of widths d_0 → d_1 → … → d_L (layer l
is a matrix [d_{l−1}, d_l]); times the bytes of one they are a volume.

    data parallel   every worker holds all, trains on its own batch, and gradients are averaged around a ring
    pipeline        p stages of whole layers, m micro-batches: at each of the p − 1 borders 2 B d values a step,
                    forward and back; of the time (p − 1)/(m + p − 1) is the bubble, in which a stage has nothing to do
    tensor split    every worker holds 1/p of each layer's inputs; its partial sums are added up around a ring, an
                    all-reduce of B d_l values, and back an all-gather of B d_{l−1}
    … in pairs      a layer cut by outputs, the next by inputs: one all-reduce each way for two layers

Y. Huang et al., "GPipe", NeurIPS 2019; M. Shoeybi et al., "Megatron-LM", 2019 (the pairs).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsub.checks import check_number, check_positive, check_whole, is_whole
from fedsub.errors import ConfigError
from fedsub.study.costs.collectives import chunk_sizes, ring_all_reduce


@dataclass(frozen=True, eq=False)
class Split:
    """A model on several workers. ``parameters`` and ``sent`` are values by worker, ``sent`` of a training step."""

    name: str
    parameters: np.ndarray
    sent: np.ndarray
    steps: int  # messages that wait for each other: the factor on the latency
    idle: float = 0.0  # share of the time in which a worker waits for others' layers, all layers being equally long

    @property
    def workers(self) -> int:
        return len(self.sent)

    @property
    def total(self) -> int:
        """All values that cross a wire in a step."""
        return int(self.sent.sum())

    def seconds(self, bandwidth: float, latency: float, bytes_per_value: int = 4) -> float:
        """What messages take if nothing hides them: steps · α + the busiest worker's bytes / bandwidth."""
        size = check_whole("bytes_per_value", bytes_per_value, 1, error=ConfigError)
        speed = check_positive("bandwidth", bandwidth, error=ConfigError)
        wait = check_number("latency", latency, least=0, error=ConfigError)
        return self.steps * wait + int(self.sent.max()) * size / speed


def data_parallel(widths: Sequence[int], workers: int) -> Split:
    """Every worker has the whole model and a batch of its own; its gradients go around a ring."""
    layers, p = _layers(widths), check_whole("workers", workers, 1, error=ConfigError)
    whole = sum(rows * columns for rows, columns in layers)
    ring = ring_all_reduce(p, whole)
    return Split("data parallel", np.full(p, whole), ring.sent, ring.steps)


def pipeline(widths: Sequence[int], batch: int, workers: int, micro_batches: int = 1) -> Split:
    """p stages of whole consecutive layers, as many each as possible; the batch goes through in m pieces.

    Worker s sends B d values of its last layer on, and B d slopes of its first layer's inputs back.
    """
    layers = _layers(widths)
    samples, p, m = _counts(batch, workers, micro_batches)
    if p > len(layers):
        raise ConfigError(f"{p} workers cannot each have one of {len(layers)} layers; take fewer workers.")
    if m > samples:
        raise ConfigError(f"A batch of {samples} samples cannot be cut into {m} micro-batches; take fewer.")
    stages = stages_of(len(layers), p)
    borders = [samples * layers[stage.stop - 1][1] for stage in stages[:-1]]
    held = [sum(rows * columns for rows, columns in layers[stage]) for stage in stages]
    sent = np.array([*borders, 0], np.int64) + np.array([0, *borders], np.int64)
    steps = 2 * (p + m - 2) if p > 1 else 0  # the first piece crosses all borders, the others follow one by one
    return Split("pipeline", np.array(held, np.int64), sent, steps, bubble(p, m))


def tensor_split(widths: Sequence[int], batch: int, workers: int, *, paired: bool = False) -> Split:
    """Every layer on all workers. Forward an all-reduce per layer; back the slopes of its inputs are gathered.

    ``paired``: layers 2k and 2k + 1 are cut by outputs and by inputs. Between them nothing is sent; forward the second
    one's outputs are added up, back the first one's slopes.
    """
    layers = _layers(widths)
    samples, p, _ = _counts(batch, workers, 1)
    narrow = min(columns if paired and i % 2 == 0 else rows for i, (rows, columns) in enumerate(layers))
    if p > narrow:
        raise ConfigError(f"{p} workers cannot each have a part of a layer of width {narrow}; take fewer workers.")
    if paired and len(layers) % 2:
        raise ConfigError(f"{len(layers)} layers are no pairs; leave paired out, or take an even number of layers.")
    sent, held, steps = np.zeros(p, np.int64), np.zeros(p, np.int64), 0
    for i, (rows, columns) in enumerate(layers):
        by_outputs = paired and i % 2 == 0
        held += chunk_sizes(p, columns) * rows if by_outputs else chunk_sizes(p, rows) * columns
        reduced = [samples * rows] if by_outputs and i else [] if by_outputs else [samples * columns]
        for count in reduced:
            ring = ring_all_reduce(p, count)
            sent, steps = sent + ring.sent, steps + ring.steps
        if not paired and i:  # the slopes of the data itself nobody needs
            sent, steps = sent + samples * gathered(chunk_sizes(p, rows)), steps + p - 1
    return Split("tensor split in pairs" if paired else "tensor split", held, sent, steps)


def bubble(stages: int, micro_batches: int) -> float:
    """(p − 1)/(m + p − 1): the share of a step in which a stage of a pipeline waits, all being equally long."""
    p, m = (check_whole(n, v, 1, error=ConfigError) for n, v in (("stages", stages), ("micro_batches", micro_batches)))
    return (p - 1) / (m + p - 1)


def pipeline_seconds(
    forward: Sequence[float], micro_batches: int, *, backward: Sequence[float] | None = None,
    transfer: Sequence[float] | None = None,
) -> float:  # fmt: skip
    """A step of a pipeline whose stages and links take these seconds for a micro-batch, forward and then back.

        Σ f_s + Σ τ_s + (m − 1) max(f_s, τ_s)  +  the same of b_s

    ``backward`` is twice ``forward`` if left out, ``transfer`` of the p − 1 links 0. A link carries one message at a
    time while stages go on; all micro-batches go forward before the first goes back.
    """
    f = [check_number("forward", v, least=0, error=ConfigError) for v in forward]
    b = (
        [2 * v for v in f]
        if backward is None
        else [check_number("backward", v, least=0, error=ConfigError) for v in backward]
    )
    links = [check_number("transfer", v, least=0, error=ConfigError) for v in transfer or [0.0] * (len(f) - 1)]
    m = check_whole("micro_batches", micro_batches, 1, error=ConfigError)
    if not f or len(b) != len(f) or len(links) != len(f) - 1:
        raise ConfigError(
            f"{len(f)} stages with {len(b)} times back and {len(links)} links do not fit; give one time per stage and "
            "one per border between two."
        )
    return sum(sum(work) + sum(links) + (m - 1) * max(*work, *links, 0.0) for work in (f, b))


def stages_of(layers: int, workers: int) -> list[slice]:
    """Which layers each stage has; the first ones have one more where they do not divide."""
    sizes = chunk_sizes(workers, layers)
    ends = np.cumsum(sizes).tolist()
    return [slice(end - size, end) for end, size in zip(ends, sizes.tolist(), strict=True)]


def gathered(parts: np.ndarray) -> np.ndarray:
    """What each worker sends so that all have all parts: around the ring, all but the next one's own."""
    return parts.sum() - np.roll(parts, -1)


def _layers(widths: Sequence[int]) -> list[tuple[int, int]]:
    found = list(widths)
    bad = next((w for w in found if not is_whole(w) or w < 1), None)
    if len(found) < 2 or bad is not None:
        raise ConfigError(f"widths is {found!r}, expected at least two whole numbers: inputs, and a width per layer.")
    return [(int(a), int(b)) for a, b in itertools.pairwise(found)]


def _counts(batch: int, workers: int, micro_batches: int) -> tuple[int, int, int]:
    given = {"batch": batch, "workers": workers, "micro_batches": micro_batches}
    samples, p, m = (check_whole(name, value, 1, error=ConfigError) for name, value in given.items())
    return samples, p, m
