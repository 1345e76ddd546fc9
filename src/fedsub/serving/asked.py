"""A trained model that can be asked: of a run in memory or in a directory, with or without the data.

What engines and evaluations ask with (`fedsub.round.score`) wants a `Problem`. That of a run in a directory is put
together from what the directory holds: the shape of the data, the ids of rows and clients, the rows that clients hold.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsub.data.clients import Clients, Space
from fedsub.errors import CheckpointError, ConfigError, DataError
from fedsub.objective.lazy import Touched
from fedsub.objective.losses import Batch, Loss
from fedsub.objective.objective import Objective
from fedsub.objective.problem import Problem
from fedsub.objective.recipe import shell
from fedsub.round.engines.inspecting import Columns
from fedsub.round.predict import PersonalModel, Values
from fedsub.round.score import Scorer
from fedsub.running.keep import values_of
from fedsub.running.load import Trained, load
from fedsub.running.result import Result
from fedsub.trees import Model, RowSource, Tree, whole

Run = Result | Trained | str | os.PathLike[str]
MASK = "sample_mask"  # which samples of a batch are real; all of them, here


@dataclass(frozen=True)
class Asked:
    """``problem`` has the shape of the data (`like`) and, at least, the ids of clients and rows; its loss is nothing.

    ``kind`` says what the module's output means: the name of its loss in `fedsub.objective.losses`, or "" for one of
    the user's own. ``columns`` are what the module reads.
    """

    source: str
    problem: Problem
    model: Model | PersonalModel
    kind: str
    columns: tuple[str, ...]
    masked: bool  # whether it reads which samples of a batch are real
    data: Clients | None = field(default=None, repr=False)  # what it was trained on, if it is at hand

    @property
    def like(self) -> Clients:
        return self.problem.clients

    @property
    def personal(self) -> PersonalModel | None:
        return self.model if isinstance(self.model, PersonalModel) else None

    @property
    def shared(self) -> Model:
        return self.model.shared if isinstance(self.model, PersonalModel) else self.model

    def of_client(self, client: Any) -> Asked:
        """The same with a client's own parameters in place of the shared ones."""
        own = self.personal
        if own is None:
            raise ConfigError(f"Clients of {self.source} have no parameters of their own; leave client out.")
        place = place_of(self.like.client_ids, client)
        if place is None:
            some = ", ".join(repr(c) for c in self.like.client_ids[:3].tolist())
            raise DataError(f"There is no client {client!r} in {self.source}; they are {some} …")
        values = dict(own.shared)
        for name in own.names:
            value, space, kept = values[name], self.problem.tables.get(name), own.kept.tensors[f"{own.slot}/{name}"]
            if space is None:
                values[name] = kept[place].clone()
            else:
                assert isinstance(value, Tensor)  # one that is clients' own is at hand
                begin, end = space.row_offsets[place : place + 2]
                rows = torch.from_numpy(space.rows[begin:end].astype(np.int64))
                values[name] = value.index_copy(0, rows, kept[begin:end])
        return replace(self, model=values)

    def scorer(self) -> Scorer:
        return Scorer(self.problem, self.columns)

    def tables_of(self, space: str) -> list[str]:
        return [name for name, one in self.problem.tables.items() if one.name == space]

    def spare_row(self, space: Space) -> int:
        """The row behind all others of a space, for ids that have none."""
        return max([space.size, *(self.shared[name].shape[0] for name in self.tables_of(space.name))])

    def with_spare_rows(self, spaces: set[str]) -> Asked:
        """The same with a row of zeros behind all others in the tables of these spaces."""
        if not spaces:
            return self
        shared, known = dict(self.shared), dict(self.like.spaces)
        for name in spaces:
            row = self.spare_row(known[name])
            for table in self.tables_of(name):
                shared[table] = _lengthened(shared[table], row + 1)
            known[name] = replace(known[name], size=row + 1)
        like = replace(self.like, spaces=known)
        tables = {t: known.get(space.name, space) for t, space in self.problem.tables.items()}
        model = shared if self.personal is None else replace(self.personal, shared=shared)
        return replace(self, problem=replace(self.problem, clients=like, tables=tables), model=model)


def asked(run: Run, module: nn.Module | Objective | None = None) -> Asked:
    """What ``run`` trained; ``module`` is for those that fedsub cannot make again (`fedsub.load`)."""
    if isinstance(run, Result):
        if run.params and run.problem is not None:
            return _in_memory(run, run.problem)
        if run.path is None:
            run.module()  # says why there is none
        known = run.problem.objective if run.problem is not None else run.objective() if run.objective else None
        found = _loaded(load(str(run.path)), module if module is not None else known)
        return replace(found, data=run.problem.clients if run.problem is not None else None)
    if isinstance(run, Trained):
        return _loaded(run, module)
    if isinstance(run, str | os.PathLike):
        return _loaded(load(run_directory(run)), module)
    raise ConfigError(
        f"run is a {type(run).__name__}, expected what fedsub.run or fedsub.load returned, or a run's directory."
    )


def run_directory(path: str | os.PathLike[str]) -> Path:
    """The directory of a run: this one, or the only one in it (of a comparison, of the winners of a search)."""
    folder = Path(path)
    if (folder / "config.json").exists() or not folder.is_dir():
        return folder
    runs = sorted({p.parent for pattern in ("*", "winners/*") for p in folder.glob(f"{pattern}/config.json")})
    if len(runs) > 1:
        some = ", ".join(str(run) for run in runs[:4]) + (", …" if len(runs) > 4 else "")
        raise CheckpointError(f"{folder} holds {len(runs)} runs; name one of them: {some}.")
    return runs[0] if runs else folder


def _in_memory(result: Result, problem: Problem) -> Asked:
    model: Model | PersonalModel = result.params if result.personal is None else result.personal
    like = problem.clients
    return _made(f"the run of {result.method}", problem.objective, problem, model, result.problem and like)


def _loaded(trained: Trained, given: nn.Module | Objective | None) -> Asked:
    if trained.data is None:
        raise CheckpointError(
            f"{trained.path} does not say what its data looked like: an older fedsub trained it. Take the module, "
            "fedsub.load(…).module(…), or train it again."
        )
    module, config = trained.bare(given), trained.config
    loss = given.loss if isinstance(given, Objective) else _named(config.get("loss"))
    objective = Objective(
        module, loss, config["tables"], config.get("inputs"), whole=config.get("whole", ()),
        lazy={name: one.drawn.init for name, one in trained.params.items() if isinstance(one, Touched)},
    )  # fmt: skip
    like = shell(trained.data)
    like = replace(like, spaces={n: replace(s, vocabulary=trained.vocabulary.get(n)) for n, s in like.spaces.items()})
    model: Model | PersonalModel = trained.params
    if (own := trained.personal) is not None:
        count = np.arange(len(own) + 1)
        held = {s: (own.held[f"offsets/{s}"].numpy(), own.held[f"rows/{s}"].numpy()) for s in set(own.tables.values())}
        spaces = {n: replace(s, row_offsets=0 * count, rows=np.zeros(0, np.int64)) for n, s in like.spaces.items()}
        spaces |= {n: replace(spaces[n], row_offsets=offsets, rows=rows) for n, (offsets, rows) in held.items()}
        like = replace(like, client_ids=own.client_ids, offsets=0 * count, spaces=spaces)
        values = {f"own/{name}": own.read(name, slice(0, None)) for name in own.names}
        model = PersonalModel(trained.params, Values(values), "own", own.names)
    named = {t: like.spaces[space] for t, (space, _) in config.get("numbering", {}).items()}
    dense = tuple(name for name in config["parameters"] if name not in named)
    problem = Problem(objective, like, {t: named[t] for t in objective.tables}, dense)
    return _made(str(trained.path), objective, problem, model, None)


def _made(
    source: str, objective: Objective, problem: Problem, model: Model | PersonalModel, data: Clients | None
) -> Asked:
    kind = type(objective.loss).__name__
    kind = kind if kind in KINDS else ""
    silent = replace(problem, objective=replace(objective, loss=Silent(objective.loss), recipe=None))
    columns, masked = _columns(silent, model)
    return Asked(source, silent, model, kind, columns, masked, data)


@dataclass(frozen=True)
class Lengthened:
    """A table that is not at hand, with rows of zeros behind it."""

    of: RowSource
    rows: int

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.rows, *self.of.shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        return self.of.dtype

    @property
    def device(self) -> torch.device:
        return self.of.device

    def take(self, rows: Tensor) -> Tensor:
        there = rows < self.of.shape[0]
        out = torch.zeros((len(rows), *self.shape[1:]), dtype=self.dtype, device=self.device)
        out[there] = self.of.take(rows[there])
        return out


def _lengthened(table: Tensor | RowSource, rows: int) -> Tensor | RowSource:
    if not isinstance(table, Tensor):
        return Lengthened(table, rows)
    return torch.cat([table, table.new_zeros(rows - len(table), *table.shape[1:])])


@dataclass(frozen=True)
class Silent:
    """No loss, so that no label is needed; ``of`` is the one that was trained with."""

    of: Any

    def __call__(self, output: Tensor, batch: Batch) -> Tensor:
        return output.new_zeros(len(output))


KINDS = ("Binary", "HalfCrossEntropy", "Squared", "CrossEntropy")


def _named(loss: Any) -> Loss:
    """The loss that config.json describes, or something that stands for one of the user's own."""
    from fedsub.objective import losses

    if isinstance(loss, Mapping) and loss.get("type") in KINDS:
        return getattr(losses, loss["type"])(**{k: v for k, v in loss.items() if k != "type"})
    return Silent(loss)


def _columns(problem: Problem, model: Model | PersonalModel) -> tuple[tuple[str, ...], bool]:
    """What the module reads, its inputs or what it asks a batch for; and whether that includes the mask."""
    if problem.objective.inputs is not None:
        names = problem.objective.inputs
        return tuple(name for name in names if name != MASK), MASK in names
    arrays = {name: value.numpy() for name, value in example(problem.clients, 2).items()}
    filled, arrays = Scorer(problem, ()).over(model.shared if isinstance(model, PersonalModel) else model, arrays)
    batch = Columns({**{name: torch.from_numpy(a) for name, a in arrays.items()}, MASK: torch.ones(2)})
    try:
        with torch.no_grad():
            problem.objective.output(filled.module, batch)
    except KeyError as error:
        raise DataError(f"The module reads {error}, which the data it was trained on did not have.") from error
    return tuple(name for name in problem.clients.columns if name in batch.read), MASK in batch.read


def place_of(ids: np.ndarray, client: Any) -> int | None:
    """Where a client stands among others; its id may be given as text, as on a command line."""
    value = client.item() if isinstance(client, np.generic) else client
    if ids.dtype.kind in "iu" and isinstance(value, str):
        value = int(value) if re.fullmatch(r"[+-]?\d+", value) else None
    elif ids.dtype.kind == "U":
        value = str(value)
    at = np.flatnonzero(ids == value) if value is not None else []
    return int(at[0]) if len(at) else None


def example(like: Clients, count: int) -> dict[str, Tensor]:
    """A made-up batch with columns of that shape."""
    out: dict[str, Tensor] = {}
    for name, column in like.columns.items():
        shape = (count, width_of(like, name)) if column.ragged else (count, *column.values.shape[1:])
        if column.space is None:
            kind = torch.from_numpy(np.zeros(1, column.values.dtype)).dtype
            out[name] = torch.linspace(-1, 1, int(np.prod(shape))).reshape(shape).to(kind)
        else:
            size = like.spaces[column.space].size
            out[name] = (torch.arange(int(np.prod(shape))) % size).reshape(shape)
    return out


def width_of(like: Clients, name: str) -> int:
    """How long lists of a column get: as long as the longest in training, or as they were cut to."""
    return max(like.columns[name].width, int(like.reading.get("max_len") or 0))


def loss_of(found: Asked) -> Any:
    """The loss that the model was trained with, which says what its output means."""
    loss = found.problem.objective.loss
    return loss.of if isinstance(loss, Silent) else loss


def classes_of(found: Asked) -> tuple[str, ...]:
    """The names of the label's classes, where they have some."""
    label = getattr(loss_of(found), "label", None)
    return found.like.columns[label].classes if isinstance(label, str) and label in found.like.columns else ()


def state_of(found: Asked) -> Tree:
    """The state dict: parameters and buffers under plain names, trained ones as they are."""
    return values_of(found.problem.objective.module, whole(found.shared, "A folder without fedsub"))


def batches(found: Asked, arrays: dict[str, np.ndarray]) -> Iterator[Tensor]:
    """What a shared model says to samples."""
    return found.scorer().outputs(found.shared, arrays)
