"""One client after the other: the readable truth that every other engine must agree with."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from fedsub.method.batches import Batches
from fedsub.method.part import Work
from fedsub.objective.problem import Problem
from fedsub.round.engines.base import Engine, Filled, Plan, Sent, columns_to, first_steps, mean_gradient, template
from fedsub.round.engines.rewrite import Rewrite
from fedsub.trees import Tree


class Serial(Engine):
    """Loads a client's submodel into a copy of the module and takes its local steps with autograd."""

    name, stacked = "serial", False

    def __init__(self, problem: Problem, plan: Plan):
        self.problem, self.plan = problem, plan
        self._own = threading.local()  # a copy of the module for each thread

    def split(self, batches: Batches, sent: Sent) -> list[slice]:
        return [slice(k, k + 1) for k in range(len(batches.steps))]

    def steps(self, work: Work, batches: Batches, keys: np.ndarray | None) -> tuple[Tree, np.ndarray]:
        problem, method = self.problem, work.method
        assert method is not None
        device = next(iter(work.sent.values())).device
        if not hasattr(self._own, "module"):
            self._own.module = Filled(template(problem, device))
        leaves = self._own.module.fill({name: work.sent[name].clone() for name in problem.names})
        params: Tree = {name: p.data for name, p in leaves.items()}
        state = method.local.init(params)
        data = columns_to(batches.clients.gather(batches.samples[0], self.plan.columns, local=True), device)
        all_weights = torch.from_numpy(batches.weights[0]).to(device)
        sizes = (batches.weights[0] > 0).sum(1).tolist()  # padding stands behind the real samples
        real = torch.ones(max(sizes), dtype=all_weights.dtype, device=device)
        l2 = [problem.objective.l2_of(name) for name in leaves]
        decays = any(l2)

        def gradient(step: int) -> tuple[torch.Tensor, Tree]:
            size = sizes[step]
            weights = all_weights[step, :size]
            batch = {name: values[step, :size] for name, values in data.items()}
            with self._randomness(keys, step):
                values, _ = self._own.module.losses(problem.objective, batch, real[:size])
            loss = values if values.ndim == 0 else values @ weights.to(values.dtype)
            found = torch.autograd.grad(loss, tuple(leaves.values()), allow_unused=True)
            found = [g if g is not None else torch.zeros_like(p) for g, p in zip(found, params.values(), strict=True)]
            if decays:
                found = [g.add(p, alpha=a) if a else g for g, p, a in zip(found, params.values(), l2, strict=True)]
            return loss, dict(zip(leaves, found, strict=True))

        steps = int(batches.steps[0])
        work.gradient = lambda at, share: mean_gradient(
            params, at, [lambda s=s: gradient(s)[1] for s in range(first_steps(steps, share))]
        )
        work.same_batch = lambda at: mean_gradient(params, at, [lambda: gradient(work.step)[1]])
        for part in method.parts:
            part.begin(params, work)
        losses = []
        for work.step in range(steps):
            loss, grads = gradient(work.step)
            for part in method.parts:
                grads = part.grad(grads, params, work)
            method.local.step(params, grads, state, work)
            losses.append(loss.item())
        return params, np.array(losses)[:, None]

    def _randomness(self, keys: np.ndarray | None, step: int) -> AbstractContextManager:
        if keys is None:
            return nullcontext()
        if self.plan.random:
            torch.manual_seed(int(keys[0, step]))
        return Rewrite([], int(keys[0, step]), batched=False)
