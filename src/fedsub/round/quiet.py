"""What training leaves as it found it: torch's threads and its random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedsub.trees import Tree


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread while training: small operations do not gain from more, and sums keep their order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def same_random_state(params: Tree) -> Iterator[None]:
    """Leave torch's global random numbers as they were: modules with dropout draw from them."""
    devices = {p.device for p in params.values() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)):
        yield
