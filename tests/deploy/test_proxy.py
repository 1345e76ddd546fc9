"""The proxy: nginx itself before a port that answers everything, and what of that gets through."""

from __future__ import annotations

import http.client
import re
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from sites import make

pytest.importorskip("cryptography")

from fedsub.deploy import commands, probe, proxy
from fedsub.deploy.processes import Child
from fedsub.deploy.site import Site
from fedsub.errors import ConfigError


@dataclass
class Front:
    site: Site
    seen: list[tuple[str, str, bytes]]  # what came through: method, path, body

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> int:
        """The status, of a node that checks the certificate."""
        context = ssl.create_default_context(cafile=str(self.site.authority))
        connection = http.client.HTTPSConnection("127.0.0.1", self.site.listens[1], timeout=10, context=context)
        try:
            connection.putrequest(method, path)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            return connection.getresponse().status
        finally:
            connection.close()


class Everything(BaseHTTPRequestHandler):
    """A SuperLink that asks nobody who they are."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append((self.command, self.path, body))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Type", "application/protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD = do_PUT = do_DELETE = do_OPTIONS = do_POST

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    site = make(tmp_path_factory.mktemp("proxy"))
    child = commands.reverse_proxy(site)
    if child is None:
        pytest.skip("nginx is not installed; on Debian: apt-get install nginx-light")
    behind = ThreadingHTTPServer(("127.0.0.1", site.settings.server.port), Everything)
    behind.seen = []  # type: ignore[attr-defined]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(site.certificates / "server.crt", site.certificates / "server.key")
    behind.socket = context.wrap_socket(behind.socket, server_side=True)
    threading.Thread(target=behind.serve_forever, args=(0.02,), daemon=True).start()
    child.start()
    try:
        _wait(site, child)
        yield Front(site, behind.seen)  # type: ignore[attr-defined]
    finally:
        child.stop()
        behind.shutdown()
        behind.server_close()


def _wait(site: Site, child: Child) -> None:
    for _ in range(200):
        if probe.listens("127.0.0.1", site.listens[1]):
            return
        assert child.runs, child.log.read_text()
        time.sleep(0.02)
    raise AssertionError("nginx does not listen")


def test_the_calls_of_the_fleet_get_through_with_their_bodies(front):
    front.seen.clear()
    for call in proxy.FLEET:
        assert front.ask("POST", f"/v1/fleet/{call}", b"\x08\x01" * 500) == 200, call
    assert front.seen == [("POST", f"/v1/fleet/{call}", b"\x08\x01" * 500) for call in proxy.FLEET]


@pytest.mark.parametrize("path", [
    "/", "/health", "/docs", "/v1/control/start-run", "/v1/control/list-runs", "/v1/control/register-node",
    "/v1/runtime/acquire-task", "/v1/runtime/pull-task-input", "/v1/fleet", "/v1/fleet/", "/v1/fleet/start-run",
    "/v1/fleet/pull-messages/", "/v1/fleet/pull-messages?a=1", "/v1/fleet/pull-messages/../../control/list-runs",
    "/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run", "/v1/fleet/..%2fcontrol/start-run",
    "/v1/fleet//../control/start-run", "//v1/control/start-run", "/v1//fleet/pull-messages",
    "/V1/FLEET/pull-messages", "/v1/fleet/pull-messages%00", "/v1/fleet/%70ull-messages", "/v1/fleet/pull-messages%20x",
    "/v1/fleet;/../control/start-run", "/v1/fleet/.%2e/control/start-run",
])  # fmt: skip
def test_nothing_else_does(front, path):
    front.seen.clear()
    assert front.ask("POST", path) in (400, 403)
    assert not front.seen


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
def test_no_other_method_does(front, method):
    front.seen.clear()
    assert front.ask(method, "/v1/fleet/pull-messages") == 403
    assert not front.seen


def test_a_request_that_names_another_path_in_its_headers_goes_where_it_was_sent(front):
    front.seen.clear()
    for name in ("X-Original-URL", "X-Rewrite-URL", "X-Forwarded-Prefix"):
        assert front.ask("POST", "/v1/fleet/pull-messages", **{name: "/v1/control/start-run"}) == 200
    assert {path for _, path, _ in front.seen} == {"/v1/fleet/pull-messages"}


def test_bodies_are_bounded(front):
    front.seen.clear()
    most = int(front.site.settings.proxy.body_mb * 1024 * 1024)
    assert front.ask("POST", "/v1/fleet/push-object", b"x" * (most // 4)) == 200
    assert front.ask("POST", "/v1/fleet/push-object", **{"Content-Length": str(most + 1)}) == 413
    assert len(front.seen) == 1


def test_two_requests_in_one_are_not(front):
    """A length and chunks at once, of which one server might believe the one and the next the other."""
    front.seen.clear()
    headers = {"Content-Length": "6", "Transfer-Encoding": "chunked"}
    assert front.ask("POST", "/v1/fleet/pull-messages", b"0\r\n\r\nG", **headers) == 400
    assert not front.seen


def test_what_a_stranger_asks_is_refused_as_the_probe_says(front):
    answers = probe.ask("127.0.0.1", front.site.listens[1])
    assert not [one for one in answers if one.open]
    assert all(one.status is not None for one in answers)
    behind = probe.ask("127.0.0.1", front.site.settings.server.port)
    assert [one for one in behind if one.open]  # the probe would have told


def test_a_path_that_nginx_would_read_otherwise_is_refused(tmp_path):
    (tmp_path / "a$b").mkdir()
    with pytest.raises(ConfigError, match="without quotes"):
        proxy.configuration(make(tmp_path / "a$b"))


def test_the_fleets_calls_are_those_of_the_flower_that_is_installed():
    pytest.importorskip("flwr")
    from flwr.supernode import fleet_http_client  # pyright: ignore[reportMissingImports]

    source = Path(str(fleet_http_client.__file__)).read_text()
    assert set(re.findall(r'"/v1/fleet/([a-z-]+)"', source)) == set(proxy.FLEET)
