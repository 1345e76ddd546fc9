"""`server_app`: the server's half as a ServerApp; a run over the Grid into a run directory."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsub.disk.files import TEMPORARY, dump, make_folder
from fedsub.flower.post import GridPost, read_names
from fedsub.flower.task import Config, Settings, Task
from fedsub.node import Patience, run
from fedsub.node.rounds import Seen
from fedsub.round.evaluate import Evaluate
from fedsub.running.callbacks import Callback
from fedsub.running.result import Result

log = logging.getLogger("fedsub")

LIVE = "live.json"


def server_app(task: Task, *, callbacks: Sequence[Callback] = ()) -> ServerApp:
    """The ServerApp of a task. What it does is in the app's configuration (`Settings`).

    A run directory that holds a run of the same configuration is gone on with, so that submitting the app once more
    after a crash resumes it.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(task, grid, dict(context.run_config), callbacks=callbacks)

    return app


def serve(task: Task, grid: Grid, config: Config, *, callbacks: Sequence[Callback] = ()) -> Result:
    """Play the run of an app over a grid."""
    settings = Settings.read(config)
    outline, splits, population = task.server_data(config)
    names = read_names(Path(settings.names)) if settings.names else None
    post = GridPost(
        grid, names=names, deadline=settings.deadline, returns=settings.returns, poll=settings.poll,
        most=settings.most, piece=settings.piece,
    )  # fmt: skip
    live = Live(settings, post, len(outline))
    sizes = {name: space.size for name, space in outline.spaces.items()}
    patience = Patience(settings.patience, settings.tries, back=settings.back, fewest=settings.fewest)
    try:
        result = run(
            task.method(config), task.objective(sizes), outline, post, rounds=settings.rounds, population=population,
            patience=patience, tell=live.tell, splits=splits,
            identities=settings.identities or None, seed=settings.seed, evaluate=Evaluate(every=settings.every),
            out=settings.folder, resume=(settings.folder / "config.json").exists(),
            checkpoint_every=settings.checkpoint_every, callbacks=[live, *callbacks],
        )  # fmt: skip
    except BaseException as err:
        live.end("failed", f"{type(err).__name__}: {err}")
        raise
    live.end("finished", "")
    return result


@dataclass
class Live(Callback):
    """live.json in the run directory: what goes on, for those who watch. Written whole, whenever something changes."""

    settings: Settings
    post: GridPost
    clients: int
    round: int = 0
    rounds: int = 0
    state: str = "waiting"
    why: str = ""
    seen: Seen = field(default_factory=Seen)
    accepted: dict[int, int] = field(default_factory=dict)

    def tell(self, seen: Seen) -> None:
        self.seen, self.why = seen, seen.waiting
        self.state = "waiting" if seen.waiting else "running"
        self._write()

    def on_start(self, info: dict[str, Any]) -> None:
        self.rounds, self.round, self.state = info["rounds"], info["first"] - 1, "running"
        self._write()

    def on_round(self, record: dict[str, Any]) -> None:
        self.round = record["round"]
        self._write()

    def end(self, state: str, why: str) -> None:
        self.state, self.why = state, why
        self._write()

    def _write(self) -> None:
        folder, clients = self.settings.folder, {}
        for client in range(self.clients):
            place = self.post.places.get(client)
            clients[str(client)] = {
                "name": place.name if place is not None else "",
                "node": str(place.node) if place is not None else "",
                "online": place is not None and place.online,
                "joined": client in self.seen.joined,
                "left_out": self.seen.left_out.get(client, ""),
                "accepted": self.seen.accepted.get(client, 0),
            }
        found = {
            "version": 1, "time": time.time(), "state": self.state, "round": self.round,
            "rounds": self.rounds or self.settings.rounds, "why": self.why, "clients": clients,
            "counts": {**dict.fromkeys(COUNTED, 0), **self.seen.counts},
            "refused": [*self.seen.refused[-50:], *self.post.said][-50:],
        }  # fmt: skip
        make_folder(folder)
        (beside := folder / f"{LIVE}{TEMPORARY}").write_bytes(dump(found, indent=1))
        beside.replace(folder / LIVE)  # whole at any moment; after a crash of the machine nobody needs it


COUNTED = "refused", "late", "failed", "too_large", "rejoined", "gone", "asked again", "sent again"
