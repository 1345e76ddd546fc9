"""Table 1: clients, samples, samples per client, dispersion and sparsity of feature heat, beside the paper's."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsub.data import Clients
from fedsub.data.heat import row_heat
from fedsub.errors import ConfigError
from fedsub.study.report import words as w
from fedsub.study.reproduce.studies import Study, difference
from fedsub.study.reproduce.tables import Table

SPARSITY = (
    "Sparsity is the mean of n_m / N over the features that somebody has. The published ones are of the manuscript, "
    "which does not say which features it counts."
)
HEAD = ["task", "data", "", "clients", "samples", "samples per client", "feature heat dispersion", "sparsity"]


def feature_heat(clients: Clients, features: tuple[str, ...] | None = None) -> np.ndarray:
    """The heat of every feature that somebody has: of all columns, or of ``features`` alone; float64.

    The heat of a feature is the number of clients with a sample that names it.
    """
    for name in features or ():
        if name not in clients.columns:
            raise ConfigError(f"The data has no column {name!r} to count heat by; it has {', '.join(clients.columns)}.")
    found = []
    for space in clients.spaces.values():
        wanted = [c for c in space.columns if features is None or c in features]
        if not wanted:
            continue
        whole = len(wanted) == len(space.columns)
        heat = row_heat(space, clients.sizes) if whole else _heat(clients, space.size, wanted)
        found.append(heat[int(space.padding) :].astype(np.float64))
    heat = np.concatenate(found or [np.zeros(0)])
    return heat[heat > 0]


def dispersion(clients: Clients, features: tuple[str, ...] | None = None) -> float:
    """Largest heat / smallest heat over the features."""
    heat = feature_heat(clients, features)
    return float(heat.max() / heat.min()) if len(heat) else float("nan")


def sparsity(clients: Clients, features: tuple[str, ...] | None = None) -> float:
    """The mean of n_m / N over the features: which share of the clients a feature is of."""
    heat = feature_heat(clients, features)
    return float(heat.mean() / np.count_nonzero(clients.sizes)) if len(heat) else float("nan")


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
    spread, sparse = dispersion(clients, study.features), sparsity(clients, study.features)
    shown = [
        [study.name, paper.title, "published", f"{paper.clients:,}", f"{paper.samples:,}", f"{paper.per_client}",
         f"{paper.dispersion:,}", w.DASH if paper.sparsity is None else _percent(paper.sparsity)],
        ["", task, "here", f"{len(clients):,}", f"{clients.samples:,}", f"{each:.1f}", f"{spread:,.6g}",
         _percent(sparse)],
    ]  # fmt: skip
    common: dict[str, Any] = {"task": study.name, "data": task, "clients": len(clients), "samples": clients.samples}
    exact = common | {"samples_per_client": each, "dispersion": spread, "published_clients": paper.clients}
    exact |= {"published_samples": paper.samples, "published_samples_per_client": paper.per_client}
    exact |= {"published_dispersion": paper.dispersion, "sparsity": sparse}
    return shown, [exact | {"published_sparsity": paper.sparsity}]


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def table(found: list[tuple[Study, str, Clients]]) -> Table:
    made = Table("Table 1: the data", HEAD, [])
    for study, task, clients in found:
        shown, exact = rows(study, task, clients)
        made.rows += shown
        made.exact += exact
        made.notes.append(f"{task}: {difference(study, task)}.")
    made.notes.append(SPARSITY)
    return made
