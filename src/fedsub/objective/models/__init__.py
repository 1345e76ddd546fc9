"""Models that are made from the data alone, for when you bring no module of your own: one file each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from fedsub.data.clients import Clients
from fedsub.errors import ConfigError, ObjectiveError, nearest
from fedsub.objective.models.columns import key, usual_loss
from fedsub.objective.models.din import DIN, din
from fedsub.objective.models.embedding import EmbeddingModel, embedding
from fedsub.objective.models.factorisation import Factorisation, factorisation
from fedsub.objective.models.linear import LinearModel, linear
from fedsub.objective.models.lr import LogisticRegression, lr
from fedsub.objective.models.lstm import LSTMClassifier, lstm
from fedsub.objective.models.sized import shape
from fedsub.objective.models.user_item import UserItem, user_item
from fedsub.objective.objective import L2, Objective
from fedsub.objective.recipe import built_in

__all__ = [
    "DIN",
    "KINDS",
    "EmbeddingModel",
    "Factorisation",
    "LSTMClassifier",
    "LinearModel",
    "LogisticRegression",
    "UserItem",
    "key",
    "make_objective",
    "objective_of_sizes",
    "options_of",
    "usual_loss",
]

KINDS: Mapping[str, Callable[..., Objective]] = {
    "lr": lr,
    "embedding": embedding,
    "lstm": lstm,
    "user-item": user_item,
    "din": din,
    "linear": linear,
    "factorisation": factorisation,
}


def options_of(kind: str) -> tuple[str, ...]:
    """The options that `make_objective` takes for a kind."""
    parameters = inspect.signature(KINDS[kind]).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


def make_objective(clients: Clients, kind: str = "lr", *, seed: int = 0, l2: L2 = 0.0, **options) -> Objective:
    """A ready objective; ``l2`` is the objective's (`Objective`).

    ``kind``      options (defaults)
    lr            bias (False), own_bias (False), taste (0), loss, columns
    embedding     dim (16), hidden (32), own_bias (False), taste (0), loss, columns
    lstm          dim (25), hidden (100), layers (2), word_std (1), columns
    user-item     bias (True), own_bias (False), taste (0), loss, columns
    din           dim (18), faithful (False), activation ("dice"), max_history (None), columns
    linear        bias (False), loss (None: "binary"; "squared", "cross_entropy")
    factorisation rank (8), offset ("user"; "mean", "none"), columns; for numbers, not classes

    Without a ``loss``, lr, embedding and user-item take "binary" for labels 0 and 1 and "squared" for other numbers.
    ``columns`` says which column plays a role, such as ``{"item": "asin"}``, where it is not called so.
    ``own_bias`` and ``taste`` (a vector of that length) are every client's own: give the method ``personal="own.*"``.
    """
    if clients.label is None:
        raise ConfigError("The data has no label column; name one when reading it (label=…, --label).")
    if kind not in KINDS:
        raise ConfigError(f"There is no built-in model {kind!r}; {nearest(str(kind), KINDS)} Or bring your own module.")
    known = options_of(kind)
    for name in options:
        if name not in known:
            raise ConfigError(f"{name!r} is no option of the model {kind!r}; {nearest(name, known)}")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            made = KINDS[kind](clients, clients.label, **options)
        except (RuntimeError, MemoryError) as error:  # torch has no class of its own for memory
            rows = ", ".join(f"{space.name} {space.size:,}" for space in clients.spaces.values())
            raise ObjectiveError(
                f"The model {kind!r} cannot be made: {str(error).splitlines()[0]} Its tables have as many rows as "
                f"there are ids ({rows}); give fewer in sizes=…, leave sizes out to have the ids numbered, or lower "
                "the model's sizes."
            ) from error
    return replace(made, l2=l2, recipe=built_in(clients, kind, options, seed, made.module))


def objective_of_sizes(
    sizes: Mapping[str, int], kind: str = "lr", *, columns: Mapping[str, str] | None = None,
    lists: Mapping[str, int] | None = None, label: str = "label", seed: int = 0, l2: L2 = 0.0, **options
) -> Objective:  # fmt: skip
    """`make_objective` for tables of given ``sizes`` by space, where only those are known: on a node, at its server.

    ``columns`` says which space a column has; without it every space is the one of the column called so. ``lists`` are
    the columns with several ids a sample, and how many at most. Labels are 0 and 1; for others give a ``loss``.
    """
    named = {space: space for space in sizes} if columns is None else dict(columns)
    if strange := sorted(set(named.values()) ^ set(sizes)) or sorted(set(lists or {}) - set(named)):
        raise ConfigError(
            f"sizes, columns and lists do not fit together at {', '.join(strange)}: every space of sizes has at least "
            "one column, every column a space of sizes, and lists are columns."
        )
    return make_objective(shape(sizes, named, lists or {}, label), kind, seed=seed, l2=l2, **options)
