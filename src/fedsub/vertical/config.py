"""A configuration of parties: what a TOML file and flags of `fedsub vertical run` may say.

    task = "movielens-1m"            [train]              [parties.shop]
    or no task, and data = "…" of    rounds = 20          data = "shop.csv"
    every party; label = "paper"     batch_size = 256     tables = ["item"]

All parties may share one file: what stands under another party than the one that runs is only looked at for its name
and its width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, ValidationError, model_validator

from fedsub.data.clients import Clients
from fedsub.data.split import select
from fedsub.data.twins import TWINS
from fedsub.disk.functions import function_of
from fedsub.errors import ConfigError, DataError, nearest
from fedsub.method.servers import Adagrad, Adam, Add, ServerRule
from fedsub.method.spelling import Words, read_word
from fedsub.objective.losses import binary
from fedsub.study.experiment.complaints import explain
from fedsub.study.experiment.config import Count, Rate, Section, merge, read_toml
from fedsub.study.experiment.experiment import expand
from fedsub.study.experiment.own import explained
from fedsub.vertical import models
from fedsub.vertical.data import AdsWorld, Sides, held_out, movielens_sides
from fedsub.vertical.data.divided import history_sides
from fedsub.vertical.joined import Joined
from fedsub.vertical.party import Party, check_name
from fedsub.vertical.protections import read_protections
from fedsub.vertical.run import LabelParty

OPTIMISERS: Words = {"sgd": (Add, float), "adam": (Adam, float), "adagrad": (Adagrad, float)}
TASKS = ("movielens-1m", "movielens-din", "history-like", "ads-like")


class Of(Section):
    """One party: its data, as `fedsub run` reads them, and its module.

    ``model``: "tower", or "history" for a party that has one list; or ``own``, file.py:function, which is given the
    party's data (and at the label party the names of the others) and returns (module, tables).
    """

    data: str | None = None
    id: str = "id"
    label: str | None = None
    tables: list[str] | dict[str, str | list[str]] = Field(default_factory=list)
    values: list[str] = Field(default_factory=list)
    padding: list[str] = Field(default_factory=list)
    sizes: dict[str, int] = Field(default_factory=dict)
    model: Literal["tower", "history"] = "tower"
    dim: Count = 16
    width: Count = 16
    own: str | None = None
    optimiser: str = "sgd:0.1"


class Train(Section):
    rounds: Count = 20
    steps: Count = 100
    batch_size: Count = 256
    seed: Annotated[int, Field(ge=0)] = 0
    test: Annotated[float, Field(gt=0, lt=1)] = 0.2
    every: Count = 5  # rounds between evaluations
    checkpoint_every: Count = 1
    patience: Annotated[float, Field(ge=0)] = 60.0
    target: str | None = None
    protect: str = "none"
    secret: str | None = None


class Config(Section):
    """``top``: "head", or "interest" where one party's model is "history"."""

    task: Literal["movielens-1m", "movielens-din", "history-like", "ads-like"] | None = None
    data: str | None = None  # the folder of a task's data
    scale: Rate = 1.0
    label: str | None = None
    top: Literal["head", "interest"] | None = None
    hidden: Count = 32
    train: Train = Train()
    parties: dict[str, Of] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fitting(self) -> Config:
        if self.task is None and (self.label is None or self.label not in self.parties):
            raise ValueError(
                f"label names the party with the labels, one of {', '.join(self.parties) or '[parties.…]'}"
            )
        return self


def read(what: str, above: Mapping[str, Any]) -> Study:
    """The configuration of a TOML file or a task's name, with flags above it."""
    path = Path(what)
    if path.suffix == ".toml":
        raw = read_toml(path)
        base, origin, name = path.resolve().parent, what, path.stem
    elif what in TASKS:
        raw, base, origin, name = {"task": what}, Path.cwd(), f"task {what}", what
    else:
        raise ConfigError(f"There is no file and no task {what!r}; {nearest(what, TASKS)} Or give a .toml file.")
    try:
        config = Config.model_validate(merge(raw, dict(above)))
    except ValidationError as error:
        raise ConfigError(explain(error, origin, Config)) from error
    return Study(config, base, name)


@dataclass
class Study:
    """A configuration that can be asked for parties."""

    config: Config
    base: Path
    name: str
    _sides: list[Sides] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in self.names:
            check_name(name)
        for name, of in self.parties().items():
            self._optimiser(name, of)
        read_protections(self.config.train.protect)

    @property
    def names(self) -> list[str]:
        return list(self.config.parties) if self.config.task is None else list(dict.fromkeys(
            [*_TASK[self.config.task][1], *self.config.parties]))  # fmt: skip

    @property
    def label(self) -> str:
        return self.config.label or _TASK[str(self.config.task)][0]

    @property
    def others(self) -> list[str]:
        return [name for name in self.names if name != self.label]

    def parties(self) -> dict[str, Of]:
        usual = {} if self.config.task is None else _TASK[self.config.task][1]
        out = {}
        for name in self.names:
            given = self.config.parties.get(name)
            said = {} if given is None else {key: getattr(given, key) for key in given.model_fields_set}
            out[name] = Of.model_validate({**usual.get(name, {}), **said})
        return out

    def code(self) -> dict[str, str]:
        """The functions of the user's own, by the setting that names each."""
        return {f"parties.{name}.own": of.own for name, of in self.parties().items() if of.own is not None}

    def data(self, name: str) -> Clients:
        """All that a party has, before alignment."""
        of = self.parties()[name]
        if of.data is not None:
            return Clients.from_file(
                expand(of.data if Path(of.data).is_absolute() else str(self.base / of.data)), client=of.id,
                ids=of.tables, label=of.label, values=of.values, padding=of.padding, sizes=of.sizes,
            )  # fmt: skip
        if self.config.task is None:
            raise ConfigError(f"The party {name} has no data here: [parties.{name}] data = …, a file with its samples.")
        if not self._sides:
            self._sides.append(_TASK[self.config.task][2](self.config))
        return self._sides[0].parties[name]

    def sides(self) -> Sides:
        """All parties' samples that are at all of them, for a simulation."""
        return Sides({name: self.data(name) for name in self.names}, self.label).aligned()

    def parts(self, clients: Clients) -> tuple[Clients, Clients]:
        """(train, test): which samples are for testing follows from their ids, the same at every party."""
        out = held_out(clients.client_ids, self.config.train.test, self.config.train.seed)
        if out.all() or not out.any():
            raise DataError(f"{len(clients):,} samples are too few to hold {self.config.train.test:g} of them out.")
        return select(clients, np.flatnonzero(~out)), select(clients, np.flatnonzero(out))

    def of_seed(self, seed: int) -> Study:
        """The same with another seed: other initial values, batches and samples to test on, of the same data."""
        train = self.config.train.model_copy(update={"seed": seed})
        made = Study(self.config.model_copy(update={"train": train}), self.base, self.name)
        made._sides = self._sides
        return made

    def party(self, name: str, clients: Clients) -> Party:
        """A feature party on its aligned samples."""
        of, (train, test) = self.parties()[name], self.parts(clients)
        module, tables = self._module(name, of, train, None)
        return Party(name, module, train, {"test": test}, tables, self._optimiser(name, of))

    def label_party(self, clients: Clients, *, alone: bool = False) -> LabelParty:
        """The label party on its aligned samples; ``alone``: with a module that does without the others."""
        of, (train, test) = self.parties()[self.label], self.parts(clients)
        if train.label is None:
            raise ConfigError(f"The label party {self.label} has no label: [parties.{self.label}] label = a column.")
        module, tables = self._module(self.label, of, train, () if alone else tuple(self.others))
        settings = self.config.train
        return LabelParty(
            module, binary(train.label), train, {"test": test}, tables, self._optimiser(self.label, of),
            read_protections(settings.protect), settings.secret,
        )  # fmt: skip

    def _module(self, name: str, of: Of, clients: Clients, others: tuple[str, ...] | None) -> tuple[Any, Any]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.train.seed * 1000 + self.names.index(name))
            if of.own is not None:
                where = f"parties.{name}.own"
                made = function_of(of.own, self.base, where, "models.py:tower")
                with explained(where, of.own):
                    found = made(clients) if others is None else made(clients, others)
                if not isinstance(found, tuple) or len(found) != 2:
                    raise ConfigError(f"{where}: {of.own} returned {type(found).__name__}, expected (module, tables).")
                return found
            if others is None:
                return models.history(clients, of.dim) if of.model == "history" else models.tower(
                    clients, of.dim, of.width)  # fmt: skip
            return self._top(of, clients, others)

    def _top(self, of: Of, clients: Clients, others: tuple[str, ...]) -> tuple[Any, Any]:
        known = self.parties()
        lists = [name for name in others if known[name].model == "history"]
        kind = self.config.top or ("interest" if lists else "head")
        widths = {name: known[name].width for name in others if name not in lists}
        if kind == "interest":
            if len(lists) != 1:
                raise ConfigError(f'top = "interest" takes one party of model = "history", got {len(lists)}.')
            dim = known[lists[0]].dim
            bottom, tables = models.tower(clients, of.dim, dim)
            top: Any = models.Interest(dim, sum(widths.values()))
            order = (lists[0], *widths)
        elif lists:
            raise ConfigError(f'{lists[0]} sends a history, which only top = "interest" understands.')
        else:
            bottom, tables = models.tower(clients, of.dim, of.width)
            top, order = models.Head(of.width + sum(widths.values()), self.config.hidden), tuple(widths)
        return Joined(bottom, top, order), {f"bottom.{name}": columns for name, columns in tables.items()}

    def _optimiser(self, name: str, of: Of) -> ServerRule:
        return read_word(of.optimiser, OPTIMISERS, f"parties.{name}.optimiser", objects=False)


def _movielens(division: str) -> Callable[[Config], Sides]:
    def made(config: Config) -> Sides:
        if config.data is None:
            raise ConfigError("MovieLens-1M needs --data DIR (`fedsub data` says where from); history-like needs none.")
        users = None if config.scale == 1 else max(2, round(6040 * config.scale))
        return movielens_sides(expand(config.data), division=division, users=users)

    return made


def _twin(config: Config) -> Sides:
    return history_sides(TWINS["amazon-like"].make(scale=config.scale))


def ads_world(config: Config) -> AdsWorld:
    return AdsWorld(impressions=max(1000, round(1_000_000 * config.scale)))


# task -> (the label party, what its parties are unless told otherwise, what makes their data)
_ADAGRAD, _SGD = {"optimiser": "adagrad:0.05"}, {"optimiser": "sgd:0.5"}
_TASK: dict[str, tuple[str, dict[str, dict[str, Any]], Callable[[Config], Sides]]] = {
    "movielens-1m": ("ratings", {"ratings": _ADAGRAD, "profile": _ADAGRAD}, _movielens("profile")),
    "movielens-din": (
        "candidate", {"candidate": _ADAGRAD, "sequence": {"model": "history", **_ADAGRAD}}, _movielens("history"),
    ),
    "history-like": ("candidate", {"candidate": _SGD, "sequence": {"model": "history", **_SGD}}, _twin),
    "ads-like": ("ads", {"ads": _SGD, "publisher": _SGD}, lambda config: ads_world(config).sides()),
}  # fmt: skip
