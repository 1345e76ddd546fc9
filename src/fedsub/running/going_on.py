"""Going on with what a run directory holds: what may differ from the call that began it, and what is refused.

All that numbers depend on must be the same (config.json), with two exceptions. ``rounds`` may grow: the run is trained
further, as if it had been asked for so many from the start. And code (`fedsub.objective.code`) may change where that is
asked for: the first digest is kept, and the change is noted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedsub.disk.files import JsonLines
from fedsub.disk.rundir import RunDir
from fedsub.errors import CheckpointError, ConfigError, StoreError
from fedsub.method.servers import TailMean
from fedsub.method.training import OF_CLIENTS, Algorithm
from fedsub.objective.code import changed

COMPARISON = "compare.json"  # the command line's own file, by which `fedsub resume` goes on


@dataclass(frozen=True)
class GoingOn:
    """What is not as it was: pieces of code, in words, and how many rounds were asked for before, if fewer."""

    code: tuple[str, ...] = ()
    rounds_before: int | None = None
    mean: str = ""  # of a tail mean that began earlier than one of so many rounds would

    def sentences(self, rounds: int) -> list[str]:
        """For the run's events."""
        said = [code_sentence(self.code)] if self.code else []
        said += [f"trained further: {rounds} rounds, {self.rounds_before} before"] if self.rounds_before else []
        return said + ([self.mean] if self.mean else [])


def free(method: Algorithm) -> Callable[[str], bool]:
    """Settings that `compare_with` looks at itself, and those that pooled data makes nothing of."""
    unused = OF_CLIENTS if method.pooled else ()
    return lambda key: key == "rounds" or key.startswith("code.") or key in unused


def compare_with(there: RunDir, config: Mapping[str, Any], method: Algorithm, *, force_code: bool = False) -> GoingOn:
    """Refuse what a started run cannot go on with, and say what differs. Nothing is changed."""
    if not there.started:
        return GoingOn()
    there.check(config, free(method))
    before = there.config()
    code = tuple(changed(before.get("code", {}), config.get("code", {})))
    if code and not force_code:
        raise CheckpointError(
            f"{there.path} was trained with other code: {listed(code)} changed since. Put the code back, or train "
            "anew in another directory. To go on all the same pass force_code=True (--force-code): events and report "
            "then tell of the change."
        )
    asked, rounds = before["rounds"], config["rounds"]
    if rounds < asked:
        raise CheckpointError(
            f"{there.path} is a run of {asked} rounds (rounds: {asked} in the directory, {rounds} now); give {asked}, "
            f"or more to train it further. A shorter one needs another --out."
        )
    if rounds > asked:
        check_schedule(method, asked, rounds, str(there.path))
    return GoingOn(code, asked, _tail(method, asked, rounds)) if rounds > asked else GoingOn(code)


def _tail(method: Algorithm, before: int, rounds: int) -> str:
    """What becomes of a mean of the last iterates that has begun already."""
    server = method.composition.server if method.composition is not None else None
    if not isinstance(server, TailMean):
        return ""
    old, new = (replace(server, rounds=n).begins() for n in (before, rounds))
    if new > before or new == old:
        return ""  # a new mean begins later, as in a run of so many rounds from the start
    return f"the mean of iterates goes on from round {old}; a run of {rounds} rounds would begin it with round {new}"


def check_schedule(method: Algorithm, before: int, rounds: int, where: str) -> None:
    """Refuse rounds in which a schedule leaves nothing to learn with, such as those after the end of a cosine."""
    local = method.composition.local if method.composition is not None else None
    if local is not None and not any(local.rate(r) for r in range(before + 1, rounds + 1)):
        raise ConfigError(
            f"{where} has learned with {local}, whose rate is 0 from round {before + 1} on: further rounds "
            "would change nothing. Begin a new run from this one with a schedule of its own: start=… (--start)."
        )


def finished(folder: Path, rounds: int) -> bool:
    """Whether a run has come to its end, and no further rounds are asked of it."""
    there = RunDir(folder)
    return there.finished and there.config().get("rounds", rounds) >= rounds


def code_sentence(code: tuple[str, ...]) -> str:
    return f"The code is not what this run was begun with: {listed(code)} changed, and going on was forced."


def changes_of_code(folder: Path | None) -> list[str]:
    """What a run's events tell of code that changed, each sentence once."""
    try:
        said = [str(line["event"]) for line in JsonLines.read(folder / "events.jsonl")] if folder is not None else []
    except (OSError, StoreError, KeyError):
        return []
    return list(dict.fromkeys(s for s in said if s.startswith(code_sentence(()).partition(":")[0])))


def listed(names: tuple[str, ...]) -> str:
    """Names with their verb: "a has", "a and b have"."""
    return f"{names[0]} has" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} have" if names else ""


def how_to_go_on(path: Path, call: str = "run") -> str:
    """A command that goes on with a directory: the command line's own, or the same call from Python."""
    own = next((p for p in (path, path.parent) if (p / COMPARISON).is_file()), None)
    if own is not None:
        return f"fedsub resume {own}"
    return f"the same call with resume=True: fedsub.{call}(…, out={str(path)!r}, resume=True)"
