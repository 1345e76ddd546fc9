"""A server and its clients in processes of their own that share nothing but pipes of bytes.

Every client process opens a directory with its own samples and gets the rows that it asks for; the server process has
the model and a file that says how many clients there are, what they weigh and how hot each row is. The trained model
is bit for bit that of a simulation.

    python examples/node.py
"""

from __future__ import annotations

import multiprocessing as mp
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fedsub as fs
from fedsub.node import Node, hand_out, serve
from fedsub.objective.population import Population
from fedsub.objective.problem import Problem

CLIENTS, ROUNDS, SEED = 6, 4, 0


class Scorer(nn.Module):
    """Logistic regression over a table with a row for every item, and a bias."""

    def __init__(self, items: int):
        super().__init__()
        self.items = nn.Embedding(items, 1)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, batch):
        return self.items(batch["item"]).squeeze(-1) + self.bias


def objective(sizes: Mapping[str, int]) -> fs.Objective:
    """For tables of these sizes: all rows at the server, the client's own on a node."""
    torch.manual_seed(0)
    return fs.Objective(Scorer(sizes["item"]), fs.losses.binary("label"), tables={"items.weight": "item"})


def method() -> fs.Method:
    return fs.methods.fedsubavg(lr=0.3, local_steps=5, batch_size=4, clients_per_round=3)


def some_data() -> fs.Clients:
    """Ratings of a few users, from fedsub's generator."""
    ratings = fs.movielens_like(scale=0.02)
    users = ratings.clients_of(torch.arange(ratings.samples).numpy())
    few = users < CLIENTS
    item = ratings.gather(torch.arange(ratings.samples).numpy()[few], ["movie"], local=False)["movie"]
    arrays = {"item": item, "label": ratings.columns["label"].values[few], "user": users[few]}
    return fs.Clients.from_arrays(
        arrays, client="user", ids=["item"], label="label", sizes={"item": ratings.size("movie")}
    )


class Pipe:
    """Whole messages over a pipe; one that was closed does not answer."""

    def __init__(self, connection: Connection):
        self.connection = connection

    def send(self, data: bytes) -> None:
        self.connection.send_bytes(data)

    def receive(self) -> bytes | None:
        try:
            return self.connection.recv_bytes()
        except EOFError:
            return None


def client(number: int, data: Path, memory: Path, connection: Connection) -> None:
    """A client process: its own directory, and bytes."""
    node = Node(data, objective, method(), number, memory)
    connection.send_bytes(node.hello())
    node.join(connection.recv_bytes())
    while True:
        try:
            connection.send_bytes(node.answer(connection.recv_bytes()))
        except EOFError:
            return


def server(folder: Path, connections: dict[int, Connection]) -> None:
    """The server process: the model, a population, and bytes."""
    population = Population.open(folder / "population.safetensors")
    made = objective(population.rows)
    params = {name: p.detach().clone() for name, p in made.module.named_parameters()}
    channels = {number: Pipe(connection) for number, connection in connections.items()}
    served = serve(method(), params, population, channels, rounds=ROUNDS, seed=SEED)
    save_file(served.params, folder / "trained.safetensors")
    for report in served.reports:
        print(f"clients {report.clients.tolist()}: {report.total_down:,} bytes down, {report.total_up:,} up")


def main() -> None:
    clients = some_data()
    start = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        directories = hand_out(clients, folder / "data")
        everybody = Problem.bind(objective({"item": clients.size("item")}), clients)
        Population.of(everybody).save(folder / "population.safetensors")
        pipes = {number: start.Pipe() for number in directories}
        processes = [
            start.Process(target=client, args=(number, data, folder / f"memory-{number}", pipes[number][1]))
            for number, data in directories.items()
        ]
        processes.append(start.Process(target=server, args=(folder, {n: ours for n, (ours, _) in pipes.items()})))
        for process in processes:
            process.start()
        for ours, theirs in pipes.values():
            ours.close()
            theirs.close()
        for process in processes:
            process.join()
        trained = load_file(folder / "trained.safetensors")
    simulated = fs.run(
        method(), objective({"item": clients.size("item")}), clients, rounds=ROUNDS, seed=SEED, engine="serial"
    )
    same = all(torch.equal(trained[name], value) for name, value in simulated.params.items())
    print("the same model as a simulation, bit for bit" if same else "NOT the same model as a simulation")


if __name__ == "__main__":
    main()
