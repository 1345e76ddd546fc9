"""The messages of one client, to bytes and back: what `fedsub.round.wire` carries, checked against the method.

A reader refuses with WireError what is damaged, of another round or client, not of the expected shapes, or not finite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from fedsub.errors import DataError, WireError
from fedsub.method.codecs.wire import decode_rows, encode_rows
from fedsub.method.groups import Cohort
from fedsub.round import wire
from fedsub.round.messages import MODEL, UPDATE, Downlink, Uplink
from fedsub.round.schema import CODED, NUMBER, Schema, expected
from fedsub.trees import Tree

LARGEST = 1e18  # of what a client sends: sums and squares of it are finite in float32, so that one cannot spoil all
_PROBES = {"": 0, "all": wire.ALL_DATA, "batch": wire.ONE_BATCH}
_BY_FLAG = {flag: probe for probe, flag in _PROBES.items()}


@dataclass(frozen=True)
class Letters:
    """Writes and reads the messages of a run. ``rows`` is how many every space has, ``padding`` as in `Work`."""

    schema: Schema
    rows: Mapping[str, int]
    run: int
    padding: frozenset[str] = frozenset()

    def invite(self, round: int, client: int, repeat: int, safe: int = 0) -> bytes:
        """``safe``: the client need keep nothing older than what it kept after this round."""
        return wire.write(wire.Envelope(wire.INVITE, round, client, repeat, self.run, accepted=safe))

    def ask(self, invited: wire.Envelope, own: Mapping[str, np.ndarray]) -> bytes:
        """The answer to an invitation: which rows the client holds."""
        rows = {f"rows/{s}": _bytes(encode_rows(own[s], self.rows[s])) for s in self.schema.spaces}
        return wire.write(
            wire.Envelope(wire.ROWS, invited.round, invited.client, invited.repeat, self.run, tensors=rows)
        )

    def read_asked(self, data: bytes, round: int, client: int, repeat: int) -> dict[str, np.ndarray]:
        message = wire.read(data, wire.ROWS)
        wire.check(message, expected(self.schema.rows(), {}), run=self.run, round=round, client=client, repeat=repeat)
        try:
            return {
                space: decode_rows(message.tensors[f"rows/{space}"].numpy().tobytes(), self.rows[space])
                for space in self.schema.spaces
            }
        except DataError as err:
            raise WireError(str(err)) from err

    def write_down(self, down: Downlink, accepted: int = 0) -> bytes:
        tensors = {f"{NUMBER}/{n}": torch.tensor(v, dtype=torch.float64) for n, v in down.numbers.items()}
        tensors |= {f"{tree}/{name}": value for tree, values in down.trees.items() for name, value in values.items()}
        client, repeat = int(down.who.clients[0]), int(down.who.repeats[0])
        return wire.write(
            wire.Envelope(
                wire.DOWN, down.round, client, repeat, self.run, _PROBES[down.probe], accepted, tensors
            )
        )  # fmt: skip

    def read_down(self, data: bytes, client: int, counts: Mapping[str, int]) -> tuple[Downlink, int]:
        """(the downlink, the last round of this client that entered the model)."""
        message = wire.read(data, wire.DOWN)
        if message.flags not in _BY_FLAG:
            raise WireError(f"A downlink has the flags {message.flags}, which there are not; install the same version.")
        probe = _BY_FLAG[message.flags]
        wire.check(message, expected(self.schema.down(bool(probe)), counts), run=self.run, client=client)
        check_finite(message.tensors)
        trees: dict[str, Tree] = {MODEL: {}}
        numbers: dict[str, float] = {}
        for name, value in message.tensors.items():
            tree, _, parameter = name.partition("/")
            if tree == NUMBER:
                numbers[parameter] = float(value)
            else:
                trees.setdefault(tree, {})[parameter] = value
        who = Cohort(np.array([client]), np.array([message.repeat]))
        held = {space: np.array([count]) for space, count in counts.items()}
        return Downlink(message.round, who, held, trees, numbers, probe), message.accepted

    def write_up(self, uplink: Uplink, round: int, probe: str = "") -> bytes:
        client, repeat = int(uplink.who.clients[0]), int(uplink.who.repeats[0])
        tensors: dict[str, torch.Tensor] = {}
        refused = bool(uplink.refused[0])
        for field in self.schema.up(repeat, bool(probe)) if not refused else ():
            kind, _, name = field.name.partition("/")
            if field.name == CODED:
                assert uplink.written is not None
                tensors[CODED] = _bytes(uplink.written())
            elif kind in ("sum", "seen"):
                tensors[field.name] = torch.tensor((uplink.sums if kind == "sum" else uplink.seen)[name][0])
            else:
                value = uplink.trees[kind][name]
                tensors[field.name] = value if field.space is not None else value[0]
        flags = wire.REFUSED if refused else _PROBES[probe]
        return wire.write(wire.Envelope(wire.UP, round, client, repeat, self.run, flags, tensors=tensors))

    def read_up(
        self, data: bytes, round: int, who: Cohort, counts: Mapping[str, int], probe: str = "", weight: float = 1.0
    ) -> Uplink:
        """What a client of a round returned; ``weight`` is what it declared to weigh."""
        client, repeat = int(who.clients[0]), int(who.repeats[0])
        message = wire.read(data, wire.UP)
        head = {"run": self.run, "round": round, "client": client, "repeat": repeat}
        if message.flags == wire.REFUSED:
            wire.check(message, {}, **head)
            return Uplink(who, np.ones(1, bool), {}, {})
        wire.check(message, expected(self.schema.up(repeat, bool(probe)), counts), flags=_PROBES[probe], **head)
        check_finite(message.tensors, LARGEST)
        trees, sums, seen = self._sorted(message.tensors, counts)
        if not probe and (sums["count"][0] != 1 or sums["weight"][0] != weight):
            raise WireError(
                f"Client {client} says that it is {sums['count'][0]:g} clients of weight {sums['weight'][0]:g}, and "
                f"declared one of {weight:g}; it is left out."
            )
        return Uplink(who, np.zeros(1, bool), trees, sums, seen)

    def _sorted(
        self, tensors: Mapping[str, torch.Tensor], counts: Mapping[str, int]
    ) -> tuple[dict[str, Tree], dict[str, np.ndarray], dict[str, np.ndarray]]:
        trees: dict[str, Tree] = {}
        numbers: dict[str, dict[str, np.ndarray]] = {"sum": {}, "seen": {}}
        for name, value in tensors.items():
            kind, _, parameter = name.partition("/")
            if kind in numbers:
                numbers[kind][parameter] = value.reshape(1).numpy()
            elif name != CODED:
                rows = parameter in self.schema.tables
                trees.setdefault(kind, {})[parameter] = value if rows else value.unsqueeze(0)
        if CODED in tensors:
            trees = {UPDATE: self._decoded(tensors[CODED], counts, float(numbers["sum"]["weight"][0])), **trees}
        return trees, numbers["sum"], numbers["seen"]

    def _decoded(self, coded: torch.Tensor, counts: Mapping[str, int], weight: float) -> Tree:
        """The update as a codec wrote it, times the client's weight."""
        assert self.schema.codec is not None
        like: Tree = {}
        for field in self.schema.tree(UPDATE, self.schema.shared):
            shape = field.shape if field.space is None else (counts[field.space], *field.shape)
            like[field.name.partition("/")[2]] = torch.zeros(shape, dtype=field.dtype)
        try:
            found = self.schema.codec.decode(coded.numpy().tobytes(), like, self.padding)
        except DataError as err:
            raise WireError(str(err)) from err
        check_finite(found, LARGEST)
        return {
            name: (value if name in self.schema.tables else value.unsqueeze(0)) * _like(weight, value)
            for name, value in found.items()
        }


def _bytes(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def _like(weight: float, value: torch.Tensor) -> torch.Tensor:
    """A number in the type of what it multiplies, as the client's half has it."""
    return torch.tensor(weight, dtype=value.dtype)


def check_finite(tensors: Mapping[str, torch.Tensor], largest: float = math.inf) -> None:
    for name, value in tensors.items():
        if not value.is_floating_point():
            continue
        if not bool(torch.isfinite(value).all()):
            raise WireError(f"{name} holds NaN or infinity; it is left out.")
        if value.numel() and float(value.abs().max()) > largest:
            raise WireError(
                f"{name} holds {float(value.abs().max()):.3g}, and values above {largest:g} are not added; it is left "
                "out."
            )
