"""MovieLens by 20 nodes on one machine: a deployment made from nothing, run to its end, and compared with a simulation.

A SuperLink behind a proxy, 20 resident nodes with keys of their own, a server without samples. Every node has the
ratings of a twentieth of the users. Afterwards the same method is trained in a simulation on the same data with the
same seed.

    python examples/deploy_movielens.py FOLDER                      made ratings in the shape of MovieLens-1M
    python examples/deploy_movielens.py FOLDER --movielens DIR      the ratings themselves
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

import fedsub as fs
from fedsub.deploy.scaffold import new
from fedsub.deploy.site import Site
from fedsub.deploy.view import Watcher


def deploy(folder: Path, arguments: argparse.Namespace) -> Site:
    """Make the folder, its data, and train."""
    ports = {"port": arguments.port, "entrance": arguments.port + 1, "page": arguments.port + 2}
    site = Site.open(new(folder, nodes=arguments.nodes, ports=ports))
    settings = site.folder / "pyproject.toml"
    settings.write_text(settings.read_text().replace("rounds = 20", f"rounds = {arguments.rounds}"))
    given = ["--movielens", str(arguments.movielens)] if arguments.movielens else ["--scale", str(arguments.scale)]
    subprocess.run([sys.executable, "prepare.py", *given], cwd=site.folder, check=True)
    subprocess.run([sys.executable, "-m", "fedsub", "deploy", "run"], cwd=site.folder, check=True)
    return Site.open(site.folder)


def simulate(site: Site, arguments: argparse.Namespace) -> fs.Result:
    """The same method on the same data, all in this process."""
    sys.path.insert(0, str(site.folder))
    prepare, task = importlib.import_module("prepare"), importlib.import_module(f"{site.package}.task")
    chosen = SimpleNamespace(movielens=arguments.movielens, scale=arguments.scale)
    frame = prepare.table(prepare.ratings(chosen), arguments.nodes)
    clients = fs.Clients.from_frame(frame, "node", ids=list(prepare.FEATURES), label="label")
    train, test = clients.split(0.9, seed=0)
    objective = task.objective({name: space.size for name, space in train.spaces.items()})
    return fs.run(
        task.method(site.config), objective, train, test=test, rounds=arguments.rounds, seed=site.config["seed"],
        engine="serial", evaluate=fs.Evaluate(every=arguments.rounds),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder that is not there yet; its name is the app's")
    parser.add_argument("--movielens", type=lambda text: Path(text).absolute(), help="the folder of MovieLens-1M")
    parser.add_argument("--scale", type=float, default=0.05, help="size of the made ratings")
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--port", type=int, default=8000, help="the first of three ports")
    arguments = parser.parse_args()
    site = deploy(arguments.folder, arguments)
    view, simulated = Watcher(site).look(), simulate(site, arguments)
    deployed = fs.load(site.out).params
    assert simulated.params is not None
    same = all(torch.equal(deployed[name], value) for name, value in simulated.params.items())
    print(f"deployed:  test AUC {view.latest()['test.auc']:.4f}, {view.down:,} bytes down, {view.up:,} up")
    last = simulated.history[-1]
    down, up = (sum(row[key] for row in simulated.history) for key in ("down", "up"))
    print(f"simulated: test AUC {last['test.auc']:.4f}, {down:,} bytes down, {up:,} up")
    print("the same model, bit for bit" if same else "NOT the same model")


if __name__ == "__main__":
    main()
