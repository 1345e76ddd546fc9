"""Histories of tensors, saved round by round; their files, and how to damage them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedsub.disk.checkpoint import Checkpoints, Snapshot
from fedsub.disk.seal import seal_of

ROWS, WIDTH = 200, 4


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Every pattern of bits, NaNs with payloads included."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(2, shape, generator=generator).bool()
    flat = torch.randint(256, (math.prod(shape) * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    return flat.view(dtype).reshape(shape)


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[k].dtype == other[k].dtype and one[k].shape == other[k].shape and bits(one[k]) == bits(other[k])
        for k in one
    )


def cloned(state: Snapshot) -> Snapshot:
    copy = {"tensors": state.tensors, "tables": state.tables}
    parts = {part: {k: v.clone() for k, v in d.items()} for part, d in copy.items()}
    return Snapshot(state.round, parts["tensors"], parts["tables"], dict(state.meta))


def run(folder: Path, rounds: int, **options) -> tuple[Checkpoints, dict[int, Snapshot]]:
    """A run that moves three rows a round and saves each one; also what it looked like every time."""
    saved = Checkpoints(folder, **options)
    state = Snapshot(0, {"bias": torch.zeros(3)}, {"items": random_bits((ROWS, WIDTH), torch.float32)})
    history = {}
    for number in range(rounds):
        ids = np.array([number, number + 1, ROWS - 1])
        state.round, state.meta = number, {"seen": number * 10}
        state.tables["items"][ids] += number
        state.tensors["bias"] += 1
        saved.save(state, {"items": ids})
        history[number] = cloned(state)
    return saved, history


def check(folder: Path, history: dict[int, Snapshot], number: int) -> list[str]:
    """Load in a new process, so to speak; returns the sentences."""
    found, notes = Checkpoints(folder).load()
    expected = history[number]
    assert (found.round, found.meta) == (number, expected.meta)
    assert same(found.tensors, expected.tensors)
    assert same(found.tables, expected.tables)
    return notes


def data_file(folder: Path, number: int) -> Path:
    return next(folder.glob(f"round-{number:08d}.*.safetensors"))


def record_file(folder: Path, number: int) -> Path:
    return folder / f"round-{number:08d}.json"


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)


def reseal(path: Path, **changes: object) -> None:
    """Change a record as another program would have written it."""
    data = json.loads(path.read_bytes()) | changes
    path.write_text(json.dumps(data | {"seal": seal_of(data)}))


def check_loaded(folder: Path) -> Snapshot:
    found, notes = Checkpoints(folder).load()
    assert notes == []
    return found
