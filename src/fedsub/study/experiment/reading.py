"""Data of the user's own, as a configuration names them: a file of text or Parquet, LEAF's JSON, a saved directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsub.errors import ConfigError, DataError
from fedsub.study.experiment import tasks
from fedsub.study.experiment.config import Data

if TYPE_CHECKING:
    from fedsub.data import Clients


def read(path: Path | None, data: Data, split_column: str | None, *, labelled: bool = True) -> Clients:
    """What ``data`` says of ``path``, with the column to split by; ``labelled=False`` reads ids only."""
    from fedsub.data import Clients
    from fedsub.data.leaf import is_leaf
    from fedsub.data.tables import has_tables

    if path is None:
        raise ConfigError('The configuration names no data: give task = "…" or [data] with a path.')
    also = [split_column] if split_column is not None and split_column not in _named(data) else []
    if is_leaf(path):
        return _leaf(path, data, also, labelled)
    if data.text:
        raise ConfigError(f"data.text is for LEAF files (.json), and {path} is none; leave it out.")
    if path.is_dir():
        if (path / "compare.json").exists():
            raise ConfigError(f"{path} holds results, not data; to go on with them: fedsub resume {path}")
        if any((path / f"ratings.{kind}").exists() for kind in ("dat", "parquet")):
            raise ConfigError(f"{path} looks like MovieLens; use: fedsub compare movielens-1m --data {path}")
        if not has_tables(path):
            return Clients.open(path)
    elif tasks.is_libsvm(path):
        raise ConfigError(f'{path} looks like a LibSVM file; add task = "{tasks.LIBSVM}" to the configuration.')
    _require_columns(path, data, labelled)
    return Clients.from_file(
        path,
        data.client or "",
        ids=data.tables or [],
        label=data.label if labelled else None,
        values=[*(data.values or []), *also] if labelled else [],
        binary_label=data.binary_label,
        padding=data.padding,
        max_len=data.max_len,
        sizes=data.sizes,
        nulls=data.nulls,
        separator=data.separator,
        encoding=data.encoding,
    )


def _leaf(path: Path, data: Data, also: list[str], labelled: bool) -> Clients:
    from fedsub.data import Clients

    if data.client is not None:
        raise ConfigError(f"{path} says itself whose a sample is; leave --client (data.client) out.")
    return Clients.from_leaf(
        path,
        ids=data.tables,
        label=(data.label or "y") if labelled else None,
        values=[*(data.values or ([] if data.tables else ["x"])), *also] if labelled else [],
        binary_label=data.binary_label,
        padding=data.padding,
        max_len=data.max_len,
        sizes=data.sizes,
        nulls=data.nulls,
        text=data.text,
    )


def _named(data: Any) -> set[str]:
    tables = data.tables or []
    columns = (
        [t for v in tables.values() for t in ([v] if isinstance(v, str) else v)] if isinstance(tables, dict) else tables
    )
    return {*columns, *(data.values or []), data.label}


def _require_columns(path: Path, data: Any, labelled: bool) -> None:
    """Say which roles are still to be given, and what the file has to offer."""
    if not path.exists():
        raise ConfigError(f"There is no file {path}; check the path.")
    missing = [
        text
        for text, value in (
            ("--client (data.client), who owns a row", data.client),
            ("--label (data.label), what to predict", data.label if labelled else ""),
            ("--table (data.tables), the id columns", data.tables),
        )
        if value is None or value == [] or value == {}
    ]
    if missing:
        raise ConfigError(
            f"Tell which column of {path} is what. Still to name: {'; '.join(missing)}.{_columns(path, data)}"
        )


def _columns(path: Path, data: Any) -> str:
    from fedsub.data.tables import Tables, Unreadable

    try:
        return f" Its columns: {', '.join(Tables.of(path, data.separator, data.encoding).names)}."
    except (DataError, Unreadable):
        return ""
