"""Devices: how fast each client's link and processor are.

Nobody has measured your clients here. The presets are assumptions, chosen to be round and plausible;
replace them by your own medians and spreads, or by one number per client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedsub import rng
from fedsub.checks import check_column, check_number, check_positive, check_whole
from fedsub.errors import ConfigError, nearest

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


Quantity = LogNormal | float | Sequence[float] | np.ndarray


@dataclass(frozen=True, eq=False)
class Devices:
    """Every client's link and speed: a spread to draw from, one number for all, or an array by client.

    ``seed`` belongs to the devices and not to a run, so all methods and seeds of a comparison meet the
    same phones. ``overhead`` is what the server adds to each round.
    """

    name: str
    download: Quantity  # bytes/s
    upload: Quantity  # bytes/s
    latency: Quantity  # seconds, one way
    speed: Quantity  # training samples/s
    overhead: float = 0.0  # seconds a round
    seed: int = 0

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
            elif not isinstance(value, LogNormal):
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
        if not isinstance(value, np.ndarray):
            return np.full(len(clients), float(value))
        if len(clients) and clients.max() >= len(value):
            raise ConfigError(
                f"{name} is known of {len(value):,} clients, but client {int(clients.max()):,} took part; "
                "give one number for every client."
            )
        return value[clients]


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


def named(devices: str | Devices | None) -> Devices | None:
    """Devices as given, or a preset by its name; None or "none" for no estimate."""
    if devices is None or isinstance(devices, Devices) or devices == NONE:
        return devices if isinstance(devices, Devices) else None
    if not isinstance(devices, str) or devices not in PRESETS:
        known = nearest(str(devices), [*PRESETS, NONE])
        raise ConfigError(f"devices is {devices!r}, expected a preset's name or fedsub.study.costs.Devices; {known}")
    return PRESETS[devices]()
