"""What one client gives to a secure sum: its values as whole numbers, in named segments of one vector.

    update/…, part.payload/…   a_i Δ_i and what parts send, entry by entry, over the rows that are summed
    sum/weight, sum/count      a_i and 1, exact
    sum/loss, sum/part.number  the loss and a_i times the numbers of parts, in 2^32 − 1 levels
    sum/clipped                how many entries were clipped, exact
    sum/idle                   1 of a client of whose samples none are left, exact; where rows are perturbed
    held/…                     a_i at the rows that came to a client and that it holds, exact; where an average asks

Levels are counted from the middle one, which is 0, so that rows a client does not hold take nothing and add nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from fedsub import rng
from fedsub.errors import MethodError
from fedsub.method.parts import SecureSum
from fedsub.round.messages import UPDATE, Uplink
from fedsub.round.schema import Schema
from fedsub.secure import Quantiser, Segment
from fedsub.trees import Tree

NUMBER_LEVELS = 2**32 - 1
MOST_ENTRIES = 2**40
EXACT = ("weight", "count", "clipped", "idle")
Array = np.ndarray


@dataclass(frozen=True)
class Given:
    """One client's levels, from the middle one, over its own rows; and its numbers, as segments take them."""

    levels: dict[tuple[str, str], Array]  # (tree, parameter) -> int64 [|S(i)|·d], or of a dense parameter
    numbers: dict[str, int]
    held: dict[str, Array] = field(default_factory=dict)  # by space: bool, which of the rows it named it holds


@dataclass
class Ranges:
    """Which values there are, and in which range each lies."""

    secure: SecureSum
    schema: Schema
    like: Tree = field(repr=False)
    heaviest: float  # the largest a_i of all clients
    seed: int = 0
    held: bool = False  # whether Σ a_i by row is summed

    @staticmethod
    def of(
        secure: SecureSum, schema: Schema, like: Tree, weights: Array, seed: int, *, needs_held: bool = False
    ) -> Ranges:  # fmt: skip
        """``weights``: a_i of all clients; ``needs_held``: the average asks for their sum by row."""
        if (weights != np.rint(weights)).any():
            odd = weights[weights != np.rint(weights)][0]
            raise MethodError(
                f"A secure sum adds weights a_i that are whole numbers, and one here is {odd:g}; weigh by clients or "
                "by samples."
            )
        return Ranges(secure, schema, like, float(weights.max()), seed, needs_held and secure.perturbs is not None)

    def __post_init__(self) -> None:
        self.fields = [(tree, name) for tree, names in self.schema.trees.items() for name in names]
        self.quantisers = {
            tree: Quantiser(self._clip(tree) * self.heaviest, self.secure.levels) for tree in self.schema.trees
        }
        self.numbers = (*self.schema.sums, "clipped", *(("idle",) if self.secure.perturbs is not None else ()))
        self._scales = {name: Quantiser(self._limit(name), NUMBER_LEVELS) for name in self.numbers if name not in EXACT}

    def _clip(self, tree: str) -> float:
        given = self.secure.clip if tree == UPDATE else self.secure.payload_clip
        assert given is not None
        return given

    def _limit(self, name: str) -> float:
        return self.secure.loss_clip if name == "loss" else self.secure.number_clip * self.heaviest

    @property
    def middle(self) -> int:
        """The level that is 0."""
        return (self.secure.levels - 1) // 2

    def prove(self, clients: int) -> None:
        """Refuse ranges that the sum over so many clients could leave; the message has the numbers."""
        for tree, quantiser in self.quantisers.items():
            try:
                Segment(tree, 1, self.secure.bits, quantiser.most).prove(clients)
            except MethodError as err:
                raise MethodError(
                    f"The secure sum does not fit: entries up to clip × largest weight = {self._clip(tree):g} × "
                    f"{self.heaviest:g} = {quantiser.clip:g} in {self.secure.levels} levels. {err}"
                ) from err

    def segments(self, rows: Mapping[str, int]) -> tuple[Segment, ...]:
        """The vector's parts where so many rows of each space are summed; without empty ones."""
        out = []
        for tree, name in self.fields:
            size = self.width(name) * (rows[self.schema.tables[name]] if name in self.schema.tables else 1)
            if size:
                out.append(Segment(f"{tree}/{name}", size, self.secure.bits, self.quantisers[tree].most))
        if self.held:
            out += [Segment(f"held/{s}", rows[s], 64, int(self.heaviest)) for s in self.schema.spaces if rows[s]]
        exact = {"weight": int(self.heaviest), "count": 1, "clipped": MOST_ENTRIES, "idle": 1}
        return (*out, *[Segment(f"sum/{name}", 1, 64, exact.get(name, NUMBER_LEVELS - 1)) for name in self.numbers])

    def width(self, name: str) -> int:
        """Values of a row, or of the whole."""
        value = self.like[name]
        return int(np.prod(value.shape[name in self.schema.tables :]))

    def split(
        self, uplink: Uplink, counts: Mapping[str, Array], round: int, held: Mapping[str, Array] | None = None
    ) -> Iterator[tuple[int, Given]]:
        """(number, what it gives) of every client of a group that does not refuse itself.

        ``held``: where rows are perturbed, which of those that clients named they hold, client after client.
        """
        starts = {space: np.cumsum(n) - n for space, n in counts.items()}
        flat = {
            (tree, name): value.detach().cpu().reshape(len(value), math.prod(value.shape[1:])).numpy()
            for tree, values in uplink.trees.items()
            for name, value in values.items()
        }
        for k in np.flatnonzero(~uplink.refused).tolist():
            own = {}
            for tree, name in self.fields:
                begin, count = k, 1
                if name in self.schema.tables:
                    space = self.schema.tables[name]
                    begin, count = int(starts[space][k]), int(counts[space][k])
                own[tree, name] = flat[tree, name][begin : begin + count].reshape(-1)
            numbers = {name: float(values[k]) for name, values in uplink.sums.items()}
            client = int(uplink.who.clients[k])
            given = self.give(client, round, own, numbers)
            if self.held and held is not None:
                places = {
                    space: slice(int(starts[space][k]), int(starts[space][k] + n[k])) for space, n in counts.items()
                }
                given = replace(given, held={space: held[space][places[space]] for space in self.schema.spaces})
            yield client, given

    def give(
        self, client: int, round: int, values: Mapping[tuple[str, str], Array], numbers: Mapping[str, float]
    ) -> Given:
        """A client's values, times its weight, to levels."""
        weight, clipped = numbers["weight"], 0
        levels: dict[tuple[str, str], Array] = {}
        for place, (tree, name) in enumerate(self.fields):
            bound = self._clip(tree) * weight
            own = values[tree, name].astype(np.float64)
            clipped += int((np.abs(own) > bound).sum())
            word = self._word(round, client, place)
            levels[tree, name] = self.quantisers[tree].encode(np.clip(own, -bound, bound), word) - self.middle
        out = {"weight": int(weight), "count": 1, "clipped": clipped}
        if "idle" in self.numbers:
            out["idle"] = int(numbers.get("idle", 0))
        for place, (name, quantiser) in enumerate(self._scales.items()):
            value = numbers[name]
            if name != "loss" and abs(value) > self.secure.number_clip * weight:
                raise MethodError(
                    f"Client {client} would send {name} = {value / weight:g}, and SecureSum has the range of "
                    f"±{self.secure.number_clip:g} for numbers of parts: nothing was sent. Give a larger number_clip."
                )
            word = self._word(round, client, len(self.fields) + place)
            out[name] = int(quantiser.encode(np.array([value]), word)[0])
        return Given(levels, out)

    def spread(self, given: Given, held: Mapping[str, Array], rows: Mapping[str, Array]) -> dict[str, Array]:
        """A client's vector by segment: of the rows that are summed it has levels where it named them, else 0."""
        out: dict[str, Array] = {}
        for tree, name in self.fields:
            levels, space = given.levels[tree, name], self.schema.tables.get(name)
            if space is not None:
                _, at, mine = np.intersect1d(rows[space], held[space], assume_unique=True, return_indices=True)
                wide = np.zeros((len(rows[space]), self.width(name)), np.int64)
                wide[at] = levels.reshape(len(held[space]), self.width(name))[mine]
                levels = wide.reshape(-1)
            if levels.size:
                out[f"{tree}/{name}"] = levels + self.middle
        for space, mask in given.held.items():
            if len(rows[space]):
                out[f"held/{space}"] = np.isin(rows[space], held[space][mask]) * np.uint64(given.numbers["weight"])
        return out | {f"sum/{name}": np.array([value], np.uint64) for name, value in given.numbers.items()}

    def _word(self, round: int, client: int, place: int) -> int:
        return int(rng.key(self.seed, rng.QUANTISED, round, client, place))

    def read(self, sums: Mapping[str, Array], clients: int) -> tuple[dict[str, Tree], dict[str, float]]:
        """(trees, numbers) of the sum over so many clients, as floats; all values flat."""
        trees: dict[str, Tree] = {tree: {} for tree in self.schema.trees}
        for tree, name in self.fields:
            total = sums.get(f"{tree}/{name}")
            if total is not None:
                levels = total.astype(np.int64) - clients * self.middle
                trees[tree][name] = torch.from_numpy(levels * self.quantisers[tree].step)
        numbers = {}
        for name in self.numbers:
            total = sums[f"sum/{name}"]
            scale = self._scales.get(name)
            numbers[name] = float(total[0]) if scale is None else float(scale.decode(total, clients)[0])
        return trees, numbers
