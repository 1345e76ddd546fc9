"""Callbacks: how a progress bar, TensorBoard or any other tracker follows a run."""

from __future__ import annotations

import os
from typing import Any

from fedsub.errors import MissingExtra


class Callback:
    """Every hook is optional. ``info`` has method, seed, rounds, first (the first round to come) and out."""

    def on_start(self, info: dict[str, Any]) -> None: ...
    def on_round(self, record: dict[str, Any]) -> None: ...
    def on_event(self, sentence: str) -> None: ...
    def on_end(self, summary: dict[str, Any]) -> None: ...


class Progress(Callback):
    """Prints a line per evaluation, and what happens in between."""

    def on_start(self, info: dict[str, Any]) -> None:
        self._title, self._rounds = f"{info['method']}, seed {info['seed']}", info["rounds"]

    def on_round(self, record: dict[str, Any]) -> None:
        shown = [f"{k} {v:.4f}" for k, v in record.items() if "." in k and isinstance(v, float) and "half" not in k]
        if shown:
            print(f"{self._title}: round {record['round']} of {self._rounds}, {', '.join(shown)}", flush=True)

    def on_event(self, sentence: str) -> None:
        print(sentence, flush=True)


class TensorBoard(Callback):
    """Writes every number of a record as a scalar. Needs ``pip install "fedsub[tensorboard]"``."""

    def __init__(self, folder: str):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as err:
            raise MissingExtra('TensorBoard is not installed; run: pip install "fedsub[tensorboard]"') from err
        self._make, self._folder, self._writer = SummaryWriter, folder, None

    def on_start(self, info: dict[str, Any]) -> None:
        # A resumed run rewrites the rounds after its checkpoint: purge what was logged beyond it.
        # In a comparison two runs may share a method and a seed; their directories differ.
        name = os.path.basename(info["out"]) if info["out"] else f"{info['method']}-seed{info['seed']}"
        folder = f"{self._folder}/{name}"
        self._writer = self._make(folder, purge_step=info["first"])

    def on_round(self, record: dict[str, Any]) -> None:
        assert self._writer is not None
        for name, value in record.items():
            if name != "round" and isinstance(value, int | float):
                self._writer.add_scalar(name.replace(".", "/"), value, record["round"])

    def on_end(self, summary: dict[str, Any]) -> None:
        if self._writer is not None:
            self._writer.close()
