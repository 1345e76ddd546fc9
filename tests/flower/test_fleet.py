"""The unpublished interface of Flower that resident nodes speak: each tested release has what `fleet.py` uses."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from flower.loopback import node_key
from flwr.supercore.inflatable import inflatable_protobuf_utils, inflatable_utils
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supernode import start_client_internal
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedsub.errors import ConfigError
from fedsub.flower import fleet
from fedsub.flower.resident import Installed, Looks, run


def test_the_installed_release_was_tested() -> None:
    fleet.check_version()


def test_another_release_is_refused_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "package_version", "1.99.0")
    with pytest.raises(ConfigError, match=r"1\.41\.0; 1\.99\.0 is installed"):
        fleet.check_version()
    monkeypatch.setenv(fleet.UNTESTED, "1")
    fleet.check_version()


def test_the_fleet_api_is_as_it_was() -> None:
    """The calls and their arguments; what they do is in test_loopback.py."""
    for call in ("ActivateNode", "DeactivateNode", "PullMessages", "PushMessages", "PullObject", "PushObject",
                 "ConfirmMessageReceived", "SendNodeHeartbeat"):  # fmt: skip
        assert list(inspect.signature(getattr(FleetHttpClient, call)).parameters) == ["self", "request"]
    first = list(inspect.signature(ProtobufClient.from_server_address).parameters)
    assert first[:3] == ["server_address", "insecure", "root_certificates"]
    assert "interceptors" in first
    utils = inflatable_protobuf_utils
    assert list(inspect.signature(utils.make_pull_object_fn_protobuf).parameters)[1:] == ["node", "run_id"]
    assert list(inspect.signature(utils.make_confirm_message_received_fn_protobuf).parameters)[1:] == ["node", "run_id"]
    assert list(inspect.signature(utils.make_push_object_fn_protobuf).parameters)[1:] == [
        "node",
        "run_id",
        "session_id",
    ]
    assert list(inspect.signature(inflatable_utils.inflate_object_from_contents).parameters)[:2] == [
        "object_id", "object_contents",
    ]  # fmt: skip
    source = inspect.getsource(start_client_internal)  # a stock node runs what came: a resident one asks for none of it
    assert "get_fab(" in source
    assert "get_fab" not in Path(fleet.__file__).read_text().replace("get_fabric", "")


def test_a_key_is_read_or_refused(tmp_path: Path) -> None:
    assert isinstance(fleet.private_key(node_key(tmp_path / "node-0")), ec.EllipticCurvePrivateKey)
    (tmp_path / "bad").write_text("no key")
    with pytest.raises(ConfigError, match="OpenSSH"):
        fleet.private_key(tmp_path / "bad")


def test_a_superlink_that_is_not_there_is_asked_again_until_the_node_is_stopped(tmp_path: Path) -> None:
    from flwr.clientapp import ClientApp

    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    run(
        Installed(ClientApp(), {}), superlink="127.0.0.1:9", key=node_key(tmp_path / "node-0"), node_config={},
        root_certificates=None, stop=stop,
    )  # fmt: skip


def test_an_app_is_read_or_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not name a ClientApp"):
        Installed.read(tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.flwr.app.components]\nclientapp = "own_client:app"\n[tool.flwr.app.config]\na = {b = 1}\nc = 2\n'
    )
    with pytest.raises(ConfigError, match="cannot be imported"):
        Installed.read(tmp_path)
    (tmp_path / "own_client.py").write_text("from flwr.clientapp import ClientApp\napp = ClientApp()\n")
    assert Installed.read(tmp_path, {"c": 3}).config == {"a.b": 1, "c": 3}


def test_a_node_looks_after_half_of_its_shortest_wait_and_ever_more_seldom() -> None:
    looks = Looks(0.1, 1.0)
    looks.found(3.0)
    assert [looks.missed() for _ in range(2)] == [1.0, 1.0]
    looks.found(0.8)
    assert [looks.missed() for _ in range(4)] == pytest.approx([0.4, 0.6, 0.9, 1.0])
    looks.found(0.01)
    assert looks.missed() == 0.1
    for _ in range(Looks.MEMORY):
        looks.found(1.6)
    assert looks.missed() == 0.8
