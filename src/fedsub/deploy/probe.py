"""What a stranger gets who reaches an address: asked of Flower's Control and Runtime APIs, without a key.

An address that leads to a SuperLink answers these calls; through the proxy they are refused. Nothing that is sent
changes anything: runs are listed, and the health is asked for.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from dataclasses import dataclass

# Harmless calls of each interface, and ways round a careless proxy. A protobuf message without fields is no bytes.
CALLS = (
    ("POST", "/v1/control/list-runs"), ("POST", "/v1/control/list-nodes"), ("POST", "/v1/runtime/get-nodes"),
    ("GET", "/health"), ("POST", "/v1/fleet/../control/list-runs"), ("POST", "/v1/fleet/%2e%2e/control/list-runs"),
    ("POST", "/v1/fleet//../control/list-runs"), ("POST", "//v1/control/list-runs"),
)  # fmt: skip
PROTOBUF = "application/protobuf"


@dataclass(frozen=True)
class Answer:
    call: str
    status: int | None  # None: there was no answer
    flower: bool = False  # whether it was a SuperLink that answered, and not the proxy or something else

    @property
    def open(self) -> bool:
        return self.flower


def ask(host: str, port: int, *, seconds: float = 5.0) -> list[Answer]:
    """Try every call. Certificates are not checked: a stranger would not, either."""
    return [_ask(host, port, method, path, seconds) for method, path in CALLS]


def _ask(host: str, port: int, method: str, path: str, seconds: float) -> Answer:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(host, port, timeout=seconds, context=context)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        connection.putheader("Content-Type", PROTOBUF)
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        answer = connection.getresponse()
        kind = answer.headers.get_content_type()
        body = answer.read(65_536)
    except (OSError, http.client.HTTPException):
        return Answer(f"{method} {path}", None)
    finally:
        connection.close()
    # Flower answers in protobuf, refuses in JSON with a code of its own, and says of its health only that it is well.
    healthy = path == "/health" and answer.status == 200 and not body
    refused = kind == "application/json" and b'"code"' in body
    return Answer(f"{method} {path}", answer.status, kind == PROTOBUF or refused or healthy)


def listens(host: str, port: int, seconds: float = 1.0) -> bool:
    try:
        with socket.create_connection((host, port), timeout=seconds):
            return True
    except OSError:
        return False


def own_addresses() -> list[str]:
    """This machine's addresses that others can use, as far as its name and its routes tell."""
    found: dict[str, None] = {}
    for family, target in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:  # nothing is sent: it only asks for the route
                probe.connect((target, 9))
                found[probe.getsockname()[0]] = None
        except OSError:
            pass
    try:
        for entry in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            found[str(entry[4][0])] = None
    except OSError:
        pass
    return [address for address in found if not address.startswith("127.") and address != "::1"]
