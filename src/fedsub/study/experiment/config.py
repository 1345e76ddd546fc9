"""A configuration: what a TOML file, flags and ``--set`` may say, checked before anything is read or trained.

    task = "movielens-like"            [train]                     [methods]
                                       rounds = 100                fedavg = { lr = 0.1 }
    or [data], [split], [model]        lr = 0.3                    "Capped" = { method = "fedsubavg", max_coef = 20 }

Later layers win: the task's defaults, then the file, then flags, then ``--set``.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedsub.disk.reading import check_depth, read_text
from fedsub.errors import ConfigError
from fedsub.method.engine import Ray
from fedsub.study.experiment.complaints import explain

Count = Annotated[int, Field(ge=1)]
All = Literal["all"]
Rate = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Data(Section):
    """A file or a saved directory, and which column is what. With a task only path, scale, options and values."""

    path: str | None = None
    client: str | None = None
    label: str | None = None
    tables: list[str] | dict[str, str | list[str]] | None = None
    values: list[str] | None = None
    binary_label: bool = True
    max_len: Count | None = None
    padding: list[str] = []
    sizes: dict[str, int] = {}
    nulls: Literal["refuse", "drop", "own"] = "refuse"
    separator: str | None = None
    encoding: str | None = None
    text: dict[str, Literal["characters", "words"]] = {}  # of LEAF files, texts to cut into lists of ids
    scale: Rate | None = None
    options: dict[str, Any] = {}


class Split(Section):
    """``validation``: a share of the training samples, cut off as the test samples were, to choose a round by.

    ``per_seed`` cuts anew for every training seed, at random from ``seed`` + that seed.
    """

    by: Literal["random", "time", "last", "ending", "column", "none"] = "random"
    train: float = 0.8
    column: str | None = None
    seed: int = 0
    validation: Annotated[float, Field(gt=0, lt=1)] | None = None
    per_seed: bool = False

    @model_validator(mode="after")
    def _fitting(self) -> Split:
        if self.per_seed and self.by != "random":
            raise ValueError(f'per_seed cuts at random, and by = "{self.by}" cuts the same way for every seed')
        return self


# As `fedsub.objective.models.options_of` gives them, which would load torch.
MODEL_OPTIONS: dict[str, tuple[str, ...]] = {
    "lr": ("bias", "own_bias", "taste", "loss", "columns"),
    "embedding": ("dim", "hidden", "own_bias", "taste", "loss", "columns"),
    "lstm": ("dim", "hidden", "layers", "word_std", "columns"),
    "user-item": ("bias", "own_bias", "taste", "loss", "columns"),
    "din": ("dim", "faithful", "activation", "max_history", "columns"),
    "linear": ("bias", "loss"),
    "factorisation": ("rank", "offset", "columns"),
}


class Model(Section):
    """A built-in model with its options (docs/models.md), or ``objective``, your own. ``l2`` is for every kind."""

    kind: Literal["lr", "embedding", "lstm", "user-item", "din", "linear", "factorisation"] = "lr"
    l2: Annotated[float, Field(ge=0)] | dict[str, Annotated[float, Field(ge=0)]] | None = None
    dim: Count | None = None
    hidden: Count | None = None
    layers: Count | None = None
    word_std: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    bias: bool | None = None
    own_bias: bool | None = None
    taste: Count | None = None
    faithful: bool | None = None
    activation: Literal["dice", "prelu", "relu"] | None = None
    max_history: Count | None = None
    columns: dict[str, str] | None = None
    rank: Count | None = None
    offset: Literal["user", "mean", "none"] | None = None
    loss: Literal["binary", "squared", "cross_entropy"] | None = None
    objective: str | None = None

    @model_validator(mode="after")
    def _fitting(self) -> Model:
        for name in self.options:
            if name not in MODEL_OPTIONS[self.kind] and self.objective is None:
                raise ValueError(f'{name} is no option of kind = "{self.kind}"')
        if self.l2 and self.objective is not None:
            raise ValueError("l2 is for built-in models; give your own objective Objective(…, l2=…)")
        return self

    @property
    def options(self) -> dict[str, Any]:
        names = dict.fromkeys(name for options in MODEL_OPTIONS.values() for name in options)
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class Train(Section):
    """Defaults for every method that takes them; a method's own settings win."""

    rounds: Count = 100
    clients_per_round: Count | All | None = None
    clients_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    local_steps: Count | None = None
    local_epochs: Count | None = None
    batch_size: Count | All | None = None
    lr: Rate | None = None
    server_lr: Rate | None = None
    batches: Literal["shuffled", "ordered", "replacement"] | None = None
    replacement: bool | None = None
    clip_norm: Rate | None = None
    schedule: str | None = None
    weighting: Literal["samples", "clients", "unbiased"] | None = None
    seeds: int | list[int] = 1

    @model_validator(mode="after")
    def _fitting(self) -> Train:
        if self.local_steps is not None and self.local_epochs is not None:
            raise ValueError("local_steps and local_epochs exclude each other; give one of them")
        if self.clients_per_round is not None and self.clients_fraction is not None:
            raise ValueError("clients_per_round and clients_fraction exclude each other; give one of them")
        many = [self.seeds] if isinstance(self.seeds, int) else self.seeds
        if isinstance(self.seeds, int) and not 1 <= self.seeds <= 10_000:
            raise ValueError(
                f"seeds is {self.seeds}, expected how many to train (1 to 10,000), or a list such as [3, 4]"
            )
        if not many or min(many) < 0 or max(many) >= 2**63 or len(set(many)) < len(many):
            raise ValueError(f"seeds must be different whole numbers, 0 or more and below 2^63, got {self.seeds}")
        return self

    @property
    def seed_list(self) -> list[int]:
        return list(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds


class Run(Section):
    engine: Literal["auto", "batched", "serial", "ray"] = "auto"
    chunk: Count | None = None
    workers: Count | None = None
    address: str | None = None  # of a Ray cluster
    deadline: Annotated[float, Field(gt=0)] | None = None  # seconds that a cluster has for a round
    shards: Count | None = None
    compile: bool = False
    device: str = "cpu"
    checkpoint_every: Count = 10
    lost: Annotated[float, Field(ge=0, lt=1)] = 0.0
    on_bad_update: Literal["skip", "raise"] = "skip"
    target: str | None = None
    reference: str | None = None  # the method that the others are compared with, by label or name
    stop_at_target: bool = False
    tensorboard: bool = False
    devices: str | dict[str, Any] = "phones"  # a preset, a trace's file, or settings of `fedsub.Devices`
    out: str | None = None
    start: str | None = None  # a run's directory, or that of a comparison
    start_state: bool = False
    grow: bool = False  # ids that the start does not know get rows of their own

    @model_validator(mode="after")
    def _known(self) -> Run:
        from fedsub.round.clock.devices import NONE, PRESETS, is_trace

        if isinstance(self.devices, str) and not is_trace(self.devices) and self.devices not in (*PRESETS, NONE):
            known = ", ".join(f'"{name}"' for name in (*PRESETS, NONE))
            raise ValueError(
                f'run.devices is "{self.devices}", expected {known}, a trace (.csv or .parquet) or a table of settings'
            )
        return self

    @model_validator(mode="after")
    def _of_a_cluster(self) -> Run:
        for name in ("address", "deadline"):
            if getattr(self, name) is not None and self.engine != "ray":
                raise ValueError(f'{name} is of a Ray cluster; add engine = "ray" (--engine ray)')
        return self

    @property
    def computed(self) -> str | Ray:
        """The engine as `fedsub.run` takes it."""
        return Ray(self.address, deadline=self.deadline) if self.engine == "ray" else self.engine


class Slice(Section):
    """Samples of a split whose ids in these columns all occur in the training data, or with ``unseen`` the others."""

    split: str = "test"
    columns: list[str]
    unseen: bool = False


class Rank(Section):
    """The settings of `fedsub.Ranking`; "all" stands for its None."""

    item: str
    k: Count | list[Count] | None = None
    metrics: list[str] | None = None
    candidates: Count | None = None
    liked: int | float | All | None = None
    exclude_seen: bool | None = None
    split: str | None = None
    clients: Count | All | None = None
    final_clients: Count | All | None = None
    seed: int | None = None


class Slopes(Section):
    """The settings of `fedsub.Norms`."""

    at: Count | list[int] = 10
    weighting: Literal["samples", "clients"] = "samples"


class Evaluation(Section):
    """``metrics``: functions of the user's own, "file.py:function", or {name = "file.py:function"}."""

    every: Count = 10
    samples: Count | All | dict[str, Count | All] = 10_000
    final_samples: Count | All = 200_000
    slices: dict[str, Slice] = {}
    metrics: list[str] | dict[str, str] | None = None
    ranking: Rank | None = None
    norms: Count | list[int] | Slopes | None = None


class Tune(Section):
    """What `fedsub tune` searches if the command line does not say.

    ``rounds`` are those of a trial (default: train.rounds). ``winners_of`` names the task whose search chose the
    settings that stand under [methods].
    """

    grid: list[str] = []
    search: Literal["grid", "random", "optuna"] | None = None
    trials: Count | None = None
    select: Annotated[str, Field(pattern=r"^(rounds|(final|best)(:[\w@]+)?)$")] = "final"
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.1
    rounds: Count | None = None
    winners_of: str | None = None


class Config(Section):
    task: str | None = None
    data: Data = Data()
    split: Split = Split()
    model: Model = Model()
    methods: dict[str, dict[str, Any]] = {}
    train: Train = Train()
    run: Run = Run()
    evaluate: Evaluation = Evaluation()
    tune: Tune = Tune()

    @model_validator(mode="after")
    def _fitting(self) -> Config:
        if self.task is not None:
            extra = sorted(self.data.model_fields_set - {"path", "scale", "values", "options"})
            if extra:
                raise ValueError(
                    f"the task {self.task!r} brings its own data, so data.{extra[0]} has no meaning; leave one out"
                )
        elif self.data.scale is not None:
            raise ValueError("data.scale is for generated tasks only")
        elif self.data.options:
            raise ValueError("data.options is for tasks only")
        if self.split.by in ("time", "column") and self.split.column is None:
            raise ValueError(f'split.by = "{self.split.by}" needs split.column (--time-column), the column to cut by')
        if self.run.start is None and (self.run.start_state or self.run.grow):
            name = "start_state" if self.run.start_state else "grow"
            raise ValueError(f"run.{name} goes with a run to begin from: give run.start (--start)")
        if self.run.stop_at_target and self.run.target is None:
            raise ValueError('run.stop_at_target needs run.target, such as "train.ce<=0.65"')
        return self

    @property
    def trial_rounds(self) -> int:
        """Rounds of a trial of `fedsub tune`: never more than are trained in the end."""
        return min(self.tune.rounds or self.train.rounds, self.train.rounds)

    def plain(self) -> dict[str, Any]:
        """The complete configuration with all defaults, as JSON values; unset ones are left out."""
        data = self.data.model_dump(mode="json", exclude_none=True, exclude_unset=True)
        return self.model_dump(mode="json", exclude_none=True) | {"data": data}


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, unchecked."""
    try:
        return _toml(read_text(path).decode())
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error


def _toml(text: str) -> dict[str, Any]:
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_depth(found)
    return found


def parse_set(text: str) -> dict[str, Any]:
    """``train.lr=0.3`` as nested tables. The value is TOML; what TOML cannot read is taken as text."""
    key, equals, value = text.partition("=")
    if equals and key.strip() and "\n" not in text:
        for attempt in (value, json.dumps(value.strip(), ensure_ascii=False)):
            try:
                return _toml(f"{key.strip()} = {attempt}")
            except ValueError:
                continue
    raise ConfigError(f"Cannot read --set {text!r}; write it like --set train.lr=0.3.")


def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """``above`` over ``below``, table by table."""
    out = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = merge(out[key], value) if both else value
    return out


def parse(raw: dict[str, Any], origin: str = "The configuration") -> Config:
    """Check the tables; every complaint says where, what was seen and what is expected."""
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(explain(error, origin, Config)) from error
