"""How long a synchronous round takes.

client i:   latency + down / download + samples / speed + latency + up / upload
round:      the slowest client of the cohort, and the server's overhead

Latency is paid for each direction in which something is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsub.checks import check_column, check_positive, check_share
from fedsub.disk.rundir import SAMPLES
from fedsub.errors import CheckpointError, ConfigError
from fedsub.round.clock.devices import Devices


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


def samples_trained(
    local: Mapping[str, Any], clients: Any, sizes: np.ndarray | None, where: Any = "The run"
) -> np.ndarray:
    """How many samples each client passes through its steps in one round, as `fedsub.method.batches.draw` gives them.

    With n samples and batches of B a pass has ⌈n/B⌉ steps and the last one takes what is left; I steps make
    ⌊I/⌈n/B⌉⌋ passes and the first batches of another. Without the sizes, I·B, the most it can be.
    """
    steps, epochs, batch = (local.get(name) for name in ("local_steps", "local_epochs", "batch_size"))
    if sizes is None and steps is not None and batch is not None:
        return np.full(len(clients), steps * batch, np.int64)
    n = _known(sizes, clients, where)
    if batch is None:
        return n * (steps if epochs is None else epochs)
    per_pass = -(-n // batch)
    if local.get("batches") == "replacement":  # every batch is full
        return batch * (np.full(len(n), steps) if epochs is None else epochs * per_pass)
    if epochs is not None:
        return n * epochs
    return steps // per_pass * n + np.minimum(steps % per_pass * batch, n)


def _known(sizes: np.ndarray | None, clients: Any, where: Any) -> np.ndarray:
    if sizes is None:
        raise CheckpointError(
            f"{where} does not say how many samples each client has ({SAMPLES} is missing or damaged), which the time "
            "of its local work depends on; train it again with this version."
        )
    who = np.asarray(clients, np.int64)
    if len(who) and who.max() >= len(sizes):
        raise CheckpointError(
            f"{where} names client {int(who.max())}, but {SAMPLES} holds {len(sizes)} clients; train it again."
        )
    return sizes[who].astype(np.int64)
