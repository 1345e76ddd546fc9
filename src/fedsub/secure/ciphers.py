"""The cryptography behind one small interface: X25519, HKDF-SHA256, ChaCha20, ChaCha20-Poly1305, HMAC, Ed25519.

Nothing here is our own: `Modern` calls the package `cryptography` (OpenSSL) and Python's `hmac`. Tests that walk
through all orders of messages put a small deterministic `Ciphers` in its place; no setting of a run can.

Nonces are constant on purpose. Every key is derived for one purpose of one protocol run from freshly drawn secrets and
encrypts one message, so that no pair of key and nonce comes twice.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from typing import Any, Protocol

from fedsub.errors import WireError, lacking

KEY, TAG, SIGNATURE = 32, 16, 64  # bytes
NONCE = bytes(12)
ZEROS = memoryview(bytes(1 << 18))  # what a stream is made of: encrypted zeros
Fill = Callable[[memoryview], Any]  # writes the next bytes of a stream into a buffer of at most len(ZEROS)


class Ciphers(Protocol):
    def random(self, count: int) -> bytes:
        """Bytes that nobody can foresee."""
        ...

    def pair(self) -> tuple[Any, bytes]:
        """(a secret key, its public key of 32 bytes), fresh."""
        ...

    def agree(self, secret: Any, public: bytes) -> bytes:
        """What both ends of two key pairs arrive at; WireError for a public key that fixes it."""
        ...

    def derive(self, secret: bytes, salt: bytes, info: bytes, length: int = KEY) -> bytes:
        """Keys from a shared secret, bound to ``salt`` and ``info``."""
        ...

    def seal(self, key: bytes, text: bytes, associated: bytes) -> bytes:
        """Encrypted and authenticated; ``key`` is used once."""
        ...

    def open(self, key: bytes, text: bytes, associated: bytes) -> bytes:
        """What was sealed, or WireError."""
        ...

    def stream(self, key: bytes) -> Fill:
        """The key's stream of bytes from its beginning."""
        ...

    def tag(self, key: bytes, text: bytes) -> bytes:
        """Proof that ``text`` was seen by one who has the key, 16 bytes."""
        ...

    def sign(self, identity: Any, text: bytes) -> bytes:
        """With a secret identity key."""
        ...

    def verify(self, public: bytes, signature: bytes, text: bytes) -> None:
        """WireError if the owner of the public identity key did not sign this text."""
        ...


def same(a: bytes, b: bytes) -> bool:
    """Equality in a time that does not tell where they differ."""
    return hmac.compare_digest(a, b)


class Modern:
    """What runs use."""

    def __init__(self) -> None:
        try:
            from cryptography.exceptions import InvalidSignature, InvalidTag
            from cryptography.hazmat.primitives import hashes
            from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
            from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
            from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
            from cryptography.hazmat.primitives.kdf.hkdf import HKDF
        except ImportError as err:
            raise lacking("cryptography (for secure sums)", "secure") from err
        self._x25519, self._ed25519, self._hkdf, self._aead = x25519, ed25519, HKDF, ChaCha20Poly1305
        self._cipher, self._chacha, self._sha = Cipher, algorithms.ChaCha20, hashes.SHA256()
        self._bad_tag, self._bad_signature = InvalidTag, InvalidSignature

    def random(self, count: int) -> bytes:
        return os.urandom(count)

    def pair(self) -> tuple[Any, bytes]:
        secret = self._x25519.X25519PrivateKey.generate()
        return secret, secret.public_key().public_bytes_raw()

    def agree(self, secret: Any, public: bytes) -> bytes:
        """X25519 (RFC 7748); points of low order, which fix the outcome at zero, are refused as §6.1 allows."""
        try:
            shared = secret.exchange(self._x25519.X25519PublicKey.from_public_bytes(public))
        except ValueError as err:  # of another length, or the outcome is all zeros
            raise WireError("A public key cannot be used: it is malformed or a point of low order.") from err
        if same(shared, bytes(KEY)):
            raise WireError("A public key is a point of low order: it would fix the shared secret.")
        return shared

    def derive(self, secret: bytes, salt: bytes, info: bytes, length: int = KEY) -> bytes:
        """HKDF-SHA256 (RFC 5869)."""
        return self._hkdf(self._sha, length, salt, info).derive(secret)

    def seal(self, key: bytes, text: bytes, associated: bytes, nonce: bytes = NONCE) -> bytes:
        """ChaCha20-Poly1305 (RFC 8439)."""
        return self._aead(key).encrypt(nonce, text, associated)

    def open(self, key: bytes, text: bytes, associated: bytes, nonce: bytes = NONCE) -> bytes:
        try:
            return self._aead(key).decrypt(nonce, text, associated)
        except (self._bad_tag, ValueError) as err:
            raise WireError("A sealed message does not open: it was changed, or meant for another round.") from err

    def stream(self, key: bytes, nonce: bytes = NONCE, block: int = 0) -> Fill:
        """ChaCha20 (RFC 8439) under the whole 256-bit key."""
        update = self._cipher(self._chacha(key, block.to_bytes(4, "little") + nonce), None).encryptor().update_into

        def fill(into: memoryview) -> None:
            update(ZEROS[: len(into)], into)

        return fill

    def tag(self, key: bytes, text: bytes) -> bytes:
        """HMAC-SHA256, its first half."""
        return hmac.digest(key, text, "sha256")[:TAG]

    def sign(self, identity: Any, text: bytes) -> bytes:
        """Ed25519 (RFC 8032); ``identity`` is a private key of 32 bytes."""
        return self._ed25519.Ed25519PrivateKey.from_private_bytes(identity).sign(text)

    def verify(self, public: bytes, signature: bytes, text: bytes) -> None:
        try:
            self._ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
        except (self._bad_signature, ValueError) as err:
            raise WireError("A signature does not fit the identity that is registered.") from err

    def public(self, identity: bytes) -> bytes:
        """The public key of an identity's secret."""
        return self._ed25519.Ed25519PrivateKey.from_private_bytes(identity).public_key().public_bytes_raw()

    def identity(self) -> tuple[bytes, bytes]:
        """A new identity: (secret, public), 32 bytes each."""
        secret = self._ed25519.Ed25519PrivateKey.generate()
        return secret.private_bytes_raw(), secret.public_key().public_bytes_raw()
