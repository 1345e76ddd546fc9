"""Deployments to look at: a folder as `fedsub deploy new` makes it, with a run beside it that was never played."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

from fedsub.deploy.scaffold import new
from fedsub.deploy.site import Site


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now."""
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    out = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return out


def make(folder: Path, nodes: int = 2, **more: Any) -> Site:
    """A new deployment on free ports."""
    port, entrance, page = free_ports(3)
    ports = {"port": port, "entrance": entrance, "page": page}
    return Site.open(new(folder / "demo-app", nodes=nodes, ports=ports, **more))


def set_in(site: Site, old: str, new: str) -> Site:
    """The deployment with a line of its deploy.toml changed."""
    path = site.folder / "deploy.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return Site.open(site.folder)


def write_rounds(site: Site, rounds: int, of: int = 20) -> None:
    """The directory of a run that has played so many rounds, as far as the tools read it."""
    out = site.out
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps({"rounds": of}))
    rows, traffic, timing = [], [], []
    for r in range(rounds + 1):
        row: dict[str, Any] = {"round": r, "loss": None, "clients": 0, "down": 0, "up": 0}
        if r:
            row |= {"loss": 0.7 - r / 100, "clients": 2, "down": 3000, "up": 5000, "lost": int(r == 2), "rejected": 0}
            traffic.append({"round": r, "clients": [0, 1], "down": [1000, 2000], "up": [2000, 3000]})
            timing.append({"round": r, "seconds": 1.5})
            if r == 2:
                traffic[-1]["lost"] = [1]
        rows.append(row | {"test.ce": 0.69 - r / 200, "test.auc": 0.5 + r / 100})
    for name, lines in (("metrics", rows), ("traffic", traffic), ("timing", timing)):
        (out / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_live(site: Site, **more: Any) -> None:
    """What the server app says of itself."""
    clients = {
        "0": {"name": "node-0", "online": True, "joined": True, "left_out": "", "accepted": 3},
        "1": {"name": "<b>node-1</b>", "online": False, "joined": False, "accepted": 1,
              "left_out": "runs another method"},
    }  # fmt: skip
    said = {
        "version": 1, "time": time.time(), "state": "running", "clients": clients,
        "counts": {"refused": 2, "late": 1, "failed": 0, "too_large": 0, "rejoined": 1},
        "refused": ['client 1: "<script>alert(1)</script>" is no number'],
    }  # fmt: skip
    (site.out / "live.json").write_text(json.dumps(said | more))
