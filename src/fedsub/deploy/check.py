"""All that can be refused before anything starts, and what is worth knowing; every finding at once.

This machine (versions, ports), trust (certificates, keys, who can reach Flower), and the app (`app_check`).
"""

from __future__ import annotations

import datetime as dt
import os
import socket
import stat
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from fedsub.deploy import keys, probe, proxy
from fedsub.deploy.finding import Finding
from fedsub.deploy.outcome import roll
from fedsub.deploy.site import NODE, Site, loopback
from fedsub.errors import ConfigError, FedsubError

UNTESTED = "FEDSUB_UNTESTED_FLWR"  # an environment variable of resident nodes
SOON = 30  # days before its end that a certificate is worth a note


Findings = Iterator[Finding]


def check(site: Site, *, outside: str | None = None, app: bool = True) -> list[Finding]:
    """Everything; ``outside``: an address HOST:PORT as others see it, which is probed too."""
    found: list[Finding] = []
    for room in (versions, ports, certificates, node_keys, entrance, reach):
        found += _within(room, site)
    if app and not any(one.level == "refused" and one.about == "flower" for one in found):
        from fedsub.deploy.app_check import app_is_whole

        found += _within(app_is_whole, site)
    if outside is not None:
        found += list(from_outside(outside))
    return found


def _within(room: Callable[[Site], Findings], site: Site) -> Findings:
    """All findings up to an error, which is one."""
    try:
        yield from room(site)
    except FedsubError as error:
        yield Finding("refused", room.__name__.replace("_", " "), str(error))


def versions(site: Site) -> Findings:
    try:
        flwr = version("flwr")
    except PackageNotFoundError:
        yield Finding("refused", "flower", "Flower is not installed here: pip install 'fedsub[flower]'.")
        return
    numbers = tuple(int(part) for part in flwr.split(".")[:2])
    tested = tested_versions()
    if numbers < (1, 41) or numbers[0] > 1:
        yield Finding("refused", "flower", f"flwr {flwr} is installed, expected at least 1.41 and below 2.")
    elif flwr in tested:
        yield Finding("fine", "flower", f"flwr {flwr}")
    elif site.settings.nodes.kind == "resident" and site.settings.nodes.local and not os.environ.get(UNTESTED):
        yield Finding(
            "refused", "flower",
            f"flwr {flwr} is not one that resident nodes were tested with ({', '.join(tested)}); install that, take "
            f'nodes.kind = "stock", or try it all the same with {UNTESTED}=1.',
        )  # fmt: skip
    else:
        yield Finding("note", "flower", f"flwr {flwr} is not one that fedsub was tested with ({', '.join(tested)}).")


def tested_versions() -> tuple[str, ...]:
    from fedsub.flower.fleet import TESTED

    return TESTED


def ports(site: Site) -> Findings:
    """Whether they are free, unless this very deployment runs."""
    settings = site.settings
    wanted = {"server.port": settings.server.port, "page.port": settings.page.port, "proxy.listen": site.listens[1]}
    if settings.nodes.kind == "stock":
        wanted |= {f"nodes.port + {k}": settings.nodes.port + k for k in range(settings.nodes.local)}
    by_port: dict[int, str] = {}
    for name, port in wanted.items():
        if port in by_port:
            yield Finding("refused", "ports", f"{name} and {by_port[port]} are both {port}; give each its own.")
        by_port[port] = name
    if roll(site).supervisor() is not None:
        yield Finding("fine", "ports", "this deployment uses them now")
        return
    taken = [f"{name} {port}" for name, port in wanted.items() if _taken(port)]
    if taken:
        yield Finding("refused", "ports", f"In use by another program: {', '.join(taken)}. Stop it, or choose others.")
    else:
        yield Finding("fine", "ports", f"{', '.join(map(str, sorted(by_port)[:4]))} are free")


def _taken(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def certificates(site: Site) -> Findings:
    """Authority, server certificate, key and secret: whole, of each other, valid, and nobody else's to read."""
    folder, now = site.certificates, dt.datetime.now(dt.UTC)
    authority, server = keys.read_certificate(site.authority), keys.read_certificate(folder / "server.crt")
    for name, one in (("ca.crt", authority), ("server.crt", server)):
        left = (one.not_valid_after_utc - now).days
        if now < one.not_valid_before_utc or now > one.not_valid_after_utc:
            yield Finding(
                "refused", "certificates",
                f"{folder / name} is valid from {one.not_valid_before_utc:%d %b %Y} to "
                f"{one.not_valid_after_utc:%d %b %Y}, and not now; make it again (fedsub deploy "
                "certificates), or set this machine's clock.",
            )  # fmt: skip
        elif left < SOON:
            yield Finding("note", "certificates", f"{folder / name} ends in {left} days; make it again before.")
    try:
        server.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        yield Finding(
            "refused", "certificates",
            f"{folder / 'server.crt'} is not signed by {site.authority}; nodes would not connect. Make it again.",
        )  # fmt: skip
    key = keys.read_key(folder / "server.key")
    if _public(key.public_key()) != _public(server.public_key()):
        yield Finding(
            "refused", "certificates", f"{folder / 'server.key'} is not the key of server.crt; make both again."
        )
    lacking = [name for name in (*site.settings.server.names, *keys.LOCAL) if not _covers(server, name)]
    if lacking:
        yield Finding(
            "refused", "certificates",
            f"server.crt does not name {', '.join(dict.fromkeys(lacking))}, by which nodes connect. Make it "
            "again: fedsub deploy certificates.",
        )  # fmt: skip
    secret = folder / keys.SECRET
    if not secret.exists() or secret.stat().st_size < 32:
        yield Finding(
            "refused", "certificates", f"{secret} is missing or shorter than 32 bytes; fedsub deploy certificates."
        )
    for path in (folder / "server.key", secret, folder / "ca.key"):
        if path.exists() and keys.open_to_others(path):
            yield _readable(path)
    if (folder / "ca.key").exists() and site.exposed:
        yield Finding(
            "note",
            "certificates",
            f"{folder / 'ca.key'} can sign a certificate for anybody; keep it on another machine.",
        )
    yield Finding("fine", "certificates", f"valid until {server.not_valid_after_utc:%d %b %Y}")


def _readable(path: Path) -> Finding:
    mode = stat.S_IMODE(path.stat().st_mode)
    return Finding("refused", "certificates", f"{path} can be read by others (mode {mode:o}): chmod 600 {path}")


def _public(key: object) -> bytes:
    return key.public_bytes(  # type: ignore[attr-defined]
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _covers(certificate: x509.Certificate, name: str) -> bool:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    return keys.general_name(name) in list(names)


def node_keys(site: Site) -> Findings:
    """Whose public keys are there; and of the nodes on this machine the private ones."""
    there, seen = site.registered, {}
    if not there:
        yield Finding(
            "refused", "keys", f"{site.keys} has no public key (NAME.pub), so nobody may join; fedsub deploy key."
        )
        return
    for name, path in there.items():
        public = keys.read_public(path)
        if NODE.fullmatch(name) is None:
            yield Finding(
                "note", "keys", f"{path.name} does not end in a number; the app's setting names says whose it is."
            )
        raw = _public(public)
        if raw in seen:
            yield Finding("refused", "keys", f"{path} and {seen[raw]} are the same key; every node has its own.")
        seen[raw] = path
    for number in range(site.settings.nodes.local):
        private = site.keys / site.node(number)
        if not private.exists() or not keys.public_of(private).exists():
            yield Finding(
                "refused", "keys",
                f"nodes.local is {site.settings.nodes.local}, and {private} or its .pub is missing: fedsub deploy key "
                f"{private}",
            )  # fmt: skip
            return
        if keys.open_to_others(private):
            yield _readable(private)
        if _public(keys.read_key(private).public_key()) != _public(keys.read_public(keys.public_of(private))):
            yield Finding("refused", "keys", f"{private} and {private.name}.pub are not of one pair; make both again.")
    yield Finding("fine", "keys", f"{len(there)} nodes may join")


def entrance(site: Site) -> Findings:
    """The proxy: there, and content with its configuration."""
    program = proxy.find(site)
    host, _ = site.listens
    if program is None:
        if site.exposed:
            yield Finding(
                "refused", "proxy",
                f"proxy.listen is {site.settings.proxy.listen}, and {site.settings.proxy.command} is not installed "
                "(Debian: apt-get install nginx-light). Without it Flower's Control API, which asks for no "
                "credentials, would be open.",
            )  # fmt: skip
        else:
            yield Finding(
                "note", "proxy",
                f"{site.settings.proxy.command} is not installed: nodes here connect to the SuperLink itself, "
                "and none from elsewhere can.",
            )  # fmt: skip
        return
    if said := proxy.complaints(site, program):
        yield Finding("refused", "proxy", f"{program} refuses its configuration: {said}")
    elif not site.exposed:
        yield Finding("fine", "proxy", f"{program}, for nodes on this machine alone (proxy.listen is {host})")
    else:
        yield Finding("fine", "proxy", f"{program}, for everybody at {site.settings.proxy.listen}")


def reach(site: Site) -> Findings:
    """Whether somebody else reaches Flower's own port: another SuperLink, a forwarded port, a container's."""
    port, checked = site.settings.server.port, []
    for address in probe.own_addresses():
        if probe.listens(address, port):
            yield from _opened(address, port)
        checked.append(address)
    if os.geteuid() == 0 and site.exposed:
        yield Finding("note", "reach", "Everything here runs as root; give the deployment a user of its own.")
    if roll(site).supervisor() is not None and proxy.find(site) is not None:
        host, port = site.listens
        yield from _opened("127.0.0.1" if not loopback(host) else host, port)
    yield Finding(
        "fine", "reach", f"port {site.settings.server.port} is not open at {', '.join(checked) or 'any other address'}"
    )


def _opened(host: str, port: int) -> Findings:
    answers = [answer for answer in probe.ask(host, port) if answer.open]
    if answers:
        yield Finding(
            "refused", "reach",
            f"{host}:{port} lets strangers in: {answers[0].call} was answered with {answers[0].status}. "
            "Flower's Control API takes code from anybody who reaches it. Bind the SuperLink to 127.0.0.1; let nodes "
            "in by the proxy alone.",
        )  # fmt: skip


def from_outside(address: str) -> Findings:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"--outside is {address!r}, expected HOST:PORT.")
    found = list(_opened(host.strip("[]"), int(port)))
    if not probe.listens(host.strip("[]"), int(port), 5.0):
        found = [Finding("refused", "reach", f"Nothing answers at {address}; is the deployment running?")]
    yield from found or [Finding("fine", "reach", f"{address} passes only the calls of the fleet")]


def refusals(found: list[Finding]) -> list[str]:
    return [one.sentence for one in found if one.level == "refused"]
