"""What clients have computed and the server has not yet added: single clients' uplinks, cut from groups and joined.

A client trains when it begins, as far as this process is concerned: what it sends does not depend on when it is done.
So no older model is kept, and memory is bounded by the clients that train at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedsub.method.groups import Cohort
from fedsub.round.messages import Kept, Uplink
from fedsub.trees import Tree

Owners = Callable[[str, np.ndarray], np.ndarray | None]  # of a parameter: rows by client; None: one entry for each


@dataclass(frozen=True)
class Done:
    """What some clients send and keep; rows of tables lie one client's behind the other's, dense values are [c, …]."""

    uplink: Uplink
    kept: Kept

    def split(self, rows: Owners) -> Iterator[Done]:
        """Client by client, each with memory of its own."""
        who = self.uplink.who
        edges: dict[str, np.ndarray] = {}

        def of(tree: Tree, k: int) -> Tree:
            out = {}
            for name, value in tree.items():
                if name not in edges:
                    counts = rows(name, who.clients)
                    edges[name] = np.arange(len(who) + 1) if counts is None else np.append(0, np.cumsum(counts))
                out[name] = value[int(edges[name][k]) : int(edges[name][k + 1])].clone()
            return out

        for k in range(len(who)):
            one = slice(k, k + 1)
            uplink = Uplink(
                who.take(one), self.uplink.refused[one], {t: of(tree, k) for t, tree in self.uplink.trees.items()},
                {name: values[one] for name, values in self.uplink.sums.items()},
                lengths=None if self.uplink.lengths is None else self.uplink.lengths[one],
            )  # fmt: skip
            yield Done(uplink, {p: {s: of(tree, k) for s, tree in slots.items()} for p, slots in self.kept.items()})

    @classmethod
    def join(cls, some: Sequence[Done]) -> Done:
        """Several as one, in their order."""
        first = some[0]
        uplinks = [one.uplink for one in some]
        who = Cohort(*(np.concatenate([getattr(u.who, of) for u in uplinks]) for of in ("clients", "repeats")))
        trees = {tree: _joined([u.trees[tree] for u in uplinks]) for tree in first.uplink.trees}
        sums = {name: np.concatenate([u.sums[name] for u in uplinks]) for name in first.uplink.sums}
        lengths = [u.lengths for u in uplinks if u.lengths is not None]
        uplink = Uplink(
            who, np.concatenate([u.refused for u in uplinks]), trees, sums,
            lengths=np.concatenate(lengths) if lengths else None,
        )  # fmt: skip
        kept = {
            part: {slot: _joined([one.kept[part][slot] for one in some]) for slot in slots}
            for part, slots in first.kept.items()
        }
        return cls(uplink, kept)

    def times(self, weight: float) -> Done:
        """The trees that are sent, times a number; sums of weights, losses and counts stay."""
        if weight == 1.0:
            return self
        trees = {t: {n: value * weight for n, value in tree.items()} for t, tree in self.uplink.trees.items()}
        return Done(replace(self.uplink, trees=trees), self.kept)

    def tensors(self) -> Tree:
        """For a checkpoint."""
        out = {f"tree/{tree}/{n}": value for tree, values in self.uplink.trees.items() for n, value in values.items()}
        out |= {f"sum/{name}": torch.from_numpy(values.copy()) for name, values in self.uplink.sums.items()}
        out |= {"who": torch.from_numpy(self.uplink.who.clients.copy())}
        out |= {"refused": torch.from_numpy(self.uplink.refused.copy())}
        if self.uplink.lengths is not None:
            out["lengths"] = torch.from_numpy(self.uplink.lengths.copy())
        for part, slots in self.kept.items():
            out |= {f"kept/{part}/{s}/{n}": value for s, tree in slots.items() for n, value in tree.items()}
        return out

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Done:
        """What `tensors` gave."""
        trees: dict[str, Tree] = {}
        kept: Kept = {}
        for name, value in tensors.items():
            kind, _, rest = name.partition("/")
            if kind == "tree":
                tree, _, parameter = rest.partition("/")
                trees.setdefault(tree, {})[parameter] = value
            elif kind == "kept":
                part, slot, parameter = rest.split("/", 2)
                kept.setdefault(part, {}).setdefault(slot, {})[parameter] = value
        sums = {n.partition("/")[2]: value.numpy() for n, value in tensors.items() if n.startswith("sum/")}
        lengths = tensors["lengths"].numpy() if "lengths" in tensors else None
        who = Cohort.of(tensors["who"].numpy())
        return cls(Uplink(who, tensors["refused"].numpy(), trees, sums, lengths=lengths), kept)


def _joined(trees: Sequence[Tree]) -> Tree:
    return {name: torch.cat([tree[name] for tree in trees]) for name in trees[0]}
