"""fedsub, whole rounds through `fs.run`: FOLDER NAME [compiled | workers]."""

import sys

import torch
from work import Clock, asked

import fedsub as fs
from fedsub.study.bench.workloads import WORKLOADS

work, how = asked(), sys.argv[3] if len(sys.argv) > 3 else ""
names = {"": "fedsub", "compiled": "fedsub, compiled", "workers": "fedsub, 2 workers"}
clock, load = Clock(names[how]), WORKLOADS[work.name]


class Tick(fs.Callback):
    def on_round(self, record):  # round 0 is the state before the first
        clock.tick()


clients = fs.Clients.from_arrays(
    {"ids": work.ids, "label": work.labels}, offsets=work.offsets, ids=["ids"], label="label",
    sizes={"ids": work.rows}, padding=("ids",) if load.padding else (),
)  # fmt: skip
method = fs.methods.fedavg(
    lr=work.lr, local_steps=work.steps, batch_size=work.batch, clients_per_round=work.cohort
)  # fmt: skip
options = {"compiled": {"engine": "batched", "compile": True}, "workers": {"workers": 2}}.get(how, {})
objective = load.objective()
result = fs.run(
    method, objective, clients, rounds=work.rounds, evaluate=fs.Evaluate(every=10**9, samples=100, final_samples=100),
    callbacks=[Tick()], **options,
)  # fmt: skip
ids, labels = map(torch.from_numpy, work.to_look_at())
with torch.no_grad():
    for name, value in objective.module.named_parameters():
        value.copy_(result.params[name])
    said = objective.module({"ids": ids})
    clock.tell(torch.nn.functional.binary_cross_entropy_with_logits(said, labels).item())
