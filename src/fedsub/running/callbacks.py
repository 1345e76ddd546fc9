"""Callbacks: how a progress bar or a tracker (`fedsub.running.trackers`) follows a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsub.running.now import Now


class Callback:
    """Every hook is optional. ``info`` has method, seed, rounds, first (the first round to come) and out.

    From ``on_start`` on, ``self.now`` is the run as it is: its model, each client's own, and evaluations
    (`fedsub.running.now.Now`). What is not asked for costs nothing.
    """

    now: Now

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
