"""What `fedsub deploy` does: findings, the supervisor with its page, and what became of a run."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import typer

from fedsub.cli.show import View
from fedsub.deploy.check import check
from fedsub.deploy.finding import Finding
from fedsub.deploy.outcome import finished, history, live, outcome, roll
from fedsub.deploy.site import Site
from fedsub.errors import ConfigError, RunError

MARKS = {"fine": ("ok", "green"), "note": ("note", "yellow"), "refused": ("no", "red")}
STOP_SECONDS = 60.0


def opened(folder: Path, nodes: int | None, listen: str | None, out: Path | None) -> Site:
    """The deployment with flags above its settings."""
    site = Site.open(folder)
    settings = site.settings
    above: dict[str, Any] = {}
    if nodes is not None:
        above["nodes"] = settings.nodes.model_copy(update={"local": nodes})
    if listen is not None:
        above["proxy"] = settings.proxy.model_copy(update={"listen": listen})
    if out is not None:
        above["run"] = settings.run.model_copy(update={"out": str(out.absolute())})
    made = Site(site.folder, settings.model_copy(update=above))
    _ = made.listens
    if nodes is not None and nodes < 0:
        raise ConfigError(f"--nodes is {nodes}, expected 0 or more.")
    return made


def checked(site: Site, view: View, *, outside: str | None = None, app: bool = True) -> list[Finding]:
    with view.busy("Checking"):
        found = check(site, outside=outside, app=app)
    for one in found:
        mark, style = MARKS[one.level]
        view.line(f"{mark:4} {one.about}: {one.sentence}", style if one.level != "fine" else "")
    refused = [one for one in found if one.level == "refused"]
    view.finish({"command": "check", "good": not refused, "findings": [asdict(one) for one in found]})
    if refused:
        raise typer.Exit(1)
    return found


def supervise(site: Site, view: View, which: Literal["new", "old", "any"]) -> None:
    from fedsub.deploy.supervise import Supervisor
    from fedsub.deploy.web import serving, write_page

    roll(site).refuse_another()
    begun = (site.out / "config.json").exists()
    if finished(site):
        if which == "new":
            raise ConfigError(f"{site.out} holds a finished run; name another directory (run.out, --out).")
        _told(site, view)
        return
    if which == "new" and begun:
        raise ConfigError(f"{site.out} holds a run already; fedsub deploy resume goes on with it, or name another.")
    if which == "old" and not begun:
        raise ConfigError(f"There is no run in {site.out} to go on with; fedsub deploy run starts one.")
    found = check(site)
    for one in found:
        if one.level != "fine":
            view.line(f"{MARKS[one.level][0]:4} {one.about}: {one.sentence}", MARKS[one.level][1])
    if refused := [one for one in found if one.level == "refused"]:
        raise ConfigError(f"Not started: {len(refused)} of {len(found)} checks were refused.")
    with serving(site) as address:
        view.note(f"Status page: {address}")
        result = Supervisor(site, lambda sentence: view.note(f"{time.strftime('%H:%M:%S')} {sentence}")).run()
    kept = write_page(site, site.state / "status.html")
    view.note(f"The page as it was at the end: {kept}")
    _told(site, view)
    if not result.good:
        raise typer.Exit(130 if result.state == "interrupted" else 1)


def simulated(site: Site, view: View, rounds: int, cpus: int) -> None:
    from fedsub.deploy.simulate import simulate

    with view.busy("Simulating"):
        played = simulate(site, rounds=rounds, cpus=cpus)
    out, latest = played.out, {k: v for k, v in history(played.out)[-1].items() if isinstance(v, int | float)}
    view.line(f"{played.nodes} nodes played {rounds} rounds in Flower's simulation: {out}")
    for name, value in latest.items():
        if name not in ("round", "clients"):
            view.line(f"{name} {value:,}" if isinstance(value, int) else f"{name} {value:.4g}")
    counts = {what: count for what, count in live(out).get("counts", {}).items() if count}
    said = ", ".join(f"{what.replace('_', ' ')} {count}" for what, count in counts.items())
    view.line(f"Messages that were refused, late or lost: {said or 'none'}")
    view.finish({"command": "simulate", "out": str(out), "nodes": played.nodes, "latest": latest, "counts": counts})


def _told(site: Site, view: View) -> None:
    result = outcome(site)
    view.line(result.sentence())
    if result.state == "finished":
        view.line(f"The model: {site.out}")
    view.finish({"command": "run", **result.plain(), "out": str(site.out)})


def shown(site: Site, view: View, *, metrics: bool) -> None:
    from fedsub.deploy import metrics as prometheus
    from fedsub.deploy.page import duration
    from fedsub.deploy.view import Watcher
    from fedsub.study.report.words import size

    seen = Watcher(site).look()
    result = seen.outcome
    if metrics:
        typer.echo(prometheus.text(seen), nl=False)
        return
    view.line(result.sentence())
    if seen.nodes:
        online = sum(node.online for node in seen.nodes)
        view.line(f"Nodes: {online} of {len(seen.nodes)} online; {size(seen.down)} down, {size(seen.up)} up so far")
    if (left := seen.left()) is not None:
        view.line(f"About {duration(left)} to go")
    for name, value in seen.latest().items():
        view.line(f"{name} {value:.4g}")
    if any(seen.counts.values()):
        view.line(", ".join(f"{what.replace('_', ' ')} {count}" for what, count in seen.counts.items() if count))
    if result.flower:
        view.line(f"Flower says of run {result.run}: {result.flower}")
    if result.supervised:
        view.line(f"Page: http://127.0.0.1:{site.settings.page.port}/")
    view.finish({"command": "status", **result.plain(), "latest": seen.latest(), "counts": seen.counts})
    if not result.good and result.state != "nothing":
        raise typer.Exit(1)


def stopped(site: Site, view: View) -> None:
    kept = roll(site)
    pid = kept.supervisor()
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + STOP_SECONDS
        while kept.supervisor() is not None:
            if time.monotonic() > end:
                raise RunError(
                    f"The supervisor (pid {pid}) did not end in {STOP_SECONDS:.0f} s; kill it and stop again."
                )
            time.sleep(0.1)
    left = kept.end_leftovers()
    said = "Stopped." if pid is not None else f"Stopped what was left: {', '.join(left)}." if left else "Nothing runs."
    view.line(said)
    view.finish({"command": "stop", "supervisor": pid, "leftovers": left})


def served(site: Site, view: View, port: int | None) -> None:
    from fedsub.deploy.web import serving

    with serving(site, port) as address:
        view.line(f"Status page: {address} (Ctrl-C ends it)")
        while True:
            time.sleep(3600)
