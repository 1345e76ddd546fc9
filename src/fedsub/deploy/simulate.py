"""`simulate`: the app in Flower's own simulation, which plays the nodes on this machine; a last check.

Server app, client app, messages and settings are those of the deployment. Keys, TLS to nodes, the proxy and nodes that
stay are not in it. What it leaves is in state/simulation: the run's directory, what the nodes remember, and the log.
"""

from __future__ import annotations

import shutil
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from fedsub.deploy import commands
from fedsub.deploy.flower import ENDED, Flower
from fedsub.deploy.outcome import live, roll
from fedsub.deploy.processes import Child, Roll, tail
from fedsub.deploy.site import Site
from fedsub.disk.files import dump
from fedsub.disk.rundir import RunDir
from fedsub.errors import ConfigError, RunError, lacking
from fedsub.method.parts import SecureSum

START_SECONDS = 60.0
LOOK_SECONDS = 5.0


@dataclass(frozen=True)
class Played:
    out: Path
    nodes: int


def simulate(site: Site, *, rounds: int = 2, cpus: int = 1) -> Played:
    """Play so many rounds with every node whose data is in the folder; RunError with the log's end if it fails."""
    if find_spec("flwr") is None:
        raise lacking("Flower (flwr)", "flower")
    if find_spec("ray") is None:
        raise lacking("Ray, which Flower's simulation runs nodes with,", "flower-simulation")
    roll(site).refuse_another()
    _refuse_secure_sums(site)
    nodes, own = _nodes(site), Roll(site.state / "simulation.json")
    site.state.mkdir(parents=True, exist_ok=True)
    with own.taken():
        own.end_leftovers()
        return _played(site, own, nodes, rounds, cpus)


def _refuse_secure_sums(site: Site) -> None:
    from fedsub.deploy.app_check import importing, load_task

    with importing(site):
        parts = getattr(load_task(site).method(site.config), "parts", ())
    if any(isinstance(part, SecureSum) for part in parts):
        raise ConfigError(
            "The app's method has a secure sum, whose keys live in a node's memory, and Flower's simulation moves "
            "nodes between processes. Leave secure= out for this check; fedsub deploy run has nodes that stay."
        )


def _played(site: Site, own: Roll, nodes: int, rounds: int, cpus: int) -> Played:
    folder = site.state / "simulation"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    known = {
        str(number): commands.node_config(site, number) | {"state": str(folder / "nodes" / str(number))}
        for number in range(nodes)
    }
    (folder / "nodes.json").write_bytes(dump(known, indent=1))
    settings = site.settings
    apart = Site(site.folder, settings.model_copy(update={
        "server": settings.server.model_copy(update={"port": _free_port()}),
        "run": settings.run.model_copy(update={"out": str(folder / "run")}),
    }))  # fmt: skip
    flower, child = Flower(apart), commands.simulation(apart, folder)
    flower.prepare()
    try:
        child.start()
        own.write([child])
        _await(apart, child)
        options = f"num-supernodes={nodes} client-resources-num-cpus={cpus}"
        run = flower.submit("--federation-config", options, rounds=rounds)
        while not (status := flower.status(run)[0]).startswith(ENDED):
            _until_asked_again(apart, child)
        if not (apart.out / "result.json").exists():
            log = folder / "app.log"
            log.write_text(flower.log(run))
            why = str(live(apart.out).get("why", "")) or tail(log, 5) or tail(child.log, 5)
            raise RunError(f"The simulation did not finish ({status}): {why}\nWhat was said is in {folder}.")
        RunDir(apart.out).result()  # refuses what does not belong together
    finally:
        child.stop()
        own.write([], ended=True)
    return Played(apart.out, nodes)


def _until_asked_again(site: Site, child: Child) -> None:
    """Asking for the status takes a process: seldom, and at once when the result is there."""
    end, there = time.monotonic() + LOOK_SECONDS, site.out / "result.json"
    already = there.exists()
    while time.monotonic() < end and (already or not there.exists()):
        if not child.runs:
            raise RunError(f"Flower's simulation ended by itself. {tail(child.log, 5)}")
        time.sleep(0.2)


def _nodes(site: Site) -> int:
    """How many nodes have their data here: client 0, 1, … without a gap."""
    number = 0
    while Path(str(commands.node_config(site, number)["data"])).exists():
        number += 1
    if number == 0:
        raise ConfigError(
            f"{commands.node_config(site, 0)['data']} is not there, so there is no node to simulate; the data of every "
            "client must be in data/, as prepare.py writes them."
        )
    return number


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def _await(site: Site, child: Child) -> None:
    """Until the SuperLink takes connections."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", site.settings.server.port), 1.0).close()
            return
        if not child.runs:
            break
        time.sleep(0.2)
    raise RunError(f"Flower's SuperLink did not start in {START_SECONDS:g} s. {tail(child.log, 5)}")
