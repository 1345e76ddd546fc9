"""Torch data sets, one per client, as they come: what a sample holds are columns.

    from_torch({"ann": TensorDataset(x, y), "bob": …}, ids=["x"])

A sample is a dict of tensors, by name, or a tuple of tensors, whose ``names`` are given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedsub.data.clients import Clients
from fedsub.data.ingest import from_arrays
from fedsub.data.plan import Plan, refuse_unknown
from fedsub.data.problems import short
from fedsub.errors import DataError, nearest

OPTIONS = ("ids", "binary_label", "padding", "max_len", "sizes", "nulls")


def from_torch(
    datasets: Any, *, names: Sequence[str] = ("x", "y"), label: str | None = "y", values: Any = None, **options: Any
) -> Clients:
    """`Clients` from ``{client: Dataset}``, or a list of data sets whose clients are numbered from 0.

    names       what the parts of a sample are called, in their order, where it is a tuple
    values      plain columns; "x" if that is not given and no id column either

    All else is as in `fedsub.data.ingest.from_frame`. Every sample is read once: what a data set draws anew at every
    reading (augmentation) is drawn once.
    """
    refuse_unknown((name for name in options if name not in OPTIONS), "names")
    owned = _owned(datasets)
    ids = options.pop("ids", None) or ()
    values = ["x"] if values is None and not ids else values
    plan = Plan.of(ids, label, values, **options)
    parts = {client: _samples(client, data, tuple(names)) for client, data in owned.items()}
    present = next(iter(parts.values())).keys()
    plan = plan.resolved(present)
    for client, part in parts.items():
        for name in plan.sources:
            if name not in part:
                hint = nearest(name, part)
                raise DataError(
                    f"The samples of client {client!r} have no {name!r}; {hint} names=(…) calls parts of tuples."
                )
    arrays = {name: _joined(name, [part[name] for part in parts.values()]) for name in plan.sources}
    counts = [len(next(iter(part.values()))) for part in parts.values()]
    owners = np.repeat(np.arange(len(counts)), counts)
    return from_arrays(arrays, np.array(list(parts))[owners], ids=ids, label=label, values=values, **options)


def _owned(datasets: Any) -> dict[Any, Any]:
    if isinstance(datasets, Mapping):
        found = dict(datasets)
    elif isinstance(datasets, list | tuple):
        found = dict(enumerate(datasets))
    else:
        raise DataError(
            f"Got a {type(datasets).__name__}, expected a data set for each client: {{client: Dataset}} or a list. "
            "To cut one by its owners: {client: torch.utils.data.Subset(dataset, positions)}."
        )
    if not found:
        raise DataError("There is no client: the data sets are empty. Give at least one, {client: Dataset}.")
    kinds = {type(client) for client in found}
    if len(kinds) > 1 or not kinds <= {int, str}:
        raise DataError(
            f"Clients are called {short.repr(list(found))}; name them all by text, or all by whole numbers."
        )
    return found


def _samples(client: Any, dataset: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The columns of one client: arrays, or lists where samples differ in length."""
    whole = _tensors(dataset)
    if whole is not None:
        return dict(zip(_named(names, len(whole), client), (_array(t) for t in whole), strict=True))
    try:
        samples = [dataset[i] for i in range(len(dataset))] if hasattr(dataset, "__len__") else list(dataset)
    except Exception as error:  # code of the user's own
        raise DataError(f"The data set of client {client!r} fails: {type(error).__name__}: {error}.") from error
    if not samples:
        raise DataError(f"The data set of client {client!r} is empty; leave the client out.")
    rows = [s if isinstance(s, Mapping) else s if isinstance(s, list | tuple) else (s,) for s in samples]
    first = rows[0]
    keys: list[Any] = list(first) if isinstance(first, Mapping) else list(range(len(first)))
    called = keys if isinstance(first, Mapping) else _named(names, len(keys), client)
    try:
        return {name: [_array(row[key]) for row in rows] for name, key in zip(called, keys, strict=True)}
    except (KeyError, IndexError, TypeError) as error:
        raise DataError(
            f"The samples of client {client!r} differ in what they hold ({error!r}); make them alike."
        ) from error


def _named(names: tuple[str, ...], parts: int, client: Any) -> tuple[str, ...]:
    if len(names) != parts:
        raise DataError(
            f"A sample of client {client!r} has {parts} part{'s' * (parts > 1)}, and names are {', '.join(names)}; "
            "name them all, in their order: names=(…)."
        )
    return names


def _tensors(dataset: Any) -> list[Any] | None:
    """All samples of a TensorDataset, or of a Subset of one, without reading them one by one."""
    from torch.utils.data import Subset, TensorDataset

    if type(dataset) is TensorDataset:
        return list(dataset.tensors) if len(dataset) else None
    if type(dataset) is Subset and len(dataset) and (inner := _tensors(dataset.dataset)) is not None:
        return [tensor[list(dataset.indices)] for tensor in inner]
    return None


def _array(value: Any) -> Any:
    """A tensor as numpy; bfloat16, which numpy lacks, as float32. Other things as they are."""
    if not hasattr(value, "detach"):
        return value
    value = value.detach().cpu()
    return (value.float() if value.is_floating_point() and value.itemsize < 4 else value).numpy()


def _joined(name: str, parts: list[Any]) -> Any:
    """One column of all clients: an array where every sample has the same shape, else lists."""
    if all(isinstance(part, np.ndarray) for part in parts):
        if len({part.shape[1:] for part in parts}) == 1:
            return _flattened(name, np.concatenate(parts))
        parts = [list(part) for part in parts]
    entries = [entry for part in parts for entry in part]
    shapes = {np.shape(entry) for entry in entries if not isinstance(entry, str)}
    if any(len(shape) > 1 for shape in shapes) and len(shapes) > 1:
        raise DataError(
            f"Samples of {name!r} have the shapes {sorted(shapes)[:4]}; give them all one, or flatten them."
        )
    if len(shapes) == 1 and not any(isinstance(entry, str) for entry in entries):
        return _flattened(name, np.asarray(entries))
    return [entry.tolist() if isinstance(entry, np.ndarray) else _listed(entry) for entry in entries]


def _listed(entry: Any) -> Any:
    return list(entry) if isinstance(entry, Iterable) and not isinstance(entry, str) else entry


def _flattened(name: str, values: np.ndarray) -> np.ndarray:
    """Images and such as one row of numbers a sample."""
    return values.reshape(len(values), -1) if values.ndim > 2 else values
