"""From a run's directory to estimated seconds: its traffic, its local work, and assumed devices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsub.checks import check_number
from fedsub.disk.files import JsonLines
from fedsub.disk.reading import check_plain, read_json
from fedsub.disk.rundir import SAMPLES
from fedsub.errors import CheckpointError, ConfigError
from fedsub.round.clock.devices import Devices
from fedsub.round.clock.seconds import round_seconds, samples_trained

if TYPE_CHECKING:
    from fedsub.running.result import Result

FORWARD = 1 / 3  # of a training step's work: a candidate's loss takes a forward pass and no backward one


def estimated_seconds(
    run: Result | str | os.PathLike[str],
    devices: Devices,
    *,
    deadline: float | None = None,
    quantile: float = 1.0,
    forward: float = FORWARD,
) -> dict[int, float]:
    """Seconds from the start to the end of each round, {0: 0.0, 1: …}, had the run's clients been ``devices``.

    A sampler that probes candidates adds an exchange before the round: they download (``probe_down``), pass
    their samples forward (cpow: one batch), at the share ``forward`` of the cost of training on them, and answer.
    """
    check_number("forward", forward, least=0, error=ConfigError)
    folder = _folder(run)
    local, probe = _work(folder)
    sizes = _sizes(folder)
    clock, out = 0.0, {0: 0.0}
    try:
        lines = list(JsonLines.read(folder / "traffic.jsonl"))
        devices = _once(devices, [line[who] for line in lines for who in ("clients", "probed") if line.get(who)])
        for line in lines:
            if probed := line.get("probed"):
                asked = forward * samples_trained(probe, probed, sizes, folder)
                clock += round_seconds(
                    devices, probed, line["probe_down"], line["probe_up"], asked, deadline=deadline, quantile=quantile
                )
            trained = samples_trained(local, line["clients"], sizes, folder)
            clock += round_seconds(
                devices, line["clients"], line["down"], line["up"], trained, deadline=deadline, quantile=quantile
            )
            out[int(line["round"])] = clock
    except (OSError, KeyError, TypeError, AttributeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(f"{folder / 'traffic.jsonl'} cannot be used ({reason}); train the run again.") from error
    return out


def _once(devices: Devices, cohorts: list[list[int]]) -> Devices:
    """Devices whose values are drawn once, unless far more clients exist than took part."""
    count = 1 + max(map(max, cohorts), default=-1)
    return devices.drawn(count) if 0 < count <= sum(map(len, cohorts)) else devices


def _folder(run: Result | str | os.PathLike[str]) -> Path:
    path = run if isinstance(run, str | os.PathLike) else run.path
    if path is None:
        raise ConfigError(
            "The run was not kept in a directory, where the bytes of each client are; give run or compare out=…."
        )
    folder = Path(path)
    if not (folder / "traffic.jsonl").is_file():
        raise ConfigError(f"{folder} holds no traffic.jsonl, so it is no run's directory; give one that run wrote.")
    return folder


def _work(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a client does when it trains, and when it is probed: the settings that `samples_trained` takes."""
    try:
        method = read_json(folder / "config.json")["method"]
        if "local" not in method:
            raise CheckpointError(
                f"the local work of {method['name']} is not a number of batches; estimate its rounds with "
                "fedsub.study.costs.round_seconds."
            )
        local, sampler = method["local"], method.get("sampler") or {}
        while "sampler" in sampler:  # wrapped, for instance by one that knows who is online
            sampler = sampler["sampler"]
        known = (local.get("local_steps") or local.get("local_epochs")) and "batch_size" in local
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder / 'config.json'} cannot be used ({error!r}); train the run again.") from error
    if not known:
        raise CheckpointError(
            f"{folder / 'config.json'} names no local_steps or local_epochs with a batch_size, so the local work is "
            "not known; estimate its rounds with fedsub.study.costs.round_seconds."
        )
    if sampler.get("variant") == "cpow":
        return local, local | {"local_steps": 1, "local_epochs": None}
    return local, {"local_epochs": 1, "batch_size": None}


def _sizes(folder: Path) -> np.ndarray | None:
    try:
        check_plain(folder / SAMPLES)
        sizes = np.load(folder / SAMPLES, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return sizes if sizes.ndim == 1 and sizes.dtype.kind in "iu" else None
