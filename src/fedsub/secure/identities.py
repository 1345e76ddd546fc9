"""Who is who: the public signing keys (Ed25519) of a population, registered where the server has no hand in it.

Without them the server is trusted to pass on the clients' keys as they came. With them a client signs the key that it
draws for a sum, and the list of survivors, and takes no key and no list that is not signed by those who are registered:
the server can neither invent clients, nor stand in for them, nor split them (Bonawitz et al., CCS 2017, figure 4, where
this is what protects against an active server). What is signed names the setting of the sum, with run, round and
session, and everybody's fresh key, so that a signature is worth nothing in any other sum.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

from fedsub.disk.files import write_atomic
from fedsub.disk.reading import parse_json
from fedsub.errors import DataError, MethodError, SecureSumError
from fedsub.secure.ciphers import KEY, Modern
from fedsub.secure.setting import Setting

REGISTRY, SECRET = "identities.json", "identity.key"  # files of a client
_FORMAT = "fedsub identities 1"


@dataclass(frozen=True)
class Registry(Mapping[int, bytes]):
    """The public key of every client of a population, by number."""

    publics: Mapping[int, bytes]

    def __post_init__(self) -> None:
        for client, public in self.publics.items():
            if len(public) != KEY or client < 0:
                raise MethodError(
                    f"A public signing key has {KEY} bytes and its client a number from 0; got {len(public)} bytes for "
                    f"client {client}."
                )
        if len(set(self.publics.values())) < len(self.publics):
            raise MethodError("Two clients are registered with one key: somebody would count as several.")

    def __getitem__(self, client: int) -> bytes:
        return self.publics[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self.publics)

    def __len__(self) -> int:
        return len(self.publics)

    @cached_property
    def digest(self) -> int:
        """A number that equal registries share, for the handshake; seven bytes."""
        text = b"".join(c.to_bytes(8, "little") + self.publics[c] for c in sorted(self.publics))
        return int.from_bytes(blake2b(text, digest_size=7, person=b"fedsub known").digest(), "little")

    def check(self, setting: Setting) -> None:
        """Refuse a sum with clients that nobody registered, or one that two groups could open with two lists.

        Who signs two lists is not honest: lists that more than half have signed are one list.
        """
        if odd := [client for client in setting.participants if client not in self.publics]:
            raise SecureSumError(
                f"Client {odd[0]} is to take part in a secure sum, and no identity is registered for it: the server "
                "may have invented it. Nothing was sent."
            )
        if 2 * setting.least <= len(setting.participants):
            raise SecureSumError(
                f"A secure sum of {len(setting.participants)} clients is to be opened by {setting.least} of them: two "
                "groups could be told two lists of survivors. With identities more than half must stay."
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        keys = {str(client): self.publics[client].hex() for client in sorted(self.publics)}
        write_atomic(path, json.dumps({"format": _FORMAT, "clients": keys}, indent=1).encode())

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Registry:
        """Read what `save` wrote."""
        try:
            content = parse_json(Path(path).read_bytes())
            if content["format"] != _FORMAT:
                raise ValueError(f"it is marked {content['format']!r}, not {_FORMAT!r}")
            return cls({int(client): bytes.fromhex(key) for client, key in content["clients"].items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as err:
            raise DataError(f"{path} is no registry as Registry.save writes it ({err}); write it again.") from err


@dataclass(frozen=True)
class Identity:
    """A client's secret signing key of 32 bytes, and the registry in which the public one stands."""

    secret: bytes = field(repr=False)
    known: Registry

    def check(self, number: int) -> None:
        """Refuse a secret whose public key is not registered for this client."""
        if self.known.publics.get(number) != Modern().public(self.secret):
            raise MethodError(
                f"The secret key of client {number} does not fit the public key that is registered for it; others "
                "would refuse all that it signs. Take the key that was registered, or register this one."
            )

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Two files: the secret, which is the owner's to read, and the registry, which is everybody's."""
        write_atomic(Path(folder) / SECRET, self.secret.hex().encode(), mode=0o600)
        self.known.save(Path(folder) / REGISTRY)

    @classmethod
    def find(cls, folder: str | os.PathLike[str]) -> Identity | None:
        """What `save` wrote; None if neither file is there."""
        secret, registry = Path(folder) / SECRET, Path(folder) / REGISTRY
        if not secret.exists() and not registry.exists():
            return None
        try:
            key = bytes.fromhex(secret.read_text())
            if len(key) != KEY:
                raise ValueError(f"it holds {len(key)} bytes, not {KEY}")
        except (OSError, ValueError) as err:
            raise DataError(
                f"{secret} should hold this client's secret signing key, beside {REGISTRY}, and does not ({err}). "
                "Restore it, or register a new one."
            ) from err
        return cls(key, Registry.open(registry))


def register(numbers: Iterable[int]) -> dict[int, Identity]:
    """New identities for some clients, all in one registry: to try it; others draw their keys themselves
    (`new_identity`) and hand out the public one."""
    pairs = {number: new_identity() for number in numbers}
    known = Registry({number: public for number, (_, public) in pairs.items()})
    return {number: Identity(secret, known) for number, (secret, _) in pairs.items()}


def new_identity() -> tuple[bytes, bytes]:
    """(secret, public) of a fresh Ed25519 key, 32 bytes each."""
    return Modern().identity()
