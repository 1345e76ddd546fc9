"""Questions about a method's local work that training itself does not need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedsub.data.clients import Clients
from fedsub.errors import MethodError
from fedsub.method.groups import Cohort
from fedsub.method.local import SGD
from fedsub.method.part import Message, Part, Work
from fedsub.method.sampling import Everyone
from fedsub.method.slots import Method
from fedsub.objective.objective import Objective
from fedsub.objective.problem import Problem
from fedsub.round.engines.setup import Choice, choose
from fedsub.round.prepare import Trainer
from fedsub.round.quiet import one_thread, same_random_state
from fedsub.trees import Tree


def inexactness(
    method: Method,
    objective: Objective,
    clients: Clients,
    params: Mapping[str, Tensor] | None = None,
    who: Sequence[int] | np.ndarray | None = None,
    seed: int = 0,
) -> np.ndarray:
    """How far clients are from solving their local problem after one round: FedProx's γ_i, one per asked client.

        γ_i = ‖∇h_i(x_i⁺)‖ / ‖∇h_i(X)‖,    h_i(x) = f_i(x) + (μ/2) ‖x − X‖²

    x_i⁺ is where the local work of round 1 ends that starts at X = ``params`` (left out: the module's own), with
    the method's solver, parts and batches; f_i is the mean loss over all of client i's samples, and norms are taken
    over its submodel S(i). μ is the method's proximal term, 0 without one. γ_i = 0 says that the client solved its
    problem, 1 that it made no progress, more than 1 that it went astray: raise the local work, or lower lr. It is 0
    where ∇h_i(X) and ∇h_i(x_i⁺) both vanish.

    ``who`` are client numbers, everyone with data if left out. State that parts keep between rounds starts at zero.
    Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Definition 2.
    """
    if method.pooled:
        raise MethodError(f"{method.name} pools all data, so that there are no clients to ask.")
    problem = Problem.bind(objective, clients)
    cohort = _cohort(clients, who)
    start = _start(problem, params)
    mu = sum(part.pull for part in method.parts)
    with one_thread(), same_random_state(start):
        choice = choose(problem, method, start, engine="serial", seed=seed)
        path = _Path()
        _work(problem, choice, replace(method, parts=(path, *method.parts)), start, cohort, seed)
        slopes = _Slopes(iter(path.ends), mu)
        whole = SGD(lr=1.0, local_steps=1, batch_size=None)
        _work(problem, choice, replace(method, local=whole, parts=(slopes,)), start, cohort, seed)
    before, after = np.array(slopes.norms).reshape(-1, 2).T
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((before == 0) & (after == 0), 0.0, after / before)


def _cohort(clients: Clients, who: Sequence[int] | np.ndarray | None) -> Cohort:
    asked = np.flatnonzero(clients.sizes) if who is None else np.asarray(who, np.int64).reshape(-1)
    for client in asked.tolist():
        if not 0 <= client < len(clients) or not clients.sizes[client]:
            raise MethodError(
                f"Client {client} cannot be asked: it must be one of 0 … {len(clients) - 1} and have samples."
            )
    return Cohort.of(asked, may_repeat=True)


def _start(problem: Problem, params: Mapping[str, Tensor] | None) -> Tree:
    start = problem.params(torch.device("cpu"))
    if params is None:
        return start
    for name, value in start.items():
        if name not in params or params[name].shape != value.shape:
            raise MethodError(f"params must hold {name} with the shape {list(value.shape)}, as Result.params does.")
        value.copy_(params[name])
    return start


def _work(problem: Problem, choice: Choice, method: Method, params: Tree, cohort: Cohort, seed: int) -> None:
    """One round's local work of every client of the cohort, one after the other; nothing comes of it."""
    if len(cohort):
        everyone = replace(method, sampler=Everyone())
        trainer = Trainer(problem, everyone, params, choice.engine, choice.plan, seed=seed)
        opened = trainer.server.open(1, cohort, trainer.here.rows(1, cohort))
        trainer.here.exchange(opened)


@dataclass(frozen=True)
class _Path(Part):
    """Notes where each client's local work ends; the first part, so that no codec has touched it."""

    ends: list[Tree] = field(default_factory=list)

    def finish(self, message: Message, params: Tree, work: Work) -> None:
        self.ends.append({name: value.clone() for name, value in params.items()})


@dataclass(frozen=True)
class _Slopes(Part):
    """Notes ‖∇h_i‖ at the start and at the end of each client's path, over all its samples."""

    ends: Iterator[Tree]
    mu: float
    norms: list[float] = field(default_factory=list)

    def begin(self, params: Tree, work: Work) -> None:
        assert work.gradient is not None
        for at in (work.sent, next(self.ends)):
            slope = work.gradient(at, 1.0)
            square = sum((g + self.mu * (at[n] - work.sent[n])).double().square().sum() for n, g in slope.items())
            self.norms.append(float(torch.as_tensor(square).sqrt()))
