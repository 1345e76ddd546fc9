"""The programs of a deployment and what they are started with."""

from __future__ import annotations

import sys
from pathlib import Path

from fedsub.deploy import proxy
from fedsub.deploy.flower import environment, program
from fedsub.deploy.processes import Child
from fedsub.deploy.site import Site, toml_pairs

SIMULATED = "FEDSUB_SIMULATED_NODES"  # an environment variable: the file of a simulation's node configurations


def superlink(site: Site) -> Child:
    """Flower's server, on loopback alone; runs and registered keys outlive it in its database."""
    certs = site.certificates
    return _child(site, "superlink", [
        program("flower-superlink"), "--host", "127.0.0.1", "--port", str(site.settings.server.port),
        "--ssl-ca-certfile", str(certs / "ca.crt"), "--ssl-certfile", str(certs / "server.crt"),
        "--ssl-keyfile", str(certs / "server.key"), "--enable-supernode-auth",
        "--disable-runtime-dependency-installation", "--database", str(site.state / "superlink.db"),
        "--isolation", "process", "--superexec-auth-secret-file", str(certs / "runtime.secret"),
    ])  # fmt: skip


def superexec(site: Site) -> Child:
    """What starts the server app: a process of its own, so that a run outlives a restart of the SuperLink."""
    return _child(site, "superexec", [
        program("flower-superexec"), "--runtime-api-address", f"127.0.0.1:{site.settings.server.port}",
        "--root-certificates", str(site.authority),
        "--superexec-auth-secret-file", str(site.certificates / "runtime.secret"),
    ])  # fmt: skip


def reverse_proxy(site: Site) -> Child | None:
    """None where it is not installed."""
    found = proxy.find(site)
    return None if found is None else _child(site, "proxy", proxy.command(site, found))


def entrance(site: Site) -> str:
    """Where a node on this machine connects: at the proxy, as all others do; without one at the SuperLink."""
    if proxy.find(site) is None:
        return f"127.0.0.1:{site.settings.server.port}"
    host, port = site.listens
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"{host}:{port}"


def simulation(site: Site, folder: Path) -> Child:
    """Flower's server with nodes inside, on loopback alone, which forgets all when it ends. Its log is in ``folder``,
    and nodes.json, the nodes' configurations (`fedsub.flower.host`)."""
    certs = site.certificates
    argv = [
        program("flower-superlink"), "--simulation", "--host", "127.0.0.1", "--port", str(site.settings.server.port),
        "--ssl-ca-certfile", str(certs / "ca.crt"), "--ssl-certfile", str(certs / "server.crt"),
        "--ssl-keyfile", str(certs / "server.key"), "--disable-runtime-dependency-installation",
        "--isolation", "subprocess",
    ]  # fmt: skip
    env = environment(site) | {SIMULATED: str(folder / "nodes.json"), "RAY_USAGE_STATS_ENABLED": "0"}
    return Child("simulation", argv, env, folder / "flower.log", site.folder)


def node_config(site: Site, number: int) -> dict[str, str | int]:
    return {
        "client": number, "data": str(site.folder / "data" / f"client-{number:06d}"),
        "state": str(site.state / "nodes" / str(number)),
    }  # fmt: skip


def node(site: Site, number: int, config: Path | None = None) -> Child:
    """A node on this machine."""
    name, settings = site.node(number), site.settings.nodes
    own, key = toml_pairs(node_config(site, number)), site.keys / name
    if settings.kind == "resident":
        return _child(site, name, [
            sys.executable, "-m", "fedsub", "node", "run", str(site.folder), "--superlink", entrance(site),
            "--root-certificates", str(site.authority), "--key", str(key), "--node-config", own,
            "--poll", str(settings.poll),
        ])  # fmt: skip
    return _child(site, name, [
        program("flower-supernode"), "--superlink", entrance(site), "--root-certificates", str(site.authority),
        "--auth-supernode-private-key", str(key), "--port", str(settings.port + number), "--node-config", own,
    ])  # fmt: skip


def _child(site: Site, name: str, argv: list[str]) -> Child:
    env = environment(site)
    if name.startswith("node-"):  # a node has the app beside it, and installed apps of its own
        env["FLWR_HOME"] = str(site.state / "nodes" / name / "flower")
    return Child(name, argv, env, site.state / "logs" / f"{name}.log", site.folder)
