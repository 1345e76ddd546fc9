"""One client after the other: the readable truth that every other engine must agree with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
import torch

from fedsub.method.groups import Group
from fedsub.method.slots import Message
from fedsub.objective.problem import Problem
from fedsub.round.engines.base import (
    Delivery,
    Filled,
    Job,
    Plan,
    Workers,
    all_finite,
    columns_to,
    first_steps,
    load_state,
    make_work,
    mean_gradient,
    template,
)
from fedsub.round.engines.rewrite import Rewrite
from fedsub.round.sums import places_of
from fedsub.trees import Tree, take_rows


class Serial:
    """Loads a client's submodel into a copy of the module and takes its local steps with autograd."""

    name = "serial"

    def __init__(self, problem: Problem, plan: Plan, *, workers: int = 1):
        self.problem, self.plan = problem, plan
        # Torch's own generator belongs to the process: threads would draw from it in any order.
        self.workers = Workers(1 if plan.random else workers)

    def map(self, job: Job) -> Iterator[Delivery]:
        keys = job.keys() if self.plan.dropout or self.plan.random else None
        return self.workers.map(lambda k: self._client(job, k, keys), range(len(job.cohort)))

    def _client(self, job: Job, k: int, keys: np.ndarray | None) -> Delivery:
        problem, method, batches = self.problem, job.method, job.batches
        device = next(iter(job.params.values())).device
        if not hasattr(self.workers.local, "module"):
            self.workers.local.module = Filled(template(problem, device))
        module = self.workers.local.module.module
        sent, who = submodel(problem, job, k), np.array([k])
        leaves = self.workers.local.module.fill({name: sent[name].clone() for name in problem.names})
        params: Tree = {name: p.data for name, p in leaves.items()}
        state = method.local.init(params)
        work = make_work(job, problem.names, sent, Group(1, stacked=False), who)
        load_state(problem, job, work, who, {s: places_of(rows, slice(k, k + 1)) for s, rows in job.rows.items()})
        data = columns_to(problem.clients.gather(batches.samples[k], self.plan.columns, local=True), device)
        all_weights = torch.from_numpy(batches.weights[k]).to(device)
        sizes = (batches.weights[k] > 0).sum(1).tolist()  # padding stands behind the real samples
        real = torch.ones(max(sizes), dtype=all_weights.dtype, device=device)
        l2 = problem.objective.l2

        def gradient(step: int) -> tuple[torch.Tensor, Tree]:
            size = sizes[step]
            weights = all_weights[step, :size]
            batch = {name: values[step, :size] for name, values in data.items()}
            batch["sample_mask"] = real[:size]
            with self._randomness(keys, k, step):
                values = problem.objective.loss(problem.objective.output(module, batch), batch)
            loss = values if values.ndim == 0 else values @ weights.to(values.dtype)
            found = torch.autograd.grad(loss, tuple(leaves.values()), allow_unused=True)
            found = [g if g is not None else torch.zeros_like(p) for g, p in zip(found, params.values(), strict=True)]
            if l2:
                found = [g.add(p, alpha=l2) for g, p in zip(found, params.values(), strict=True)]
            return loss, dict(zip(leaves, found, strict=True))

        steps = int(batches.steps[k])
        work.gradient = lambda at, share: mean_gradient(
            params, at, [lambda s=s: gradient(s)[1] for s in range(first_steps(steps, share))]
        )
        for part in method.parts:
            part.begin(params, work)
        losses = []
        for work.step in range(steps):
            loss, grads = gradient(work.step)
            for part in method.parts:
                grads = part.grad(grads, params, work)
            method.local.step(params, grads, state, work)
            losses.append(loss.item())
        deltas = {name: params[name] - sent[name] for name in problem.names}
        finite = all_finite(deltas.values())
        message = Message({"update": deltas})
        for part in method.parts:
            part.finish(message, params, work)
        with np.errstate(invalid="ignore", over="ignore"):  # of a client that diverged, and is left out
            mean, deviation = np.mean(losses), np.std(losses)
        return Delivery(
            slice(k, k + 1),
            message,
            np.array([mean]),
            np.array([deviation]),
            np.array([finite]),
            stacked=False,
            kept=work.client,
        )

    def _randomness(self, keys: np.ndarray | None, k: int, step: int):
        if keys is None:
            return nullcontext()
        if self.plan.random:
            torch.manual_seed(int(keys[k, step]))
        return Rewrite([], int(keys[k, step]), batched=False)


def submodel(problem: Problem, job: Job, k: int) -> Tree:
    """What the server sends to client k of the cohort: its rows of every table, and the dense part."""
    sent: Tree = {}
    for name, space in problem.tables.items():
        rows = job.rows[space.name]
        begin = int(rows.starts[k])
        sent[name] = take_rows(job.params[name], rows.rows[begin : begin + int(rows.counts[k])])
    for name in problem.dense:
        sent[name] = job.params[name]
    return sent
