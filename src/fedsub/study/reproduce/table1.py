"""Table 1: clients, samples, samples per client and the dispersion of feature heat, beside the paper's."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsub.data import Clients
from fedsub.data.heat import row_heat
from fedsub.errors import ConfigError
from fedsub.study.reproduce.studies import Study, difference
from fedsub.study.reproduce.tables import Table

HEAD = ["task", "data", "", "clients", "samples", "samples per client", "feature heat dispersion"]


def dispersion(clients: Clients, features: tuple[str, ...] | None = None) -> float:
    """Largest heat / smallest heat over the features of all columns, or of ``features`` alone.

    The heat of a feature is the number of clients with a sample that names it.
    """
    for name in features or ():
        if name not in clients.columns:
            raise ConfigError(f"The data has no column {name!r} to count heat by; it has {', '.join(clients.columns)}.")
    low, high = np.inf, 0
    for space in clients.spaces.values():
        wanted = [c for c in space.columns if features is None or c in features]
        if not wanted:
            continue
        whole = len(wanted) == len(space.columns)
        heat = row_heat(space, clients.sizes) if whole else _heat(clients, space.size, wanted)
        heat = heat[int(space.padding) :]
        if heat.any():
            low, high = min(low, int(heat[heat > 0].min())), max(high, int(heat.max()))
    return high / low if high else float("nan")


def _heat(clients: Clients, size: int, columns: list[str]) -> np.ndarray:
    """How many clients name each row in these columns, which are some of its table's."""
    owners = np.repeat(np.arange(len(clients)), clients.sizes)
    rows = clients.gather(np.arange(clients.samples), columns, local=False, owners=owners)
    pairs = [
        np.repeat(owners, ids[:1].size) * np.int64(size) + ids.reshape(-1) for ids in rows.values() if ids.size
    ]  # fmt: skip
    return np.bincount(np.unique(np.concatenate(pairs)) % size, minlength=size)


def rows(study: Study, task: str, clients: Clients) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """The paper's row and ours, as shown and as records."""
    paper = study.published
    each = clients.samples / len(clients)
    spread = dispersion(clients, study.features)
    shown = [
        [study.name, paper.title, "published", f"{paper.clients:,}", f"{paper.samples:,}", f"{paper.per_client}",
         f"{paper.dispersion:,}"],
        ["", task, "here", f"{len(clients):,}", f"{clients.samples:,}", f"{each:.1f}", f"{spread:,.6g}"],
    ]  # fmt: skip
    common: dict[str, Any] = {"task": study.name, "data": task, "clients": len(clients), "samples": clients.samples}
    exact = common | {"samples_per_client": each, "dispersion": spread, "published_clients": paper.clients}
    exact |= {"published_samples": paper.samples, "published_samples_per_client": paper.per_client}
    return shown, [exact | {"published_dispersion": paper.dispersion}]


def table(found: list[tuple[Study, str, Clients]]) -> Table:
    made = Table("Table 1: the data", HEAD, [])
    for study, task, clients in found:
        shown, exact = rows(study, task, clients)
        made.rows += shown
        made.exact += exact
        made.notes.append(f"{task}: {difference(study, task)}.")
    return made
