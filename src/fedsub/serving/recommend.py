"""`recommend`: the items that a trained model ranks first for a client."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl
from torch import nn

from fedsub.checks import check_flag, check_whole
from fedsub.data.align import align
from fedsub.data.clients import Clients
from fedsub.errors import ConfigError, DataError, nearest, notice
from fedsub.objective.objective import Objective
from fedsub.round.filling import Filling
from fedsub.round.score import one_score
from fedsub.serving.asked import Asked, Run, asked, batches, loss_of, place_of
from fedsub.serving.samples import read

ITEMS = ("item", "movie", "product")  # names that a column of items usually has


def recommend(
    run: Run,
    client: Any,
    *,
    top: int = 10,
    item: str | None = None,
    data: Any = None,
    exclude_seen: bool = True,
    module: nn.Module | Objective | None = None,
    client_column: str | None = None,
) -> pl.DataFrame:
    """The ``top`` items for a client, or for each of several: columns client, rank, the item, score.

    run              what `fedsub.run` returned, a run's directory, or what `fedsub.load` made of it
    client           its id in the data, or a list of such
    item             the id column whose values are ranked; by default the only one, or the one called item
    data             samples of the clients: Clients, a file or a frame. From them come what a client has seen, and all
                     that the model reads besides the item: the client's last sample with another item in it, and the
                     columns that go with the item (`fedsub.round.filling`). A run that is still in memory has its own
    exclude_seen     items of the client's samples are not recommended
    module           as for `predict`
    client_column    the column of clients in the data, where it is not that of the training data

    Without data only a model that reads nothing but the item can be asked, and nothing is known to be seen.
    """
    check_whole("top", top, 1, error=ConfigError)
    check_flag("exclude_seen", exclude_seen, error=ConfigError)
    found = asked(run, module)
    item = _item(found, item)
    several = isinstance(client, Iterable) and not isinstance(client, str)
    wanted = list(client) if several else [client]  # type: ignore[arg-type]
    if not wanted:
        raise ConfigError("No client is named; give one id, or a list of ids.")
    known = _samples(found, data, item, client_column)
    found, filling = _filling(found, item, known)
    parts = []
    for one in wanted:
        one = _as_in_data(found, known, one)
        scores, items = _scores(found, filling, known, one)
        seen = _seen(known, item, one) if exclude_seen else np.zeros(0, np.int64)
        parts.append(_first(found, item, one, scores, items, seen, top))
    return pl.concat(parts)


def _item(found: Asked, given: str | None) -> str:
    """The column of items; a model's tables say which columns are ids."""
    ids = [n for n in found.columns if found.like.columns[n].space is not None and not found.like.columns[n].ragged]
    if given is not None:
        if given not in found.like.columns or found.like.columns[given].space is None:
            raise ConfigError(f"item names the id column {given!r}, which the model lacks; {nearest(given, ids)}")
        if given not in found.columns:
            raise ConfigError(f"The model does not read {given!r}, so it cannot rank by it; {nearest(given, ids)}")
        return given
    likely = ids if len(ids) == 1 else [n for n in ITEMS if n in ids]
    if not likely:
        raise ConfigError(f"Which column holds the items? Name it: item=… (--item); valid: {', '.join(ids) or 'none'}.")
    return likely[0]


def _samples(found: Asked, data: Any, item: str, column: str | None) -> Clients | None:
    """What is known of the clients, numbered as the model is."""
    if data is None:
        return found.data
    if isinstance(data, Clients):
        made, lost = align(data, found.like)
    else:
        column = column or found.like.reading.get("client")
        if column is None:
            raise ConfigError("Which column of the data says whose a sample is? Name it: client_column=… (--column).")
        samples = read(found, data, client=column, unknown="empty", more=(item,))
        if samples.clients is None:
            raise DataError("No sample of the data has only ids that the model knows; is it data of the same kind?")
        made, lost = samples.clients, len(samples.frame) - len(samples.rows)
    if lost:
        notice(f"Left out {lost:,} samples with something missing, or with ids that training never saw.")
    return made


def _filling(found: Asked, item: str, known: Clients | None) -> tuple[Asked, Filling]:
    """How a sample with another item is made."""
    if known is not None:
        return found, Filling.find(item, found.columns, [known])
    if others := [name for name in found.columns if name != item]:
        raise ConfigError(
            f"The model reads {', '.join(map(repr, others))} besides {item!r}; give samples of the client, from which "
            "they are taken: data=… (--data)."
        )
    space = found.like.space_of(item)
    every = np.ones(space.size, bool)
    every[: 1 if space.padding else 0] = False
    return found, Filling(item, every, ())


def _as_in_data(found: Asked, known: Clients | None, one: Any) -> Any:
    """A client's id, which on a command line is text, as the data have it."""
    for ids in (known.client_ids if known is not None else None, found.like.client_ids if found.personal else None):
        place = place_of(ids, one) if ids is not None else None
        if ids is not None and place is not None:
            return ids[place].item()
    return one


def _scores(found: Asked, filling: Filling, known: Clients | None, one: Any) -> tuple[np.ndarray, np.ndarray]:
    """(scores, rows) of all items that can be put into a sample of a client."""
    items = np.flatnonzero(filling.known)
    arrays = {filling.item: items[None]}
    place = None if known is None else place_of(known.client_ids, one)
    if known is not None and place is not None and known.sizes[place]:
        last = known.offsets[place + 1] - 1
        arrays = filling.arrays(known, np.array([last]), items[None])
    elif known is not None and filling.context(None):
        some = ", ".join(repr(c) for c in known.client_ids[:3].tolist())
        raise DataError(
            f"There is no sample of the client {one!r} in the data (its clients are {some} …), and the model reads "
            f"{', '.join(filling.context(None))} besides the item; give one."
        )
    elif filling.follows:
        arrays |= {name: values[items][None] for name, values in filling.follows.items()}
    arrays = {name: arrays[name] for name in found.columns}
    own = place_of(found.like.client_ids, one) if found.personal is not None else None
    if found.personal is None or own is None:  # what somebody new has is the shared model
        if found.personal is not None:
            notice(f"Client {one!r} was not in training; it is given what the shared model says.")
        flat = {name: values[0] for name, values in arrays.items()}
        return np.concatenate([one_score(part, loss_of(found)) for part in batches(found, flat)]), items
    real, ids = np.ones((1, len(items)), bool), found.like.client_ids[own : own + 1]
    said = found.scorer().personal(found.personal).ask(found.personal, ids, dict(arrays), real)[1]
    return one_score(said.reshape(len(items), *said.shape[2:]), loss_of(found)), items


def _seen(known: Clients | None, item: str, one: Any) -> np.ndarray:
    place = None if known is None else place_of(known.client_ids, one)
    if known is None or place is None:
        return np.zeros(0, np.int64)
    samples = np.arange(known.offsets[place], known.offsets[place + 1])
    return np.unique(known.gather(samples, (item,), local=False)[item])


def _first(
    found: Asked, item: str, one: Any, scores: np.ndarray, items: np.ndarray, seen: np.ndarray, top: int
) -> pl.DataFrame:
    left = ~np.isin(items, seen)
    scores, items = scores[left], items[left]
    if not len(items):
        raise DataError(f"Client {one!r} has seen every item; recommend with exclude_seen=False (--include-seen).")
    order = np.argsort(-scores, kind="stable")[:top]
    names = found.like.space_of(item).vocabulary
    shown = items[order] if names is None else names[items[order]]
    columns: dict[str, Any] = {
        "client": [one] * len(order),
        "rank": np.arange(1, len(order) + 1),
        item if item not in ("client", "rank", "score") else f"{item}_id": shown.tolist(),
        "score": scores[order],
    }
    if found.kind in ("Binary", "HalfCrossEntropy"):
        columns["probability"] = 1 / (1 + np.exp(-scores[order]))
    return pl.DataFrame(columns)
