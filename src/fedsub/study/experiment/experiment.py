"""From a checked configuration to data, objective and methods."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsub.disk.functions import find
from fedsub.errors import ConfigError, nearest
from fedsub.method.names import check_label, normal
from fedsub.round.clock.devices import Devices, is_trace, named
from fedsub.study.experiment import tasks
from fedsub.study.experiment.complaints import show, words
from fedsub.study.experiment.config import Config, merge, parse
from fedsub.study.experiment.evaluation import plan_of
from fedsub.study.experiment.making import OwnMethod, is_own, own_method
from fedsub.study.experiment.reading import read

if TYPE_CHECKING:
    from fedsub.data import Clients
    from fedsub.method.training import Algorithm
    from fedsub.objective.objective import Objective
    from fedsub.round.evaluate import Evaluate

DEFAULT_COHORT = 50


@dataclass(frozen=True)
class Experiment:
    """``base`` is the folder that relative paths of the configuration start from.

    ``typed`` is the code ("file.py:function") that the caller named, not the configuration.
    """

    config: Config
    base: Path
    typed: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        path = self.config.data.path
        if self.config.task == tasks.LIBSVM and path is not None:
            return Path(path).name.partition(".")[0] or tasks.LIBSVM
        return self.config.task or Path(path or "data").stem

    def with_devices(self, name: str) -> Experiment:
        """The same with time estimated for other devices, which changes no result."""
        raw = merge(self.config.plain(), {"run": {"devices": name}})
        return replace(self, config=parse(raw, "The settings"))

    def with_more(self, rounds: int | None, seeds: int | list[int] | None) -> Experiment:
        """The same with other rounds and seeds, where they are given."""
        given = {name: value for name, value in (("rounds", rounds), ("seeds", seeds)) if value is not None}
        return replace(self, config=parse(merge(self.config.plain(), {"train": given}), "The settings"))

    def path(self) -> Path | None:
        given = self.config.data.path
        if given is None:
            return None
        path = expand(given)
        return path if self.base == Path.cwd() else self.base / path  # as it was written, where possible

    def start(self) -> Path | None:
        """The directory of the run, or comparison, to begin from."""
        given = self.config.run.start
        if given is None:
            return None
        path = expand(given)
        return path if self.base == Path.cwd() else self.base / path

    def devices(self) -> Devices | None:
        """What clients train on, or time is estimated for; a trace's file may be relative to the configuration."""
        given = self.config.run.devices
        table = {"trace": given} if is_trace(given) else given
        if isinstance(table, dict) and "trace" in table:
            path = expand(str(table["trace"]))
            table = table | {"trace": path if self.base == Path.cwd() else self.base / path}
        return named(table)

    def clients(self, *, labelled: bool = True) -> Clients:
        """All data, with the columns that model and split need; numbered as those of the run to begin from, if any.

        ``labelled=False`` reads ids only.
        """
        made, start = self._read(labelled=labelled), self.start()
        if start is None:
            return made
        from fedsub.running.load import load
        from fedsub.running.start import first_run

        known = load(first_run(start)).vocabulary
        named = {name: ids for name, ids in known.items() if ids is not None}
        return made.numbered_by(named, grow=self.config.run.grow) if named else made

    def _read(self, *, labelled: bool) -> Clients:
        if self.config.task is not None:
            return tasks.get(self.config.task).make(self.path(), self.config.data.scale, self.config.data.options)
        return read(self.path(), self.config.data, self._split_column(), labelled=labelled)

    def parts(self, seed: int = 0) -> tuple[Clients, Clients | None]:
        """(train, test) of the `splits`."""
        found = self.splits(seed)
        return found["train"], found.get("test")

    def splits(self, seed: int = 0, clients: Clients | None = None) -> dict[str, Clients]:
        """ "train", "validation" if a share is set aside, and "test" if there is one, by name.

        Cut from all data (``clients``, if they are read already), or as a twin was written, in two directories. The
        training seed plays a role with split.per_seed only. Plain columns that are no features, such as the time to
        split by, are dropped.
        """
        from fedsub.data import Clients

        path, how = self._cut_before(), self.config.split
        if clients is None and path is not None:
            train, test = Clients.open(path / "train"), Clients.open(path / "test")
        else:
            train, test = self._cut(self.clients() if clients is None else clients, seed)
        found = {"train": train}
        if how.validation is not None:
            found["train"], found["validation"] = self._set_aside(train, how.validation, seed)
        return {k: self._features(v) for k, v in (found | ({} if test is None else {"test": test})).items()}

    def cuts(self) -> Callable[[int], dict[str, Clients]]:
        """`splits` as a function of the seed: data are read once, and the parts of the last seed are kept."""
        if not self.config.split.per_seed:
            found = self.splits()
            return lambda seed: found
        if (path := self._cut_before()) is not None:
            raise ConfigError(f"{path} is cut into train and test already; leave split.per_seed out.")
        whole = self.clients()
        return lru_cache(1)(lambda seed: self.splits(seed, whole))

    def _cut_before(self) -> Path | None:
        """The folder of a twin that was written in two directories."""
        path = self.path()
        return path if self.config.task in tasks.TWINS and path is not None and tasks.cut_before(path) else None

    def split(self, clients: Clients) -> tuple[Clients, Clients | None]:
        """(train, test) of data that are read already."""
        found = self.splits(clients=clients)
        return found["train"], found.get("test")

    def split_with_validation(self, clients: Clients, share: float) -> tuple[Clients, Clients, Clients, Clients | None]:
        """(train, validation, both together, test): validation is cut from the training part as test was cut off."""
        if self.config.split.per_seed:
            raise ConfigError("split.per_seed is for fedsub run and compare; leave it out here.")
        both, test = self._cut(clients)
        train, held_out, whole = (self._features(part) for part in (*self._set_aside(both, share), both))
        return train, held_out, whole, None if test is None else self._features(test)

    def _set_aside(self, both: Clients, share: float, seed: int = 0) -> tuple[Clients, Clients]:
        """(train, validation), cut as test was cut off."""
        how = self.config.split
        # A column of marks cuts once only; the stored order is then the order in time.
        by = {"none": "random", "column": "ending"}.get(how.by, how.by)
        column = None if how.by == "column" else self._split_column()
        shift = seed if how.per_seed else 0
        return both.split(1 - share, by=by, column=column, seed=how.seed + 1 + shift, feature=self._also_feature())

    def _cut(self, clients: Clients, seed: int = 0) -> tuple[Clients, Clients | None]:
        how = self.config.split
        if how.by == "none":
            return clients, None
        shift = seed if how.per_seed else 0
        column, feature = self._split_column(), self._also_feature()
        return clients.split(how.train, by=how.by, column=column, seed=how.seed + shift, feature=feature)

    def _also_feature(self) -> bool:
        """Whether the column to split by was named as a feature, too."""
        return self.config.split.column in (self.config.data.values or ())

    def _split_column(self) -> str | None:
        return self.config.split.column if self.config.split.by in ("time", "last", "ending", "column") else None

    def _features(self, clients: Clients) -> Clients:
        wanted = self.config.data.values
        if wanted is None and self.config.task is None and self.config.data.client is None:
            wanted = [c for c in clients.columns if c != self.config.split.column]  # a saved directory: all
        plain = (c.name for c in clients.columns.values() if c.space is None and c.name != clients.label)
        return clients.drop(*(name for name in plain if name not in (wanted or ())))

    def objective(self, clients: Clients) -> Callable[[int], Objective]:
        """A function of the seed."""
        model = self.config.model
        if model.objective is not None:
            from fedsub.study.experiment.own import load

            return load(model.objective, self.base, clients)
        from fedsub.objective.models import make_objective

        return lambda seed: make_objective(clients, model.kind, seed=seed, l2=model.l2 or 0.0, **model.options)

    def evaluation(self) -> Evaluate:
        """When and on what is evaluated."""
        return plan_of(self.config.evaluate, self.base)

    def cohort(self, population: int) -> int | None:
        """Clients per round for methods that do not say; None is everyone."""
        given, fraction = self.config.train.clients_per_round, self.config.train.clients_fraction
        if fraction is not None:
            from fedsub.method.sampling import Fraction, Uniform

            return Fraction(fraction, Uniform()).count(population)
        return None if given == "all" else min(DEFAULT_COHORT, population) if given is None else given

    def methods(self, population: int, searched: Collection[str] = ()) -> dict[str, Algorithm]:
        """The configured methods by label, without those that cannot be made before ``searched`` settings are known."""
        from fedsub.methods import make

        out: dict[str, Algorithm] = {}
        for label, settings in self.settings(population).items():
            name, given = settings["name"], {k: v for k, v in settings.items() if k != "name"}
            if not is_own(name):
                out[label] = make(name, **given)
                continue
            own = self.own_method(name, f"methods.{label}")
            lacking = [setting for setting in own.required if setting not in given]
            if not lacking:
                out[label] = own.make(**given)
            elif not set(lacking) <= set(searched):
                raise ConfigError(f"methods.{label}: {name} needs the setting {lacking[0]!r}; give it a value.")
        return out

    def reference(self, labels: Iterable[str]) -> str | None:
        """The label of the method that the others are compared with, if one is named; by label or by name."""
        given, known = self.config.run.reference, [*labels]
        if given is None or given in known:
            return given
        found = [label for label in known if normal(label) == normal(given)]
        if len(found) != 1:
            raise ConfigError(f"run.reference is {given!r}, which is none of the methods; {nearest(given, known)}")
        return found[0]

    def own_method(self, spec: str, where: str = "methods") -> OwnMethod:
        """The function of the user's own that makes a method."""
        return own_method(spec, self.base, where)

    def code(self) -> dict[str, str]:
        """The functions "file.py:function" that are executed, by the setting that names them."""
        return code_of(self.config.plain())

    def own_files(self) -> dict[str, Path]:
        """The files of the user's own methods, by the name that was given."""
        names = [given.get("method", key) for key, given in self.config.methods.items()]
        found = {name: find(name, self.base) for name in names if is_own(name)}
        return {name: file for name, file in found.items() if file is not None}

    def settings(self, population: int) -> dict[str, dict[str, Any]]:
        """The complete settings of every method by label, with its name under "name"."""
        from fedsub import methods as library

        out: dict[str, dict[str, Any]] = {}
        for key, given in self.config.methods.items():
            check_label(key)
            name = given.get("method", key)
            if is_own(name):
                entry: Any = self.own_method(name, f"methods.{key}")
                _add(out, key, {"name": name, **self._asked(key, entry, given, population)})
                continue
            if not isinstance(name, str) or normal(name) not in library.CATALOGUE:
                hint = nearest(normal(str(name)), library.CATALOGUE)
                where = f"methods.{key}.method" if "method" in given else f"methods.{key}"
                raise ConfigError(f"{where}: there is no method {name!r}; {hint}")
            entry = library.CATALOGUE[normal(name)]
            label = entry.title if normal(key) in library.CATALOGUE else key
            _add(out, label, {"name": normal(name), **entry.defaults, **self._asked(key, entry, given, population)})
        return out

    def _asked(self, key: str, entry: Any, given: dict[str, Any], population: int) -> dict[str, Any]:
        """What the configuration says to a method, of its own or for all."""
        asked = self._arguments(key, entry, {k: v for k, v in given.items() if k != "method"}, population)
        if asked.get("local_epochs") is not None and "local_steps" in entry.defaults:
            asked.setdefault("local_steps", None)
        return asked

    def _arguments(self, key: str, entry: Any, own: dict[str, Any], population: int) -> dict[str, Any]:
        """Own settings over [train] over the method's defaults."""
        hints = entry.types
        for name, value in own.items():
            if name not in hints:
                known = [f"methods.{key}.{k}" for k in hints]
                wrong = f"methods.{key}.{name}"
                raise ConfigError(f"{entry.title} has no setting {wrong!r}; {nearest(wrong, known)}")
            if not (_fits(value, hints[name]) or (value == "all" and name in ("batch_size", "clients_per_round"))):
                expected = " or ".join(words(hints[name]))
                raise ConfigError(f"methods.{key}.{name} is {show(value)}, expected {expected}.")
        shared = self.config.train.model_dump(exclude_none=True, exclude={"rounds", "seeds", "clients_fraction"})
        if "local_steps" in own:
            shared.pop("local_epochs", None)
        if "local_epochs" in own:
            shared.pop("local_steps", None)
        shared.setdefault("clients_per_round", self.cohort(population))
        if own.get("clients_fraction") is not None:
            shared.pop("clients_per_round")
        if "personal" in hints and (self.config.model.own_bias or self.config.model.taste):
            shared["personal"] = ["own.*"]  # of a model with parameters of the clients' own
        merged = {k: v for k, v in shared.items() if k in hints} | own
        return {k: None if v == "all" else v for k, v in merged.items()}


def _add(out: dict[str, dict[str, Any]], label: str, settings: dict[str, Any]) -> None:
    if label in out:
        raise ConfigError(f"methods has {label} twice; give one of them a name of its own.")
    out[label] = settings


@dataclass
class Model:
    """The configured objective as a function of the seed that can be sent to other processes."""

    experiment: Experiment
    clients: Clients

    def __call__(self, seed: int) -> Objective:
        return self.experiment.objective(self.clients)(seed)


def code_of(raw: dict[str, Any]) -> dict[str, str]:
    """The functions that a configuration names, checked or not, by setting."""
    sections = (found if isinstance(found := raw.get(k), dict) else {} for k in ("model", "methods", "evaluate"))
    model, methods, evaluate = sections
    named: dict[str, Any] = {"model.objective": model.get("objective")}
    for label, own in methods.items():
        named[f"methods.{label}"] = own.get("method", label) if isinstance(own, dict) else label
    metrics = evaluate.get("metrics", ())
    given = metrics.items() if isinstance(metrics, dict) else enumerate(metrics if isinstance(metrics, list) else ())
    named |= {f"evaluate.metrics, {name}": spec for name, spec in given}
    return {where: spec for where, spec in named.items() if is_own(spec)}


def expand(path: str) -> Path:
    """A path whose ~ or ~user is a home directory."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path} starts with the home directory of an unknown user; write the full path.") from error


def _fits(value: Any, hint: Any) -> bool:
    from pydantic import TypeAdapter, ValidationError
    from pydantic.errors import PydanticSchemaGenerationError

    try:
        TypeAdapter(hint).validate_python(value, strict=True)
    except ValidationError:
        return False
    except PydanticSchemaGenerationError:  # a class of the user's own: the function itself must say
        return True
    return True
