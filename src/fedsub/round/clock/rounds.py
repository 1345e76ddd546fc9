"""A clock of synchronous rounds: what a method's clients do in one, and how long that takes on their devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedsub.checks import check_number
from fedsub.errors import ConfigError
from fedsub.round.clock.devices import Devices
from fedsub.round.clock.seconds import round_seconds, samples_trained

FORWARD = 1 / 3  # of a training step's work: a candidate's loss takes a forward pass and no backward one


def work_of(method: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a client does when it trains, and when it is probed, of a method as it describes itself."""
    if "asynchronous" in method:
        raise ConfigError("asynchronous steps have a clock of their own, in the run's record (Result.clock)")
    if "local" not in method:
        raise ConfigError(
            f"the local work of {method['name']} is not a number of batches; estimate its rounds with "
            "fedsub.study.costs.round_seconds"
        )
    local, sampler = dict(method["local"]), method.get("sampler") or {}
    while "sampler" in sampler:  # wrapped, for instance by one that knows who is online
        sampler = sampler["sampler"]
    if not ((local.get("local_steps") or local.get("local_epochs")) and "batch_size" in local):
        raise ConfigError(
            "the method names no local_steps or local_epochs with a batch_size, so the local work is not known; "
            "estimate its rounds with fedsub.study.costs.round_seconds"
        )
    if sampler.get("variant") == "cpow":
        return local, local | {"local_steps": 1, "local_epochs": None}
    return local, {"local_epochs": 1, "batch_size": None}


class RoundClock:
    """Seconds of rounds, one after the other. ``sizes``: samples by client, as far as they are known.

    A sampler that probes candidates adds an exchange before the round: they download (``probe_down``), pass
    their samples forward (cpow: one batch), at the share ``forward`` of the cost of training on them, and answer.
    """

    def __init__(
        self, devices: Devices, method: Mapping[str, Any], sizes: np.ndarray | None, *, deadline: float | None = None,
        quantile: float = 1.0, forward: float = FORWARD, where: Any = "The run",
    ):  # fmt: skip
        check_number("forward", forward, least=0, error=ConfigError)
        self.devices, self.sizes, self.forward, self.where = devices, sizes, forward, where
        self.waits: dict[str, Any] = {"deadline": deadline, "quantile": quantile}
        self.trains, self.probes = work_of(method)

    def seconds(
        self, clients: Any, down: Any, up: Any, probed: Sequence[int] | np.ndarray = (), probe_down: Any = (),
        probe_up: Any = (),
    ) -> float:  # fmt: skip
        """Of a round in which these bytes were sent, by client, after these questions."""
        before = 0.0
        if len(probed):
            asked = self.forward * samples_trained(self.probes, probed, self.sizes, self.where)
            before = round_seconds(self.devices, probed, probe_down, probe_up, asked, **self.waits)
        trained = samples_trained(self.trains, clients, self.sizes, self.where)
        return before + round_seconds(self.devices, clients, down, up, trained, **self.waits)
