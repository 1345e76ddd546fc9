"""Devices: how fast each client's link and processor are.

Nobody has measured your clients here. The presets are assumptions, chosen to be round and plausible;
replace them by your own medians and spreads, or by one number per client.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsub import rng
from fedsub.checks import check_column, check_number, check_positive, check_whole
from fedsub.errors import ConfigError, nearest
from fedsub.round.clock.traces import RATES, Measured, Online, Windows, read_trace

_DEVICES = 0xDE71CE  # keeps these draws apart from others of purpose OTHER


@dataclass(frozen=True)
class LogNormal:
    """median · exp(sigma · z), z standard normal: two thirds of the clients within a factor exp(±sigma)."""

    median: float
    sigma: float = 0.0

    def __post_init__(self) -> None:
        check_positive("median", self.median, error=ConfigError)
        check_number("sigma", self.sigma, least=0, error=ConfigError)

    def draw(self, clients: np.ndarray, *key: int) -> np.ndarray:
        """One value per client, a pure function of the key and the client's number (Box and Muller, 1958)."""
        one, two = (rng.uniform(rng.key(*key, half, clients)) for half in (0, 1))
        z = np.sqrt(-2 * np.log1p(-one)) * np.cos(2 * np.pi * two)
        return self.median * np.exp(self.sigma * z)


Quantity = LogNormal | Measured | float | Sequence[float] | np.ndarray


@dataclass(frozen=True, eq=False)
class Devices:
    """Every client's link and speed: a spread to draw from, one number for all, or an array by client.

    ``seed`` belongs to the devices and not to a run, so all methods and seeds of a comparison meet the
    same phones. ``overhead`` is what the server adds to each round. ``online``: when an asynchronous server can reach
    clients; whoever began comes to its end.
    """

    name: str
    download: Quantity  # bytes/s
    upload: Quantity  # bytes/s
    latency: Quantity  # seconds, one way
    speed: Quantity  # training samples/s
    overhead: float = 0.0  # seconds a round
    seed: int = 0
    online: Online | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"The devices' name is {self.name!r}, expected text; it stands beneath the plots.")
        check_number("overhead", self.overhead, least=0, error=ConfigError)
        check_whole("seed", self.seed, 0, error=ConfigError)
        for name in ("download", "upload", "latency", "speed"):
            value, zero = getattr(self, name), name == "latency"
            if isinstance(value, int | float | np.number):
                check_number(name, value, least=0, error=ConfigError)
                if not zero:
                    check_positive(name, value, error=ConfigError)
            elif not isinstance(value, LogNormal | Measured):
                object.__setattr__(self, name, check_column(name, value, zero=zero))

    def drawn(self, count: int) -> Devices:
        """The same devices with all values of the first ``count`` clients drawn once, to be looked up."""
        everyone = np.arange(count)
        spread = [n for n in ("download", "upload", "latency", "speed") if isinstance(getattr(self, n), LogNormal)]
        return replace(self, **{name: self.of(name, everyone) for name in spread})

    def of(self, name: str, clients: np.ndarray) -> np.ndarray:
        """``name`` ("download", "upload", "latency" or "speed") of these clients."""
        value = getattr(self, name)
        if isinstance(value, LogNormal):
            place = ("download", "upload", "latency", "speed").index(name)
            return value.draw(clients, self.seed, rng.OTHER, _DEVICES, place)
        if isinstance(value, Measured):
            return value.of(clients, self.seed)
        if not isinstance(value, np.ndarray):
            return np.full(len(clients), float(value))
        if len(clients) and clients.max() >= len(value):
            raise ConfigError(
                f"{name} is known of {len(value):,} clients, but client {int(clients.max()):,} took part; "
                "give one number for every client."
            )
        return value[clients]

    def there(self, clients: np.ndarray, clock: float) -> np.ndarray:
        """Which of some clients can be reached at a moment, bool."""
        return np.ones(len(clients), bool) if self.online is None else self.online.there(clients, clock, self.seed)


def phones(samples_per_second: float = 1000.0, *, overhead: float = 0.0, seed: int = 0) -> Devices:
    """ASSUMED, not measured: phones on a mixture of WLAN and mobile networks, training a small recommender.

    Download 2 MB/s (sigma 0.8), upload 0.5 MB/s (0.8), latency 50 ms one way (0.5), and
    ``samples_per_second`` (0.5); medians and spreads of log-normal distributions, independent of each other.
    """
    return Devices(
        "phones", LogNormal(2e6, 0.8), LogNormal(0.5e6, 0.8), LogNormal(0.05, 0.5),
        LogNormal(samples_per_second, 0.5), overhead, seed,
    )  # fmt: skip


def datacentre(samples_per_second: float = 100_000.0, *, overhead: float = 0.0, seed: int = 0) -> Devices:
    """ASSUMED, not measured: machines in one building, 10 Gbit/s (1.25 GB/s) both ways, 0.1 ms latency.

    All links are alike; ``samples_per_second`` varies with sigma 0.1.
    """
    return Devices("datacentre", 1.25e9, 1.25e9, 1e-4, LogNormal(samples_per_second, 0.1), overhead, seed)


PRESETS: dict[str, Callable[[], Devices]] = {"phones": phones, "datacentre": datacentre}
NONE = "none"
Given = Devices | str | os.PathLike[str] | Mapping[str, Any] | None  # what `named` understands


def named(devices: Given) -> Devices | None:
    """Devices as given, a preset by its name, a trace by its file, or a table of settings; None or "none" for none."""
    if devices is None or isinstance(devices, Devices) or devices == NONE:
        return devices if isinstance(devices, Devices) else None
    if isinstance(devices, Mapping):
        return of_table(devices)
    if is_trace(devices):
        return of_table({"trace": devices})
    if not isinstance(devices, str) or devices not in PRESETS:
        known = nearest(str(devices), [*PRESETS, NONE])
        raise ConfigError(
            f"devices is {devices!r}, expected a preset's name, a trace (.csv or .parquet), a table of settings or "
            f"fedsub.study.costs.Devices; {known}"
        )
    return PRESETS[devices]()


def is_trace(given: Any) -> bool:
    """Whether it is the path of a trace."""
    return isinstance(given, str | os.PathLike) and os.fspath(given).endswith((".csv", ".parquet"))


def of_table(settings: Mapping[str, Any]) -> Devices:
    """Devices like those of a preset, in which these settings are others.

    ``like`` names the preset; ``download``, ``upload``, ``latency`` and ``speed`` are a number for all or [median,
    sigma] of a log-normal distribution; ``online`` is {period, share} of `Windows`; ``trace`` is a file (`read_trace`).
    """
    known = ["like", "name", "trace", *RATES, "online", "overhead", "seed"]
    if odd := [name for name in settings if name not in known]:
        raise ConfigError(f"devices has no setting {odd[0]!r}; {nearest(odd[0], known)}")
    own = {name: value for name, value in settings.items() if name not in ("like", "trace")}
    base = named(settings.get("like", "phones"))
    if base is None:
        raise ConfigError("devices.like is none, expected a preset; leave it out for phones.")
    measured = read_trace(settings["trace"]) if "trace" in settings else {}
    if twice := sorted(measured.keys() & own.keys()):
        raise ConfigError(f"devices.{twice[0]} is given, and the trace has it too; leave one out.")
    for name in own.keys() & set(RATES):
        if isinstance(own[name], list | tuple):
            if len(own[name]) != 2:
                raise ConfigError(f"devices.{name} is {own[name]!r}, expected a number or [median, sigma].")
            own[name] = LogNormal(*own[name])
    if isinstance(online := own.get("online"), Mapping):
        if odd := sorted(online.keys() - {"period", "share"}):
            raise ConfigError(f"devices.online has no setting {odd[0]!r}; it has period and share.")
        own["online"] = Windows(**online)
    stem = Path(settings["trace"]).stem if "trace" in settings else "own devices"
    return replace(base, **{"name": stem} | measured | own)
