"""`fedsub bench`: how much CPU a round costs beside two plain PyTorch loops, and as data and tables grow.

Everything is made on the spot: `workloads` (what is trained), `contenders` (ways to do a round),
`timing` (taking turns), `growth` (population and table), `zoo` (what parts, servers, codecs and samplers add),
`mixture` (L2SGD+ over all clients), `gossip` (nodes without a server, beside FedAvg), `secure` (a secure sum, beside
`flower_secagg`), `ingest` (reading Parquet).
"""

from __future__ import annotations

import json as jsonlib
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedsub.errors import ConfigError, nearest
from fedsub.round.quiet import one_thread
from fedsub.study.bench import gossip as nodes
from fedsub.study.bench import ingest as reading
from fedsub.study.bench import mixture as personal
from fedsub.study.bench import secure as sums
from fedsub.study.bench import workers as crews
from fedsub.study.bench import zoo as additions
from fedsub.study.bench.contenders import CentralSGD, Contender, DeepcopyLoop, Federated, auto_choice
from fedsub.study.bench.growth import Measured, measure
from fedsub.study.bench.timing import interleave
from fedsub.study.bench.workloads import WORKLOADS, Workload

Progressed = Callable[[str], None]


@dataclass(frozen=True)
class Turns:
    """How often contenders take turns; ``sparing`` those that are slow beside the others."""

    count: int = 3
    burst: int = 1
    sparing: dict[str, int] = field(default_factory=dict)


TURNS = {
    "w1": Turns(12, burst=5, sparing={"deepcopy": 4, "serial": 6}),
    "w2": Turns(10, sparing={"deepcopy": 2, "batched": 2}),
    "w3": Turns(8, sparing={"deepcopy": 2}),
    "w3-100": Turns(8, sparing={"deepcopy": 1}),
}


def main(
    names: list[str] | None = None,
    *,
    rounds: int | None = None,
    growth: bool = True,
    compiled: bool = True,
    zoo: bool = False,
    mixture: bool = False,
    gossip: bool = False,
    secure: bool = False,
    flower: str | None = None,
    workers: bool = False,
    ingest: bool = False,
    rows: int | None = None,
    memory: str | None = None,
    json: bool = False,
) -> dict[str, Any]:
    """Run the workloads ``names`` (default: all), print tables (or one JSON object) and return the numbers.

    ``rounds`` overrides how many turns each contender gets; ``growth`` adds the cost of a round as
    population and table grow (minutes, and up to 12 GiB of memory); ``compiled=False`` leaves out
    torch.compile, whose warm-up is long. ``zoo`` measures instead what parts, servers, codecs and samplers add
    to FedSubAvg's round (default: on w1 and w3; ``growth`` then is a table of 10 million rows). ``mixture`` measures
    an iteration of L2SGD+ over all clients of the MovieLens twin instead, and nothing else; ``gossip`` rounds of nodes
    without a server over all of them, beside FedAvg's; ``secure`` a secure sum, beside Flower's if ``flower`` is a
    Python that has it; ``workers`` rounds by the clock with two workers, local and on Ray; ``ingest`` reading ``rows``
    of Parquet in bounded ``memory``.
    """
    chosen = names if names is not None else list(additions.WORKLOADS if zoo else WORKLOADS)
    for name in chosen:
        if name not in WORKLOADS:
            raise ConfigError(f"There is no workload {name!r}; {nearest(name, WORKLOADS)}")
    if rounds is not None and rounds < 1:
        raise ConfigError(f"rounds must be at least 1, got {rounds}.")
    out: dict[str, Any] = {"machine": _machine(), "workloads": {}}
    if flower and not secure:
        raise ConfigError("--flower is measured beside a secure sum; add --secure.")
    console = Console() if sys.stdout.isatty() else Console(width=120)
    if not ingest and (rows is not None or memory is not None):
        raise ConfigError("--rows and --memory are of --ingest; add it.")
    if workers:
        if mixture or gossip or zoo or secure or ingest:
            raise ConfigError("--workers goes with names of workloads only.")
        with _progress() as bar:
            task = bar.add_task("workers", total=None)
            found = crews.run(names, rounds=rounds, progress=lambda what: bar.update(task, description=what))
            bar.update(task, description="workers done", total=1, completed=1)
        out["workers"] = found
        print(jsonlib.dumps(out, indent=1)) if json else console.print(crews.table(found))
        return out
    if ingest:
        if mixture or gossip or zoo or secure or names:
            raise ConfigError(
                "--ingest has data of its own; leave out --mixture, --gossip, --zoo, --secure and workloads."
            )
        with _progress() as bar:
            task = bar.add_task("ingest", total=None)
            found = reading.run(
                rounds=rounds, rows=rows or reading.ROWS, memory=memory or reading.MEMORY,
                whole=(rows or 0) <= reading.ROWS,
                progress=lambda what: bar.update(task, description=f"ingest {what}"),
            )  # fmt: skip
            bar.update(task, description="ingest done", total=1, completed=1)
        out["ingest"] = {**found, "figures": reading.figures(found)}
        print(jsonlib.dumps(out, indent=1)) if json else console.print(reading.table(found))
        return out
    if secure:
        if mixture or gossip or zoo or names:
            raise ConfigError("--secure has data of its own; leave out --mixture, --gossip, --zoo and workloads.")
        with _progress() as bar:
            task = bar.add_task("secure sum", total=None)
            found = sums.run(
                rounds=rounds, flower=flower, progress=lambda what: bar.update(task, description=f"secure sum {what}")
            )
            bar.update(task, description="secure sum done", total=1, completed=1)
        out["secure"] = {**found, "figures": sums.figures(found)}
        print(jsonlib.dumps(out, indent=1)) if json else console.print(sums.table(found))
        return out
    if mixture or gossip:
        name, module = ("mixture", personal) if mixture else ("gossip", nodes)
        if (mixture and gossip) or zoo or names:
            others = " and ".join(flag for flag in ("--mixture", "--gossip", "--zoo") if flag != f"--{name}")
            raise ConfigError(f"--{name} has data of its own; leave out {others} and names of workloads.")
        with _progress() as bar:
            task = bar.add_task(name, total=None)
            found = module.run(rounds=rounds, progress=lambda what: bar.update(task, description=f"{name} {what}"))
            bar.update(task, description=f"{name} done", total=1, completed=1)
        out[name] = found
        print(jsonlib.dumps(out, indent=1)) if json else console.print(module.table(found))
        return out
    with _progress() as bar:
        for name in chosen:
            task = bar.add_task(name, total=None)
            say = lambda what, name=name, task=task: bar.update(task, description=f"{name} {what}")  # noqa: E731
            if zoo:
                found = additions.run(WORKLOADS[name], rounds=rounds, progress=say)
                shown = additions.table(WORKLOADS[name], found)
            else:
                found = run(WORKLOADS[name], rounds=rounds, compiled=compiled, progress=say)
                shown = _table(WORKLOADS[name], found)
            out["workloads"][name] = found
            bar.update(task, description=f"{name} done", total=1, completed=1)
            if not json:
                console.print(shown)
        if growth and zoo:
            task = bar.add_task("10 million rows", total=None)
            large = additions.run_large(rounds=rounds, progress=lambda what: bar.update(task, description=what))
            out["large"] = large
            bar.update(task, description="10 million rows done", total=1, completed=1)
            if not json:
                console.print(additions.large_table(large))
        elif growth:
            task = bar.add_task("growth", total=None)
            found = measure(rounds=rounds or 15, progress=lambda what: bar.update(task, description=what))
            out["growth"] = [one.as_dict() for one in found]
            bar.update(task, description="growth done", total=1, completed=1)
            if not json:
                console.print(_growth_table(found))
    if json:
        print(jsonlib.dumps(out, indent=1))
    return out


def run(
    workload: Workload,
    *,
    rounds: int | None = None,
    compiled: bool = True,
    progress: Progressed = lambda what: None,
) -> dict[str, Any]:
    """CPU seconds a round of every contender on one workload, and what ``engine="auto"`` chooses."""
    notes: list[str] = []
    progress("making data")
    with one_thread():
        contenders: list[Contender] = [CentralSGD(workload), DeepcopyLoop(workload)]
        for engine in ("serial", "batched", "compiled"):
            if engine == "compiled" and not (compiled and workload.compiles):
                if compiled:
                    notes.append("compiled: left out, compiling a long recurrent graph takes minutes")
                continue
            progress(f"{engine}: set-up")
            made = Federated(workload, engine)
            if engine != "serial" and made.trainer.engine.name == "serial":
                notes.append(f"{engine}: left out, {made.reason}")
            else:
                contenders.append(made)
    plan = TURNS.get(workload.name, Turns())
    turns = rounds or plan.count
    sparing = {name: min(count, turns) for name, count in plan.sparing.items()}
    timed = interleave(contenders, turns, burst=plan.burst, sparing=sparing, progress=progress)
    progress("auto")
    with one_thread():
        auto, reason = auto_choice(workload)
    central, loop = timed["central"].best, timed["deepcopy"].best
    return {
        "title": workload.title,
        "contenders": {
            name: {
                "cpu": t.best,
                "cpu_median": t.median,
                "rounds": len(t.rounds),
                "warm_up": t.warm_up,
                "x_central": t.best / central,
                "x_deepcopy": t.best / loop,
            }
            for name, t in timed.items()
        },
        "auto": auto,
        "auto_reason": reason,
        "notes": notes,
    }


LABELS = {
    "central": "CentralSGD (limit)",
    "deepcopy": "deepcopy loop",
    "serial": "fedsub serial",
    "batched": "fedsub batched",
    "compiled": "fedsub batched, compiled",
}


def _table(workload: Workload, found: dict[str, Any]) -> Table:
    w = workload
    shape = f"N={w.clients:,}, K={w.cohort}, B={w.batch}, I={w.steps}, {w.rows:,} rows"
    table = Table(title=f"{w.name}: {w.title} ({shape})", title_justify="left", caption_justify="left")
    for head in ("", "CPU s a round", "median", "x CentralSGD", "x deepcopy loop", "rounds", "warm-up s"):
        table.add_column(head, justify="right" if head else "left")
    for name, one in found["contenders"].items():
        table.add_row(
            LABELS[name] + (" (auto)" if name == found["auto"] else ""),
            f"{one['cpu']:.4f}",
            f"{one['cpu_median']:.4f}",
            f"{one['x_central']:.2f}",
            f"{one['x_deepcopy']:.3f}",
            str(one["rounds"]),
            f"{one['warm_up']:.1f}",
        )
    table.caption = "\n".join([f"auto: {found['auto_reason']}", *found["notes"]])
    return table


def _growth_table(found: list[Measured]) -> Table:
    table = Table(title="Growth: K=100, B=32, I=10, 300 rows of 16 a client", title_justify="left")
    heads = ("clients", "rows", "CPU ms a round", "median", "beside", "KB down, up a client", "table GB", "peak GiB")
    for head in heads:
        table.add_column(head, justify="right")
    for one in found:
        table.add_row(
            f"{one.clients:,}",
            f"{one.rows:,}",
            f"{1e3 * one.best:.1f}",
            f"{1e3 * one.median:.1f}",
            f"{one.ratio:.2f} x",
            f"{one.down / 1e3:.2f}, {one.up / 1e3:.2f}",
            f"{one.table_bytes / 1e9:.2f}",
            f"{one.peak / 2**30:.2f}",
        )
    table.caption = "beside: minimum over that of the first line of the same group, measured in turn"
    return table


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True))


def _machine() -> dict[str, Any]:
    return {"torch": torch.__version__, "python": platform.python_version(), "processor": platform.machine()}
