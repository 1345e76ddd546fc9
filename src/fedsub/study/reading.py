"""What a directory holds, read back to be shown: a comparison, a single run, or a search.

read_back("runs/demo")          # a Comparison, also of runs that fedsub.run or fedsub.compare made in Python
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsub.disk.rundir import RunDir
from fedsub.disk.seal import read_sealed, write_sealed
from fedsub.errors import CheckpointError, ConfigError
from fedsub.method.names import normal
from fedsub.round.clock.devices import NONE, PRESETS
from fedsub.running.going_on import changes_of_code
from fedsub.running.result import Result, Target
from fedsub.running.run import finished_result

if TYPE_CHECKING:
    from fedsub.study.comparing import Comparison
    from fedsub.study.tuning import Tuning

BY_COMMAND = "compare.json"  # of fedsub run and compare: all that it takes to go on
FILE, FORMAT, VERSION = "comparison.json", "fedsub-comparison", 1  # of `compare`: what its runs do not say


def write_names(comparison: Comparison) -> None:
    """Keep what a comparison's runs do not say: labels, target, metric. The command line has it in compare.json."""
    out = comparison.path
    if out is None or (out / BY_COMMAND).exists():
        return
    content: dict[str, Any] = {"format": FORMAT, "version": VERSION, "labels": list(comparison.results)}
    content |= {"target": str(comparison.target) if comparison.target else None, "metric": comparison.metric}
    content["reference"] = comparison.reference
    content["devices"] = getattr(comparison.devices, "name", NONE)
    write_sealed(out / FILE, content)


def read_back(folder: str | os.PathLike[str]) -> Comparison | Tuning:
    """The comparison, run or search of a directory; runs that are not finished are named in its notes."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigError(f"There is no directory {folder}; give the --out of fedsub run, compare or tune.")
    if (folder / "tune.json").exists():
        from fedsub.study.tuning import Tuning

        return Tuning.load(folder)
    return _single(folder) if (folder / "config.json").exists() else read_comparison(folder)


def _single(folder: Path) -> Comparison:
    from fedsub.study.comparing import Comparison

    if not RunDir(folder).finished:
        raise ConfigError(f"{folder} is a run that is not finished; finish it, or give the comparison that it is of.")
    result = finished_result(folder)
    config = RunDir(folder).config()
    target = Target.parse(config["target"]) if config.get("target") else None
    made = Comparison({result.method: [result]}, target, path=folder, notes=_of_code(result.method, result))
    return _with_metric(made, None)


def read_comparison(folder: Path) -> Comparison:
    """What `compare`, or the command line, trained there; without the files beside the runs, by their names."""
    from fedsub.study.comparing import Comparison, slug

    labels, about = _names(folder)
    by_stem = {slug(label): label for label in labels}
    results: dict[str, list[Result]] = {label: [] for label in labels}
    notes, targets = [], []
    runs = sorted((path for path in folder.iterdir() if (path / "config.json").is_file()), key=_stem_and_seed)
    for path in runs:
        stem, seed = _stem_and_seed(path)
        label = by_stem.get(stem, stem)
        if not RunDir(path).finished:
            notes.append(f"{label}, seed {seed}, is not finished.")
            continue
        result = finished_result(path)
        result.method = label
        results.setdefault(label, []).append(result)
        targets.append(RunDir(path).config().get("target"))
        notes += _of_code(label, result)
    if not any(results.values()):
        raise ConfigError(
            f"{folder} holds no finished run of fedsub; give the --out of fedsub run, compare or tune, or what "
            "out= was in Python."
        )
    notes += [f"{label} has no finished run." for label, found in results.items() if not found]
    goal = about.get("target") or (targets[0] if len(set(targets)) == 1 else None)
    devices = about.get("devices", "phones")
    known = isinstance(devices, str) and devices in PRESETS  # of the user's own only the name is kept
    devices = devices if known else None
    given = str(about.get("reference") or "")
    reference = next((label for label in results if given and normal(given) == normal(label)), None)
    reference = given if given in results else reference
    target = Target.parse(goal) if goal else None
    made = Comparison(results, target, path=folder, notes=notes, devices=devices, reference=reference)
    return _with_metric(made, about.get("metric"))


def _with_metric(made: Comparison, metric: str | None) -> Comparison:
    known = made.metrics()
    made.metric = metric if metric in known else made.target.metric if made.target else next(iter(known), made.metric)
    return made


def _of_code(label: str, result: Result) -> list[str]:
    return [f"{label}, seed {result.seed}: {said}" for said in changes_of_code(result.path)]


def _stem_and_seed(path: Path) -> tuple[str, int]:
    """("fedavg", 0) of "fedavg-seed0"; a directory of another name is one of its own."""
    stem, _, seed = path.name.rpartition("-seed")
    return (stem, int(seed)) if stem and seed.isdecimal() else (path.name, 0)


def _names(folder: Path) -> tuple[list[str], dict[str, Any]]:
    """(labels in their order, target, metric and devices) of what is known beside the runs."""
    for name, labels in ((BY_COMMAND, "methods"), (FILE, "labels")):
        file = folder / name
        if not file.exists():
            continue
        try:
            content = read_sealed(file)
            about = content["config"]["run"] if name == BY_COMMAND else content
            return [str(label) for label in content[labels]], dict(about)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{file} is damaged ({error}); restore it to report on {folder}.") from error
    return [], {}
