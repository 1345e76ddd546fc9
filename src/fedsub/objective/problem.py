"""`Problem`: an objective fitted to the clients' data. Everything is checked here, before training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from fedsub.data.clients import Clients, Space
from fedsub.data.notices import of_rows
from fedsub.errors import ObjectiveError, nearest
from fedsub.objective.lazy import Drawn
from fedsub.objective.losses import Binary, CrossEntropy, HalfCrossEntropy
from fedsub.objective.numbering import check_stamp
from fedsub.objective.objective import Objective
from fedsub.trees import Model, Tree


@dataclass(frozen=True)
class Problem:
    """Which parameter is a table over which space, which is dense, and how big a submodel is."""

    objective: Objective
    clients: Clients
    tables: dict[str, Space]  # parameter -> the space that numbers its rows
    dense: tuple[str, ...]

    @classmethod
    def bind(cls, objective: Objective, clients: Clients) -> Problem:
        params = dict(objective.module.named_parameters())
        tables = {name: _space(objective, name, clients, objective.shape_of(name)[0]) for name in objective.tables}
        check_stamp(objective.module, tables)
        _check_lazy(objective, tables)
        used = {c for name in tables for c in objective.columns_of(name)} | set(objective.unused)
        for space in clients.spaces.values():
            if not used & set(space.columns):
                raise ObjectiveError(
                    f"No table uses the id column{'s' * (len(space.columns) > 1)} {', '.join(space.columns)}; "
                    "add a table for it to tables={parameter: column}, or leave the column out when reading the data."
                )
        for name in objective.inputs or ():
            clients.column(name)
        _check_label(objective, clients)
        dense = tuple(n for n, p in params.items() if n not in tables and p.requires_grad)
        return cls(objective, clients, tables, dense)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All trained parameters: tables first, then dense ones, each in the module's order."""
        return (*self.tables, *self.dense)

    @property
    def lazy(self) -> dict[str, Drawn]:
        """The tables that are never in memory as a whole, as they are before training."""
        return self.objective.drawn

    def untouched(self, params: Tree) -> Model:
        """``params`` before training, lazy tables as they then are."""
        return {**params, **self.lazy}

    @cached_property
    def spaces(self) -> dict[str, Space]:
        """The spaces in use, by name; tables over one space share its rows."""
        return {space.name: space for space in self.tables.values()}

    def params(self, device: torch.device | None = None, *, copy: bool = True, lazy: bool = False) -> Tree:
        """The module's trained parameters, copied unless told otherwise.

        ``lazy``: who asks can do with lazy tables, of which no row is there.
        """
        if self.lazy and not lazy:
            raise ObjectiveError(
                f"The table {next(iter(self.lazy))!r} is lazy, and only training by fedsub.run on data in this process "
                "can do with one; use a table that is in memory: torch.nn.Embedding."
            )
        own = dict(self.objective.module.named_parameters())
        out = {}
        for name in self.names:
            if name in self.lazy:
                out[name] = torch.zeros((0, *self.lazy[name].shape[1:]), dtype=self.lazy[name].dtype)
                continue
            value = own[name].detach()
            if device is not None:
                value = value.to(device)
            shares = value.data_ptr() == own[name].data_ptr()
            out[name] = value.clone(memory_format=torch.contiguous_format) if copy and shares else value
        return out

    @property
    def weight_dtype(self) -> type:
        """The numpy type of the weights of samples: double for models in double precision, else single."""
        return np.float64 if self.double else np.float32

    @cached_property
    def double(self) -> frozenset[str]:
        """Parameters in double precision."""
        own = dict(self.objective.module.named_parameters())
        return frozenset(name for name in self.names if own[name].dtype == torch.float64)

    @cached_property
    def padding(self) -> frozenset[str]:
        """Tables whose row 0 means nothing: no codec ever writes it."""
        return frozenset(name for name, space in self.tables.items() if space.padding)


def _check_lazy(objective: Objective, tables: dict[str, Space]) -> None:
    """Tables over one space share the slots of its rows, so all of them are lazy or none."""
    for name in objective.drawn:
        mixed = [n for n, space in tables.items() if space is tables[name] and n not in objective.drawn]
        if mixed:
            raise ObjectiveError(
                f"{name!r} is lazy and {mixed[0]!r}, whose rows are numbered by the same ids, is not; make both lazy "
                "(fedsub.Lazy, or lazy= of Objective), or none."
            )


def _check_label(objective: Objective, clients: Clients) -> None:
    label = getattr(objective.loss, "label", None)
    if not isinstance(label, str):
        return
    values = clients.column(label).values
    if isinstance(objective.loss, Binary | HalfCrossEntropy) and len(values) and not np.isin(values, (0, 1)).all():
        bad = values[~np.isin(values, (0, 1))][0]
        name = "binary" if isinstance(objective.loss, Binary) else "half_cross_entropy"
        raise ObjectiveError(
            f"losses.{name} needs labels 0 and 1, but column {label!r} holds {bad:g}; use losses.squared or "
            "losses.cross_entropy, or make the label binary."
        )
    if isinstance(objective.loss, CrossEntropy) and len(values) and (values.min() < 0 or (values % 1).any()):
        raise ObjectiveError(f"losses.cross_entropy needs class numbers 0, 1, 2, … in column {label!r}.")


def _space(objective: Objective, table: str, clients: Clients, rows: int) -> Space:
    """The one space that the table's columns share, or an error that says how to get there."""
    columns = objective.columns_of(table)
    for column in columns:
        if column not in clients.columns:
            raise ObjectiveError(
                f"Table {table!r} is indexed by column {column!r}, which the data lacks; "
                f"{nearest(column, clients.columns)}"
            )
        if clients.columns[column].space is None:
            raise ObjectiveError(
                f"Table {table!r} is indexed by column {column!r}, which holds plain values; "
                f"read it as ids (ids=[{column!r}])."
            )
    spaces = {clients.space_of(c).name for c in columns}
    if len(spaces) > 1:
        raise ObjectiveError(
            f"Columns {', '.join(columns)} index the same table {table!r} but were numbered apart; "
            f"read them with one vocabulary: ids={{'{columns[0]}': {list(columns)!r}}}."
        )
    space = clients.space_of(columns[0])
    if space.size > rows:
        raise ObjectiveError(
            f"Table {table!r} has {rows:,} rows but column {columns[0]!r} has ids up to {space.size - 1:,}; "
            f"give the module {space.size:,} rows (clients.size({columns[0]!r}))."
        )
    of_rows(f"The table {table!r}", rows, space.size, f"Give the module clients.size({columns[0]!r}) rows.")
    return space
