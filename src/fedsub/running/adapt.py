"""New clients of a trained model: parameters of their own, fitted to their data alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedsub.data.clients import Clients
from fedsub.errors import ConfigError, MethodError
from fedsub.method.average import OverClients
from fedsub.method.local import SGD
from fedsub.method.parts import Personal
from fedsub.method.sampling import Everyone
from fedsub.method.servers import Add
from fedsub.method.slots import Method
from fedsub.method.training import Options
from fedsub.objective.objective import Objective
from fedsub.objective.problem import Problem
from fedsub.round.evaluate import Evaluate, Evaluator
from fedsub.round.predict import PersonalModel
from fedsub.round.prepare import prepare
from fedsub.round.quiet import one_thread, same_random_state
from fedsub.running.result import Result
from fedsub.trees import Tree


@dataclass(frozen=True)
class Adapted:
    """Clients that took no part in training, each with parameters of its own."""

    model: PersonalModel
    metrics: dict[str, Any]  # by split, as in `Result.final`; ``shared`` is without own parameters, ``gain`` over that


def adapt(
    trained: Result | PersonalModel | Tree,
    objective: Objective,
    clients: Clients,
    names: str | Sequence[str],
    *,
    steps: int = 50,
    lr: float = 0.1,
    batch_size: int | None = 5,
    init: str = "random",
    seed: int = 0,
    test: Clients | None = None,
    splits: dict[str, Clients] | None = None,
    evaluate: Evaluate | None = None,
    engine: str = "auto",
) -> Adapted:
    """Give new clients parameters of their own: fresh ones, trained on each client's data alone.

    ``trained`` are the shared parameters, which stay as they are; ``names`` says which ones are personal, as for
    `fedsub.methods.fedper`. Every client takes ``steps`` local steps, in one round over all of them. Measured are the
    splits "train" (``clients``) and, if given, "test"; or those in ``splits``. The data must number table rows as
    the training data did (`fedsub.data.align.align` sees to that).
    """
    part = Personal((names,) if isinstance(names, str) else tuple(names), init=init, alone=True)
    local = SGD(lr=lr, local_steps=steps, batch_size=batch_size)
    method = Method(
        local=local, parts=(part,), average=OverClients(), server=Add(), sampler=Everyone(), name="adapt"
    )  # fmt: skip
    problem = Problem.bind(objective, clients)
    if not part.private(problem.names):
        raise MethodError("adapt fits parameters that are personal, and names is empty; name some, such as 'last'.")
    shared = _shared_of(trained, problem)
    with one_thread(), same_random_state(shared):
        ready = prepare(method, problem, shared, Options(engine=engine, seed=seed))
        ready.trainer.round(1)
        model = ready.trainer.model(1)
        if splits is None:
            splits = {"train": clients} | ({"test": test} if test is not None else {})
        evaluator = Evaluator(problem, splits, evaluate or Evaluate(), ready.columns, clients)
        return Adapted(model, evaluator.final(model))


def _shared_of(trained: Result | PersonalModel | Tree, problem: Problem) -> Tree:
    """The trained parameters by name, those that ``problem`` has."""
    found = getattr(trained, "params", None) or getattr(trained, "shared", None) or trained
    if not isinstance(found, dict):
        raise ConfigError(f"adapt needs a Result, a PersonalModel or parameters by name, got {type(trained).__name__}.")
    own = dict(problem.objective.module.named_parameters())
    for name in problem.names:
        if name not in found or found[name].shape != own[name].shape:
            seen = f"has the shape {tuple(found[name].shape)}" if name in found else "is missing"
            raise ConfigError(
                f"adapt: {name} {seen} in what was trained, and the objective has {tuple(own[name].shape)}; give the "
                "objective that was trained, or one with as many rows."
            )
    return {name: found[name] for name in problem.names}
