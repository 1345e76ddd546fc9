"""The page's server: loopback only, reads only, and answers only those who ask for this machine by its own name."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fedsub.deploy import metrics, page
from fedsub.deploy.site import Site
from fedsub.deploy.view import View, Watcher
from fedsub.disk.files import dump, write_atomic
from fedsub.errors import ConfigError

HOST = "127.0.0.1"
NAMES = {"127.0.0.1", "localhost", "[::1]"}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; base-uri 'none'"


def as_json(view: View) -> bytes:
    """All that the page shows."""
    found = asdict(view)
    for heat in found["heat"]:
        heat.pop("ranked")
    return dump(found | {"down": view.down, "up": view.up, "latest": view.latest()})


class _Handler(BaseHTTPRequestHandler):
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        # A page elsewhere can have its name mean this machine; the name it asks by gives it away.
        host = self.headers.get("Host", "")
        if host not in NAMES and host.rpartition(":")[0] not in NAMES:
            self._send(421, "text/plain; charset=utf-8", b"This page answers to 127.0.0.1 and localhost alone.\n")
            return
        path = self.path.partition("?")[0]
        if path == "/status.js":
            self._send(200, "text/javascript; charset=utf-8", page.asset("fedsub.deploy", "status.js").encode())
        elif path in ("/", "/main", "/status.json", "/metrics"):
            view = self.server.look()
            if path == "/metrics":
                self._send(200, metrics.KIND, metrics.text(view).encode())
            elif path == "/status.json":
                self._send(200, "application/json", as_json(view))
            else:
                text = page.render(view) if path == "/" else page.content(view)
                self._send(200, "text/html; charset=utf-8", text.encode())
        else:
            self._send(404, "text/plain; charset=utf-8", b"There is /, /status.json and /metrics.\n")

    do_HEAD = do_GET

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")  # a connection that stayed would outlive the server
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, site: Site, port: int):
        self.watcher, self._looking = Watcher(site), threading.Lock()
        super().__init__((HOST, port), _Handler)

    def look(self) -> View:
        with self._looking:
            return self.watcher.look()

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a reader that left


@contextmanager
def serving(site: Site, port: int | None = None) -> Iterator[str]:
    """Serve the page while the block runs; yields its address. Port 0 takes any that is free."""
    port = site.settings.page.port if port is None else port
    try:
        server = _Server(site, port)
    except OSError as error:
        raise ConfigError(
            f"The status page cannot listen at {HOST}:{port} ({error.strerror}); choose another page.port in "
            "deploy.toml."
        ) from error
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True, name="status page")
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_page(site: Site, path: Path) -> Path:
    """The page as a file, for after the end."""
    write_atomic(path, page.render(Watcher(site).look(), live=False).encode())
    return path
