"""Private heat over channels: a server asks, a node answers at random, and what it decided on stays in its folder.

A question names the mechanism by a digest, and the spaces by their numbers of rows; a node answers only that of its own
method. Its answers follow from a secret in its folder. The lasting ones are kept there too, so that neither a
second question nor data that change draw them again; those of a question follow from the secret and its number, so that
a question that is repeated gets the same answer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedsub.data.clients import Space
from fedsub.disk.files import write_atomic
from fedsub.errors import CheckpointError, MethodError, NoUsableClient, WireError
from fedsub.method.average import OverHolders
from fedsub.method.slots import Method
from fedsub.node.agree import digest
from fedsub.objective.population import Population
from fedsub.privacy.heat import Estimate, Holdings, LocalHeat, PrivateHeat
from fedsub.privacy.heat.mechanism import with_padding
from fedsub.privacy.heat.words import Array, Words, secret
from fedsub.round import wire

if TYPE_CHECKING:
    from fedsub.node.remote import Remote

_LENGTH = 8  # bytes that say of how many rows an answer is


def private_heat(method: Method) -> PrivateHeat | None:
    """How the method's average learns heat, if it does so in private."""
    heat = method.average.heat if isinstance(method.average, OverHolders) else None
    return heat if isinstance(heat, PrivateHeat) else None


def question(mechanism: LocalHeat, sizes: Mapping[str, int], number: int, client: int, run: int) -> bytes:
    tensors = {"mechanism": torch.tensor(digest(mechanism))}
    tensors |= {f"rows/{space}": torch.tensor(size) for space, size in sizes.items()}
    return wire.write(wire.Envelope(wire.ASK_HEAT, number, client, run=run, tensors=tensors))


class Answering:
    """A node's side."""

    def __init__(self, mechanism: PrivateHeat | None, spaces: Mapping[str, Space], folder: str | os.PathLike[str]):
        self.mechanism, self.spaces, self.folder = mechanism, spaces, Path(folder)

    def answer(self, message: wire.Envelope, run: int, client: int) -> bytes:
        if not isinstance(self.mechanism, LocalHeat):
            raise WireError("A question about heat came, and this node's method asks none of its clients; refused.")
        names = ("mechanism", *(f"rows/{name}" for name in self.spaces))
        wire.check(message, dict.fromkeys(names, (torch.int64, ())), run=run, client=client)
        if int(message.tensors["mechanism"]) != digest(self.mechanism):
            raise WireError(f"A question about heat came, not by {self.mechanism.title} as here; refused.")
        for name, space in self.spaces.items():
            if (rows := int(message.tensors[f"rows/{name}"])) != space.size:
                raise WireError(
                    f"A question about {rows:,} rows of {name} came, which has {space.size:,} here; refused."
                )
        told = {f"heat/{name}": _bytes(self._told(self.mechanism, name, message.round)) for name in self.spaces}
        return wire.write(replace(message, kind=wire.TELL_HEAT, tensors=told))

    def _told(self, mechanism: LocalHeat, name: str, number: int) -> bytes:
        space = self.spaces[name]
        words = self.words(mechanism, name)
        path = self.folder / f"heat-{digest([name, mechanism]):015x}"
        if path.exists():
            memo = self._kept(mechanism, path, space.size)
        else:
            memo = mechanism.decide(Holdings.of(space), words)
            write_atomic(path, space.size.to_bytes(_LENGTH, "little") + mechanism.pack(memo, space.size))
        return mechanism.pack(mechanism.answers(memo, words, number), space.size)

    def _kept(self, mechanism: LocalHeat, path: Path, size: int) -> Array:
        data = path.read_bytes()
        try:
            if int.from_bytes(data[:_LENGTH], "little") != size:
                raise ValueError(f"it is about {int.from_bytes(data[:_LENGTH], 'little'):,} rows, not {size:,}")
            return mechanism.unpack(data[_LENGTH:], size)
        except ValueError as err:
            raise CheckpointError(
                f"{path} should hold what this client has once answered about its rows, and does not ({err}). Restore "
                "it; to answer anew gives away more than was promised, so delete it only if you mean that."
            ) from err

    def words(self, mechanism: LocalHeat, name: str) -> Words:
        """From 32 random bytes in the node's folder."""
        path = self.folder / "heat-secret"
        if not path.exists():
            write_atomic(path, os.urandom(32), mode=0o600)
        return secret(path.read_bytes(), name, str(digest(mechanism)))


def ask(remote: Remote, mechanism: PrivateHeat, number: int = 0) -> Population:
    """The server's side: every client is asked once; returns the population with what came of it.

    Who does not answer is left out, and the others stand for all: sums are scaled to the whole population.
    """
    population, sizes = remote.server.population, remote.server.population.sizes
    if not isinstance(mechanism, LocalHeat):
        raise MethodError(
            f"Nodes answer by themselves, and heat by {mechanism.title} is a sum that somebody else makes; take a "
            "mechanism in which clients randomise, or give the server a population that was saved with its heat."
        )
    spaces = {s: population.rows[s] for s in dict.fromkeys(population.tables.values())}
    padded = {population.tables[table] for table in population.padding}
    told: dict[int, dict[str, Array]] = {}
    for client, channel in remote.channels.items():
        channel.send(question(mechanism, spaces, number, client, remote.letters.run))
        data = channel.receive()
        try:
            if data is not None:
                told[client] = _read(mechanism, spaces, data, number, client, remote.letters.run)
        except WireError as err:
            remote.refused.append(f"client {client}: {err}")
    if not told:
        raise NoUsableClient("No client answered the question about heat; see that they run the same method.")

    def asked(_: PrivateHeat, space: str, weighted: bool) -> Estimate:
        who = np.array(sorted(told))
        weights = sizes[who].astype(np.float64) if weighted else np.ones(len(who))
        answers = ((told[c][space], weights[k : k + 1]) for k, c in enumerate(who.tolist()))
        found = mechanism.total(answers, spaces[space])
        whole = float(sizes.sum()) if weighted else float(len(sizes))
        if whole != found.whole:
            scale = whole / found.whole
            found = replace(found, heat=found.heat * scale, deviation=found.deviation * scale, whole=whole)
        return with_padding(found, space in padded)

    return replace(population, asked=asked)


def _read(
    mechanism: LocalHeat, spaces: Mapping[str, int], data: bytes, number: int, client: int, run: int
) -> dict[str, Array]:
    message = wire.read(data, wire.TELL_HEAT)
    expected: wire.Expected = {f"heat/{s}": (torch.uint8, (mechanism.upload(size),)) for s, size in spaces.items()}
    wire.check(message, expected, round=number, client=client, run=run)
    try:
        return {s: mechanism.unpack(message.tensors[f"heat/{s}"].numpy().tobytes(), n) for s, n in spaces.items()}
    except ValueError as err:
        raise WireError(f"An answer about heat cannot be read: {err}.") from err


def _bytes(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())
