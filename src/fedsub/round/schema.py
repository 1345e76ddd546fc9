"""What the messages of a method hold: one description for writing, for checking and for counting bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from fedsub.method.part import Part
from fedsub.round import wire
from fedsub.round.messages import MODEL, UPDATE
from fedsub.trees import Tree

CODED = "coded"  # the update as a codec writes it
NUMBER = "number"  # one of what parts keep at the server and send to all
REPORTS = "loss", "deviation"  # what a sampler may want to hear


@dataclass(frozen=True)
class Field:
    """A tensor of a message. A table's has as many rows as the client holds of ``space``."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]  # of one row, or of the whole
    space: str | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape) + (self.space is not None)

    @property
    def nbytes(self) -> int:
        """Of one row, or of the whole."""
        return math.prod(self.shape) * self.dtype.itemsize


class Schema:
    """The fields of every message between the two halves of a method on a model.

    ``like`` has the shapes and types of the shared parameters; of tables any number of rows will do.
    """

    def __init__(self, parts: Sequence[Part], like: Tree, tables: Mapping[str, str], reports: Sequence[str] = ()):
        """``reports`` are the numbers that the sampler wants of every client, in the clear."""
        self.parts, self.tables, self.reports = parts, tables, tuple(reports)
        self.private = tuple(name for part in parts for name in part.private(tuple(like)))
        self.shared = tuple(name for name in like if name not in self.private)
        self.codec = next((part for part in parts if part.codec), None)
        self._like = like
        told = () if any(part.silent for part in parts) else ("loss",)
        self.sums = ("weight", "count", *told, *(f"{p.key}.{n}" for p in parts for n in p.numbers))
        payloads = [f"{part.key}.{name}" for part in parts for name in part.payloads]
        self.trees = dict.fromkeys((UPDATE, *payloads), self.shared)  # what is summed, and of which parameters

    def down(self, probe: bool = False) -> list[Field]:
        """To a client: the shared parameters and, for training, the numbers and trees that parts send along."""
        slots = [] if probe else [f"{part.key}.{slot}" for part in self.parts for slot in part.sent_slots]
        told = [] if probe else [f"{part.key}.{name}" for part in self.parts for name in part.sent_numbers]
        numbers = [Field(f"{NUMBER}/{name}", torch.float64, ()) for name in told]
        return [*numbers, *[field for tree in (MODEL, *slots) for field in self.tree(tree, self.shared)]]

    def up(self, repeat: int = 0, probe: bool = False) -> list[Field]:
        """From a client: what is summed, and what the method declares to travel in the clear.

        Payloads of a part that keeps something count once: only a client's first draw in a round sends them.
        """
        seen = ("loss",) if probe else self.reports
        clear = [Field(f"seen/{name}", torch.float64, ()) for name in seen]
        if probe:
            return clear
        fields = self.tree(UPDATE, self.shared)
        if self.codec is not None:
            fields = [Field(CODED, torch.uint8, (-1,))]
        for part in self.parts:
            if repeat == 0 or not part.client_slots:
                fields += [f for name in part.payloads for f in self.tree(f"{part.key}.{name}", self.shared)]
        return [*fields, *[Field(f"sum/{name}", torch.float64, ()) for name in self.sums], *clear]

    def hello(self, counted: bool) -> list[Field]:
        """From a client, once: what it runs, its number of samples, and which rows it holds of some spaces.

        Those of tables that stay with it; of all tables if their heat is ``counted`` from what clients say.
        """
        said = [Field(name, torch.int64, ()) for name in ("method", "model", "samples")]
        tables = self.tables if counted else [name for name in self.private if name in self.tables]
        return [*said, *[Field(f"rows/{s}", torch.uint8, (-1,)) for s in dict.fromkeys(self.tables[t] for t in tables)]]

    def welcome(self) -> list[Field]:
        """To a client, once: the seed, what is reported, and from what private parameters get their first values."""
        reports = [Field(f"report/{name}", torch.float32, ()) for name in self.reports]
        moments = [Field(f"moments/{name}", torch.float64, (2,)) for name in self.private]
        return [Field("seed", torch.int64, ()), *reports, *self.tree("first", self.private), *moments]

    def rows(self) -> list[Field]:
        """From a client: which rows it asks for (`fedsub.method.codecs.wire.encode_rows`)."""
        return [Field(f"rows/{space}", torch.uint8, (-1,)) for space in self.spaces]

    @cached_property
    def spaces(self) -> tuple[str, ...]:
        """The spaces of which rows are sent."""
        return tuple(dict.fromkeys(self.tables[name] for name in self.shared if name in self.tables))

    def tree(self, tree: str, names: Sequence[str]) -> list[Field]:
        """A tree like the submodel, of some parameters."""
        out = []
        for name in names:
            like, space = self._like[name], self.tables.get(name)
            out.append(Field(f"{tree}/{name}", like.dtype, tuple(like.shape[space is not None :]), space))
        return out


def expected(fields: Sequence[Field], counts: Mapping[str, int]) -> wire.Expected:
    """Types and shapes of one client's fields, for `wire.check`."""
    out: wire.Expected = {}
    for field in fields:
        shape = tuple(None if size < 0 else size for size in field.shape)
        out[field.name] = field.dtype, shape if field.space is None else (counts[field.space], *shape)
    return out


class Length:
    """Bytes of a message by client, without writing it; fields of any length count as empty."""

    def __init__(self, fields: Sequence[Field]):
        self.fixed = wire.length([(field.name, field.ndim) for field in fields])
        self.by_row: dict[str, int] = {}
        for field in fields:
            if field.space is not None:
                self.by_row[field.space] = self.by_row.get(field.space, 0) + field.nbytes
            elif -1 not in field.shape:
                self.fixed += field.nbytes

    def of(self, counts: Mapping[str, np.ndarray], clients: int) -> np.ndarray:
        """Of clients that hold so many rows of each space, int64 [clients]."""
        out = np.full(clients, self.fixed, np.int64)
        for space, size in self.by_row.items():
            out += counts[space] * size
        return out


def lengths(fields: Sequence[Field], counts: Mapping[str, np.ndarray], clients: int) -> np.ndarray:
    """`Length` of fields that are needed once."""
    return Length(fields).of(counts, clients)
