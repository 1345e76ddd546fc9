"""Flower's simulation (message API, Ray, two actors of one core each)."""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
import sys

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn.functional import binary_cross_entropy_with_logits as loss
from work import Clock, asked, work_of

work, clock, named = asked(), Clock("Flower"), tuple(sys.argv[1:3])
client_app, server_app, ended = ClientApp(), ServerApp(), {}


@client_app.train()
def train(msg: Message, context: Context):
    torch.set_num_threads(1)
    own = work_of(*named)
    model = own.model()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    step = torch.optim.SGD(model.parameters(), lr=own.lr)
    drawn = own.draw(context.node_config["partition-id"], msg.content["config"]["server-round"])
    ids, labels = map(torch.from_numpy, drawn)
    for some, wanted in zip(ids.split(own.batch), labels.split(own.batch), strict=True):
        step.zero_grad()
        loss(model(some), wanted).backward()
        step.step()
    said = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(labels)})}
    return Message(content=RecordDict(said), reply_to=msg)


@server_app.main()
def main(grid: Grid, context: Context):
    strategy = FedAvg(
        fraction_train=work.cohort / work.clients, fraction_evaluate=0.0, min_train_nodes=work.cohort,
        min_available_nodes=work.clients, train_metrics_aggr_fn=lambda replies, key: MetricRecord({"n": len(replies)}),
    )  # fmt: skip
    done = strategy.start(
        grid=grid, initial_arrays=ArrayRecord(work.model().state_dict()), num_rounds=work.rounds,
        evaluate_fn=clock.tick,
    )  # fmt: skip
    ended.update(arrays=done.arrays, metrics=done.train_metrics_clientapp)


run_simulation(
    server_app, client_app, num_supernodes=work.clients,
    backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
)  # fmt: skip
# It goes on when every client fails: that each round really had K replies is looked at here.
assert [one["n"] for one in ended["metrics"].values()] == [work.cohort] * work.rounds, ended["metrics"]
model = work.model()
model.load_state_dict(ended["arrays"].to_torch_state_dict())
clock.tell(work.loss_of(model))
