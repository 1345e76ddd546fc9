"""From a run's directory to estimated seconds: its traffic, its local work, and assumed devices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedsub.disk.files import JsonLines
from fedsub.disk.reading import check_plain, read_json
from fedsub.disk.rundir import SAMPLES
from fedsub.errors import CheckpointError, ConfigError
from fedsub.round.clock.devices import Devices
from fedsub.round.clock.rounds import FORWARD, RoundClock, work_of

if TYPE_CHECKING:
    from fedsub.running.result import Result


def estimated_seconds(
    run: Result | str | os.PathLike[str],
    devices: Devices,
    *,
    deadline: float | None = None,
    quantile: float = 1.0,
    forward: float = FORWARD,
) -> dict[int, float]:
    """Seconds from the start to the end of each round, {0: 0.0, 1: …}, had the run's clients been ``devices``.

    Questions of samplers count as in `fedsub.round.clock.rounds.RoundClock`.
    """
    folder = _folder(run)
    clock, out = 0.0, {0: 0.0}
    try:
        lines = list(JsonLines.read(folder / "traffic.jsonl"))
        drawn = _once(devices, [line[who] for line in lines for who in ("clients", "probed") if line.get(who)])
        rounds = _clock(folder, drawn, deadline=deadline, quantile=quantile, forward=forward)
        for line in lines:
            asked = (line["probed"], line["probe_down"], line["probe_up"]) if line.get("probed") else ()
            clock += rounds.seconds(line["clients"], line["down"], line["up"], *asked)
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


def _clock(folder: Path, devices: Devices, **waits: float | None) -> RoundClock:
    file = folder / "config.json"
    try:
        method = read_json(file)["method"]
        work_of(method)
    except ConfigError as error:
        raise CheckpointError(f"{file}: {error}.") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} cannot be used ({error!r}); train the run again.") from error
    return RoundClock(devices, method, _sizes(folder), where=folder, **waits)  # type: ignore[arg-type]


def _sizes(folder: Path) -> np.ndarray | None:
    try:
        check_plain(folder / SAMPLES)
        sizes = np.load(folder / SAMPLES, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return sizes if sizes.ndim == 1 and sizes.dtype.kind in "iu" else None
