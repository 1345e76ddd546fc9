"""`fedsub deploy check` refuses what would fail later, and what would let strangers in."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from sites import free_ports, make, set_in

pytest.importorskip("cryptography")

import ssl

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from fedsub.deploy import check, keys, probe
from fedsub.deploy.finding import Finding
from fedsub.deploy.site import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return make(tmp_path)


def said(found) -> str:
    return "\n".join(one.sentence for one in found if one.level == "refused")


def test_what_was_just_made_is_fine(site):
    for room in (check.certificates, check.node_keys, check.ports):
        assert [one.level for one in room(site)] == ["fine"], room.__name__


def test_a_certificate_that_ended(site, monkeypatch):
    monkeypatch.setattr(keys, "SERVER_DAYS", 0)
    keys.make_server(site.certificates, site.settings.server.names)
    assert "and not now" in said(check.certificates(site))
    monkeypatch.setattr(keys, "SERVER_DAYS", 10)
    keys.make_server(site.certificates, site.settings.server.names)
    notes = [one for one in check.certificates(site) if one.level == "note"]
    assert "ends in 9 days" in notes[0].sentence


def test_a_certificate_of_another_authority(site):
    keys.make_authority(site.certificates, "somebody else")
    assert "is not signed by" in said(check.certificates(site))


def test_a_key_that_is_not_the_certificates(site, tmp_path):
    before = (site.certificates / "server.crt").read_bytes()
    keys.make_server(site.certificates, site.settings.server.names)
    (site.certificates / "server.crt").write_bytes(before)
    assert "is not the key of server.crt" in said(check.certificates(site))


def test_a_name_that_the_certificate_lacks(site):
    changed = set_in(site, '"127.0.0.1", "server"]', '"127.0.0.1", "fed.example.org", "192.0.2.7"]')
    assert "does not name fed.example.org, 192.0.2.7" in said(check.certificates(changed))
    keys.make_server(site.certificates, changed.settings.server.names)
    assert not said(check.certificates(changed))


@pytest.mark.parametrize("name", ["certs/server.key", "certs/runtime.secret", "certs/ca.key", "keys/node-1"])
def test_a_secret_that_others_may_read(site, name):
    (site.folder / name).chmod(0o640)
    found = said([*check.certificates(site), *check.node_keys(site)])
    assert "can be read by others (mode 640): chmod 600" in found


def test_a_secret_that_is_too_short(site):
    (site.certificates / "runtime.secret").write_bytes(b"secret")
    assert "shorter than 32 bytes" in said(check.certificates(site))


def test_keys_of_nodes(site):
    other = site.keys / "node-1.pub"
    whole = other.read_bytes()
    other.write_bytes((site.keys / "node-0.pub").read_bytes())
    assert "are the same key" in said(check.node_keys(site))
    assert "not of one pair" in said(check.node_keys(site))
    public = ed25519.Ed25519PrivateKey.generate().public_key()
    other.write_bytes(public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH))
    assert "not a key of a NIST curve" in said(check.check(site, app=False))
    other.write_bytes(whole)
    (site.keys / "node-1").unlink()
    assert "node-1 or its .pub is missing: fedsub deploy key" in said(check.node_keys(site))
    for path in site.keys.iterdir():
        path.unlink()
    assert "nobody may join" in said(check.node_keys(site))


def test_ports_that_are_taken_or_given_twice(site):
    with socket.socket() as other:
        other.bind(("127.0.0.1", site.settings.page.port))
        other.listen()
        assert f"In use by another program: page.port {site.settings.page.port}" in said(check.ports(site))
    twice = set_in(site, f"[page]\nport = {site.settings.page.port}", f"[page]\nport = {site.settings.server.port}")
    assert "are both" in said(check.ports(twice))


def test_an_open_door_without_a_proxy_is_refused_and_a_closed_one_noted(site):
    closed = set_in(site, "body_mb = 16", 'command = "no-such-nginx"\nbody_mb = 16')
    (found,) = check.entrance(closed)
    assert found.level == "note"
    assert "none from elsewhere can" in found.sentence
    port = site.listens[1]
    wide = set_in(closed, f'"127.0.0.1:{port}"', f'"0.0.0.0:{port}"')
    (found,) = check.entrance(wide)
    assert found.level == "refused"
    assert "Flower's Control API, which asks for no credentials, would be open" in found.sentence


def test_findings_come_together_and_an_error_is_one_of_them(site):
    (site.certificates / "server.crt").write_text("no certificate")
    (site.certificates / "runtime.secret").unlink()
    (site.keys / "node-0").unlink()
    found = check.check(site, app=False)
    assert {one.about for one in found if one.level == "refused"} >= {"certificates", "keys"}


class Careless(BaseHTTPRequestHandler):
    """A port that answers the Control API, as a SuperLink does; or one that refuses, as the proxy does."""

    answer = 200

    def do_POST(self) -> None:
        self.send_response(self.answer if "/v1/control/" in self.path else 403)
        if self.answer == 200:
            self.send_header("Content-Type", "application/protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, format: str, *args: object) -> None:
        pass


class Careful(Careless):
    answer = 403


class Another(Careless):
    """Something else than Flower, which says what it says of any path."""

    answer = 405


def listening(site: Site, handler: type[BaseHTTPRequestHandler], port: int) -> HTTPServer:
    server = HTTPServer(("127.0.0.1", port), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(site.certificates / "server.crt", site.certificates / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


@pytest.mark.parametrize(("handler", "level"), [(Careless, "refused"), (Careful, "fine"), (Another, "fine")])
def test_an_exposed_control_api_is_refused(site, handler, level):
    (port,) = free_ports(1)
    server = listening(site, handler, port)
    try:
        (found,) = check.from_outside(f"127.0.0.1:{port}")
    finally:
        server.shutdown()
        server.server_close()
    assert found.level == level
    if level == "refused":
        assert "lets strangers in: POST /v1/control/list-runs was answered with 200" in found.sentence


def test_flowers_port_open_at_another_address_is_refused(site, monkeypatch):
    server = listening(site, Careless, site.settings.server.port)
    monkeypatch.setattr(probe, "own_addresses", lambda: ["127.0.0.1"])  # as if it were one that others reach
    try:
        assert "lets strangers in" in said(check.reach(site))
    finally:
        server.shutdown()
        server.server_close()
    assert not said(check.reach(site))


def test_nothing_there_is_not_taken_for_safe(site):
    (found,) = check.from_outside(f"127.0.0.1:{free_ports(1)[0]}")
    assert found == Finding("refused", "reach", found.sentence)
    assert "Nothing answers" in found.sentence


@pytest.mark.parametrize(("version", "resident", "stock"), [
    ("1.41.0", "fine", "fine"), ("1.40.9", "refused", "refused"), ("2.0.0", "refused", "refused"),
    ("1.55.1", "refused", "note"),
])  # fmt: skip
def test_versions_of_flower(site, monkeypatch, version, resident, stock):
    monkeypatch.setattr(check, "version", lambda name: version)
    monkeypatch.setattr(check, "tested_versions", lambda: ("1.41.0",))
    monkeypatch.delenv(check.UNTESTED, raising=False)
    assert [one.level for one in check.versions(site)] == [resident]
    other = set_in(site, 'kind = "resident"', 'kind = "stock"')
    assert [one.level for one in check.versions(other)] == [stock]
    monkeypatch.setenv(check.UNTESTED, "1")
    assert [one.level for one in check.versions(site)] == [stock]
