"""`Metric`: a measure of the user's own, a function of what a model said to samples.

    @fs.metric(better="lower")
    def brier(scores, labels):
        return np.mean((1 / (1 + np.exp(-scores)) - labels) ** 2)

    fs.Evaluate(metrics=[brier])        # train.brier, test.brier; by heat decile and by client at the end

The function names what it wants to see, in any order:

    scores    [n], the logit or prediction; [n, classes] of losses.cross_entropy; else what the module returns
    labels    [n], the column that the loss reads
    losses    [n]
    clients   [n], who each sample belongs to, by its id in the data
    columns   {column: [n, …]} of the data; id columns hold table rows, as a module sees them. Read when asked for
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedsub.data.clients import Clients
from fedsub.disk.functions import code_digest
from fedsub.errors import ConfigError
from fedsub.objective.metrics import NORMS, twentieths

SEES = ("scores", "labels", "losses", "clients", "columns")
BETTER = ("higher", "lower")
# What an evaluation says besides; a metric of that name would hide it.
TAKEN = frozenset(
    ("ce", "half_ce", "accuracy", "auc", "loss", "rmse", "mae", "samples", "deciles", "spread", "by_client", "shared",
     "gain", "ranking", "group", "clients", "objective", "g_h", "g_w", *NORMS)
)  # fmt: skip


class Columns(Mapping[str, np.ndarray]):
    """Columns of some samples, gathered when they are asked for; ids are table rows."""

    def __init__(self, clients: Clients, samples: np.ndarray):
        self._clients, self._samples, self._known = clients, samples, dict[str, np.ndarray]()

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._known:
            self._known[name] = self._clients.gather(self._samples, (name,), local=False)[name]
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients.columns)

    def __len__(self) -> int:
        return len(self._clients.columns)


@dataclass(frozen=True)
class Answers:
    """What a model said to samples of a split. ``owners`` are positions of clients, ``heat`` deciles or empty."""

    losses: np.ndarray
    outputs: np.ndarray  # [n, …], or zeros where nothing reads them
    labels: np.ndarray
    owners: np.ndarray
    samples: np.ndarray
    data: Clients = field(repr=False)
    scores: np.ndarray | None = None  # one number a sample by which positives are ranked, for losses of two classes
    heat: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def __len__(self) -> int:
        return len(self.losses)

    def take(self, which: np.ndarray) -> Answers:
        """Those of some samples: a mask, or places."""
        which = np.flatnonzero(which) if which.dtype == bool else which  # looked through once, not for every array
        arrays = {name: getattr(self, name)[which] for name in ("losses", "outputs", "labels", "owners", "samples")}
        scores = None if self.scores is None else self.scores[which]
        return replace(self, **arrays, scores=scores, heat=self.heat[which] if len(self.heat) else self.heat)

    def seen(self, names: Iterable[str]) -> dict[str, Any]:
        """What a metric asks for, by name."""
        made: dict[str, Callable[[], Any]] = {
            "scores": lambda: self.outputs if self.scores is None else self.scores,
            "labels": lambda: self.labels,
            "losses": lambda: self.losses,
            "clients": lambda: self.data.client_ids[self.owners],
            "columns": lambda: Columns(self.data, self.samples),
        }
        return {name: made[name]() for name in names}


@dataclass(frozen=True)
class Metric:
    """A function of answers (see above) that gives a number, and whether "higher" or "lower" values are better.

    ``name`` is the function's unless given. ``by_client=False`` saves a call per client at the end.
    """

    function: Callable[..., Any]
    better: str = ""
    name: str = ""
    by_client: bool = True
    asks: tuple[str, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(f"A metric is a function of {', '.join(SEES)}; got {self.function!r}.")
        name = self.name or getattr(self.function, "__name__", type(self.function).__name__)
        better = self.better or getattr(self.function, "better", "")
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z]\w*", name):
            raise ConfigError(
                f"A metric cannot be called {name!r}; give it a name of letters, digits and _, as in "
                'Metric(function, better="lower", name="brier").'
            )
        if name in TAKEN:
            raise ConfigError(f"A metric of your own cannot be called {name!r}, which evaluations have; rename it.")
        if better not in BETTER:
            seen = f"says {better!r}" if better else "does not say"
            raise ConfigError(
                f"The metric {name!r} {seen} which values are better; write @fedsub.metric(better=\"lower\") above the "
                f'function, or Metric({name}, better="higher").'
            )  # fmt: skip
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "better", better)
        object.__setattr__(self, "asks", _asks(self.function, name))

    def __call__(self, answers: Answers) -> float:
        """Its value; ConfigError if the function raises or returns no number."""
        try:
            found = self.function(**answers.seen(self.asks))
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{last.filename}, line {last.lineno}"
            raise ConfigError(f"The metric {self.name!r} raised {type(error).__name__}: {error} ({where}).") from error
        number = _number(found)
        if number is None:
            raise ConfigError(
                f"The metric {self.name!r} returned {type(found).__name__} {repr(found)[:60]}, expected one number."
            )
        return number

    def over_clients(self, answers: Answers) -> dict[str, Any]:
        """Its mean over clients, each counted once, over those for which it is a number; and quantiles."""
        order = np.argsort(answers.owners, kind="stable")
        _, starts = np.unique(answers.owners[order], return_index=True)
        values = []
        for mine in np.split(order, starts[1:]):
            try:
                values.append(self(answers.take(mine)))
            except ConfigError:  # a client may have too few samples for it
                values.append(float("nan"))
        kept = np.sort([v for v in values if np.isfinite(v)])
        found: dict[str, Any] = {f"{self.name}_clients": len(kept)}
        if len(kept):
            few = max(1, len(kept) // 10)
            worst = kept[:few] if self.better == "higher" else kept[-few:]
            found[self.name] = float(kept.mean())
            found[f"worst_decile_{self.name}"] = float(worst.mean())
            found[f"{self.name}_quantiles"] = twentieths(kept)
        return found

    def describe(self) -> dict[str, Any]:
        """What its values depend on, for a run's configuration: a changed function is another metric."""
        return {"better": self.better, "by_client": self.by_client, "code": code_digest(self.function)}


def metric(*, better: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Say of a function which of its values are better, "higher" or "lower"; the function stays what it is."""
    if better not in BETTER:
        raise ConfigError(f'better is {better!r}, expected "higher" or "lower".')

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        function.better = better  # type: ignore[attr-defined]
        return function

    return mark


def metrics_of(given: Any) -> tuple[Metric, ...]:
    """Metrics as `Evaluate` takes them: a list of metrics or functions, or a dict from name to one."""
    if isinstance(given, Mapping):
        found = [replace(_metric(one, str(name)), name=str(name)) for name, one in given.items()]
    elif isinstance(given, Sequence) and not isinstance(given, str):
        found = [_metric(one, "") for one in given]
    else:
        raise ConfigError(f"metrics must be a list of functions or a dict from name to function, got {given!r}.")
    names = [one.name for one in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"Two metrics are called {twice!r}; give one of them another name.")
    return tuple(found)


def _metric(given: Any, name: str) -> Metric:
    return given if isinstance(given, Metric) else Metric(given, name=name)


def _asks(function: Callable[..., Any], name: str) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"The metric {name!r} does not say what it takes; wrap it in a def.") from error
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return SEES
    wanted = [p for p in parameters if p.kind is not p.VAR_POSITIONAL]
    for p in wanted:
        if p.kind is p.POSITIONAL_ONLY or (p.name not in SEES and p.default is p.empty):
            raise ConfigError(
                f"The metric {name!r} asks for {p.name!r}; it can ask for {', '.join(SEES)}, each by that name."
            )
    return tuple(p.name for p in wanted if p.name in SEES)


def _number(found: Any) -> float | None:
    if isinstance(found, str | bytes | bool | np.bool_) or found is None:
        return None
    try:
        return float(found)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
