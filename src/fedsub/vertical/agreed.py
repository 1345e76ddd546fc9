"""What the parties of a split model agree on: kinds of messages, which samples are in a batch, whose samples they are.

The label party asks, a feature party answers; every question has one answer.

    JOIN      seed, batch size, steps of a round; digests of the samples' ids    JOINED   an empty tensor like z
    BEGIN r   go to the end of round r: its checkpoint, or the start             READY
    FORWARD t the activations of step t                                          Z t      z [b, …]
    BACK t    ∂ℓ/∂z [b, …]; with MORE the answer is Z of step t + 1              READY t
    ASK       the activations of some samples of a part of the data              Z
    SAVE r    a checkpoint of round r, on disk when the answer comes             READY
    END r     training is over                                                   READY
    (anything that cannot be used)                                               NO       why, as text

Which samples are in the batch of step t follows from the seed and t: no list of ids crosses. That two parties hold the
same samples in the same order is compared by a digest of the ids, which both know.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from fedsub import rng
from fedsub.data.clients import Clients
from fedsub.errors import DataError
from fedsub.round import wire

JOIN, BEGIN, FORWARD, BACK, ASK, SAVE, END = range(50, 57)  # kinds: questions
JOINED, READY, Z, NO = range(60, 64)  # answers
MORE = 1  # flag of BACK: go on with the next step
AT_ONCE = 1 << 12  # samples of one question outside of training
NUMBER: tuple[torch.dtype, tuple[int | None, ...]] = (torch.int64, ())


def batch_of(seed: int, samples: int, size: int, step: int) -> np.ndarray:
    """The samples of a step (from 1 on), int64: passes over all samples in a random order, the last batch the rest."""
    turn, place = divmod(step - 1, -(-samples // size))
    return _order(seed, samples, turn)[place * size : (place + 1) * size]


@lru_cache(maxsize=4)
def _order(seed: int, samples: int, turn: int) -> np.ndarray:
    order = rng.first_of_permutation(samples, samples, rng.key(seed, rng.BATCH, turn))
    order.setflags(write=False)
    return order


def ids_digest(clients: Clients, whose: str) -> int:
    """A number that only the same samples in the same order share; every sample is a client of its own, by its id."""
    if len(clients) != clients.samples:
        raise DataError(
            f"The data of {whose} has {clients.samples:,} samples and {len(clients):,} ids; parties meet sample by "
            "sample, so read them with client= a column in which every row has an id of its own."
        )
    return _digest(id(clients), clients)


class _Known:
    """Digests of data that were looked at before; the data is kept with it, so that no other takes its place."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[Clients, int]] = {}

    def __call__(self, key: int, clients: Clients) -> int:
        if key not in self.found or self.found[key][0] is not clients:
            if len(self.found) > 8:
                self.found.clear()
            seen = blake2b(digest_size=7)
            ids = clients.client_ids
            for value in ids.tolist():
                seen.update(f"{value}\0".encode())
            self.found[key] = clients, int.from_bytes(seen.digest(), "little")
        return self.found[key][1]


_digest = _Known()


def run_number(seed: int, batch_size: int, steps: int, digest: int) -> int:
    """By what messages of different runs are told apart."""
    return int(rng.key(seed, batch_size, steps, digest)) >> 1


def text(why: str) -> dict[str, torch.Tensor]:
    return {"why": torch.from_numpy(np.frombuffer(why.encode()[:4000], np.uint8).copy())}


def said(message: wire.Envelope) -> str:
    """The reason that a NO gives; it comes from another process, so only what can be shown of it."""
    why = message.tensors.get("why")
    if why is None or why.dtype != torch.uint8:
        return "it does not say why"
    shown = bytes(why.numpy().tobytes()).decode(errors="replace")
    return "".join(c for c in " ".join(shown.split()) if c.isprintable())[:1000]


def like(value: Any) -> tuple[torch.dtype, tuple[int | None, ...]]:
    """What `wire.check` expects of a tensor like this one."""
    return value.dtype, tuple(value.shape)
