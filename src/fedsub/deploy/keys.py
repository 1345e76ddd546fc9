"""Certificates and keys: an authority, the server's certificate, a key pair for every node, the runtime's secret.

All of them are made here without a question asked, for a first run and for tests. In a real deployment a node makes
its own pair (`fedsub deploy key`), and only the public half travels.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from fedsub.disk.files import write_atomic
from fedsub.errors import ConfigError, lacking

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as _error:
    raise lacking("cryptography", "flower") from _error

CA, SERVER, SECRET = "ca", "server", "runtime.secret"
LOCAL = ("localhost", "127.0.0.1")
AUTHORITY_DAYS, SERVER_DAYS = 3650, 397


def make_authority(folder: Path, title: str) -> None:
    """ca.crt and ca.key: who signs the server's certificate. Its key may lie elsewhere afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"{title} authority")
    made = (
        _certificate(name, name, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_pair(folder / CA, made, key)


def make_server(folder: Path, names: Sequence[str]) -> None:
    """server.crt and server.key, signed by the authority beside them, for every name and address that nodes use.

    This machine's own names are always among them: the proxy and the tools ask by those.
    """
    names = list(dict.fromkeys([*names, *LOCAL]))
    authority, signer = read_certificate(folder / f"{CA}.crt"), read_key(folder / f"{CA}.key")
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{folder / CA}.key is not a key of an elliptic curve; make the authority again.")
    key = ec.generate_private_key(ec.SECP256R1())
    public = signer.public_key()
    made = (
        _certificate(authority.subject, _name(names[0]), key.public_key(), SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([general_name(name) for name in names]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(signer, hashes.SHA256())
    )
    _write_pair(folder / SERVER, made, key)


def make_secret(folder: Path) -> None:
    """What SuperLink and SuperExec share, so that nobody else is handed a task."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / SECRET, secrets.token_hex(32).encode(), mode=0o600)


def make_node_key(path: Path) -> Path:
    """A node's pair, P-384 as Flower asks: ``path`` private, ``path``.pub public, both as OpenSSH writes them."""
    for there in (path, public_of(path)):
        if there.exists():
            raise ConfigError(f"{there} is there already; a key is never overwritten. Delete it or name another.")
    path.parent.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )  # fmt: skip
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_atomic(path, private, mode=0o600)
    write_atomic(public_of(path), public + b"\n")
    return public_of(path)


def public_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.pub")


def read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no certificate in PEM ({_why(error)}); make it again.") from error


def read_key(path: Path):
    """A private key, in PEM or as OpenSSH writes it."""
    try:
        data = path.read_bytes()
        if b"OPENSSH" in data[:64]:
            return serialization.load_ssh_private_key(data, None)
        return serialization.load_pem_private_key(data, None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} is no private key without a password ({_why(error)}); make it again.") from error


def read_public(path: Path) -> ec.EllipticCurvePublicKey:
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no public key as OpenSSH writes it ({_why(error)}).") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(f"{path} is not a key of a NIST curve, which Flower asks for; see fedsub deploy key.")
    return key


def general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _why(error: Exception) -> str:
    return error.strerror or "" if isinstance(error, OSError) else str(error).partition("\n")[0][:100]


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _certificate(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return x509.CertificateBuilder(
        issuer, subject, key, x509.random_serial_number(), now - dt.timedelta(hours=1), now + dt.timedelta(days=days)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip


def _write_pair(stem: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )  # fmt: skip
    write_atomic(stem.with_suffix(".key"), private, mode=0o600)
    write_atomic(stem.with_suffix(".crt"), certificate.public_bytes(serialization.Encoding.PEM))


def open_to_others(path: Path) -> bool:
    """Whether other users of this machine may read a file."""
    return bool(os.stat(path).st_mode & 0o077)
