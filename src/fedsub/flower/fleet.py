"""The Fleet API as a node of one's own speaks it: everything of Flower that is not published, in one place.

A stock SuperNode starts a process for every message, which loads what the server submitted. A resident node is itself
the client: it pulls messages, answers them with what is installed on it, and never asks for the code of a run. The
modules imported below change between releases of Flower without notice, so others than those that were tested are
refused (`TESTED`; tests/flower/test_fleet.py looks at each).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.version import package_version
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedsub.errors import ConfigError, RunError

log = logging.getLogger("fedsub")
T = TypeVar("T")

TESTED = ("1.41.0",)
UNTESTED = "FEDSUB_UNTESTED_FLWR"  # an environment variable: to try another release all the same
HEARTBEAT = 10.0  # seconds; a node of which nothing is heard for two of them counts as gone
_RETRIED = {429, 502, 503, 504}
_ENDED = 403


class Refused(RunError):
    """The SuperLink does not take this node (now): not registered, or its key is still in use."""


class Unreachable(RunError):
    """The SuperLink does not answer."""


class RunEnded(RunError):
    """The run of a message is over."""


def check_version() -> None:
    if package_version not in TESTED and not os.environ.get(UNTESTED):
        raise ConfigError(
            f"Resident nodes speak an interface of Flower that changes without notice, tested with flwr "
            f"{', '.join(TESTED)}; {package_version} is installed. Install flwr=={TESTED[-1]}, run stock SuperNodes, "
            f"or try it all the same with {UNTESTED}=1."
        )


def private_key(path: str | os.PathLike[str]) -> ec.EllipticCurvePrivateKey:
    """A node's private key, in OpenSSH's format."""
    try:
        key = load_ssh_private_key(Path(path).expanduser().read_bytes(), None)
    except (OSError, ValueError, TypeError) as err:
        raise ConfigError(
            f"{path} is no private key in OpenSSH's format ({err}); make one: ssh-keygen -t ecdsa -b 384 -N '' -f NAME"
        ) from err
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} holds another key than an elliptic-curve one: ssh-keygen -t ecdsa -b 384.")
    return key


class Fleet:
    """A node's line to a SuperLink, as a context: the node is online inside. ``stop`` ends waiting."""

    def __init__(
        self, address: str, key: ec.EllipticCurvePrivateKey, *, authority: str | None, stop: threading.Event,
        insecure: bool = False, patience: float = 60.0, heartbeat: float = HEARTBEAT,
    ):  # fmt: skip
        check_version()
        self._public = public_key_to_bytes(key.public_key())
        self._stop, self._patience, self._heartbeat = stop, patience, heartbeat
        self._client: Any = FleetHttpClient.from_server_address(
            address, insecure, authority,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(key, key.public_key()),
            ],
        )  # fmt: skip
        self._node = Node()
        self._over = threading.Event()
        self.lost = ""  # why the SuperLink does not know this node any more

    @property
    def node(self) -> int:
        return int(self._node.node_id)

    def __enter__(self) -> Fleet:
        self._client.__enter__()
        try:
            said = self._call(
                self._client.ActivateNode,
                ActivateNodeRequest(public_key=self._public, heartbeat_interval=self._heartbeat),
            )
        except BaseException:
            self._client.__exit__(None, None, None)
            raise
        self._node = Node(node_id=said.node_id)
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        try:
            if not self.lost:
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self.node))
        except (httpx.HTTPError, RuntimeError):  # it is not there any more: it will notice by itself
            pass
        finally:
            self._client.__exit__(None, None, None)

    def receive(self) -> Message | None:
        """The next message, if there is one."""
        if self.lost:
            raise Refused(self.lost)
        got = self._call(self._client.PullMessages, PullMessagesRequest(node=self._node))
        if not got.messages_list:
            return None
        head = message_from_proto(got.messages_list[0])
        run, number = head.metadata.run_id, head.metadata.message_id
        pull = make_pull_object_fn_protobuf(lambda r: self._call(self._client.PullObject, r), self._node, run)
        names = [part.object_id for part in iterate_object_tree(got.message_object_trees[0])]
        contents = pull_objects(names, pull)
        confirm = make_confirm_message_received_fn_protobuf(
            lambda r: self._call(self._client.ConfirmMessageReceived, r), self._node, run
        )
        confirm(number)
        whole = inflate_object_from_contents(number, contents)
        if not isinstance(whole, Message):
            raise RunEnded("What came is no message.")
        whole.metadata.__dict__["_message_id"] = number
        return whole

    def reply(self, message: Message, seconds: float) -> None:
        """Send an answer; it took so many seconds to make."""
        run = message.metadata.run_id
        with no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            bare = remove_content_from_message(message) if message.has_content() else message
            tree = get_object_tree(message)
            said = self._call(
                self._client.PushMessages,
                PushMessagesRequest(
                    node=self._node, messages_list=[message_to_proto(bare)], message_object_trees=[tree],
                    clientapp_runtime_list=[seconds],
                ),
            )  # fmt: skip
            push = make_push_object_fn_protobuf(
                lambda r: self._call(self._client.PushObject, r), self._node, run, said.session_id
            )
            push_objects(get_all_nested_objects(message), push, object_ids_to_push=set(said.objects_to_push))

    def _beat(self) -> None:
        """Tell the SuperLink that this node is alive, also while it computes."""
        asked = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=self._heartbeat)
        while not self._over.wait(self._heartbeat * 0.8):
            try:
                if not self._client.SendNodeHeartbeat(asked).success:
                    self.lost = "the SuperLink does not know this node any more"
            except httpx.HTTPStatusError as err:
                if err.response.status_code not in _RETRIED:
                    self.lost = f"the SuperLink refuses this node: {_said(err)}"
            except (httpx.HTTPError, RuntimeError) as err:
                log.debug("a heartbeat was not answered: %s", err)

    def _call(self, ask: Callable[[Any], T], request: Any) -> T:
        """Ask, and again while the SuperLink is not reachable, with growing pauses."""
        begun, pause = time.monotonic(), 0.1
        while True:
            try:
                return ask(request)
            except httpx.HTTPStatusError as err:
                code = err.response.status_code
                if code == _ENDED:
                    raise RunEnded(_said(err)) from err
                if code not in _RETRIED:
                    raise Refused(_said(err)) from err
                why = _said(err)
            except httpx.TransportError as err:
                why = str(err) or type(err).__name__
                if "certificate" in why.lower():
                    raise Refused(f"TLS was not agreed on: {why}") from err
            if self._stop.is_set() or time.monotonic() - begun > self._patience:
                raise Unreachable(why)
            self._stop.wait(pause)
            pause = min(2 * pause, 5.0)


def _said(err: httpx.HTTPStatusError) -> str:
    text = err.response.text.strip().replace("\n", " ")
    return f"HTTP {err.response.status_code} {text[:300]}"
