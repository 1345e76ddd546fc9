"""A run over processes that share nothing but pipes of bytes is the simulation, bit for bit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from node.processes import LOST, METHODS, ROUNDS, SEED, data, objective
from safetensors.torch import load_file

import fedsub as fs
from fedsub.node import hand_out
from fedsub.objective.population import Population
from fedsub.objective.problem import Problem

SCRIPT = Path(__file__).parent / "processes.py"
EVERYONE = range(8)
PATH = os.pathsep.join([str(Path(fs.__file__).parents[1]), str(SCRIPT.parents[1])])


def start(folder: Path, name: str, lost: float, number: int, life: int) -> subprocess.Popen:
    """A client behind two named pipes, in a folder that holds its own data only."""
    own = folder / f"home-{number}"
    if not own.exists():
        own.mkdir()
        shutil.move(folder / f"client-{number:06d}", own)
    for pipe in (f"to-{number}-{life}", f"from-{number}-{life}"):
        os.mkfifo(folder / pipe)
    command = [sys.executable, str(SCRIPT), "client", str(number), str(own), name, str(lost)]
    line = f'exec "$@" < {folder}/to-{number}-{life} > {folder}/from-{number}-{life}'
    return subprocess.Popen(["sh", "-c", line, "sh", *command], env={**os.environ, "PYTHONPATH": PATH})


def by_processes(folder: Path, name: str, lost: float) -> dict:
    clients = data()
    hand_out(clients, folder)
    Population.of(Problem.bind(objective({"item": 40, "slot": 6}), clients)).save(folder / "population.safetensors")
    running = {number: start(folder, name, lost, number, 0) for number in EVERYONE}
    server = subprocess.Popen(
        [sys.executable, str(SCRIPT), "server", str(folder), name],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": PATH},
    )  # fmt: skip
    try:
        assert server.stdout is not None
        assert server.stdin is not None
        assert server.stdout.readline().startswith("killed")
        running[1].send_signal(signal.SIGKILL)  # its memory is on disk: it comes back and goes on
        running[1].wait()
        running[1] = start(folder, name, lost, 1, 1)
        server.stdin.write("started\n")
        server.stdin.flush()
        assert server.wait(timeout=240) == 0
    finally:
        for process in (server, *running.values()):
            process.kill()
            process.wait()
    return json.loads((folder / "reports.json").read_text()) | {"params": load_file(folder / "trained.safetensors")}


def check(folder: Path, name: str, lost: float) -> None:
    found = by_processes(folder, name, lost)
    simulated = fs.run(
        METHODS[name](), objective({"item": 40, "slot": 6}), data(), rounds=ROUNDS, seed=SEED, engine="serial",
        lost=lost, out=folder / "simulated",
    )  # fmt: skip
    assert not found["refused"]
    for parameter, value in simulated.params.items():
        assert torch.equal(found["params"][parameter], value), (name, parameter)
    for (clients, down, up, total_down, total_up, loss), record, line in zip(
        found["reports"], simulated.history[1:], (folder / "simulated" / "traffic.jsonl").read_text().splitlines(),
        strict=True,
    ):  # fmt: skip
        traffic = json.loads(line)
        # The bytes that a simulation reports are those that crossed the pipes.
        assert [clients, down, up] == [traffic["clients"], traffic["down"], traffic["up"]]
        assert [total_down, total_up] == [record["down"], record["up"]]
        assert loss == record["loss"]


# Every method is a slow test: ten processes load torch each time. In one process all of them are in test_node.py.
def test_processes_are_the_simulation(tmp_path: Path) -> None:
    check(tmp_path, "scaffold + fedsubavg", LOST)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0.0, LOST])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_over_processes(name: str, lost: float, tmp_path: Path) -> None:
    check(tmp_path, name, lost)
