"""What really became of a run: by its own directory, then by what Flower says, never by an exit status."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedsub.deploy.processes import Roll
from fedsub.deploy.site import Site
from fedsub.disk.files import JsonLines
from fedsub.disk.reading import read_json
from fedsub.disk.rundir import RunDir
from fedsub.errors import FedsubError

LIVE = "live.json"  # what the server app writes of itself


@dataclass(frozen=True)
class Outcome:
    """``state``: nothing, starting, waiting, running, finished, failed or interrupted; ``why`` in a sentence."""

    state: str
    round: int = 0
    rounds: int = 0
    why: str = ""
    run: str = ""  # Flower's number of it
    flower: str = ""  # what Flower says of it
    submissions: int = 0
    supervised: bool = False

    @property
    def good(self) -> bool:
        return self.state in ("finished", "starting", "waiting", "running")

    def sentence(self) -> str:
        at = f"round {self.round} of {self.rounds}" if self.rounds else ""
        text = {
            "nothing": "Nothing was started yet.",
            "starting": "Starting.",
            "waiting": "Waiting for nodes.",
            "running": f"Running: {at} is done.",
            "finished": f"Finished: {at}.",
            "failed": f"Failed after {at}." if at else "Failed before its first round.",
            "interrupted": f"Interrupted after {at}; fedsub deploy resume goes on." if at else "Interrupted.",
        }[self.state]
        return f"{text} {self.why}".strip()

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def roll(site: Site) -> Roll:
    return Roll(site.state / "processes.json")


def live(out: Path) -> dict[str, Any]:
    """The server app's own file; empty if it is not there or half a file of somebody else."""
    try:
        found = read_json(out / LIVE)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def history(out: Path) -> list[dict[str, Any]]:
    """The rounds that are in the run's log."""
    try:
        return JsonLines.read(out / "metrics.jsonl")
    except (OSError, FedsubError):
        return []


def rounds_done(out: Path) -> int:
    rows = history(out)
    last = rows[-1].get("round", 0) if rows else 0
    return last if isinstance(last, int) else 0


def finished(site: Site) -> bool:
    """Whether the run ended well: its result is written last, with digests of what led to it.

    A run of fewer rounds than are asked for now is one that can go on.
    """
    out = site.out
    if not (out / "result.json").exists():
        return False
    try:
        RunDir(out).result()
        asked = site.config.get("rounds", 0)
        return not isinstance(asked, int) or RunDir(out).config().get("rounds", 0) >= asked
    except FedsubError:
        return False


def outcome(site: Site) -> Outcome:
    """What became of the run in `run.out`."""
    out, kept = site.out, roll(site)
    told = kept.read()
    supervised = kept.supervisor() is not None
    mine = told.get("out") == str(out)
    rounds, done = _rounds(site), rounds_done(out)
    common = {
        "round": done, "rounds": rounds, "supervised": supervised, "run": str(told.get("run", "")) if mine else "",
        "flower": str(told.get("flower", "")) if mine else "",
        "submissions": int(told.get("submissions", 0)) if mine else 0,
    }  # fmt: skip
    why = str(told.get("why", "")) if mine else ""
    if finished(site):
        return Outcome("finished", **common)
    if (out / "result.json").exists() and common["round"] >= rounds:
        return Outcome("failed", why=f"{out / 'result.json'} is damaged, or what it belongs to.", **common)
    if supervised and mine:
        state = str(live(out).get("state", "starting"))
        return Outcome(state if state in ("waiting", "running") else "starting", why=why, **common)
    if not (out / "config.json").exists() and not mine:
        return Outcome("nothing", **common)
    if mine and told.get("gave_up"):
        return Outcome("failed", why=why, **common)
    if mine and told.get("stopped"):
        return Outcome("interrupted", why=why, **common)
    return Outcome("interrupted", why=why or "Its supervisor is gone.", **common)


def _rounds(site: Site) -> int:
    """How many rounds are asked for, by the app's settings or, if it has been more, by the run."""
    asked = site.config.get("rounds", 0)
    try:
        begun = int(read_json(site.out / "config.json")["rounds"])
    except (OSError, ValueError, KeyError, TypeError):
        begun = 0
    return max(begun, asked if isinstance(asked, int) else 0)
