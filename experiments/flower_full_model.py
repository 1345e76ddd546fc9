"""Bytes of a round over Flower: fedsub's submodels beside a plain Flower app that sends the full model, on one task.

    python experiments/flower_full_model.py --nodes 4 --rounds 2

The task is the benchmark's w3 (`fedsub.study.bench`): click-through with attention over 50 past items, a table of
63,001 rows of 18 values, 10 steps on batches of 32. Both apps run over a SuperLink with TLS and registered keys on this
machine, on the same nodes' samples, with resident nodes (`fedsub node run`), which run any ClientApp; the full model's
is Flower's own FedAvg. Relays before the nodes count what crosses their sockets after the first round. Needs
fedsub[flower], and the folder tests/ beside this one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from flower.loopback import Loopback
from flower.relay import Relay, after

from fedsub.node import hand_out
from fedsub.study.bench.workloads import WORKLOADS

SUBMODELS = """
import torch
import fedsub as fs
from fedsub.flower import Task
from fedsub.study.bench.workloads import WORKLOADS
W3 = WORKLOADS["w3"]


def objective(sizes):
    torch.manual_seed(0)
    return fs.Objective(W3.make_module(sizes["ids"]), fs.losses.binary("label"), tables={{W3.table: "ids"}})


def method(config):
    return fs.methods.fedsubavg(
        lr=W3.lr, local_steps=W3.steps, batch_size=W3.batch, clients_per_round=int(config["nodes"])
    )


task = Task(
    objective=objective, method=method, data=lambda node: {folder!r} + f"/data/client-{{int(node['client']):06d}}",
    outline=lambda config: {folder!r} + "/data/outline",
)
"""

FULL_TASK = """
import numpy as np
import torch
from fedsub.study.bench.workloads import WORKLOADS
W3 = WORKLOADS["w3"]


def module():
    torch.manual_seed(0)
    return W3.make_module(W3.rows)


def samples(client):
    found = np.load({folder!r} + f"/full-{{client}}.npz")
    return torch.from_numpy(found["ids"].astype(np.int64)), torch.from_numpy(found["labels"].astype(np.float32))
"""

FULL_CLIENT = """
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from loopapp.task import W3, module, samples

app = ClientApp()


@app.train()
def train(message, context):
    model = module()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=W3.lr)
    ids, labels = samples(int(context.node_config["client"]))
    order = torch.randperm(len(labels)).repeat(1 + W3.steps * W3.batch // len(labels))[: W3.steps * W3.batch]
    for part in order.split(W3.batch):
        optimiser.zero_grad()
        logit = model({"ids": ids[part], "label": labels[part]})
        torch.nn.functional.binary_cross_entropy_with_logits(logit, labels[part]).backward()
        optimiser.step()
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
"""

FULL_SERVER = """
import json
from pathlib import Path
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from loopapp.task import module

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    out, nodes = Path(config["out"]), int(config["nodes"])
    out.mkdir()

    def counted(replies, weighted_by):
        assert len(replies) == nodes, f"{len(replies)} of {nodes} nodes answered"
        return MetricRecord({"n": len(replies)})

    def noted(number, arrays):
        if number:
            with open(out / "traffic.jsonl", "a") as log:
                log.write(json.dumps({"round": number}) + "\\n")

    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes,
                      train_metrics_aggr_fn=counted)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(module().state_dict()), num_rounds=int(config["rounds"]),
                   timeout=1800, evaluate_fn=noted)
    (out / "result.json").write_text("{}")
"""


def crossed(nodes: int, rounds: int, full: bool) -> tuple[float, float, float, float]:
    """Of a node and round, after the first: (bytes down, bytes up) at its socket, and of fedsub's messages."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder, out = Path(name), Path(name) / "out"
        data = WORKLOADS["w3"].scaled(nodes, WORKLOADS["w3"].rows).data
        config = {"nodes": nodes, "rounds": 1 + rounds, "out": str(out), "poll": 0.1, "patience": 1800.0}
        source = (FULL_TASK if full else SUBMODELS).format(folder=name)
        link = Loopback(folder, config | {"deadline": 1800.0}, task=source)
        if full:
            for client, (first, end) in enumerate(zip(data.offsets[:-1], data.offsets[1:], strict=True)):
                np.savez(folder / f"full-{client}.npz", ids=data.ids[first:end], labels=data.labels[first:end])
            (folder / "app/loopapp/client_app.py").write_text(FULL_CLIENT)
            (folder / "app/loopapp/server_app.py").write_text(FULL_SERVER)
        else:
            hand_out(data.clients, folder / "data")
        relays: list[Relay] = []
        try:
            link.superlink()
            port = link.port
            for client in range(nodes):
                link.register(client)
                relays.append(Relay(port))
                link.port = relays[-1].port
                link.node(client)
            link.port = port
            run = link.submit()
            counted, _ = after(out / "traffic.jsonl", relays, (1, 1 + rounds))
            status = link.wait(run, 1800)
            assert status == "finished:completed", link.log("superlink")
            down, up = (sum(getattr(one, side) for one in counted) / nodes / rounds for side in ("down", "up"))
            if full:
                return down, up, 0.0, 0.0
            lines = [json.loads(line) for line in (out / "traffic.jsonl").read_text().splitlines()][1:]
            own = [sum(sum(line[side]) for line in lines) / nodes / rounds for side in ("down", "up")]
            return down, up, own[0], own[1]
        finally:
            link.close()
            for relay in relays:
                relay.close()


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--nodes", type=int, default=4)
    asked.add_argument("--rounds", type=int, default=2)
    given = asked.parse_args()
    print(f"w3, flwr {version('flwr')}, {given.nodes} nodes; bytes of a node and round, mean of {given.rounds} rounds")
    down, up, own_down, own_up = crossed(given.nodes, given.rounds, full=False)
    print(f"fedsub's messages  down {own_down:>12,.0f}  up {own_up:>12,.0f}  together {own_down + own_up:>12,.0f}")
    print(f"fedsub, socket     down {down:>12,.0f}  up {up:>12,.0f}  together {down + up:>12,.0f}", flush=True)
    full_down, full_up, *_ = crossed(given.nodes, given.rounds, full=True)
    both = full_down + full_up
    print(f"full model, socket down {full_down:>12,.0f}  up {full_up:>12,.0f}  together {both:>12,.0f}")
    print(f"the full model's are {both / (down + up):.1f} times fedsub's")


if __name__ == "__main__":
    main()
