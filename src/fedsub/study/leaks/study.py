"""All attacks over methods and seeds.

column             what
named.precision    of the rows that the server was asked for, the share that the client holds; mean over clients
named.recall       of the rows that it holds, the share that the server was asked for
used.precision     of the rows whose update is not 0, the share that the client trained on in the round
used.recall        of the rows that it trained on, the share whose update is not 0
used.auc           of rows that a client holds, ranked by ‖Δ_m‖: those trained on against those not trained on
labels.auc         of residuals, for the labels of the samples that were trained on; all clients together
labels.right       the share of these labels that the residuals' signs, or the largest of them, tell
model.auc          the same of what the model that was sent says of them, without any update
model.right
rebuilt.error      of the numbers of samples: 0, all are rebuilt; 1, as good as their mean. Median over clients
clients            who were attacked
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedsub.checks import check_whole
from fedsub.data.clients import Clients
from fedsub.errors import ConfigError, nearest
from fedsub.method.slots import Method
from fedsub.objective.metrics import auc
from fedsub.objective.objective import Objective, of_seed
from fedsub.objective.problem import Problem
from fedsub.round.quiet import one_thread
from fedsub.study.attacked import Attacked, Row
from fedsub.study.leaks.attacks import auc_of, moved, residuals
from fedsub.study.leaks.rebuild import rebuild
from fedsub.study.leaks.seen import Rows, Seen, watch

COLUMNS = (
    "named.precision", "named.recall", "used.precision", "used.recall", "used.auc", "labels.auc", "labels.right",
    "others.auc", "others.right", "model.auc", "model.right", "rebuilt.error", "clients",
)  # fmt: skip
Numbers = dict[str, float]


def attack(
    methods: Mapping[str, Method],
    objective: Objective | Callable[[int], Objective],
    clients: Clients | Callable[[int], Clients],
    *,
    after: int = 10,
    most: int = 20,
    rebuilds: int = 3,
    seeds: Sequence[int] = (0, 1, 2),
    space: str | None = None,
    progress: Callable[[str, int], None] = lambda protection, seed: None,
) -> Attacked:
    """Attack round ``after`` + 1 of every method, for every seed: a row each, of `COLUMNS`, under "protection".

    ``most`` clients of the round are attacked, and of ``rebuilds`` of them samples are rebuilt, if the model reads
    numbers. ``space`` names the rows that are counted; left out, all are. ``clients`` and ``objective`` may be
    functions of the seed.
    """
    for name, value, least in (("after", after, 0), ("most", most, 1), ("rebuilds", rebuilds, 0)):
        check_whole(name, value, least, error=ConfigError)
    if not methods:
        raise ConfigError("No methods were given; attack at least one, {'plain': fs.methods.fedavg()}.")
    if not seeds:
        raise ConfigError("seeds is empty; give at least one.")
    rows: list[Row] = []
    for seed in seeds:
        problem = Problem.bind(of_seed(objective, seed), clients(seed) if callable(clients) else clients)
        if space is not None and space not in problem.spaces:
            raise ConfigError(f"The model has no rows of {space!r}; {nearest(space, problem.spaces)}")
        for label, method in methods.items():
            progress(label, seed)
            with one_thread():
                found = _attacked(problem, method, after, most, rebuilds, seed, space)
            rows.append({"protection": label, "seed": seed, **found})
    settings = {"after": after, "most": most, "rebuilds": rebuilds, "seeds": list(seeds), "space": space}
    return Attacked(tuple(rows), "", settings)


def _attacked(
    problem: Problem, method: Method, after: int, most: int, rebuilds: int, seed: int, space: str | None
) -> Numbers:
    everybody = watch(method, problem, after=after, most=most, others=most, seed=seed)
    seen = [one for one in everybody if one.there]
    found = {"clients": len(seen)} | _sets(problem, seen, space) | _labels(problem, seen)
    beside = _labels(problem, [one for one in everybody if not one.there])
    found |= {name.replace("labels", "others"): value for name, value in beside.items() if name.startswith("labels")}
    angle = not method.local.linear or any(part.votes or part.codec for part in method.parts)
    made = [rebuild(problem, one, angle=angle, seed=seed) for one in seen[:rebuilds]]
    if errors := [one.error for one in made if one is not None]:
        found["rebuilt.error"] = float(np.median(errors))
    return {name: value for name, value in found.items() if not np.isnan(value)}


def _sets(problem: Problem, seen: list[Seen], space: str | None) -> Numbers:
    if not problem.spaces or not seen:
        return {}
    spaces = [space] if space is not None else [*problem.spaces]
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        if not np.isnan(value):
            found.setdefault(name, []).append(value)

    for one in seen:
        for name, guess, truth in (("named", one.named, one.held), ("used", one.changed, one.used)):
            precision, recall = _overlap(guess, truth, spaces)
            note(f"{name}.precision", precision)
            note(f"{name}.recall", recall)
        note("used.auc", _ranked(problem, one, spaces))
    return {name: float(np.mean(values)) for name, values in found.items()}


def _overlap(guess: Rows, truth: Rows, spaces: Sequence[str]) -> tuple[float, float]:
    """(precision, recall) over the rows of some spaces; a guess of nothing has no precision."""
    both = sum(len(np.intersect1d(guess[s], truth[s], assume_unique=True)) for s in spaces)
    guessed, true = (sum(len(rows[s]) for s in spaces) for rows in (guess, truth))
    return both / guessed if guessed else float("nan"), both / true if true else float("nan")


def _ranked(problem: Problem, one: Seen, spaces: Sequence[str]) -> float:
    """The AUC of the lengths of rows' updates; 0.5 where nothing is told."""
    shared = {problem.tables[name].name for name in one.update if name in problem.tables}
    some = [s for s in spaces if s in shared]
    if not some:
        return float("nan")
    lengths = np.concatenate([moved(one.update, problem, s) for s in some])
    return auc(lengths, np.concatenate([np.isin(one.held[s], one.used[s]) for s in some]))


def _labels(problem: Problem, seen: list[Seen]) -> Numbers:
    guesses = [guess for one in seen if (guess := residuals(problem, one)) is not None]
    if not guesses:
        return {}
    labels = np.concatenate([guess.labels for guess in guesses])
    scores, before = (np.concatenate([getattr(g, name) for g in guesses]) for name in ("scores", "before"))
    return {
        "labels.auc": auc_of(scores, labels),
        "labels.right": float(np.concatenate([guess.right for guess in guesses]).mean()),
        "model.auc": auc_of(before, labels),
        "model.right": float(np.concatenate([guess.right_before for guess in guesses]).mean()),
    }
