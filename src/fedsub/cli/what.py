"""WHAT and flags -> `Experiment`: a task's name, a data file, a saved directory or a TOML file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedsub.cli.options import DataFlags, given
from fedsub.data.leaf import is_leaf
from fedsub.data.reading import TABLES, kind_of
from fedsub.errors import ConfigError, nearest
from fedsub.study.experiment import tasks
from fedsub.study.experiment.config import merge, parse, parse_set, read_toml
from fedsub.study.experiment.experiment import Experiment, code_of, expand
from fedsub.study.experiment.fitting import fit_model
from fedsub.study.experiment.selecting import select

OWN_SETTINGS = ("lr", "local_steps", "local_epochs", "batch_size", "clients_per_round")


def experiment(
    what: str, flags: DataFlags, chosen: list[str] | None = None, *, usual: bool = False, alone: bool = False
) -> Experiment:
    """The layers on top of each other, checked.

    ``chosen`` selects methods, by label or name. With ``usual`` the usual ones are taken if nothing else names any;
    ``alone``: of several that nobody asked for, the advised one, or the one that ``--set`` is about.
    """
    raw, base, origin = _source(what)
    code = set(code_of(raw).values())
    named = bool(raw.get("methods"))
    if isinstance(raw.get("task"), str):
        raw = _over_task(raw)
    flags_given = given(flags)
    if {"--local-steps", "--local-epochs"} <= {flag for flag, _, _ in flags_given}:
        raise ConfigError("--local-steps and --local-epochs exclude each other; give one of them.")
    if {"--clients-per-round", "--clients-fraction"} <= {flag for flag, _, _ in flags_given}:
        raise ConfigError("--clients-per-round and --clients-fraction exclude each other; give one of them.")
    for flag, path, value in flags_given:
        if flag in ("--clients-per-round", "--clients-fraction"):  # in place of what the task says
            other = "clients_fraction" if flag == "--clients-per-round" else "clients_per_round"
            raw = {**raw, "train": {k: v for k, v in raw.get("train", {}).items() if k != other}}
        if flag == "--table":
            value = tables_of(value)
        elif flag == "--seed":
            value = [value]
        elif flag == "--rank":
            value = _ranking(raw, value)
        raw = _apply(raw, path, value)
    if not raw.get("methods"):
        raw["methods"] = tasks.USUAL if usual else {}
    about: dict[str, Any] = {}
    for text in flags.set or []:
        about = merge(about, parse_set(text))
    raw = merge(raw, about)
    several = isinstance(raw["methods"], dict) and tasks.ADVISED in raw["methods"]
    if alone and several and chosen is None and not named:
        chosen = list(about.get("methods") or [tasks.ADVISED])
    if chosen is not None and isinstance(raw.get("methods", {}), dict):
        raw["methods"] = select(raw.get("methods", {}), chosen)
    config = parse(fit_model(raw), origin)
    if config.task is not None:
        tasks.get(config.task)
    made = Experiment(config, base)
    return replace(made, typed=frozenset(made.code().values()) - code)


def _source(what: str) -> tuple[dict[str, Any], Path, str]:
    """(tables, folder that relative paths start from, how to call them in a message)."""
    path, here = expand(what), Path.cwd()
    if what in tasks.TASKS:
        return {"task": what}, here, "The settings"
    if path.suffix.lower() == ".toml":
        if not path.exists():
            raise ConfigError(f"There is no file {what}; check the path.")
        return read_toml(path), path.resolve().parent, str(path)
    if tasks.is_libsvm(path) and not path.is_dir():
        if not path.exists():
            raise ConfigError(f"There is no file {what}; check the path.")
        return {"task": tasks.LIBSVM, "data": {"path": str(path)}}, here, "The settings"
    if path.is_dir() or (kind_of(path) and path.exists()) or is_leaf(path):
        return {"data": {"path": str(path)}}, here, "The settings"
    if kind_of(path):
        raise ConfigError(f"There is no file {what}; check the path.")
    if path.exists():
        raise ConfigError(
            f"{what} is no data file of a known kind; expected {', '.join((*TABLES, *tasks.ENDINGS))} or .toml."
        )
    raise ConfigError(
        f"There is no task, file or directory {what!r}; {nearest(what, tasks.TASKS)} "
        f"Or give a data file ({', '.join((*TABLES, *tasks.ENDINGS))}), a directory written by Clients.save, or a "
        ".toml file."
    )


def _over_task(raw: dict[str, Any]) -> dict[str, Any]:
    """What was written, over the defaults of its task."""
    below = dict(tasks.get(raw["task"]).config)
    if "methods" in raw:
        below.pop("methods", None)  # a file that lists methods means exactly those
    if {"local_steps", "local_epochs"} & set(raw["train"] if isinstance(raw.get("train"), dict) else ()):
        below["train"] = {k: v for k, v in below["train"].items() if k != "local_steps"}
    if "clients_fraction" in (raw["train"] if isinstance(raw.get("train"), dict) else ()):
        below["train"] = {k: v for k, v in below["train"].items() if k != "clients_per_round"}
    return merge(below, raw)


def _apply(raw: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Set one flag. A flag is about all methods, so it also replaces what single methods said."""
    section, name = path.split(".")
    below = dict(raw)
    if section in below and not isinstance(below[section], dict):
        return below  # a wrong file: `parse` will say so
    below[section] = dict(below.get(section, {})) | {name: value}
    if section == "train":
        other = {"local_steps": "local_epochs", "local_epochs": "local_steps"}.get(name)
        below[section].pop(other, None)
        if name in OWN_SETTINGS and isinstance(below.get("methods"), dict):
            below["methods"] = {
                label: {k: v for k, v in own.items() if k not in (name, other)} if isinstance(own, dict) else own
                for label, own in below["methods"].items()
            }
    return below


def _ranking(raw: dict[str, Any], column: str) -> dict[str, Any]:
    """What the configuration says of a ranking, of this column."""
    evaluate = raw.get("evaluate")
    given = evaluate.get("ranking") if isinstance(evaluate, dict) else None
    return {**(given if isinstance(given, dict) else {}), "item": column}


def tables_of(texts: list[str]) -> list[str] | dict[str, list[str]]:
    pairs = [text.partition("=") for text in texts]
    if not any(equals for _, equals, _ in pairs):
        return texts
    return {
        name: [c.strip() for c in columns.split(",") if c.strip()] if equals else [name]
        for name, equals, columns in pairs
    }
