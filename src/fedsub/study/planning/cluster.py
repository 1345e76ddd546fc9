"""`Cluster`: the machines that a plan is for, and what they cost."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from fedsub.checks import check_number, check_positive, check_whole
from fedsub.data.large.budget import bytes_of
from fedsub.errors import ConfigError


def _all_memory() -> int:
    """Bytes of memory of this computer."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 16 << 30


@dataclass(frozen=True)
class Cluster:
    """``machines`` alike; without arguments, this computer.

    memory         of each, in bytes or as a text such as "64GB"
    bandwidth      bytes/s between two of them, or a text such as "10Gbit/s"; ``latency`` in seconds
    price_hour     of one machine; ``price_gb`` of 10⁹ bytes that cross the wire to and from clients
    """

    machines: int = 1
    cores: int = 0
    memory: int | str = 0
    bandwidth: float | str = "10Gbit/s"
    latency: float = 1e-4
    price_hour: float = 0.0
    price_gb: float = 0.0

    def __post_init__(self) -> None:
        check_whole("machines", self.machines, 1, error=ConfigError)
        check_whole("cores", self.cores, 0, error=ConfigError)
        for name in ("latency", "price_hour", "price_gb"):
            check_number(name, getattr(self, name), least=0, error=ConfigError)
        object.__setattr__(self, "cores", self.cores or os.cpu_count() or 1)
        object.__setattr__(self, "memory", bytes_of(self.memory) if self.memory else _all_memory())
        object.__setattr__(self, "bandwidth", _rate(self.bandwidth))

    @property
    def bytes(self) -> int:
        """Memory of one machine."""
        assert isinstance(self.memory, int)
        return self.memory

    @property
    def speed(self) -> float:
        """Bytes a second between two machines."""
        assert isinstance(self.bandwidth, float)
        return self.bandwidth


def _rate(given: Any) -> float:
    """Bytes a second, from a number of them or a text such as "10Gbit/s" or "1.25GB/s"."""
    if isinstance(given, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?)(bit|B)(?:/s|ps)?\s*", given)
        if found is None:
            raise ConfigError(f"bandwidth is {given!r}, expected bytes a second or a text such as '10Gbit/s'.")
        power = ["", "k", "M", "G", "T"].index(found[2])
        given = float(found[1]) * 1000**power / (8 if found[3] == "bit" else 1)
    check_positive("bandwidth", given, error=ConfigError)
    return float(given)
