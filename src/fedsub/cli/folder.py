"""The directory of a comparison: `compare.json` says how to make it, each run has a directory of its own.

{"format": "fedsub-compare", "version": 1, "command": "compare", "base": "…", "config": {…}, …}
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from fedsub.disk.files import TEMPORARY, digest, make_folder, output_folder, write_atomic
from fedsub.disk.functions import find
from fedsub.disk.reading import read_json, read_text
from fedsub.disk.seal import check_seal, write_sealed
from fedsub.disk.settings import differences
from fedsub.errors import CheckpointError, ConfigError
from fedsub.study.experiment.complaints import show
from fedsub.study.experiment.config import parse
from fedsub.study.experiment.evaluation import metric_files
from fedsub.study.experiment.experiment import Experiment
from fedsub.study.reading import BY_COMMAND

FORMAT, VERSION, FILE = "fedsub-compare", 1, BY_COMMAND
# May change between the start and a resume: they change no result. So may methods, seeds and rounds be added.
FREE = (
    "run.out", "run.chunk", "run.workers", "run.address", "run.checkpoint_every", "run.tensorboard", "run.devices",
    "run.shards", "run.reference", "data.path",
)  # fmt: skip


def default_out(name: str) -> Path:
    stem = f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    candidates = (Path("runs") / (stem if n == 1 else f"{stem}-{n}") for n in range(1, 1000))
    return next(path for path in candidates if not path.exists())


def check(out: Path, experiment: Experiment, *, resume: bool) -> None:
    """Refuse a directory that is somebody else's, or ours without being told to go on."""
    output_folder(out)
    if not out.exists() or all(p.name == FILE or p.name.endswith(TEMPORARY) for p in out.iterdir()):
        return  # also one that was claimed by a start in which nothing came to be trained
    if not (out / FILE).exists():
        raise ConfigError(f"{out} is not empty and holds no fedsub comparison; choose another --out.")
    if not resume:
        raise ConfigError(
            f"{out} holds a comparison already; go on with it by --resume or: fedsub resume {out}\n"
            "Or choose another --out."
        )
    differences = _differences(_read(out)["config"], experiment.config.plain())
    if differences:
        raise CheckpointError(
            f"{out} was started with other settings:\n" + "\n".join(differences) + "\n"
            f"Go on as it was started with: fedsub resume {out}\nOr choose another --out."
        )


@contextmanager
def claimed(out: Path, command: str, experiment: Experiment, methods: dict[str, dict[str, Any]]) -> Iterator[None]:
    """Take the directory for what is trained inside; if nothing comes to be trained, leave it as it was."""
    path = out / FILE
    before, runs, new = path.read_bytes() if path.exists() else None, _started(out), not out.exists()
    _write(out, command, experiment, methods)
    try:
        yield
    except BaseException:
        if _started(out) == runs:
            path.unlink() if before is None else write_atomic(path, before)
            if new and not any(out.iterdir()):
                out.rmdir()
        raise


def _started(out: Path) -> dict[Path, bytes]:
    """What the runs in a directory were asked to do."""
    try:
        return {path: read_text(path) for path in out.glob("*/config.json")}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"A config.json in {out} cannot be read ({error}); restore it from a copy.") from error


def _write(out: Path, command: str, experiment: Experiment, methods: dict[str, dict[str, Any]]) -> None:
    """``methods`` are the complete settings by label, for readers; a resume makes them anew from ``config``."""
    make_folder(out)
    content: dict[str, Any] = {"format": FORMAT, "version": VERSION, "command": command}
    content |= {"base": str(experiment.base), "config": experiment.config.plain(), "methods": methods}
    spec = experiment.config.model.objective
    if spec is not None and (file := find(spec, experiment.base)):
        content["objective"] = {"file": str(file), "digest": digest(file)}
    if files := experiment.own_files():
        content["own_methods"] = _digests(sorted(set(files.values())))
    if found := metric_files(experiment.config.evaluate, experiment.base):
        content["own_metrics"] = _digests(found)
    write_sealed(out / FILE, content)


def _digests(files: list[Path]) -> list[dict[str, str]]:
    return [{"file": str(file), "digest": digest(file)} for file in files]


def load(folder: Path) -> tuple[Path, str, Experiment, list[str]]:
    """(directory, command, experiment, warnings) of a comparison's directory, or of a run's within it."""
    if not folder.exists():
        raise ConfigError(f"There is no directory {folder}; check the path.")
    out = next(
        (
            f
            for f in (folder, folder.parent if folder.name not in ("", "..") else folder.resolve().parent)
            if (f / FILE).is_file()
        ),
        None,
    )
    if out is None:
        if (folder / "tune.json").exists():
            raise ConfigError(
                f"{folder} is a search of fedsub tune; go on with it by the same fedsub tune command and --resume."
            )
        if (folder / "config.json").exists() and "lambda_path" in _config(folder):
            raise ConfigError(
                f"{folder} is a path of fedsub mixture path; go on with it by the same command and --resume."
            )
        runs = [run for run in (folder, *folder.glob("*/")) if (run / "config.json").is_file()]
        if any(_config(run).get("method", {}).get("name") == "Split" for run in runs):
            raise ConfigError(
                f"{folder} is of fedsub vertical run; go on with it by the same command and --out {folder} --resume."
            )
        if (folder / "config.json").exists():
            raise ConfigError(
                f"{folder} is a run made from Python, without a {FILE}; go on with it from Python: run(…, resume=True)."
            )
        if runs:
            raise ConfigError(
                f"{folder} holds runs made from Python, without a {FILE}; go on with the same call of fedsub.compare "
                "and resume=True."
            )
        raise ConfigError(f"{folder} holds no {FILE}, so it is no directory of fedsub run or compare.")
    content = _read(out)
    experiment = Experiment(parse(content["config"], str(out / FILE)), Path(content["base"]))
    return out, content["command"], experiment, _warnings(content)


def _config(folder: Path) -> dict[str, Any]:
    """What a run's directory was started with; empty if it cannot be read."""
    try:
        content = read_json(folder / "config.json")
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _warnings(content: dict[str, Any]) -> list[str]:
    out = []
    objective = [("objective", content["objective"])] if "objective" in content else []
    own = [(kind, file) for kind in ("method", "metric") for file in content.get(f"own_{kind}s", [])]
    for what, known in [*objective, *own]:
        file = Path(known["file"])
        if not file.is_file():
            raise ConfigError(f"The {what}'s file {file} is gone; put it back to go on.")
        if digest(file) != known["digest"]:
            out.append(f"{file} has changed since the start; finished runs used the older one.")
    return out


def _read(out: Path) -> dict[str, Any]:
    path = out / FILE
    try:
        content = read_json(path)
        known = content["format"] == FORMAT and {"version", "command", "base", "config"} <= content.keys()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); restore it, or start again elsewhere.") from error
    if not known:
        raise CheckpointError(f"{path} was not written by fedsub; choose another directory.")
    wanted = {"version": int, "command": str, "base": str, "config": dict}
    wrong = [f"{k} is {show(content[k])}" for k, kind in wanted.items() if not isinstance(content[k], kind)]
    if not wrong:
        methods, objective = content["config"].get("methods", {}), content.get("objective", {})
        if not isinstance(methods, dict):
            wrong.append(f"config.methods is {show(methods)}")
        if "objective" in content and not (
            isinstance(objective, dict) and all(isinstance(objective.get(k), str) for k in ("file", "digest"))
        ):
            wrong.append(f"objective is {show(objective)}")
        for kind in ("own_methods", "own_metrics"):
            own = content.get(kind, [])
            if not isinstance(own, list) or not all(
                isinstance(o, dict) and {"file", "digest"} <= o.keys() for o in own
            ):
                wrong.append(f"{kind} is {show(own)}")
    if wrong:
        raise ConfigError(f"{path} was edited: {', '.join(wrong)}; restore it, or start again elsewhere.")
    if content["version"] > VERSION:
        raise CheckpointError(f"{path} was written by a newer fedsub; install that one.")
    try:
        check_seal(content)
    except ValueError as error:
        raise ConfigError(f"{path} is damaged ({error}); restore it, or start again elsewhere.") from error
    return content


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    added = tuple(f"methods.{label}" for label in now["methods"] if label not in before.get("methods", {}))
    old, new = parse(before, f"The {FILE} in the directory").train, parse(now).train
    more = ["train.seeds"] if set(old.seed_list) <= set(new.seed_list) else []
    more += ["train.rounds"] if old.rounds <= new.rounds else []
    return differences(before, now, lambda key: key in FREE or key in more or key.startswith(added))
