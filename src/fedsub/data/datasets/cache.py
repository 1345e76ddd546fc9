"""Where data sets live on this computer, and how a task gets one by name.

CACHE/movielens-1m/ml-1m.zip                     what was downloaded
CACHE/movielens-1m/saved/positive=5/             what was made of it, one directory per choice of options
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsub.data.clients import Clients
from fedsub.data.datasets.catalogue import DATASETS
from fedsub.data.datasets.registry import DataSet, recognise
from fedsub.data.store import open_clients, provenance, save_clients
from fedsub.errors import DataError, nearest

SAVED = "saved"


def cache_dir() -> Path:
    """$FEDSUB_HOME, else fedsub in the user's cache folder: $XDG_CACHE_HOME, the platform's own, or ~/.cache."""
    if home := os.environ.get("FEDSUB_HOME"):
        return Path(home).expanduser()
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "fedsub"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fedsub"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "fedsub"
    return Path.home() / ".cache" / "fedsub"


def get(name: str) -> DataSet:
    """The data set of a name; an unknown one is an error with the nearest."""
    if name not in DATASETS:
        from fedsub.data.convex import BUNDLED  # which needs this package

        if name in BUNDLED:
            raise DataError(f"{name} comes with scikit-learn, so there is nothing to get: fedsub run {name} -m fedavg")
        raise DataError(f"There is no data set {name!r}; {nearest(str(name), DATASETS)}")
    return DATASETS[name]


def find(name: str, folder: Path | None = None) -> Path | None:
    """Where a data set is: ``folder/NAME``, ``folder`` itself if it is recognised, else the cache; None if nowhere."""
    get(name)
    if folder is not None:
        for place in (folder / name, folder):
            if place.exists() and recognise(place) == name:
                return place
    place = cache_dir() / name
    return place if recognise(place) == name or any(_saved(place)) else None


def load(name: str, folder: Path | None = None, **options: Any) -> Clients:
    """A data set from where `find` finds it. What comes from the cache is saved there, ready for the next time."""
    dataset = get(name)
    chosen = dataset.chosen(options)
    place = find(name, folder)
    if place is None:
        raise _missing(dataset, folder)
    if place != cache_dir() / name:
        return dataset.read(place, **options)
    saved = saved_at(dataset, chosen)
    if (made := provenance(saved)) is not None and made.get("options") == chosen:
        return open_clients(saved)
    if recognise(place) != name:
        have = ", ".join(p.name for p in _saved(place))
        raise DataError(
            f"{name} was imported with other options ({have}) and its original files are not in {place}; "
            f"import it again: fedsub data import {name} PATH {_flags(dataset, chosen)}"
        )
    save(dataset, dataset.read(place, **options), saved, chosen, place)
    return open_clients(saved)


def save(dataset: DataSet, clients: Clients, target: Path, chosen: Mapping[str, Any], origin: Path) -> None:
    """Write what was read, with the data set's name and options; it appears whole or not at all."""
    made = {"dataset": dataset.name, "options": dict(chosen), "source": origin.name}
    save_clients(clients, target, made=made)


def saved_at(dataset: DataSet, chosen: Mapping[str, Any]) -> Path:
    """The directory in the cache of one choice of options, called after those that are not the defaults."""
    own = [f"{name}={value}" for name, value in chosen.items() if value != dataset.options[name].default]
    return cache_dir() / dataset.name / SAVED / (",".join(own) or "defaults")


def by_hand(dataset: DataSet) -> str:
    """How a person gets the files."""
    names = " and ".join(file.name for file in dataset.files)
    links = " ".join(file.url for file in dataset.files if file.url)
    return (
        f"get {names} from {dataset.home}{f' ({links})' if links else ''}, then: fedsub data import {dataset.name} PATH"
    )


def _missing(dataset: DataSet, folder: Path | None) -> DataError:
    where = cache_dir() / dataset.name
    seen = f"neither in {folder} nor in {where}" if folder is not None else f"not in {where}"
    if folder is not None:
        if not folder.exists():
            return DataError(f"There is nothing at {folder}, where {dataset.title} should be; check the path.")
        if (other := recognise(folder)) is not None:
            title = DATASETS[other].title
            return DataError(f"{folder} looks like {title} ({other}), expected {dataset.title} ({dataset.name}).")
    how = f"fedsub data get {dataset.name}, or " if any(f.url for f in dataset.files) else ""
    return DataError(f"{dataset.title} is {seen}. To have it: {how}{by_hand(dataset)}")


def _flags(dataset: DataSet, chosen: Mapping[str, Any]) -> str:
    own = {n: v for n, v in chosen.items() if v != dataset.options[n].default}
    return " ".join(f"--option {n}={'none' if v is None else v}" for n, v in own.items())


def _saved(place: Path) -> list[Path]:
    folder = place / SAVED
    return sorted(p for p in folder.iterdir() if provenance(p) is not None) if folder.is_dir() else []
