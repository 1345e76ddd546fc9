"""What is known about the runs behind a comparison: settings, versions, data and events."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsub.disk.files import JsonLines
from fedsub.disk.provenance import packages as packages_here
from fedsub.disk.seal import read_sealed
from fedsub.disk.settings import leaves
from fedsub.disk.versions import versions as here
from fedsub.errors import StoreError
from fedsub.running.result import Result

if TYPE_CHECKING:
    from fedsub.study.comparing import Comparison

_OWN = ("seed", "data", "splits.", "code.", "numbering.")  # shown with the runs and the data
ABSENT = "–"
ORIGIN = ("command", "folder", "commit", "files", "packages", "data")  # of versions.json, shown by themselves


@dataclass
class Run:
    """One result with what its directory says; everything but the result may be missing."""

    label: str
    result: Result
    config: dict[str, Any]
    versions: dict[str, Any]
    events: list[str]
    folder: Path | None = None

    @property
    def settings(self) -> dict[str, str]:
        """The settings by dotted name, as text."""
        found = {k.removesuffix(".type"): v for k, v in leaves(_placed(self.config))} if self.config else {}
        return {k: json.dumps(v, ensure_ascii=False) if not isinstance(v, str) else v for k, v in found.items()
                if not k.startswith(_OWN)}  # fmt: skip

    @property
    def fingerprints(self) -> dict[str, str]:
        """The data by name: "data" is what was trained on, the others are what was evaluated."""
        if self.config:
            found = {"data": self.config.get("data", ""), **(self.config.get("splits") or {})}
        else:
            problem = self.result.problem
            found = {"data": problem.clients.fingerprint} if problem is not None else {}
        return {str(k): str(v) for k, v in found.items() if v}


def runs(comparison: Comparison) -> list[Run]:
    """Every run, method by method, with what can be read of its directory."""
    from fedsub.study.comparing import slug  # imports this package when it writes a report

    out = []
    for label, results in comparison.results.items():
        for result in results:
            folder = result.path
            if folder is None and comparison.path is not None:
                folder = comparison.path / f"{slug(label)}-seed{result.seed}"
            config = _read(folder, "config.json")
            known = _read(folder, "versions.json")
            out.append(Run(label, result, config, known, result.events or _events(folder), folder))
    return out


def versions(found: list[Run]) -> dict[str, str]:
    """What the runs were made with, several versions of a thing side by side; without any, what runs now."""
    seen: dict[str, dict[str, None]] = {}
    for run in found:
        packages = run.versions.get("packages")
        own = {k: v for k, v in run.versions.items() if k not in ("format", "version", *ORIGIN)}
        for name, text in (own | (packages if isinstance(packages, dict) else {})).items():
            seen.setdefault(name, {})[str(text)] = None
    return {name: ", ".join(texts) for name, texts in seen.items()} or here() | packages_here()


def commands(found: list[Run]) -> list[str]:
    """The command lines that started the runs, each once."""
    return list(dict.fromkeys(str(text) for run in found if (text := run.versions.get("command"))))


def data(found: list[Run]) -> list[tuple[str, str, str]]:
    """(use, path, fingerprint) of all data that was trained on or evaluated."""
    out: dict[tuple[str, str, str], None] = {}
    for run in found:
        known = run.versions.get("data")
        known = known if isinstance(known, dict) else {}
        paths = {one.get("fingerprint"): str(one.get("path", "")) for one in known.values() if isinstance(one, dict)}
        for use, mark in run.fingerprints.items():
            out["training" if use == "data" else f"evaluated: {use}", paths.get(mark) or ABSENT, mark] = None
    return list(out)


def code(found: list[Run]) -> list[tuple[str, str, str]]:
    """(file, commit, digest) of fedsub and of the user's own files."""
    out: dict[tuple[str, str, str], None] = {}
    for run in found:
        if commit := run.versions.get("commit"):
            out["fedsub", str(commit), ABSENT] = None
        files = run.versions.get("files")
        for name, file in files.items() if isinstance(files, dict) else ():
            if isinstance(file, dict):
                out[str(name), str(file.get("commit") or "not in git"), str(file.get("digest", ABSENT))] = None
    return list(out)


def settings(found: list[Run]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """(settings that all runs share, the others by name and then by label)."""
    by_label: dict[str, dict[str, dict[str, None]]] = {}
    for run in found:
        for key, text in run.settings.items():
            by_label.setdefault(key, {}).setdefault(run.label, {})[text] = None
    labels = {run.label for run in found if run.config}
    same, other = {}, {}
    for key, texts in by_label.items():
        shown = {label: ", ".join(t) for label, t in texts.items()}
        if len(labels) == len(shown) and len(set(shown.values())) == 1:
            same[key] = next(iter(shown.values()))
        else:
            other[key] = shown
    return same, other


def events(found: list[Run]) -> dict[str, list[str]]:
    """Each sentence once, with the runs it was said of."""
    out: dict[str, dict[str, list[str]]] = {}
    for run in found:
        for sentence in run.events:
            seeds = out.setdefault(sentence, {}).setdefault(run.label, [])
            if str(run.result.seed) not in seeds:
                seeds.append(str(run.result.seed))
    return {
        sentence: [f"{label}, seed{'s' if len(s) > 1 else ''} {', '.join(s)}" for label, s in where.items()]
        for sentence, where in out.items()
    }


def _read(folder: Path | None, name: str) -> dict[str, Any]:
    """A JSON object of a run directory; a report does not fail because of one that is gone or damaged."""
    try:
        return read_sealed(folder / name) if folder is not None else {}
    except (OSError, ValueError):
        return {}


def _events(folder: Path | None) -> list[str]:
    try:
        return [str(line["event"]) for line in JsonLines.read(folder / "events.jsonl")] if folder is not None else []
    except (OSError, StoreError, KeyError):
        return []


def _placed(value: Any) -> Any:
    """The same settings with lists of objects as objects by their place, so that each setting is shown by itself."""
    if isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
        value = {str(i + 1): v for i, v in enumerate(value)}
    return {key: _placed(item) for key, item in value.items()} if isinstance(value, dict) else value
