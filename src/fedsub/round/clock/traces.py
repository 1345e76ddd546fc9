"""When devices can be reached, and tables of devices that somebody measured."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedsub import rng
from fedsub.checks import check_column, check_positive, check_share, check_whole
from fedsub.errors import ConfigError, nearest

RATES = "download", "upload", "latency", "speed"
_ONLINE, _WHICH = 0x0D11E, 0x0D11F  # keep these draws apart from others of purpose OTHER


class Online(Protocol):
    """When clients can be reached."""

    def there(self, clients: np.ndarray, clock: float, seed: int) -> np.ndarray:
        """Which of some clients can be, at a moment; bool."""
        ...


@dataclass(frozen=True)
class Windows:
    """A client can be reached in one window of ``share`` of every ``period`` seconds, whose place is its own.

    That is when (clock / period + φ_i) mod 1 < share, with φ_i uniform on [0, 1) by the devices' seed.
    """

    period: float = 86_400.0
    share: float = 0.3

    def __post_init__(self) -> None:
        check_positive("period of Windows", self.period, error=ConfigError)
        check_share("share of Windows", self.share, error=ConfigError)

    def there(self, clients: np.ndarray, clock: float, seed: int) -> np.ndarray:
        phase = rng.uniform(rng.key(seed, rng.OTHER, _ONLINE, clients))
        return (clock / self.period + phase) % 1.0 < self.share


@dataclass(frozen=True)
class Which:
    """Which device of a table of ``count`` a client has: that of its number (``own``), or one drawn for it."""

    count: int
    own: bool

    def __post_init__(self) -> None:
        check_whole("the number of devices", self.count, 1, error=ConfigError)

    def of(self, clients: np.ndarray, seed: int) -> np.ndarray:
        if not self.own:
            return rng.below(rng.key(seed, rng.OTHER, _WHICH, clients), self.count)
        if len(clients) and clients.max() >= self.count:
            raise ConfigError(
                f"The trace has {self.count:,} clients, and client {int(clients.max()):,} took part; call its column "
                "device instead of client to give every client one of them at random."
            )
        return clients


@dataclass(frozen=True, eq=False)
class Measured:
    """One quantity of the devices of a table."""

    values: np.ndarray
    which: Which

    def of(self, clients: np.ndarray, seed: int) -> np.ndarray:
        return self.values[self.which.of(clients, seed)]


@dataclass(frozen=True, eq=False)
class Intervals:
    """When the devices of a table can be reached: [begin, end) in seconds, again after ``period``.

    Those of device d are ``begins[offsets[d] : offsets[d + 1]]``, in order.
    """

    begins: np.ndarray
    ends: np.ndarray
    offsets: np.ndarray
    period: float
    which: Which

    def there(self, clients: np.ndarray, clock: float, seed: int) -> np.ndarray:
        now, out = clock % self.period, np.zeros(len(clients), bool)
        for k, device in enumerate(self.which.of(clients, seed).tolist()):
            own = slice(self.offsets[device], self.offsets[device + 1])
            last = int(np.searchsorted(self.begins[own], now, side="right")) - 1
            out[k] = last >= 0 and now < self.ends[own][last]
        return out


def read_trace(file: str | os.PathLike[str]) -> dict[str, Any]:
    """What a table of devices says, by the settings of `fedsub.Devices`: CSV or Parquet, a row for each device.

    Columns: ``client`` (its number) or ``device`` (any name; every client is given one at random), any of
    ``download``, ``upload`` (bytes/s), ``latency`` (s) and ``speed`` (samples/s), and ``begin`` and ``end`` (s) of an
    interval in which the device can be reached. A device with several intervals has several rows.
    """
    import polars as pl

    path = Path(file)
    try:
        table = (pl.read_parquet if path.suffix == ".parquet" else pl.read_csv)(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ConfigError(f"{path} cannot be read as a trace of devices: {error}.") from error
    known = ["client", "device", *RATES, "begin", "end"]
    if odd := [name for name in table.columns if name not in known]:
        raise ConfigError(f"{path} has a column {odd[0]!r}; {nearest(odd[0], known)}")
    keys = [name for name in ("client", "device") if name in table.columns]
    if len(keys) != 1 or not len(table) or ("begin" in table.columns) != ("end" in table.columns):
        raise ConfigError(
            f"{path} has the columns {', '.join(table.columns)} and {len(table):,} rows; a trace of devices has one of "
            "client and device, and begin and end together or neither."
        )
    own = keys == ["client"]
    devices = table.group_by(keys[0], maintain_order=not own).agg(pl.col(n) for n in table.columns if n not in keys)
    if own:
        devices = devices.sort("client")
        if devices["client"].to_list() != list(range(len(devices))):
            raise ConfigError(
                f"{path}: the column client must have all numbers from 0 to {len(devices) - 1:,}, each at least once; "
                "call it device if these are other names."
            )
    which, out = Which(len(devices), own), {}
    for name in RATES:
        if name in table.columns:
            values = devices[name].list
            if not (values.min() == values.max()).all():
                raise ConfigError(f"{path}: {name} must be one number for each {keys[0]}, in all of its rows.")
            out[name] = Measured(check_column(f"{name} of {path}", values.first(), zero=name == "latency"), which)
    if "begin" in table.columns:
        out["online"] = _intervals(path, devices["begin"].to_list(), devices["end"].to_list(), which)
    return out


def _intervals(path: Path, begins: list[list[float]], ends: list[list[float]], which: Which) -> Intervals:
    order = [np.argsort(own, kind="stable") for own in begins]
    flat = [
        np.concatenate([np.asarray(own, np.float64)[by] for own, by in zip(some, order, strict=True)])
        for some in (begins, ends)
    ]
    begin, end = (
        check_column(f"{name} of {path}", values) for name, values in zip(("begin", "end"), flat, strict=True)
    )
    offsets = np.append(0, np.cumsum([len(own) for own in begins]))
    next_begin = np.append(begin[1:], np.inf)
    next_begin[offsets[1:] - 1] = np.inf
    if (bad := (begin >= end) | (end > next_begin)).any():
        at = int(np.flatnonzero(bad)[0])
        raise ConfigError(
            f"{path}: the interval from {begin[at]:g} to {end[at]:g} is empty, or runs into the next one of the same "
            "device; give intervals that follow each other."
        )
    return Intervals(begin, end, offsets, float(end.max()), which)
