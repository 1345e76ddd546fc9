"""FedPer: some parameters stay with the client."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsub import rng
from fedsub.errors import MethodError
from fedsub.method.slots import Message, Method, Part, Work
from fedsub.round.memory import ClientState
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
    slot: ClassVar[str] = "personal.own"

    def check(self, method: Method) -> None:
        if not isinstance(self.names, tuple) or not all(isinstance(n, str) and n for n in self.names):
            raise MethodError(f'Personal names parameters or patterns, such as ("head.*",); got {self.names!r}.')
        if self.init not in ("random", "shared"):
            raise MethodError(f'init of Personal must be "random" or "shared", got {self.init!r}.')
        if any(part.steers for part in method.parts):
            raise MethodError(
                "Scaffold corrects clients towards the mean gradient, which own parameters do not have; leave out "
                "one of the two."
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

    def fill(self, kept: ClientState, params: Tree, seed: int) -> None:
        for name in self.private(kept.problem.names):
            stored, space = kept.tensors[f"{self.slot}/{name}"], kept.problem.tables.get(name)
            value = params[name]
            if space is not None:
                for low in range(0, len(stored), 1 << 20):  # not the whole arena at once: it may be a file
                    rows = torch.from_numpy(space.rows[low : low + (1 << 20)].astype(np.int64))
                    stored[low : low + len(rows)] = value[rows.to(value.device)].to(stored.device)
            else:
                stored.copy_(value.expand_as(stored))
            if self.init == "random":
                _draw(stored, value, seed, name)
                if space is not None and space.padding:  # the row that means nothing stays what it is
                    stored[torch.from_numpy(space.row_offsets[:-1].astype(np.int64))] = value[0].to(stored.device)

    def begin(self, params: Tree, work: Work) -> None:
        for name, own in work.client[self.key]["own"].items():
            params[name].copy_(own)
            work.sent[name] = own.clone()  # what others (a proximal term, the update) compare with

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


def _draw(stored: Tensor, like: Tensor, seed: int, name: str) -> None:
    """Normal numbers of the mean and spread of ``like``; the same whatever else is drawn."""
    spread = float(like.double().std()) if like.numel() > 1 else 0.0
    if spread == 0.0:  # zeros, ones: a layer that is meant to begin so
        return
    generator = torch.Generator().manual_seed(int(rng.key(seed, rng.PERSONAL, *name.encode()) >> np.uint64(1)))
    for low in range(0, len(stored), 1 << 16):
        some = stored[low : low + (1 << 16)]
        some.copy_(torch.empty(some.shape, dtype=some.dtype).normal_(float(like.mean()), spread, generator=generator))
