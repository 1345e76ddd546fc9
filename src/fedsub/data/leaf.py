"""JSON files of the LEAF benchmark (Caldas et al., LEAF: A Benchmark for Federated Settings, 2018), as they come.

    {"users": ["ann", …], "num_samples": [2, …], "user_data": {"ann": {"x": [[0.1, …], …], "y": [1, …]}, …}}

A user is a client. What is listed under a user's "x", "y" and other names are columns: numbers, lists of numbers,
texts, lists of texts. ``x[4]`` is the column of the fifth entries, for samples that are lists of different things.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from fedsub.data.clients import Clients
from fedsub.data.ingest import from_arrays, series
from fedsub.data.plan import Plan, refuse_unknown
from fedsub.data.problems import short
from fedsub.data.store import MANIFEST
from fedsub.errors import ColumnError, DataError, nearest

if TYPE_CHECKING:
    from fedsub.data.large.save import To

CLIENT = "client"
SPLITTERS = {"characters": list, "words": str.split}
ENTRY = re.compile(r"(.+)\[(\d+)\]")


def from_leaf(
    path: str | os.PathLike[str],
    *,
    label: str | None = "y",
    values: Any = None,
    ids: Any = None,
    text: Mapping[str, str] | None = None,
    to: To | None = None,
    **options: Any,
) -> Clients:
    """`Clients` from a LEAF file, or from all ``.json`` files of a folder; a user is a client.

    text        columns of texts to cut into lists of ids: {"x": "characters"} (Shakespeare) or {"x[4]": "words"}
                (Sentiment140, the fifth entry of every x)
    values      plain columns; "x" if that is not given and no id column either
    to          write to disk file by file, in bounded memory (`fedsub.data.large`), and open what was written

    All else is as in `fedsub.data.ingest.from_frame`.
    """
    refuse_unknown((name for name in options if name not in _OPTIONS), "text")
    ids = ids or ()
    values = ["x"] if values is None and not ids else values
    plan = Plan.of(ids, label, values, **options)
    cut = dict(text or {})
    for column, how in cut.items():
        if how not in SPLITTERS:
            raise DataError(f"text[{column!r}] is {short.repr(how)}; {nearest(str(how), SPLITTERS)}")
    files = _files(path)
    if to is not None:
        return _streamed(files, plan, cut, to)
    found, owners, names = _flat(map(_content, files), {})
    plan = plan.resolved(_present(plan, found))
    arrays = _arrays(plan, found, cut)
    return from_arrays(arrays, names[owners], ids=ids, label=label, values=values, **options)


def _streamed(files: list[Path], plan: Plan, cut: Mapping[str, str], to: To) -> Clients:
    """File by file to disk."""
    from fedsub.data.large.save import save_source  # which builds on what reading in memory uses
    from fedsub.data.large.sources import staged_slices

    where: dict[str, Path] = {}

    def slices() -> Iterator[pl.DataFrame]:
        for file in files:
            found, owners, names = _flat([_content(file)], where)
            own = plan.resolved(_present(plan, found))
            arrays = _arrays(own, found, cut)
            if CLIENT in arrays:
                raise DataError(f"{file}: a column is called {CLIENT!r}, as the users are here; rename it.")
            yield pl.DataFrame([pl.Series(CLIENT, names[owners]), *(series(n, data) for n, data in arrays.items())])

    return save_source(lambda work, tell: staged_slices(slices(), work, tell, loose=True), CLIENT, plan, to)


def _present(plan: Plan, found: Mapping[str, Any]) -> list[str]:
    return [*found, *(n for n in plan.names if ENTRY.fullmatch(n))]


def _arrays(plan: Plan, found: dict[str, list[Any]], cut: Mapping[str, str]) -> dict[str, Any]:
    """The columns in use, with texts cut into pieces."""
    arrays = {}
    for name in plan.sources:
        column = _column(found, name)
        if name in cut:
            column = _pieces(column, name, cut[name])
        arrays[name] = _even(column) if name in plan.values else column
    if unused := [name for name in cut if name not in arrays]:
        raise DataError(f"text names {unused[0]!r}, which is no column in use; {nearest(unused[0], arrays)}")
    return arrays


_OPTIONS = ("binary_label", "padding", "max_len", "sizes", "nulls")


def is_leaf(path: Path) -> bool:
    """Whether a file, or the first of a folder, begins like a LEAF file."""
    try:
        file = path if path.is_file() else min(path.glob("*.json"), default=None)
        if file is None or (path / MANIFEST).exists() or file.suffix != ".json":
            return False
        with open(file, "rb") as opened:
            return b'"users"' in (head := opened.read(1 << 16)) or b'"user_data"' in head
    except OSError:
        return False


def _files(path: str | os.PathLike[str]) -> list[Path]:
    try:
        place = Path(path)
        files = sorted(place.glob("*.json")) if place.is_dir() else [place]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{short.repr(path)} is not the path of a file: {error}; check the path.") from error
    if not files:
        raise DataError(f"{place} holds no .json file; name the folder with LEAF's files, such as data/train.")
    return files


def _content(file: Path) -> tuple[Path, dict[str, Any]]:
    """The content of a file, checked as far as its names go."""
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise DataError(f"There is no file {file}; check the path.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file} cannot be read as JSON: {error}. Write it again.") from error
    users = content.get("user_data") if isinstance(content, dict) else None
    if not isinstance(users, dict) or not all(isinstance(own, dict) for own in users.values()):
        raise DataError(f'{file} is no LEAF file: expected {{"users": […], "user_data": {{user: {{"x": […], …}}}}}}.')
    listed = content.get("users")
    lacking = [u for u in listed if not isinstance(u, str) or u not in users] if isinstance(listed, list) else []
    if lacking:
        raise DataError(f'{file} names the user {lacking[0]!r} under "users", who has nothing under "user_data".')
    return file, users


def _flat(
    files: Iterable[tuple[Path, dict[str, Any]]], where: dict[str, Path]
) -> tuple[dict[str, list[Any]], np.ndarray, np.ndarray]:
    """Every column of all users one behind the other, the user of every sample, and the users' names.

    ``where`` gets the file of every user.
    """
    columns: dict[str, list[Any]] = {}
    sizes, file, before = [], None, len(where)
    for file, users in files:
        for user, own in users.items():
            if user in where:
                raise DataError(
                    f"User {user!r} is in {where[user].name} and in {file.name}; a user belongs in one file."
                )
            where[user] = file
            lists = {name: entries for name, entries in own.items() if isinstance(entries, list)}
            lengths = {name: len(entries) for name, entries in lists.items()}
            if not lengths or len(set(lengths.values())) > 1 or not max(lengths.values()):
                seen = ", ".join(f"{n} {name}" for name, n in lengths.items()) or "none"
                raise DataError(f"{file}: user {user!r} has lists of {seen}, expected as many of each, at least one.")
            if sizes and lists.keys() != columns.keys():
                odd = sorted(lists.keys() ^ columns.keys())[0]
                raise DataError(
                    f"{file}: not every user has a list {odd!r}, {user!r} and others differ; give all the same."
                )
            for name, entries in lists.items():
                columns.setdefault(name, []).extend(entries)
            sizes.append(next(iter(lengths.values())))
    if not sizes:
        raise DataError(f'{file} has no users under "user_data"; expected at least one.')
    return columns, np.repeat(np.arange(len(sizes)), sizes), np.array(list(where)[before:])


def _column(found: dict[str, list[Any]], name: str) -> list[Any]:
    entry = ENTRY.fullmatch(name)
    if name in found or entry is None or entry[1] not in found:
        if name not in found:
            raise ColumnError(f"There is no column {name!r} in the data; {nearest(name, found)}")
        return found[name]
    at = int(entry[2])
    try:
        return [sample[at] for sample in found[entry[1]]]
    except (IndexError, TypeError, KeyError):
        bad = next(s for s in found[entry[1]] if not isinstance(s, list) or len(s) <= at)
        raise ColumnError(f"Column {name!r}: {short.repr(bad)} has no entry number {at}, counted from 0.") from None


def _pieces(column: list[Any], name: str, how: str) -> list[list[str]]:
    bad = next((one for one in column if not isinstance(one, str)), None)
    if bad is not None:
        raise ColumnError(f"text[{name!r}] cuts texts, but the column holds {short.repr(bad)}; leave it out of text.")
    return [SPLITTERS[how](one) for one in column]


def _even(column: list[Any]) -> Any:
    """Lists of one shape, such as images, as a matrix with a row for every sample, which plain columns are."""
    if not any(isinstance(one, list) for one in column):
        return column
    try:
        return np.asarray(column, np.float32).reshape(len(column), -1)
    except (ValueError, TypeError):
        return column
