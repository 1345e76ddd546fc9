"""Who may take part: a hello is read and compared with what the server runs, and answered with a welcome."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from fedsub.errors import DataError, MethodError, WireError
from fedsub.method.codecs.wire import decode_rows
from fedsub.method.slots import Method
from fedsub.node.agree import method_digest, model_digest
from fedsub.node.heat import adds_in_secret, tells_rows
from fedsub.objective.population import Population
from fedsub.round import wire
from fedsub.round.memory import moments
from fedsub.round.schema import Field, Schema, expected
from fedsub.secure import Registry
from fedsub.trees import Tree


@dataclass(frozen=True)
class Hello:
    """What a client says first; ``rows`` are those that it names, by space."""

    client: int
    samples: int
    rows: Mapping[str, np.ndarray]


class Door:
    """``names`` says which parameters are tables and how many rows every space has; its sizes are not looked at.

    ``identities`` are the registered keys of those who sign in secure sums.
    """

    def __init__(
        self, method: Method, params: Tree, names: Population,
        identities: Registry | str | os.PathLike[str] | None = None,
    ):  # fmt: skip
        self.method, self.names = method, names
        self.schema = Schema(method.parts, params, names.tables)
        self.signers = _registered(method, len(names), identities)
        self.first = {name: params[name].clone() for name in self.schema.private}
        self._wanted = {"method": method_digest(method), "model": model_digest(params, names.tables)}
        if self.signers is not None:
            self._wanted["identities"] = self.signers.digest

    @cached_property
    def _fields(self) -> list[Field]:
        signed = [] if self.signers is None else [Field("identities", torch.int64, ())]
        return [*self.schema.hello(tells_rows(self.method)), *signed]

    def read(self, client: int, data: bytes | None) -> Hello:
        """WireError says why a client cannot take part."""
        if data is None:
            raise WireError(f"Client {client} did not say hello; start it, or leave it out of the channels.")
        hello = wire.read(data, wire.HELLO)
        if ("identities" in hello.tensors) != (self.signers is not None):
            has, lacks = ("client", "server") if self.signers is None else ("server", "client")
            raise WireError(
                f"Client {client} cannot join: the {has} has registered identities for secure sums and the {lacks} has "
                "none; give both the same (serve(identities=…), Node(identity=…)), or neither."
            )
        for name, digest in self._wanted.items():
            seen = hello.tensors.get(name)
            if seen is not None and seen.shape == () and seen.dtype == torch.int64 and int(seen) != digest:
                raise WireError(
                    f"Client {client} joins with another {name} than the server's; give both the same {name} "
                    "(settings, names, shapes, types and keys)."
                )
        head = {"round": 0, "client": client, "repeat": 0, "run": 0, "flags": 0, "accepted": 0}
        wire.check(hello, expected(self._fields, {}), **head)
        if (samples := int(hello.tensors["samples"])) < 0:
            raise WireError(f"Client {client} says that it has {samples} samples.")
        rows: dict[str, np.ndarray] = {}
        for asked in self._fields:
            kind, _, space = asked.name.partition("/")
            if kind == "rows":
                try:
                    rows[space] = decode_rows(hello.tensors[asked.name].numpy().tobytes(), self.names.rows[space])
                except DataError as err:
                    raise WireError(f"Client {client} does not say which rows of {space!r} it holds ({err}).") from err
        return Hello(client, samples, rows)

    def refusal(self, client: int, run: int) -> bytes:
        return wire.write(wire.Envelope(wire.WELCOME, 0, client, run=run, flags=wire.REFUSED))

    def welcome(self, hello: Hello, run: int, seed: int, reports: tuple[str, ...]) -> bytes:
        """The run, its seed, what the sampler wants to hear, and what the client's own values begin with."""
        tensors: Tree = {"seed": torch.tensor(seed)}
        tensors |= {f"report/{name}": torch.ones(()) for name in reports}
        tables = self.names.tables
        for name, value in self.first.items():
            tensors[f"moments/{name}"] = torch.tensor(moments(value), dtype=torch.float64)
            tensors[f"first/{name}"] = value[torch.from_numpy(hello.rows[tables[name]])] if name in tables else value
        return wire.write(wire.Envelope(wire.WELCOME, 0, hello.client, run=run, tensors=tensors))

    def census(self, hellos: Mapping[int, Hello]) -> Population:
        """The population as its clients describe it: their samples, and how many hold each row.

        Those who said nothing are absent; `Population.joined` counts them when they come.
        """
        sizes = np.zeros(len(self.names), np.int64)
        for client, hello in hellos.items():
            sizes[client] = hello.samples
        absent = frozenset(range(len(sizes))) - hellos.keys()
        counts = {space: (np.zeros(size), np.zeros(size)) for space, size in self.names.rows.items()}
        for client, hello in hellos.items() if tells_rows(self.method) else ():
            for space, rows in hello.rows.items():
                counts[space][0][rows] += 1
                counts[space][1][rows] += sizes[client]
        for space in {self.names.tables[table] for table in self.names.padding}:  # everybody holds "nothing here"
            counts[space][0][0], counts[space][1][0] = len(hellos), sizes.sum()

        def counted(space: str, weighted: bool) -> np.ndarray:
            if not tells_rows(self.method):
                raise DataError(
                    f"The heat of {space} is not known: clients of {self.method.name} name their rows to nobody, so "
                    "the server cannot count it. Have it added in secret (heat=SecureCount() of fedsub.privacy.heat), "
                    "or give a population= that knows it."
                )
            return counts[space][weighted]

        return replace(self.names, sizes=sizes, counted=counted, asked=None, absent=absent)


def _registered(method: Method, clients: int, given: Registry | str | os.PathLike[str] | None) -> Registry | None:
    """The keys of those who sign in secure sums; None if nobody does."""
    if given is None or not adds_in_secret(method):
        return None
    known = given if isinstance(given, Registry) else Registry.open(given)
    if missing := [client for client in range(clients) if client not in known]:
        raise MethodError(
            f"{len(missing)} of {clients} clients have no registered identity, the first is {missing[0]}; "
            "register all of them, or none."
        )
    return known
