"""A secure sum between nodes: the server's side from the setting to the end, and what a node makes sure of first."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from fedsub.errors import FedsubError, SecureSumError, WireError
from fedsub.node.remote import Remote
from fedsub.round import wire
from fedsub.round.secure.adding import Added
from fedsub.secure import Registry, SecureServer, Setting


class Summing:
    """Sums over letters of some clients; counts the bytes that cross. With ``known`` all of them sign."""

    def __init__(self, remote: Remote, known: Registry | None = None):
        self.remote, self.known, self.run = remote, known, remote.letters.run
        self.bytes: dict[int, list[int]] = {}  # client -> down, up

    def added(self, setting: Setting, kind: int, tensors: Mapping[str, torch.Tensor]) -> Added:
        """One secure sum, from its setting to its end; or who is left, if it was given up."""
        server, none = SecureServer(setting, known=self.known), np.zeros(0, np.int64)
        told = {"setting": as_tensor(setting.write()), **tensors}
        down = {c: self.write(kind, setting.round, c, told) for c in setting.participants}
        left: tuple[int, ...] = ()
        while server.summed is None:
            replies = self.replies(down)
            left = tuple(client for client in down if self._took(server, client, replies[client]))
            try:
                down = server.advance()
            except SecureSumError as err:
                return Added(None, left, none, none, str(err))
        return Added(server.summed.sums, server.summed.clients, none, none)

    def _took(self, server: SecureServer, client: int, answer: bytes | None) -> bool:
        """Whether a client answered, and the sum took the answer."""
        if answer is None:
            return False
        try:
            server.receive(answer)
        except FedsubError as err:
            self.remote.refuse(client, err)
            return False
        return True

    def write(self, kind: int, number: int, client: int, tensors: Mapping[str, torch.Tensor], safe: int = 0) -> bytes:
        return wire.write(wire.Envelope(kind, number, client, run=self.run, accepted=safe, tensors=dict(tensors)))

    def replies(self, letters: Mapping[int, bytes]) -> dict[int, bytes | None]:
        """What each client answers to its letter; all are sent before any answer is waited for."""
        found = self.remote.send(letters.items())
        for client, down, up in zip(letters, found.down.tolist(), found.up.tolist(), strict=True):
            crossed = self.bytes.setdefault(client, [0, 0])
            crossed[0] += down
            crossed[1] += up
        return dict(zip(letters, found.answers, strict=True))


def told_setting(message: wire.Envelope, number: int) -> Setting:
    """The setting that a node was sent, if it is of this message and the node is to take part."""
    setting = Setting.read(as_bytes(message, "setting"))
    if (setting.run, setting.round) != (message.run, message.round) or number not in setting.places:
        raise WireError("The setting of a secure sum is not of this round, or without this client; refused.")
    return setting


def as_bytes(message: wire.Envelope, name: str) -> bytes:
    value = message.tensors.get(name)
    if value is None or value.dtype != torch.uint8 or value.ndim != 1:
        raise WireError(f"A message of a secure sum lacks {name!r}; refused.")
    return value.numpy().tobytes()


def as_tensor(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())
