"""A secure sum in one process: bytes go from client to server and back, and nothing else is shared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fedsub.errors import FedsubError, SecureSumError
from fedsub.secure.client import SecureClient
from fedsub.secure.server import SecureServer, Summed


class Network(Protocol):
    def carry(self, messages: list[tuple[int, bytes]]) -> Iterable[tuple[int, bytes]]:
        """What arrives of some messages (a client's number and the bytes), in the order in which it arrives."""
        ...


class Perfect:
    """Everything arrives, once, as it was sent."""

    def carry(self, messages: list[tuple[int, bytes]]) -> Iterable[tuple[int, bytes]]:
        return messages


@dataclass
class Faulty:
    """Loses, repeats, reorders, cuts, damages and replays messages, each with its chance."""

    random: np.random.Generator
    lost: float = 0.0
    repeated: float = 0.0
    cut: float = 0.0
    flipped: float = 0.0
    replayed: float = 0.0
    reorder: bool = True
    seen: list[tuple[int, bytes]] = field(default_factory=list)  # what can be replayed
    keep: int = 64

    def carry(self, messages: list[tuple[int, bytes]]) -> Iterable[tuple[int, bytes]]:
        draw, out = self.random, []
        for client, data in messages:
            if len(self.seen) < self.keep:
                self.seen.append((client, data))
            if draw.random() < self.lost:
                continue
            if draw.random() < self.repeated:
                out.append((client, data))
            if draw.random() < self.cut:
                data = data[: int(draw.integers(len(data)))]
            elif draw.random() < self.flipped:
                damaged = bytearray(data)
                damaged[int(draw.integers(len(data)))] ^= 1 << int(draw.integers(8))
                data = bytes(damaged)
            out.append((client, data))
            if self.seen and draw.random() < self.replayed:
                out.append((client, self.seen[int(draw.integers(len(self.seen)))][1]))
        if self.reorder:
            out = [out[i] for i in draw.permutation(len(out))]
        return out


def run_protocol(clients: Mapping[int, SecureClient], server: SecureServer, network: Network | None = None) -> Summed:
    """The sum of the survivors, or SecureSumError. A client that refuses a message, or leaves, is silent; what the
    server refuses is as if it had been lost."""
    network = network or Perfect()
    up = [(number, client.hello()) for number, client in clients.items()]
    refused: list[FedsubError] = []  # why, for the message of an abort
    while True:
        for _, data in network.carry(up):
            try:
                server.receive(data)
            except FedsubError as err:
                refused.append(err)
        try:
            down = server.advance()
        except SecureSumError as err:
            if refused:
                raise SecureSumError(f"{err} The first refusal: {refused[0]}") from refused[0]
            raise
        if server.summed is not None:
            return server.summed
        up = []
        for number, data in network.carry(list(down.items())):
            if number not in clients:
                continue
            try:
                up.append((number, clients[number].receive(data)))
            except FedsubError as err:
                refused.append(err)
