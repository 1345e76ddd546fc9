"""A real SuperLink behind the real proxy: strangers cannot submit code, register keys or take tasks; nodes can work.

Slow; skipped where Flower or nginx is missing.
"""

from __future__ import annotations

import http.client
import os
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sites import free_ports, make

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedsub[flower]'")
pytest.importorskip("cryptography")

from fedsub.deploy import check, commands, keys, proxy
from fedsub.deploy.flower import Flower, environment, program
from fedsub.deploy.probe import ask, listens
from fedsub.deploy.processes import Child, parse_last_object, stop_all, tail
from fedsub.deploy.site import Site
from fedsub.deploy.supervise import Supervisor

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = make(tmp_path_factory.mktemp("link"))
    if proxy.find(made) is None:
        pytest.skip("nginx is not installed; on Debian: apt-get install nginx-light")
    front = commands.reverse_proxy(made)
    assert front is not None
    one = Supervisor(made, print)
    Flower(made).prepare()
    children = [one.link, front]
    try:
        one.link.start()
        one._wait_for_link()
        front.start()
        while not listens("127.0.0.1", made.listens[1]):
            assert front.runs, tail(front.log, 5)
            time.sleep(0.05)
        yield made
    finally:
        stop_all(children)


def outside(site: Site, folder: Path, *words: str) -> dict:
    """A flwr command of somebody elsewhere, who has the authority's certificate and the proxy's address."""
    home = folder / "home"
    (home / "empty").mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "site"\n[superlink.site]\naddress = "127.0.0.1:{site.listens[1]}"\n'
        f'root-certificates = "{site.authority}"\n'
    )
    done = subprocess.run(
        [program("flwr"), *words, "--format", "json"], env=environment(site) | {"FLWR_HOME": str(home)}, text=True,
        cwd=home / "empty", capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    return parse_last_object(done.stdout) or {"success": False, "said": done.stderr}


def post(port: int, path: str, context: ssl.SSLContext, **headers: str) -> int:
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
    connection.request("POST", path, body=b"", headers={"Content-Type": "application/protobuf", **headers})
    status = connection.getresponse().status
    connection.close()
    return status


def test_nobody_submits_code_from_outside(site, tmp_path):
    assert outside(site, tmp_path, "run", str(site.folder), "site")["success"] is False
    assert outside(site, tmp_path, "list", "site")["success"] is False
    assert outside(site, tmp_path, "stop", "1", "site")["success"] is False
    assert Flower(site).runs() == []  # beside the SuperLink it is answered, and nothing was begun


def test_nobody_registers_a_key_from_outside(site, tmp_path):
    public = keys.make_node_key(tmp_path / "stranger")
    assert outside(site, tmp_path, "supernode", "register", str(public), "site")["success"] is False
    assert outside(site, tmp_path, "supernode", "list", "site")["success"] is False
    assert Flower(site).nodes() == []


def test_nobody_takes_a_task_from_outside_and_without_the_secret_not_from_inside_either(site):
    context = ssl.create_default_context(cafile=str(site.authority))
    for call in ("acquire-task", "pull-task-input", "push-task-output", "push-messages", "pull-object"):
        assert post(site.listens[1], f"/v1/runtime/{call}", context) == 403, call
    assert post(site.settings.server.port, "/v1/runtime/acquire-task", context) == 401
    secret = (site.certificates / keys.SECRET).read_text()
    assert secret
    assert secret not in (site.state / "logs/superlink.log").read_text()


def test_the_probe_sees_the_difference_and_the_check_refuses_an_exposed_port(site):
    assert not [one for one in ask("127.0.0.1", site.listens[1]) if one.open]
    (found,) = check.from_outside(f"127.0.0.1:{site.listens[1]}")
    assert found.level == "fine"
    (found,) = check.from_outside(f"127.0.0.1:{site.settings.server.port}")  # as if it were bound to all addresses
    assert found.level == "refused"
    assert "POST /v1/control/list-runs was answered with 200" in found.sentence


def supernode(site: Site, key: Path, folder: Path) -> Child:
    (port,) = free_ports(1)
    argv = [
        program("flower-supernode"), "--superlink", commands.entrance(site), "--root-certificates",
        str(site.authority), "--auth-supernode-private-key", str(key), "--port", str(port),
    ]  # fmt: skip
    env = environment(site) | {"FLWR_HOME": str(folder / "home")}
    return Child("node", argv, env, folder / "node.log", folder)


def test_a_registered_node_gets_in_through_the_proxy_and_an_unregistered_one_does_not(site, tmp_path):
    """The signature of a node's key passes although the proxy ends TLS."""
    stranger = tmp_path / "stranger"
    keys.make_node_key(stranger / "node-8")
    refused = supernode(site, stranger / "node-8", stranger)
    refused.start()
    assert isinstance(Flower(site).register({"node-0": site.keys / "node-0.pub"})["node-0"], str)
    taken = supernode(site, site.keys / "node-0", tmp_path)
    taken.start()
    try:
        end = time.monotonic() + 60
        while [node["status"] for node in Flower(site).nodes()] != ["online"] or refused.runs:
            assert time.monotonic() < end, (tail(taken.log, 5), tail(refused.log, 5))
            time.sleep(0.5)
        assert taken.runs
        assert "2004" in refused.log.read_text() or "401" in refused.log.read_text()
    finally:
        stop_all([taken, refused])
    assert os.environ.get("FLWR_HOME") is None


def test_keys_are_registered_together_and_each_is_told_what_is_wrong_with_it(site, tmp_path):
    fresh = {name: keys.make_node_key(tmp_path / name) for name in ("node-20", "node-21")}
    (tmp_path / "node-22.pub").write_text("no key")
    found = Flower(site).register({**fresh, "node-22": tmp_path / "node-22.pub", "node-23": fresh["node-20"]})
    assert found["node-20"] != found["node-21"]
    assert all(isinstance(found[name], str) for name in fresh)
    assert "already in use" in str(found["node-23"])
    assert isinstance(found["node-22"], Exception)
    numbers = {node["node-id"] for node in Flower(site).nodes()}
    assert {found["node-20"], found["node-21"]} <= numbers
    Flower(site).unregister(str(found["node-20"]))
    assert found["node-20"] not in {n["node-id"] for n in Flower(site).nodes() if n["status"] != "unregistered"}
