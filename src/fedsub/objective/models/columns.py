"""Which column of the data plays which role in a model, and how tables are named."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedsub.data.clients import Clients
from fedsub.data.notices import of_features
from fedsub.errors import ConfigError, nearest
from fedsub.objective.losses import Batch, Binary, Loss, Squared

LOSSES = {"binary": Binary, "squared": Squared}  # of models that give one number a sample


def key(space: str) -> str:
    """A space's name as a module name, no two alike: "item" is "t_item", "movie_id" is "t_movie__id".

    Module names hold no dots, and `nn.ModuleDict` has methods such as ``items`` and ``type`` of its own.
    """
    return "t_" + re.sub(r"[^A-Za-z0-9]", lambda m: "__" if m[0] == "_" else f"_{ord(m[0]):02x}_", space)


class Roles:
    """Finds the column of each role: the one that ``given`` names, else the first usual name that the data has."""

    def __init__(
        self, clients: Clients, kind: str, usual: Mapping[str, Sequence[str]], given: Mapping[str, str] | None
    ):
        self.clients, self.kind, self.usual, self.given = clients, kind, usual, dict(given or {})
        for role, column in self.given.items():
            if role not in usual:
                raise ConfigError(f"The model {kind!r} has no column for {role!r}; {nearest(role, usual)}")
            if column not in clients.columns:
                raise ConfigError(
                    f"The model {kind!r} is to read {role} from column {column!r}, which the data lacks; "
                    f"{nearest(column, clients.columns)}"
                )

    def find(self, role: str) -> str | None:
        """The role's column, or None if the data has none."""
        if role in self.given:
            return self.given[role]
        return next((name for name in self.usual[role] if name in self.clients.columns), None)

    def need(self, role: str) -> str:
        column = self.find(role)
        if column is None:
            usual = " or ".join(repr(name) for name in self.usual[role])
            raise ConfigError(
                f"The model {self.kind!r} needs a column {usual}, and the data has {', '.join(self.clients.columns)}; "
                f'name the column of yours, as in columns = {{ {role} = "…" }}, or choose another model.'
            )
        return column

    def ids(self, role: str, *, lists: bool) -> str:
        """The role's column, of ids: one a sample, or a list."""
        column = self.need(role)
        found = self.clients.column(column)
        if found.space is None:
            raise ConfigError(
                f"The model {self.kind!r} looks up {role} by column {column!r}, which holds plain values; "
                "read it as ids (tables in [data], ids= in Python)."
            )
        if lists != (found.ragged or found.values.ndim > 1):
            expected = "a list of ids" if lists else "one id"
            raise ConfigError(
                f"The model {self.kind!r} expects {expected} a sample as {role}, and column {column!r} has "
                f'{"one id" if lists else "lists"}; name another one: columns = {{ {role} = "…" }}.'
            )
        return column


def width(clients: Clients, name: str) -> int:
    """How many numbers a plain column has a sample."""
    values = clients.columns[name].values
    return 1 if values.ndim == 1 else values.shape[1]


def plain_columns(clients: Clients) -> tuple[str, ...]:
    """The plain value columns without the label and what only splits the data: features of the simple models.

    Tells of those that are too large to train on.
    """
    plain = (c for c in clients.columns.values() if c.space is None and c.feature)
    names = tuple(c.name for c in plain if c.name != clients.label)
    of_features(clients, names)
    return names


def usual_loss(clients: Clients, name: str, kind: str, given: str | None = None) -> Loss:
    """The loss of a model that gives one number a sample: by its name, or without one by the labels.

    Cross-entropy of labels 0 and 1, the squared error of other numbers.
    """
    label = clients.column(name)
    if given is not None and given not in LOSSES:
        raise ConfigError(f"The model {kind!r} has no loss {given!r}; {nearest(str(given), LOSSES)}")
    if len(label.classes) > 2:
        raise ConfigError(
            f"Label {name!r} holds {len(label.classes)} classes ({', '.join(label.classes[:8])}), and the model "
            f"{kind!r} gives one number a sample; choose one class, label {name + '==' + label.classes[0]!r}, or the "
            'model "linear" with loss "cross_entropy".'
        )
    binary = np.isin(label.values, (0, 1)).all()
    return LOSSES[given or ("binary" if binary else "squared")](name)


def side_by_side(batch: Batch, names: tuple[str, ...]) -> Tensor:
    """Plain columns as one matrix [B, width]."""
    parts = [batch[n].to(torch.float32) for n in names]
    return torch.cat([p.unsqueeze(-1) if p.ndim == 1 else p for p in parts], -1)


def space_tables(clients: Clients, prefix: str) -> dict[str, tuple[str, ...]]:
    """One table for every space, called ``prefix.key(space)``."""
    return {f"{prefix}.{key(name)}.weight": space.columns for name, space in clients.spaces.items()}


def other_ids(clients: Clients, used: Mapping[str, str | Sequence[str]]) -> tuple[str, ...]:
    """The id columns that the tables of ``used`` leave out, on purpose."""
    taken = {c for columns in used.values() for c in ([columns] if isinstance(columns, str) else columns)}
    return tuple(c.name for c in clients.columns.values() if c.space is not None and c.name not in taken)
