"""`fedsub bench --zoo`: what each part, server, codec and sampler adds to a round of FedSubAvg.

On every workload all of them take turns in one run, batched and not compiled. Then a table of 10 million rows,
where a server that kept or touched whole tables would stand out: every method in a process of its own.

A sampler that favours large clients makes rounds larger by itself, so samplers are judged by the time that
choosing and observing take. Those that ask candidates for their loss (pow-d, cpow-d) do more work by definition:
they are listed, without a bar.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.table import Table

from fedsub import methods
from fedsub.method.slots import Method
from fedsub.round.quiet import one_thread
from fedsub.study.bench.contenders import Federated
from fedsub.study.bench.growth import Measured, measure
from fedsub.study.bench.timing import interleave
from fedsub.study.bench.workloads import Workload

PLAIN = "FedSubAvg"
BAR, SCAFFOLD_BAR, LARGE_BAR = 1.3, 1.6, 2.0


@dataclass(frozen=True)
class Entry:
    """FedSubAvg (or ``make``) with some settings, and the most that its round may cost beside the plain one."""

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    bar: float | None = BAR
    make: Callable[..., Method] = methods.fedsubavg

    def method(self, workload: Workload) -> Method:
        common = {"lr": workload.lr, "local_steps": workload.steps, "batch_size": workload.batch}
        return self.make(**{**common, "clients_per_round": workload.cohort, "weighting": "samples", **self.settings})


ZOO: dict[str, Entry] = {
    PLAIN: Entry("", bar=None),
    "proximal term": Entry("part", {"mu": 0.01}),
    "Scaffold II": Entry("part", {"variates": "II"}, SCAFFOLD_BAR),
    "Scaffold I": Entry("part", {"variates": "I"}, SCAFFOLD_BAR),
    "FedNova": Entry("part", {"normalise": True}),
    "clip_rows": Entry("part", {"clip_rows": 1.0}),
    "local momentum": Entry("local", {"momentum": 0.9}),
    "local Adam": Entry("local", {"solver": "adam", "lr": 0.001}),
    "clip_norm": Entry("local", {"clip_norm": 1.0}),
    "weight_decay": Entry("local", {"weight_decay": 1e-4}),
    "server momentum": Entry("server", {"server_momentum": 0.9}),
    "server Adam": Entry("server", {"server": "adam"}),
    "server Yogi": Entry("server", {"server": "yogi"}),
    "server Adagrad": Entry("server", {"server": "adagrad"}),
    "frequency": Entry("server", {"server": "frequency"}),
    "history": Entry("server", {"server": "history"}),
    "sign (FedAvg)": Entry("codec", {"codec": "sign", "server_lr": 0.001}, make=methods.fedavg),
    "ef-sign": Entry("codec", {"codec": "ef-sign"}),
    "topk:0.01": Entry("codec", {"codec": "topk:0.01"}),
    "randomk:0.01": Entry("codec", {"codec": "randomk:0.01"}),
    "int8": Entry("codec", {"codec": "int8"}),
    "by-size": Entry("sampler", {"sampler": "by-size"}),
    "poisson": Entry("sampler", {"sampler": "poisson"}),
    "rpow-d": Entry("sampler", {"sampler": "rpow-d"}),
    "ucb": Entry("sampler", {"sampler": "ucb"}),
    "pow-d": Entry("sampler", {"sampler": "pow-d"}, None),
    "cpow-d": Entry("sampler", {"sampler": "cpow-d"}, None),
}
WORKLOADS = ("w1", "w3")
TURNS = {"w1": (25, 5, 10), "w3": (10, 1, 3)}  # turns, rounds a turn, rounds before the clock
SPARING = {"pow-d": 3, "cpow-d": 3}

LARGE: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "server Adam": {"server": "adam"},
    "server Yogi": {"server": "yogi"},
    "server Adagrad": {"server": "adagrad"},
}
LARGE_CLIENTS, LARGE_ROWS, LARGE_WARM_UP = 100_000, 10_000_000, 30


class _Member(Federated):
    """A method of the zoo. Adds up the CPU time of its sampler, and the rows that its clients hold."""

    def __init__(self, name: str, workload: Workload, method: Method):
        super().__init__(workload, "batched", method=method)
        self.name, self.choosing, self.rows = name, [], []
        sampler = self.trainer.server.sampler
        self._select, self._observe = sampler.select, sampler.observe
        sampler.select = self._timed(self._select)
        sampler.observe = self._timed(self._observe)

    def _timed(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            start = time.process_time()
            out = act(*arguments)
            self._spent += time.process_time() - start
            return out

        return timed

    def round(self, number: int) -> object:
        self._spent = 0.0
        report = self.trainer.round(number)
        self.choosing.append(self._spent)
        self.rows.append(sum(int(s.counts[report.clients].sum()) for s in self.trainer.problem.spaces.values()))
        return report


def run(
    workload: Workload,
    *,
    rounds: int | None = None,
    names: Sequence[str] | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    """CPU seconds a round of FedSubAvg with each addition (default: all of `ZOO`), on one workload."""
    chosen = list(dict.fromkeys([PLAIN, *(ZOO if names is None else names)]))
    with one_thread():
        members = []
        for name in chosen:
            progress(f"{name}: set-up")
            members.append(_Member(name, workload, ZOO[name].method(workload)))
    turns, burst, warm_up = TURNS.get(workload.name, (3, 1, 2))
    turns = rounds or turns
    sparing = {name: min(count, turns) for name, count in SPARING.items()}
    timed = interleave(members, turns, burst=burst, warm_up=warm_up, sparing=sparing, progress=progress)
    plain, found = timed[PLAIN], {}
    own = {member.name: min(member.choosing) for member in members}
    for member in members:
        t, entry = timed[member.name], ZOO[member.name]
        ratio = t.best / plain.best
        # Most have the same cohorts, so rounds can be compared one by one as well.
        pairs = [a / b for a, b in zip(t.rounds, plain.rounds, strict=False)]
        judged = 1 + (own[member.name] - own[PLAIN]) / plain.best if entry.kind == "sampler" else ratio
        found[member.name] = {
            "kind": entry.kind,
            "cpu": t.best,
            "cpu_median": t.median,
            "rounds": len(t.rounds),
            "rows": float(np.mean(member.rows)),
            "x_plain": ratio,
            "x_plain_paired": float(np.median(pairs)),
            "sampling": own[member.name],
            "judged": judged,
            "bar": entry.bar,
            "held": None if entry.bar is None else bool(judged <= entry.bar),
        }
    return {"title": workload.title, "methods": found}


def run_large(
    *,
    clients: int = LARGE_CLIENTS,
    rows: int = LARGE_ROWS,
    rounds: int | None = None,
    warm_up: int = LARGE_WARM_UP,
    progress: Callable[[str], None] = lambda what: None,
) -> list[dict[str, Any]]:
    """FedSubAvg's round on a large table beside that with an adaptive server, once rows recur."""
    group = [(clients, rows, settings) for settings in LARGE.values()]
    found: list[Measured] = measure([group], rounds or 20, warm_up=warm_up, progress=progress)
    out = []
    for name, one in zip(LARGE, found, strict=True):
        bar = None if name == PLAIN else LARGE_BAR
        held = None if bar is None else bool(one.ratio <= bar)
        pairs = [a / b for a, b in zip(one.rounds, found[0].rounds, strict=True)]
        paired = float(np.median(pairs))
        out.append(one.as_dict() | {"name": name, "x_plain_paired": paired, "bar": bar, "held": held})
    return out


def table(workload: Workload, found: dict[str, Any]) -> Table:
    w = workload
    title = f"{w.name}: {w.title}, batched; what is added to {PLAIN}"
    out = _table(title, ("", "", "CPU ms a round", "median", f"x {PLAIN}", "paired", "rows a round", "bar", "held"))
    for name, one in found["methods"].items():
        out.add_row(
            name, one["kind"], f"{1e3 * one['cpu']:.2f}", f"{1e3 * one['cpu_median']:.2f}", f"{one['x_plain']:.2f}",
            f"{one['x_plain_paired']:.2f}", f"{one['rows']:,.0f}", *_verdict(one),
        )  # fmt: skip
    out.caption = (
        "paired: median over rounds of the ratio to the plain round of the same number\n"
        "A sampler's verdict is on the time of choosing alone (x in brackets): larger clients make larger rounds."
    )
    return out


def large_table(found: list[dict[str, Any]]) -> Table:
    first = found[0]
    title = f"{first['rows']:,} rows of 16, {first['clients']:,} clients, K=100"
    out = _table(title, ("", "CPU ms a round", "median", f"x {PLAIN}", "paired", "peak GiB", "bar", "held"))
    for one in found:
        out.add_row(
            one["name"], f"{1e3 * one['best']:.1f}", f"{1e3 * one['median']:.1f}", f"{one['ratio']:.2f}",
            f"{one['x_plain_paired']:.2f}", f"{one['peak'] / 2**30:.2f}", *_verdict(one),
        )  # fmt: skip
    return out


def _table(title: str, heads: Sequence[str]) -> Table:
    out = Table(title=title, title_justify="left", caption_justify="left")
    for head in heads:
        out.add_column(head, justify="right" if head else "left")
    return out


def _verdict(one: dict[str, Any]) -> tuple[str, str]:
    if one["bar"] is None:
        return "-", "-"
    held = "yes" if one["held"] else "NO"
    return f"{one['bar']:.1f}", f"{held} ({one['judged']:.2f})" if one.get("kind") == "sampler" else held
