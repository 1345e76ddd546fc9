"""`new`: a folder with a working app, keys and certificates, and all that starts it."""

from __future__ import annotations

import importlib.util
import json
import keyword
import os
import re
import shutil
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from fedsub.deploy import keys
from fedsub.deploy.site import NAME
from fedsub.disk.files import write_atomic
from fedsub.errors import ConfigError

NODES = 5
PORTS = {"port": 8000, "entrance": 8443, "page": 8080}
# What is written, by the template that it is made of; {package} is the app's.
FILES = {
    "pyproject.toml": "pyproject.toml", "deploy.toml": "deploy.toml", "prepare.py": "prepare.py",
    "Makefile": "Makefile", "README.md": "README.md", ".gitignore": "gitignore", "Dockerfile": "Dockerfile",
    "systemd/{name}-server.service": "systemd/server.service", "systemd/{name}-node@.service": "systemd/node@.service",
    "{package}/__init__.py": "package/__init__.py", "{package}/task.py": "package/task.py",
    "{package}/server_app.py": "package/server_app.py", "{package}/client_app.py": "package/client_app.py",
}  # fmt: skip


def new(
    folder: str | os.PathLike[str],
    *,
    nodes: int = NODES,
    names: Sequence[str] = (),
    ports: dict[str, int] | None = None,
) -> Path:
    """Write a deployment into a new folder, whose name is the app's. ``names``: what nodes call the server."""
    folder = Path(folder).absolute()
    name, package = folder.name, folder.name.replace("-", "_")
    _check_name(name, package)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already; choose another name, or delete it.")
    if nodes < 1:
        raise ConfigError(f"--nodes is {nodes}, expected at least 1.")
    called = [*names, "server"] if names else ["localhost", "127.0.0.1", "server"]
    chosen = PORTS | (ports or {})
    values = {
        "name": name, "package": package, "nodes": str(nodes), "cohort": str(max(1, min(nodes, nodes * 4 // 5))),
        "names": json.dumps(called), "fedsub": _fedsub(), "python": sys.executable,
        **{key: str(value) for key, value in chosen.items()},
    }  # fmt: skip
    for path, template in FILES.items():
        target = folder / path.format(name=name, package=package)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, fill(template, values).encode())
    write_atomic(folder / "compose.yaml", _compose(values, nodes).encode())
    (folder / "wheels").mkdir()
    write_atomic(folder / "wheels" / ".gitkeep", b"")
    keys.make_authority(folder / "certs", name)
    keys.make_server(folder / "certs", called)
    keys.make_secret(folder / "certs")
    for number in range(nodes):
        keys.make_node_key(folder / "keys" / f"node-{number}")
    return folder


def fill(template: str, values: dict[str, str]) -> str:
    text = files("fedsub.deploy").joinpath("template", f"{template}.in").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], text)


def _compose(values: dict[str, str], nodes: int) -> str:
    """Server and nodes as containers; each sees only its own data and key."""
    each = [{"number": str(number), "padded": f"{number:06d}"} for number in range(nodes)]
    return fill("compose.yaml", values) + "".join(fill("compose_node.yaml", values | one) for one in each)


def _check_name(name: str, package: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name an app; use up to 32 small letters, digits and hyphens, beginning with a letter."
        )
    if keyword.iskeyword(package) or importlib.util.find_spec(package) is not None:
        raise ConfigError(f"There is a Python module {package!r} already; choose another name.")


def _fedsub() -> str:
    """The command as the Makefile calls it: this Python's, whatever the path is later."""
    beside = Path(sys.executable).with_name("fedsub")
    return str(beside) if beside.exists() else shutil.which("fedsub") or f"{sys.executable} -m fedsub"
