"""How long a synchronous round takes.

client i:   latency + down / download + samples / speed + latency + up / upload
round:      the slowest client of the cohort, and the server's overhead

Latency is paid for each direction in which something is sent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsub.checks import check_column, check_positive, check_share
from fedsub.errors import ConfigError
from fedsub.study.costs.devices import Devices


def client_seconds(devices: Devices, clients: Any, down: Any, up: Any, samples: Any) -> np.ndarray:
    """Seconds of each client of a cohort, from being asked to having answered."""
    who = np.asarray(clients)
    if who.ndim != 1 or (len(who) and (who.dtype.kind not in "iu" or who.min() < 0)):
        raise ConfigError(f"clients is {clients!r}, expected the numbers of clients, 0 or more; give a list of them.")
    who = who.astype(np.int64)
    got, gave = check_column("down", down, len(who)), check_column("up", up, len(who))
    trained = check_column("samples", samples, len(who))
    latency = devices.of("latency", who)
    seconds = latency * ((got > 0).astype(float) + (gave > 0))
    seconds += got / devices.of("download", who) + gave / devices.of("upload", who)
    return seconds + trained / devices.of("speed", who)


def round_seconds(
    devices: Devices,
    clients: Any,
    down: Any,
    up: Any,
    samples: Any,
    *,
    deadline: float | None = None,
    quantile: float = 1.0,
) -> float:
    """Seconds of a round in which the server waits for the cohort; an empty cohort costs the overhead alone.

    ``quantile=0.9``: it goes on once nine tenths have answered. ``deadline``: after so many seconds at the
    latest. A client that was drawn twice does one after the other.
    """
    if deadline is not None:
        check_positive("deadline", deadline, error=ConfigError)
    check_share("quantile", quantile, hint="it is the share of the cohort that is waited for", error=ConfigError)
    each = client_seconds(devices, clients, down, up, samples)
    if not len(each):
        return devices.overhead
    once, where = np.unique(np.asarray(clients), return_inverse=True)
    whole = np.sort(np.bincount(where, each))
    last = float(whole[int(np.ceil(round(quantile * len(once), 9))) - 1])
    return devices.overhead + (last if deadline is None else min(last, deadline))
