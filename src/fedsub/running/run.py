"""`run`: train one method, with evaluation, a run directory, checkpoints and resume."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedsub.checks import check_decay, check_seed, check_whole, named_arguments
from fedsub.data.clients import Clients
from fedsub.disk.files import JsonLines, dump, output_folder
from fedsub.disk.rundir import RunDir
from fedsub.errors import CheckpointError, ConfigError, DataError, ObjectiveError, nearest
from fedsub.method.described import describe
from fedsub.method.engine import Ray, computed_by
from fedsub.method.training import Algorithm, Options
from fedsub.objective.code import code_of
from fedsub.objective.numbering import digest_of
from fedsub.objective.objective import Objective
from fedsub.objective.problem import Problem
from fedsub.round.clock.devices import Devices, Given, named, phones
from fedsub.round.clock.rounds import RoundClock
from fedsub.round.evaluate import Evaluate, Evaluator
from fedsub.round.prepare import prepare
from fedsub.round.quiet import one_thread, same_random_state
from fedsub.running import keep
from fedsub.running.callbacks import Callback
from fedsub.running.device import check_device
from fedsub.running.origin import origin
from fedsub.running.result import Result, Target
from fedsub.running.session import Interrupted, Session, deferred_interrupt, evaluate_at, peak_memory
from fedsub.running.start import WarmStart

__all__ = ["Interrupted", "deferred_interrupt", "finished_result", "peak_memory", "run", "run_config"]


@named_arguments()
def run(
    method: Algorithm,
    objective: Objective,
    clients: Clients,
    *,
    rounds: int,
    test: Clients | None = None,
    validation: Clients | None = None,
    splits: dict[str, Clients] | None = None,
    seed: int = 0,
    engine: str | Ray = "auto",
    chunk: int | None = None,
    workers: int | None = None,
    shards: int | None = None,
    compile: bool = False,
    device: str | torch.device = "cpu",
    evaluate: Evaluate | None = None,
    target: str | Target | None = None,
    stop_at_target: bool = False,
    lost: float = 0.0,
    on_bad_update: str = "skip",
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    force_code: bool = False,
    start: Any = None,
    start_state: bool = False,
    devices: Given = None,
    checkpoint_every: int = 10,
    callbacks: Sequence[Callback] = (),
    copy: bool = True,
    settings: dict[str, Any] | None = None,
) -> Result:
    """Train ``objective`` with ``method`` on ``clients`` for ``rounds`` rounds.

    Evaluated are the splits "train" (``clients``) and, if given, "validation" and "test"; or those in ``splits``.
    With ``out`` everything is written to a run directory, and ``resume=True`` goes on from its newest intact
    checkpoint, giving the same numbers as a run that was never interrupted; with more ``rounds`` than before it is
    trained further. A forward or loss whose code has changed since is refused then, unless ``force_code``.
    ``engine``: "serial", "batched", the faster of both ("auto"), or a cluster's ("ray", `fedsub.Ray`).
    ``workers`` (processes, each with one torch thread) and ``chunk`` change the speed and no result. ``shards``:
    tables lie in so many actors of a Ray cluster, by rows (docs: Tables in shards); no result changes. ``lost`` is the
    chance that a sampled client never delivers. ``on_bad_update``: "skip" leaves out an update with NaN or infinity
    and counts it, "raise" stops. ``copy=False`` trains the module's own parameters, for tables so large
    that a second copy does not fit. ``settings`` is kept in the run's configuration as given.

    ``devices`` ("phones", "datacentre", a trace's file or `fedsub.Devices`): clients' simulated devices. Every round's
    record then has ``clock``, simulated seconds since the start. Asynchronous methods need some: "phones" unless told.

    ``start``: begin with the parameters of another run (its directory, `Trained` or `Result`), of a module or of a
    state dict; ``start_state``: with what the run's server remembers, too. Rows of a table go by id: data of new ids
    are read with ``vocabulary=…, grow=True``, and a numbering that is another one is refused.
    """
    _check_arguments(rounds, seed, chunk, workers, shards, lost, on_bad_update, checkpoint_every, settings)
    _check_types(method, objective, clients, test, validation, splits, evaluate, callbacks)
    check_device(device)
    out = output_folder(out) if out is not None else None
    fleet = fleet_of(method, devices)
    goal = Target.parse(target) if target is not None else None
    if stop_at_target and goal is None:
        raise ConfigError("stop_at_target=True needs a target; give one, like target='train.ce<=0.65'.")
    if start_state and start is None:
        raise ConfigError("start_state=True goes with a run to start from; name it: start='runs/a'.")
    if shards is not None and start_state:
        raise ConfigError(
            "start_state=True writes into the server's tables, which shards= puts elsewhere; leave out one."
        )
    if start is not None and objective.drawn:
        raise ConfigError(
            f"start= fills the tables of the module, and {next(iter(objective.drawn))!r} is lazy; go on with the run "
            "itself (out=…, resume=True, more rounds)."
        )
    begin = WarmStart.of(start, state=start_state) if start is not None else None
    config = run_config(
        method, objective, clients, rounds=rounds, test=test, validation=validation, splits=splits, seed=seed,
        engine=engine, device=device,
        evaluate=evaluate, target=goal, stop_at_target=stop_at_target, lost=lost, on_bad_update=on_bad_update,
        settings=settings, start=begin, devices=fleet,
    )  # fmt: skip
    problem = Problem.bind(objective, clients.pooled() if method.pooled else clients)
    rounds_of = _round_clock(method, fleet, problem)
    if problem.lazy and torch.device(device).type != "cpu":
        raise ConfigError(f"Lazy tables are kept in the computer's own memory; leave device={str(device)!r} out.")
    params = problem.params(torch.device(device), copy=copy, lazy=True)
    rows = begin.fill(params, problem) if begin is not None else {}
    _check_finite(params)
    with one_thread(), same_random_state(params):
        parts = _splits(clients, test, validation, splits)
        come_from = partial(origin, method, objective, clients, parts, evaluate or Evaluate())
        session = Session(
            problem, method, params, config, callbacks, out, checkpoint_every, resume, force_code, come_from, rounds_of
        )
        ready = None
        try:
            if session.started:  # a configuration that differs is refused first
                session.open()
            scratch = session.dir.path.parent if session.dir is not None else None
            where = Ray.of(engine, workers) or engine
            options = Options(
                where, chunk, workers or 1, compile, seed, lost, on_bad_update, scratch, rounds, fleet, shards
            )
            ready = prepare(method, problem, params, options)
            for sentence in (ready.reason, *ready.notes):
                session.event(sentence)
            if ready.fallback and computed_by(engine) == "batched":
                warnings.warn(ready.reason, stacklevel=2)
            for sentence in begin.count(ready.trainer) if begin is not None else ():
                session.event(sentence)
            if begin is not None and session.restored is None:
                for sentence in begin.carry(ready.trainer, method, rows):
                    session.event(sentence)
            evaluator = Evaluator(problem, parts, evaluate or Evaluate(), ready.columns, clients)
            initial = session.history[0] if session.history else evaluate_at(ready.trainer, evaluator, 0)
            if goal is not None:
                _check_target(goal, initial)
            session.open()  # nothing was written before: a refused start leaves ``out`` free
            if session.dir is not None:
                session.dir.keep_samples(problem.clients.sizes)
                if keep.begin(session.dir.path, problem, method, ready.trainer.model(0)):
                    session.event("What had been written of the model's making was not intact; it was written again.")
            return session.train(ready.trainer, evaluator, initial, rounds, goal, stop_at_target)
        finally:
            if ready is not None:
                ready.trainer.close()
            session.close()


def run_config(
    method: Algorithm,
    objective: Objective,
    clients: Clients,
    *,
    rounds: int,
    test: Clients | None = None,
    validation: Clients | None = None,
    splits: dict[str, Clients] | None = None,
    seed: int = 0,
    engine: str | Ray = "auto",
    device: str | torch.device = "cpu",
    evaluate: Evaluate | None = None,
    target: str | Target | None = None,
    stop_at_target: bool = False,
    lost: float = 0.0,
    on_bad_update: str = "skip",
    settings: dict[str, Any] | None = None,
    start: Any = None,
    start_state: bool = False,
    devices: Given = None,
    **other_run_options_ignored: Any,
) -> dict[str, Any]:
    """What `run` with these arguments writes to config.json: all that its numbers depend on.

    A run directory goes on only with an equal configuration. Options of `run` that change no result
    (``out``, ``workers``, ``callbacks`` …) are accepted and left out.
    """
    plan = evaluate or Evaluate()
    own = dict(objective.module.named_parameters())
    trained = {name: p for name, p in own.items() if name in objective.tables or p.requires_grad}
    return {
        "method": method.describe(),
        "seed": seed,
        "rounds": rounds,
        **_engine(engine),
        "device": str(device),
        "evaluate": plan.describe(),
        "splits": {name: part.fingerprint for name, part in _splits(clients, test, validation, splits).items()},
        "data": clients.fingerprint,
        "parameters": {
            n: [list(objective.shape_of(n)), str(p.dtype).removeprefix("torch.")] for n, p in trained.items()
        },
        "tables": {name: list(objective.columns_of(name)) for name in objective.tables},
        "numbering": _numbering(objective, clients),
        "inputs": list(objective.inputs) if objective.inputs is not None else None,
        "loss": describe(objective.loss),
        "code": code_of(objective),
        **({"l2": objective.l2} if objective.l2 else {}),
        **({"lazy": {n: one.init.describe() for n, one in objective.drawn.items()}} if objective.drawn else {}),
        **({"whole": sorted(objective.whole)} if objective.whole else {}),
        "constants": keep.constants(objective.module),
        "target": str(Target.parse(target)) if target is not None else None,
        "stop_at_target": stop_at_target,
        "lost": lost,
        "on_bad_update": on_bad_update,
        "settings": settings or {},
        **({"start": WarmStart.of(start, state=start_state).describe()} if start is not None else {}),
        **({"devices": describe(fleet)} if (fleet := fleet_of(method, devices)) is not None else {}),
    }


def _engine(engine: str | Ray) -> dict[str, Any]:
    """What results depend on: not whether a cluster computes them, but what it does not wait for."""
    ray = Ray.of(engine)
    return {"engine": computed_by(engine), **({"deadline": ray.deadline} if ray and ray.deadline else {})}


def fleet_of(method: Algorithm, devices: Given) -> Devices | None:
    """On whose devices a run's clients train; None: nobody asks."""
    return named(devices) or (phones() if method.clocked else None)


def _round_clock(method: Algorithm, fleet: Devices | None, problem: Problem) -> RoundClock | None:
    """A clock of rounds, if devices were given and the method does not run on them itself."""
    if fleet is None or method.clocked:
        return None
    if method.pooled:
        raise ConfigError(f"{method.name} trains on data in one place, and on no client's device; leave devices out.")
    try:
        return RoundClock(fleet, method.describe(), problem.clients.sizes)
    except ConfigError as error:
        raise ConfigError(f"devices={fleet.name!r} has no meaning for {method.name}: {error}.") from error


def _numbering(objective: Objective, clients: Clients) -> dict[str, list[str | None]]:
    """[space, digest of the ids that its rows stand for] by table."""
    columns = {name: objective.columns_of(name)[0] for name in objective.tables}
    known = {n: clients.space_of(c) for n, c in columns.items() if c in clients.columns and clients.columns[c].space}
    return {name: [space.name, digest_of(space)] for name, space in known.items()}


def _splits(
    clients: Clients, test: Clients | None, validation: Clients | None, splits: dict[str, Clients] | None
) -> dict[str, Clients]:
    return splits if splits is not None else {"train": clients} | _given(test, validation)


def _given(test: Clients | None, validation: Clients | None) -> dict[str, Clients]:
    return {name: part for name, part in (("validation", validation), ("test", test)) if part is not None}


def _check_arguments(
    rounds: Any,
    seed: Any,
    chunk: Any,
    workers: Any,
    shards: Any,
    lost: Any,
    on_bad_update: Any,
    checkpoint_every: Any,
    settings: Any,
) -> None:
    counts = {"rounds": rounds, "checkpoint_every": checkpoint_every}
    given = ("workers", workers), ("chunk", chunk), ("shards", shards)
    counts |= {name: value for name, value in given if value is not None}
    for name, value in counts.items():
        check_whole(name, value, 1, error=ConfigError)
    check_seed("seed", seed)
    check_decay("lost", lost, hint="it is the chance that a client never delivers", error=ConfigError)
    if on_bad_update not in ("skip", "raise"):
        raise ConfigError(f'on_bad_update must be "skip" or "raise", got {on_bad_update!r}.')
    if settings is not None:
        if not isinstance(settings, dict):
            raise ConfigError(f"settings must be a dict, got {settings!r}.")
        _check_settings(settings, "settings")


def _check_settings(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ConfigError(f"{where} has the key {key!r}; keys must be text, as in JSON.")
            _check_settings(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for item in value:
            _check_settings(item, where)
    else:
        try:
            dump(value)
        except (TypeError, ValueError) as err:
            raise ConfigError(
                f"{where} holds {value!r}, which JSON cannot; use text, numbers, lists and dicts."
            ) from err


def _check_types(method, objective, clients, test, validation, splits, evaluate, callbacks) -> None:
    if not isinstance(method, Algorithm):
        raise ConfigError(f"method must be a Method, such as fedsub.methods.fedsubavg(); got {method!r}.")
    if not isinstance(objective, Objective):
        raise ConfigError(f"objective must be an Objective(module, loss, tables), got a {type(objective).__name__}.")
    if splits is not None and not (isinstance(splits, dict) and all(isinstance(name, str) for name in splits)):
        raise ConfigError(f"splits must be a dict {{name: Clients}}, got {splits!r}.")
    named = {"clients": clients} | _given(test, validation)
    named |= {f"splits[{name!r}]": part for name, part in (splits or {}).items()}
    for name, part in named.items():
        if not isinstance(part, Clients):
            raise ConfigError(
                f"{name} must be Clients, got a {type(part).__name__}; make them with Clients.from_arrays, for example."
            )
    if evaluate is not None and not isinstance(evaluate, Evaluate):
        raise ConfigError(f"evaluate must be an Evaluate, such as Evaluate(every=10), or None; got {evaluate!r}.")
    if not isinstance(callbacks, Sequence) or not all(isinstance(c, Callback) for c in callbacks):
        raise ConfigError(f"callbacks must be a list of fedsub.Callback objects, got {callbacks!r}.")


def _check_finite(params: dict[str, torch.Tensor]) -> None:
    """NaN that a module begins with would be found at every client, and blamed on data or learning rates."""
    for name, value in params.items():
        if not value.is_floating_point() or math.isfinite(float(value.detach().sum())):
            continue
        bad = int((~torch.isfinite(value.detach())).sum())
        if bad:
            raise ObjectiveError(
                f"Parameter {name!r} begins with NaN or infinity in {bad:,} of its {value.numel():,} values, so no "
                "client could train it; initialise the module anew, or correct what it is loaded from."
            )


def _check_target(goal: Target, record: dict[str, Any]) -> None:
    measured = [name for name in record if "." in name]
    if goal.metric not in (*measured, "loss"):
        raise ConfigError(f"The target {goal} is on a metric that is not measured; {nearest(goal.metric, measured)}")


def finished_result(path: str | os.PathLike[str]) -> Result:
    """A finished run read back from its directory (history and final evaluation, no parameters)."""
    folder = Path(path)
    summary, file = RunDir(folder).result(), folder / "result.json"
    try:
        fields = {k: summary[k] for k in ("method", "seed", "final", "seconds", "engine", "peak_bytes")}
        file = folder / "metrics.jsonl"
        if not file.exists():
            raise FileNotFoundError("it is missing")
        history = JsonLines.read(file)
        if not history or history[-1]["round"] != summary["rounds"]:
            raise ValueError(f"it does not end with round {summary['rounds']}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, CheckpointError, DataError) as err:
        reason = f"it lacks {err}" if isinstance(err, KeyError) else str(err)
        raise CheckpointError(
            f"{file} is missing or damaged ({reason}); delete {folder} to train it again, or only its result.json "
            "to go on from its newest checkpoint with resume."
        ) from err
    more = {key: summary.get(key, {}) for key in ("directions", "privacy")}
    return Result(history=history, path=folder, **more, **fields)
