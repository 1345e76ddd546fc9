"""Whether the app is whole: task, model, method and data fit together, at the server and on the nodes that are here."""

from __future__ import annotations

import importlib
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np

from fedsub.data.clients import Clients
from fedsub.deploy.commands import node_config
from fedsub.deploy.finding import Finding
from fedsub.deploy.outcome import finished
from fedsub.deploy.site import Site
from fedsub.disk.rundir import RunDir
from fedsub.errors import ConfigError, FedsubError
from fedsub.flower.task import Settings, Task
from fedsub.method.slots import Method
from fedsub.node import Node
from fedsub.node.agree import model_digest
from fedsub.node.heat import adds_in_secret
from fedsub.objective.objective import Objective
from fedsub.objective.population import Population
from fedsub.objective.problem import Problem
from fedsub.round.schema import Length, Schema
from fedsub.round.server import ServerHalf
from fedsub.study.costs import at_socket
from fedsub.study.costs.flower import LOOK
from fedsub.study.report.words import size
from fedsub.trees import Tree

FAB_LIMIT = 10 * 1024 * 1024  # Flower's, of what an app may weigh
LEAST_FREE = 2_000_000_000
SHIPPED = {".py", ".toml", ".md", ".yaml", ".json", ".jsonl"}


@contextmanager
def importing(site: Site) -> Iterator[None]:
    """The app's own modules can be imported; those of another app of the same name are not taken for them, and none
    of them stays."""
    others = _taken_out(site.package)
    sys.path.insert(0, str(site.folder))
    try:
        yield
    finally:
        sys.path.remove(str(site.folder))
        _taken_out(site.package)
        sys.modules.update(others)


def _taken_out(package: str) -> dict[str, ModuleType]:
    named = [name for name in sys.modules if name.partition(".")[0] == package]
    return {name: sys.modules.pop(name) for name in named}


def load_task(site: Site) -> Task:
    """The `Task` of the app: the object `task` of its server app's module; call it, and use it, while `importing`."""
    named = site.app["components"]["serverapp"].partition(":")[0]
    try:
        module = importlib.import_module(named)
    except FedsubError:
        raise
    except Exception as error:
        raise ConfigError(f"{named} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, "task", None)
    if not isinstance(found, Task):
        raise ConfigError(f"{named} has no `task`, a fedsub.flower.Task; import the one that its app is made of.")
    return found


def app_is_whole(site: Site) -> Iterator[Finding]:
    """The server's half at full size without data, then the half of every node that is here."""
    with importing(site):
        yield from _whole(site)


def _whole(site: Site) -> Iterator[Finding]:
    yield from _weight(site)
    task, config = load_task(site), site.config
    settings = Settings.read(config)
    method = _called("method", task.method, config)
    if not isinstance(method, Method) or method.pooled:
        raise ConfigError(
            f"task.method gave {type(method).__name__}, expected a composition of slots (fedsub.Method) whose data "
            "stays with clients; mixtures, factorisations and pooled training have no nodes."
        )
    if site.settings.nodes.kind == "stock" and adds_in_secret(method):
        raise ConfigError(
            f"{method.name} adds in secret, with keys that live in a node's process, and stock nodes start one for "
            'every message; set nodes.kind = "resident".'
        )
    outline, splits, known = _called("outline, test or population", task.server_data, config)
    if outline.samples:
        raise ConfigError(
            f"task.outline has {outline.samples:,} samples, and this server is to have none of its clients' data; give "
            "fedsub.node.outline(clients), or the directory outline/ that hand_out writes."
        )
    sizes = {name: space.size for name, space in outline.spaces.items()}
    objective = _called("objective", task.objective, sizes)
    if not isinstance(objective, Objective):
        raise ConfigError(f"task.objective gave {type(objective).__name__}, expected a fedsub.Objective.")
    problem = Problem.bind(objective, outline)
    params = problem.params()
    ServerHalf(method, known or _pretended(problem), params, seed=settings.seed, rounds=settings.rounds)
    values = sum(value.numel() for value in params.values())
    yield Finding("fine", "app", f"{method.name}, {len(outline):,} clients, {values:,} parameters")
    yield from _tested(splits, outline)
    yield from _nodes(site, task, method, params)
    if settings.piece * 1.05 > site.settings.proxy.body_mb * 1024 * 1024:
        yield Finding(
            "refused", "sizes",
            f"A piece of a message may have {size(settings.piece)} (piece), and proxy.body_mb lets "
            f"{site.settings.proxy.body_mb:g} MiB through; make one smaller or the other larger.",
        )  # fmt: skip
    yield from _directory(site)


def _called(name: str, function: Callable[..., Any], *given: Any) -> Any:
    """What a function of the task returns; whatever it raises is a sentence."""
    try:
        return function(*given)
    except FedsubError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"task.{name} failed: {type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})"
        ) from error


def _pretended(problem: Problem) -> Population:
    """A population of which nothing is known yet: every client has one sample, every row one holder."""
    named = Population.of(problem)
    ones = np.ones(len(problem.clients), np.int64)
    return replace(named, sizes=ones, counted=lambda space, weighted: np.ones(named.rows[space]), asked=None)


def _weight(site: Site) -> Iterator[Finding]:
    """What `flwr run` would hand over: all source and text files that .gitignore lets through."""
    ignored = {"certs", "keys", "state", "runs", "data", ".venv", ".git", "__pycache__"}
    files = [
        path
        for path in site.folder.rglob("*")
        if path.suffix in SHIPPED and not ignored & set(path.relative_to(site.folder).parts[:-1])
    ]
    size = sum(path.stat().st_size for path in files)
    if size > FAB_LIMIT:
        big = max(files, key=lambda path: path.stat().st_size)
        raise ConfigError(
            f"The app weighs {size / 1e6:.1f} MB, and Flower takes 10; the largest file is {big}. Put data into data/."
        )
    if not (site.folder / ".gitignore").exists():
        yield Finding(
            "refused", "app", f"{site.folder} has no .gitignore, which keeps data and keys out of what nodes are sent."
        )


def _tested(splits: Mapping[str, Clients], outline: Clients) -> Iterator[Finding]:
    if not splits:
        yield Finding("note", "app", "task.test gives nothing: the server measures nothing but the loss at clients.")
    for name, space in outline.spaces.items():
        for split, clients in splits.items():
            other = clients.spaces.get(name)
            if other is None or other.size != space.size or not _same(other.vocabulary, space.vocabulary):
                raise ConfigError(
                    f"task.{split} has another vocabulary of {name!r} than task.outline; cut both from the same data, "
                    "or read these samples under the numbering of the outline."
                )


def _same(one: Any, other: Any) -> bool:
    return (one is None) == (other is None) and (one is None or np.array_equal(one, other))


def _nodes(site: Site, task: Task, method: Method, params: Tree) -> Iterator[Finding]:
    """Each node that is to run here: its data, its half of the model, and the bytes of a round."""
    down: list[int] = []
    up: list[int] = []
    shape: int | None = None
    for number in range(site.settings.nodes.local):
        with TemporaryDirectory(prefix="fedsub-check-") as folder:
            data = _called("data", task.data, node_config(site, number))
            try:
                node = _called("objective", partial(Node, data, task.objective, method, number, folder))
            except FedsubError as error:
                raise ConfigError(f"Node {number}, {data}: {error}") from error
        names = {name: space.name for name, space in node.problem.tables.items()}
        shape = model_digest(params, names) if shape is None else shape
        if model_digest(node.params, names) != shape:
            raise ConfigError(
                f"Node {number}: task.objective makes another model on it than at the server; only tables may differ, "
                "and those only in their rows."
            )
        schema = Schema(method.parts, node.params, names)
        counts = {name: np.array([count]) for name, count in node.counts.items()}
        down.append(int(Length(schema.down()).of(counts, 1)[0]))
        up.append(int(Length(schema.up()).of(counts, 1)[0]))
    if down:
        coded = " before its codec" if any(part.codec for part in method.parts) else ""
        yield Finding(
            "fine", "sizes",
            f"a round sends a node {size(min(down))} to {size(max(down))} and takes {size(min(up))} to {size(max(up))}"
            f"{coded}; with what Flower adds {_with_flower(down, up, site.config)}",
        )  # fmt: skip


def _with_flower(down: list[int], up: list[int], config: Mapping[str, Any]) -> str:
    """What crosses the socket of the nodes with least and most, without questions for work."""
    piece = Settings.read(config).piece
    least, most = (at_socket(down[k], up[k], piece=piece) for k in (int(np.argmin(down)), int(np.argmax(down))))
    return (
        f"{size(least.total.down)} to {size(most.total.down)} and {size(least.total.up)} to {size(most.total.up)} "
        f"(Flower's part {size(most.fixed.down)} down, {size(most.fixed.up)} up, and {size(LOOK.up)} up whenever a "
        "waiting node asks for work)"
    )


def _directory(site: Site) -> Iterator[Finding]:
    """Where the run is kept."""
    out = site.out
    if (out / "config.json").exists():
        state = "finished" if finished(site) else "begun"
        yield Finding("fine", "run", f"{out} holds a run that is {state}")
    RunDir(out)  # refuses a directory of somebody else's
    free = shutil.disk_usage(site.folder).free
    if free < LEAST_FREE:
        yield Finding("note", "run", f"Only {size(free)} are free at {site.folder}; checkpoints and Flower need some.")
