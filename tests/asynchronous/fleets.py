"""Devices and a small world for the tests of asynchronous rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from running.short_runs import Stop, StopAfter
from worlds import bag, item_data

import fedsub as fs

SIZES = (1, 7, 4, 9, 2, 5, 8, 3, 6, 4, 7, 2)
MIXED = fs.costs.phones(samples_per_second=30.0, overhead=0.2, seed=3)
EQUAL = fs.Devices("equal", download=1e300, upload=1e300, latency=1.0, speed=1e300)


def world(**options: Any) -> tuple[fs.Objective, fs.Clients]:
    clients = item_data(SIZES)
    return bag(clients, **options), clients


def played(method: Any, *, rounds: int = 6, devices: Any = MIXED, **options: Any) -> fs.Result:
    objective, clients = world(dim=3)
    return fs.run(method, objective, clients, rounds=rounds, devices=devices, **options)


def same(one: fs.Result, other: fs.Result) -> bool:
    return all(torch.equal(value, other.params[name]) for name, value in one.params.items())


def interrupted(out: Path, number: int, method: Any, **options: Any) -> None:
    with pytest.raises(Stop):
        played(method, out=out, callbacks=[StopAfter(number)], **options)
