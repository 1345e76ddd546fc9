"""A search on the disk: which records belong to which setting, and what was chosen; `Tuning.load` reads it back.

{"format": "fedsub-tuning", "version": 1, "settings": [{"label": "FedAvg", …, "trials": ["fedavg-seed0-…"]}], …}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsub.disk.seal import read_sealed, write_sealed
from fedsub.errors import CheckpointError, ConfigError
from fedsub.study.tuning.choose import Criterion, Setting
from fedsub.study.tuning.search import Tuning
from fedsub.study.tuning.trials import Trial, read_record

FILE, FORMAT, VERSION = "tuning.json", "fedsub-tuning", 1


def write(tuning: Tuning, folder: Path) -> None:
    """Into the search's own directory, beside the records that it names."""
    criterion = tuning.criterion
    content: dict[str, Any] = {"format": FORMAT, "version": VERSION, "search": tuning.search, "axes": tuning.axes}
    content |= {"select": criterion.select, "metric": criterion.metric, "notes": tuning.notes}
    content["directions"] = dict(criterion.directions)
    content["target"] = None if criterion.target is None else str(criterion.target)
    content["settings"] = [
        {"label": s.label, "number": s.number, "values": s.values, "refused": s.refused, "trials": _names(s.trials)}
        for s in tuning.settings
    ]
    content["chosen"] = {label: setting.number for label, setting in tuning.chosen.items()}
    content["tested"] = {label: _names(trials) for label, trials in tuning.tested.items()}
    write_sealed(folder / FILE, content)


def read(folder: Path) -> Tuning:
    """A search that came to its end, with every trial."""
    file = folder / FILE
    if not file.exists():
        raise ConfigError(
            f"{folder} holds no finished search of fedsub tune (there is no {FILE}); finish it by the same command "
            "and --resume."
        )
    try:
        content = read_sealed(file)
        if content["format"] != FORMAT or content["version"] != VERSION:
            raise ValueError("it is of another format or version")
        metric = f":{content['metric']}" if content["metric"] else ""
        criterion = Criterion.make(content["select"] + metric, content["target"], content["directions"])
        settings = [
            Setting(s["label"], s["number"], s["values"], _trials(folder / "trials", s["trials"]), s["refused"])
            for s in content["settings"]
        ]
        by_number = {(s.label, s.number): s for s in settings}
        chosen = {label: by_number[label, number] for label, number in content["chosen"].items()}
        tested = {label: _trials(folder / "winners", names) for label, names in content["tested"].items()}
        axes, notes = list(content["axes"]), list(content["notes"])
        return Tuning(criterion, content["search"], axes, settings, chosen, tested, notes, folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(f"{file} is damaged ({reason}); make it again by fedsub tune and --resume.") from error


def _names(trials: list[Trial]) -> list[str]:
    return [trial.name for trial in trials]


def _trials(folder: Path, names: list[str]) -> list[Trial]:
    return [read_record(folder / f"{name}.json") for name in names]
