"""Every codec, and an update sent through one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsub.method.codecs import Codec, ErrorFeedbackSign, Int8, RandomK, Sign, TopK
from fedsub.method.groups import Group
from fedsub.method.part import Message, Work
from fedsub.trees import Tree

CODECS: list[Codec] = [
    Sign(), ErrorFeedbackSign(), TopK(0.3), TopK(0.02, feedback=False), RandomK(0.3), RandomK(0.1, feedback=False),
    RandomK(0.5, feedback=False, scale=False), Int8(), Int8(feedback=True),
]  # fmt: skip

EVERY = pytest.mark.parametrize("codec", CODECS, ids=repr)

TABLES = ("wide", "narrow")


def send(codec: Codec, update: Tree, residual: Tree | None = None, *, group: Group | None = None, words: Any = None):
    """What the server decodes, the new residual and the bytes."""
    residual = {n: torch.zeros_like(v) for n, v in update.items()} if residual is None else residual
    message = Message({"update": update})
    work = Work(0, 0, 0.1, update, group or Group(1, False), client={codec.key: {"residual": residual}})
    work.words = np.array([7], np.uint64) if words is None else np.asarray(words, np.uint64)
    codec.finish(message, update, work)
    assert message.encoded is not None
    assert message.encoded.dtype == np.int64
    return message.trees["update"], work.client[codec.key]["residual"], message.encoded.tolist()


def send_one(codec: Codec, values: Tensor, residual: Tensor | None = None, word: int = 7) -> tuple[Tensor, Tensor]:
    sent, kept, _ = send(codec, {"w": values}, None if residual is None else {"w": residual}, words=[word])
    return sent["w"], kept["w"]


def client(draw: np.random.Generator, rows: int, dtype: torch.dtype = torch.float32, zeros: float = 0.2) -> Tree:
    shapes = {"wide": (rows, 3), "narrow": (max(rows - 2, 0), 1), "dense": (2, 5), "scalar": ()}
    tree = {}
    for name, shape in shapes.items():
        values = draw.normal(size=shape) * 10.0 ** draw.integers(-3, 3)
        values = np.where(draw.random(shape) < zeros, 0, values)
        tree[name] = torch.from_numpy(np.asarray(values)).to(dtype)
    return tree


def stack(trees: list[Tree]) -> tuple[Tree, Group]:
    joined = {n: (torch.cat if n in TABLES else torch.stack)([t[n] for t in trees]) for n in trees[0]}
    return joined, Group(len(trees), True, {n: torch.tensor([len(t[n]) for t in trees]) for n in TABLES})


def unstack(tree: Tree, group: Group) -> list[Tree]:
    cut = {n: v.split(group.counts[n].tolist()) if n in TABLES else v.unbind() for n, v in tree.items()}
    return [{n: cut[n][i] for n in tree} for i in range(group.count)]


def same(a: Tree, b: Tree) -> bool:
    """Equal bit for bit, and of the same type and shape."""
    return all(
        x.dtype == y.dtype and x.shape == y.shape and x.numpy().tobytes() == y.numpy().tobytes()
        for x, y in ((a[n].contiguous(), b[n].contiguous()) for n in a | b)
    )
