"""Private heat over letters: a server asks, a node answers at random, and what it decided on stays in its folder.

Heat that is a secure sum is in `heat_sums`. A histogram without one is asked for here: the server is trusted with the
rows that a node counts in, and adds the noise. A question names the mechanism by a digest, and the spaces by their
numbers of rows; a node answers only that of its own method. Its answers follow from a secret in its folder. The lasting
ones are kept there too, so that neither a second question nor data that change draw them again; those of a question
follow from the secret and its number, so that a question that is repeated gets the same answer.
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
from fedsub.errors import CheckpointError, NoUsableClient, WireError
from fedsub.method.average import OverHolders
from fedsub.method.codecs.wire import decode_rows, encode_rows
from fedsub.method.parts import SecureSum
from fedsub.method.slots import Method
from fedsub.node.agree import digest
from fedsub.node.heat_sums import Crossed, add_up
from fedsub.objective.population import Population
from fedsub.privacy.heat import AddedHeat, Estimate, Holdings, LocalHeat, PrivateHeat
from fedsub.privacy.heat.mechanism import with_padding
from fedsub.privacy.heat.words import Array, Words, secret
from fedsub.round import wire
from fedsub.secure import Registry

if TYPE_CHECKING:
    from fedsub.node.remote import Remote

_LENGTH = 8  # bytes that say of how many rows an answer is


def private_heat(method: Method) -> PrivateHeat | None:
    """How the method's average learns heat, if it does so in private."""
    heat = method.average.heat if isinstance(method.average, OverHolders) else None
    return heat if isinstance(heat, PrivateHeat) else None


def weighs(method: Method) -> bool:
    """Whether its heat is weighted by samples."""
    return isinstance(method.average, OverHolders) and method.average.weighting != "clients"


def adds_in_secret(method: Method) -> bool:
    """Whether its clients take part in secure sums, of values or of heat."""
    mechanism = private_heat(method)
    hidden = isinstance(mechanism, AddedHeat) and mechanism.hidden
    return hidden or any(isinstance(part, SecureSum) for part in method.parts)


def tells_rows(method: Method) -> bool:
    """Whether its clients name their rows in the hello: if a server may see them anyway, and has heat to count."""
    return private_heat(method) is None and not adds_in_secret(method)


def question(mechanism: PrivateHeat, sizes: Mapping[str, int], number: int, client: int, run: int) -> bytes:
    tensors = {"mechanism": torch.tensor(digest(mechanism))}
    tensors |= {f"rows/{space}": torch.tensor(size) for space, size in sizes.items()}
    return wire.write(wire.Envelope(wire.ASK_HEAT, number, client, run=run, tensors=tensors))


class Answering:
    """A node's side."""

    def __init__(self, mechanism: PrivateHeat | None, spaces: Mapping[str, Space], folder: str | os.PathLike[str]):
        self.mechanism, self.spaces, self.folder = mechanism, spaces, Path(folder)

    def answer(self, message: wire.Envelope, run: int, client: int) -> bytes:
        if self.mechanism is None or (isinstance(self.mechanism, AddedHeat) and self.mechanism.hidden):
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

    def _told(self, mechanism: PrivateHeat, name: str, number: int) -> bytes:
        space = self.spaces[name]
        words = self.words(mechanism, name)
        if isinstance(mechanism, AddedHeat):
            rows = mechanism.given(Holdings.of(space), words).space.rows
            return encode_rows(np.asarray(rows, np.int64), space.size)
        assert isinstance(mechanism, LocalHeat)
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

    def words(self, mechanism: PrivateHeat, name: str) -> Words:
        """From 32 random bytes in the node's folder."""
        path = self.folder / "heat-secret"
        if not path.exists():
            write_atomic(path, os.urandom(32), mode=0o600)
        return secret(path.read_bytes(), name, str(digest(mechanism)))


def noise_of(space: str, number: int) -> np.random.Generator:
    """What a server's noise is drawn from: 128 bits of the system's randomness, since all clients know the seed."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(os.urandom(16), "little")))


def ask(
    remote: Remote, mechanism: PrivateHeat, number: int = 0, known: Registry | None = None
) -> tuple[Population, Crossed]:
    """The server's side: every client is asked once; returns the population with what came of it, and the bytes.

    Who does not answer is left out, and the others stand for all: sums are scaled to the whole population. ``known``:
    clients sign what they do in secure sums.
    """
    population, sizes = remote.server.population, remote.server.population.sizes
    spaces = {s: population.rows[s] for s in dict.fromkeys(population.tables.values())}
    padded = {population.tables[table] for table in population.padding}

    def weights(who: Array, weighted: bool) -> Array:
        return sizes[who].astype(np.float64) if weighted else np.ones(len(who))

    once: dict[str, Estimate] = {}  # of what is added; it has its noise, and is not noised again
    told: dict[int, dict[str, Array]] = {}
    if isinstance(mechanism, AddedHeat):
        by = weighs(remote.server.method)
        if mechanism.hidden:
            who, heats, crossed = add_up(remote, mechanism, spaces, by, number, known)
        else:
            told, crossed = _told(remote, mechanism, spaces, number)
            who, most = np.array(sorted(told)), mechanism.most(int(sizes.max()), by)
            heats = {space: np.zeros(size) for space, size in spaces.items()}
            for client, weight in zip(who.tolist(), weights(who, by), strict=True):
                for space, rows in told[client].items():
                    heats[space][rows] += min(weight, most)
        for space, heat in heats.items():
            noise, whole = noise_of(space, number), float(weights(who, by).sum())
            once[space] = mechanism.settled(heat.astype(np.float64), whole, by, noise)
    else:
        told, crossed = _told(remote, mechanism, spaces, number)
        who = np.array(sorted(told))

    def asked(_: PrivateHeat, space: str, weighted: bool) -> Estimate:
        if isinstance(mechanism, LocalHeat):
            own = weights(who, weighted)
            answers = ((told[c][space], own[k : k + 1]) for k, c in enumerate(who.tolist()))
            one = mechanism.total(answers, spaces[space])
        else:
            one = once[space]
        whole = float(weights(np.arange(len(sizes)), weighted).sum())
        if whole != one.whole:
            scale = whole / one.whole
            one = replace(one, heat=one.heat * scale, deviation=one.deviation * scale, whole=whole)
        return with_padding(one, space in padded)

    return replace(population, asked=asked), crossed


def _told(
    remote: Remote, mechanism: PrivateHeat, spaces: Mapping[str, int], number: int
) -> tuple[dict[int, dict[str, Array]], Crossed]:
    """What each client answered, by space; those whose answers could not be read are left out."""
    told: dict[int, dict[str, Array]] = {}
    run, people = remote.letters.run, sorted(remote.joined)
    found = remote.send((client, question(mechanism, spaces, number, client, run)) for client in people)
    for client, data in zip(people, found.answers, strict=True):
        answer = remote.read(lambda d: _read(mechanism, spaces, d, number, client, run), client, data)  # noqa: B023
        if answer is not None:
            told[client] = answer
    if not told:
        raise NoUsableClient("No client answered the question about heat; see that they run the same method.")
    return told, (int(found.down.sum()), int(found.up.sum()))


def _read(
    mechanism: PrivateHeat, spaces: Mapping[str, int], data: bytes, number: int, client: int, run: int
) -> dict[str, Array]:
    message, local = wire.read(data, wire.TELL_HEAT), isinstance(mechanism, LocalHeat)
    expected: wire.Expected = {
        f"heat/{s}": (torch.uint8, (mechanism.upload(size) if local else None,)) for s, size in spaces.items()
    }
    wire.check(message, expected, round=number, client=client, run=run)
    try:
        return {s: _answer(mechanism, message.tensors[f"heat/{s}"].numpy().tobytes(), n) for s, n in spaces.items()}
    except ValueError as err:  # DataError among them
        raise WireError(f"An answer about heat cannot be read: {err}.") from err


def _answer(mechanism: PrivateHeat, data: bytes, size: int) -> Array:
    if isinstance(mechanism, LocalHeat):
        return mechanism.unpack(data, size)
    rows = decode_rows(data, size)
    assert mechanism.rows is not None
    if len(rows) > mechanism.rows:
        raise ValueError(f"{len(rows)} rows, of which a client tells {mechanism.rows} at most")
    return rows


def _bytes(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())
