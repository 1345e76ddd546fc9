"""Data with items and histories of people, divided: the candidate at one party, the history at another."""

from __future__ import annotations

import numpy as np

from fedsub.checks import check_whole
from fedsub.data.clients import Clients
from fedsub.data.ingest import from_arrays
from fedsub.errors import DataError
from fedsub.vertical.data.sides import Sides

AT_ONCE = 1 << 14


def history_sides(clients: Clients, *, item: str = "item", history: str = "history", recent: int = 20) -> Sides:
    """Item and label at "candidate", the last ``recent`` of the history at "sequence"; ids are running numbers."""
    check_whole("recent", recent, 1, error=DataError)
    if clients.label is None:
        raise DataError("Histories go with a label, and this data has none; read it with label=.")
    column, size = clients.column(history), clients.size(history)
    if column.space is None or not clients.space_of(history).padding or size != clients.size(item):
        raise DataError(f"{history!r} must be lists of the ids that {item!r} has, with row 0 for nothing.")
    lists = np.zeros((clients.samples, recent), np.int32)
    for begin in range(0, clients.samples, AT_ONCE):
        some = np.arange(begin, min(begin + AT_ONCE, clients.samples))
        found = clients.gather(some, [history], local=False)[history]
        length = ((found != 0) * np.arange(1, found.shape[1] + 1)).max(1, initial=0)
        place = np.maximum(length - recent, 0)[:, None] + np.arange(recent)
        kept = np.take_along_axis(found, np.minimum(place, found.shape[1] - 1), 1) if found.shape[1] else lists[some]
        lists[some] = np.where(place < length[:, None], kept, 0)
    samples = np.arange(clients.samples)
    own = {
        "item": clients.gather(samples, [item], local=False)[item],
        "label": np.asarray(clients.column(clients.label).values),
    }
    sizes, padding = {"item": size}, ["item"]
    candidate = from_arrays(own, samples, ids=["item"], label="label", sizes=sizes, padding=padding)
    sequence = from_arrays({"history": lists}, samples, ids={"item": ["history"]}, sizes=sizes, padding=padding)
    return Sides({"candidate": candidate, "sequence": sequence}, "candidate")
