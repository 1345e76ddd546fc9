"""An authority and certificates of it, for tests of TLS."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )  # fmt: skip


@dataclass
class Authority:
    """Writes PEM files into a folder."""

    folder: Path
    title: str = "authority"

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._key = Ed25519PrivateKey.generate()
        self.file, _ = self._write(self.title, self._key, x509.BasicConstraints(ca=True, path_length=None))

    def issue(self, name: str, address: str = "127.0.0.1") -> tuple[Path, Path]:
        """(certificate, key) of somebody with this common name at this address."""
        return self._write(
            name, Ed25519PrivateKey.generate(), x509.BasicConstraints(ca=False, path_length=None), address
        )

    def _write(
        self, name: str, key: Ed25519PrivateKey, basic: x509.BasicConstraints, address: str = "127.0.0.1"
    ) -> tuple[Path, Path]:  # fmt: skip
        now = dt.datetime.now(dt.UTC)
        made = (
            x509.CertificateBuilder(_name(self.title), _name(name), key.public_key(), x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(basic, critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if basic.ca:
            made = made.add_extension(_SIGNS, critical=True)
        certificate, secret = self.folder / f"{self.title}-{name}.pem", self.folder / f"{self.title}-{name}.key"
        certificate.write_bytes(made.sign(self._key, None).public_bytes(serialization.Encoding.PEM))
        secret.write_bytes(_pem(key))
        return certificate, secret


_SIGNS = x509.KeyUsage(
    digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
    data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
)  # fmt: skip
