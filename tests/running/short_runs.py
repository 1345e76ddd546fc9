"""A method for short runs, and runs that are ended in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedsub as fs

METHOD = fs.methods.fedsubavg(lr=0.3, local_steps=4, batch_size=4, clients_per_round=5)


class Stop(Exception):
    """What a test raises to end a run."""


class StopAfter(fs.Callback):
    def __init__(self, number: int):
        self.number = number

    def on_round(self, record) -> None:
        if record["round"] == self.number:
            raise Stop


def interrupted(out: Path, number: int, **options):
    with pytest.raises(Stop):
        fs.run(out=out, callbacks=[StopAfter(number)], **options)
