"""The state of a deployment as Prometheus reads it (text format 0.0.4)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fedsub.deploy.view import View

STATES = ("nothing", "starting", "waiting", "running", "finished", "failed", "interrupted")
KIND = "text/plain; version=0.0.4; charset=utf-8"


def text(view: View) -> str:
    """One block for every metric; those that nobody has measured yet are left out."""
    o = view.outcome
    lines: list[str] = []

    def add(name: str, kind: str, about: str, values: Iterable[tuple[dict[str, str], float | int]]) -> None:
        found = list(values)
        if found:
            lines.extend((f"# HELP fedsub_{name} {about}", f"# TYPE fedsub_{name} {kind}"))
            lines.extend(f"fedsub_{name}{_labels(labels)} {_value(value)}" for labels, value in found)

    add("state", "gauge", "1 for the state that the run is in.", [({"state": s}, int(s == o.state)) for s in STATES])
    add("round", "gauge", "Rounds that are done.", [({}, o.round)])
    add("rounds", "gauge", "Rounds that were asked for.", [({}, o.rounds)])
    add("submissions_total", "counter", "How often the app was submitted by this supervisor.", [({}, o.submissions)])
    if view.seconds:
        add("round_seconds", "gauge", "Seconds that the last round took.", [({}, view.seconds[-1])])
    add("bytes_total", "counter", "Bytes of messages, by direction as nodes see it.",
        [({"direction": "down"}, view.down), ({"direction": "up"}, view.up)])  # fmt: skip
    if view.nodes:
        add("nodes", "gauge", "Nodes, by whether they are there.", [
            ({"state": "known"}, len(view.nodes)), ({"state": "online"}, sum(n.online for n in view.nodes)),
            ({"state": "joined"}, sum(n.joined for n in view.nodes)),
            ({"state": "left_out"}, sum(bool(n.left_out) for n in view.nodes)),
        ])  # fmt: skip
    if view.history:
        add("cohort", "gauge", "Clients of the last round.", [({}, len(view.cohort))])
        add("lost_total", "counter", "Clients that were drawn and brought nothing.",
            [({}, sum(int(row.get("lost", 0)) for row in view.history))])  # fmt: skip
        add("rejected_total", "counter", "Updates left out for NaN or infinity.",
            [({}, sum(int(row.get("rejected", 0)) for row in view.history))])  # fmt: skip
    add("messages_total", "counter", "Messages that were not taken, and nodes that came back, by what happened.",
        [({"what": what}, count) for what, count in view.counts.items()])  # fmt: skip
    add("metric", "gauge", "The last value of each metric.", [({"name": n}, v) for n, v in view.latest().items()])
    add("heat", "gauge", "Clients that hold a row, over the rows that somebody holds.", [
        ({"space": h.space, "quantile": f"{q:g}"}, v)
        for h in view.heat
        for q, v in zip((1.0, 0.9, 0.5, 0.1, 0.0), h.quantiles, strict=True)
    ])  # fmt: skip
    add("process_up", "gauge", "Whether a program of the deployment runs.",
        [({"process": str(c.get("name"))}, int(bool(c.get("runs")))) for c in view.children])  # fmt: skip
    add("process_restarts_total", "counter", "How often it was started again.",
        [({"process": str(c.get("name"))}, int(c.get("restarts", 0))) for c in view.children])  # fmt: skip
    if view.told is not None:
        add("told_seconds", "gauge", "When the server app wrote of itself last, in seconds since 1970.",
            [({}, view.told)])  # fmt: skip
    return "\n".join(lines) + "\n"


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{key}="{_escape(value)}"' for key, value in labels.items()) + "}" if labels else ""


def _escape(value: str) -> str:
    return re.sub(r'[\\"\n]', lambda m: {"\\": r"\\", '"': r"\"", "\n": r"\n"}[m[0]], value)


def _value(value: float | int) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
