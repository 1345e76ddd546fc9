"""`DataSet`: a public data set, where it comes from, on what terms, and how it is read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from fedsub.data.clients import Clients
from fedsub.data.datasets.options import Option, checked, options_of
from fedsub.data.datasets.source import Member, Source
from fedsub.data.store import open_clients, provenance
from fedsub.errors import DataError


@dataclass(frozen=True)
class File:
    """A file of a release. Size and digest are None where they are not known for certain."""

    name: str
    url: str | None = None  # None: the site wants a login, so the file is placed by hand
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None


@dataclass(frozen=True)
class Look:
    """How a file of the data set is told from others: its first line, or the columns of a Parquet file."""

    kinds: tuple[str, ...]  # file name endings
    first: str = ""
    columns: tuple[str, ...] = ()

    def fits(self, member: Member) -> bool:
        if Path(member.name).suffix.lower() not in self.kinds:
            return False
        if self.columns:
            return not member.packed and set(self.columns) <= _parquet_columns(member.path)
        try:
            return re.match(self.first, member.first_line().decode("latin-1").lstrip("\xef\xbb\xbf")) is not None
        except DataError:
            return False


@dataclass(frozen=True)
class DataSet:
    """One data set. ``read(path, **options)`` gives `Clients`, from the original files or from saved ones."""

    name: str
    title: str
    summary: str
    home: str
    licence: str
    licence_short: str
    citation: str
    files: tuple[File, ...]
    reader: Callable[..., Clients] = field(repr=False)
    looks: tuple[Look, ...] = field(repr=False)
    split: Mapping[str, Any]  # arguments of `Clients.split` that cut off the usual test part
    shape: tuple[int, int] | None = None  # (clients, samples) with the default options, where known

    @cached_property
    def options(self) -> dict[str, Option]:
        """What can be chosen, from the reader's signature."""
        return options_of(self.reader)

    def chosen(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All options, with what was given; unknown names and values are errors."""
        return checked(self.options, given, self.name)

    def read(self, path: str | os.PathLike[str], **options: Any) -> Clients:
        """The data at ``path``: the release as downloaded or unpacked, its Parquet layout, or a saved directory."""
        from fedsub.data.datasets.catalogue import DATASETS

        where, chosen = Path(path), self.chosen(options)
        if (made := provenance(where)) is not None:
            return self._saved(where, made, chosen, options)
        if (name := recognise(where)) not in (None, self.name):
            other = DATASETS[name]  # type: ignore[index]
            raise DataError(
                f"{where} looks like {other.title} ({other.name}), expected {self.title} ({self.name}); "
                f"give the right files, or read it as {other.name}."
            )
        return self.reader(where, **chosen)

    def _saved(self, where: Path, made: Mapping[str, Any], chosen: dict[str, Any], given: Mapping[str, Any]) -> Clients:
        if made.get("dataset") != self.name:
            seen = made.get("dataset") or "data of an unknown origin"
            raise DataError(f"{where} is a saved copy of {seen}, expected {self.name}; give another path.")
        for name, value in made.get("options", {}).items():
            if name in given and value != chosen.get(name):
                raise DataError(
                    f"{where} was made with {name}={value}, asked for {name}={chosen.get(name)}; "
                    f"import the original files again with --option {name}={chosen.get(name)}."
                )
        return open_clients(where)


def recognise(path: str | os.PathLike[str]) -> str | None:
    """Which data set a folder or a file is, by what is inside; None if no data set, or more than one, fits."""
    from fedsub.data.datasets.catalogue import DATASETS

    where = Path(path)
    if (made := provenance(where)) is not None:
        name = made.get("dataset")
        return name if name in DATASETS else None
    try:
        with Source(where) as source:
            members = source.members[:50]
            found = [name for name, d in DATASETS.items() if any(x.fits(m) for x in d.looks for m in members)]
    except DataError:
        return None
    return found[0] if len(found) == 1 else None


def _parquet_columns(path: Path) -> set[str]:
    try:
        return set(pl.read_parquet_schema(path))
    except (pl.exceptions.PolarsError, OSError):
        return set()
