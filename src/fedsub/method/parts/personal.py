"""FedPer: some parameters stay with the client."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsub import rng
from fedsub.errors import MethodError
from fedsub.method.part import Message, Part, Start, Work
from fedsub.method.slots import Method
from fedsub.trees import Tree

LAST = "last"  # the parameters of the module's last layer


@dataclass(frozen=True)
class Personal(Part):
    """Parameters that every client keeps for itself: trained with the shared ones, never sent.

    Client i trains (W_B, W_i) and sends the update of W_B alone; the server averages that.
    ``names`` are parameters, patterns such as "head.*", or "last": the module's last layer. A client's own values
    begin like the module's (``init="shared"``) or (``"random"``) as normal numbers of their mean and spread, drawn
    for each client. ``alone``: the shared parameters stand still, to fit a new client's own ones.

    M. G. Arivazhagan et al., "Federated Learning with Personalization Layers", 2019.
    """

    names: tuple[str, ...] = (LAST,)
    init: str = "random"
    alone: bool = False
    client_slots: ClassVar[tuple[str, ...]] = ("own",)
    own: ClassVar[str] = "own"

    def check(self, method: Method) -> None:
        if not isinstance(self.names, tuple) or not all(isinstance(n, str) and n for n in self.names):
            raise MethodError(f'Personal names parameters or patterns, such as ("head.*",); got {self.names!r}.')
        if self.init not in ("random", "shared"):
            raise MethodError(f'init of Personal must be "random" or "shared", got {self.init!r}.')
        if part := next((part for part in method.parts if part.steers), None):
            raise MethodError(
                f"{type(part).__name__} corrects clients towards the mean gradient of all, which own parameters do not "
                "have; leave out one of the two."
            )
        if method.sampler.probes:
            raise MethodError(
                "Power-of-choice asks clients for the loss of the shared model, which without their own parameters "
                "means nothing; use another sampler with Personal, such as rpow-d."
            )

    def private(self, names: Collection[str]) -> tuple[str, ...]:
        """Which of the module's trained parameters, named in its order, are personal."""
        if not self.names:
            return ()
        found = []
        for pattern in self.names:
            fits = _last_layer(names) if pattern == LAST else [n for n in names if fnmatchcase(n, pattern)]
            if not fits:
                raise MethodError(
                    f"Personal names {pattern!r}, which fits no trained parameter; they are {', '.join(names)}."
                )
            found += fits
        return tuple(name for name in names if name in found)

    def kept_names(self, slot: str, names: Collection[str]) -> tuple[str, ...]:
        return self.private(names)

    def first(self, slot: str, name: str, start: Start) -> Tensor:
        if self.init == "shared" or start.spread == 0.0:  # zeros, ones: a layer that is meant to begin so
            return start.values
        # Every value has a word of its own: the client's, and its place within the client.
        width = math.prod(start.values.shape[1:])
        sizes = start.counts * width
        place = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        with np.errstate(over="ignore"):
            words = np.repeat(start.words, sizes) + place.astype(np.uint64)
        drawn = torch.from_numpy(start.mean + start.spread * rng.normal(words)).to(start.values.dtype)
        drawn = drawn.reshape(start.values.shape).to(start.values.device)
        if start.padded:  # the row that means nothing stays what it is
            rows = torch.from_numpy(np.cumsum(start.counts) - start.counts)
            drawn[rows] = start.values[rows]
        return drawn

    def supply(self, work: Work) -> Tree:
        return dict(work.client[self.key]["own"])

    def grad(self, grads: Tree, params: Tree, work: Work) -> Tree:
        if not self.alone:
            return grads
        own = work.client[self.key]["own"]
        return {name: g if name in own else torch.zeros_like(g) for name, g in grads.items()}

    def finish(self, message: Message, params: Tree, work: Work) -> None:
        own = work.client[self.key]["own"]
        for name in own:
            own[name] = params[name].clone()
            del message.trees["update"][name]


def _last_layer(names: Collection[str]) -> list[str]:
    """The parameters that belong to the same layer as the last one."""
    owner = list(names)[-1].rpartition(".")[0]
    return [n for n in names if n.rpartition(".")[0] == owner]
