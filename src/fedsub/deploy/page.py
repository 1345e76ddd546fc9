"""The status page: one look at a deployment, in the style of the reports; it fetches itself anew every two seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.resources import files

from fedsub.deploy.view import Heat, Node, View
from fedsub.study.report.chart import Chart, Line
from fedsub.study.report.curves import Curve
from fedsub.study.report.html import Html, e, table
from fedsub.study.report.svg import picture
from fedsub.study.report.words import short, size, with_unit

POINTS = 400  # of a curve: more than a picture can show
Points = list[tuple[float, float]]
HIDDEN = ("half_ce",)  # the cross-entropy again
LISTED = 40  # nodes in the table; all of them are in /status.json
STATES = {
    "nothing": "Not started", "starting": "Starting", "waiting": "Waiting for nodes", "running": "Running",
    "finished": "Finished", "failed": "Failed", "interrupted": "Interrupted",
}  # fmt: skip


def render(view: View, *, live: bool = True) -> str:
    """The whole page; without ``live`` as a file that stays as it is."""
    script = '<script src="/status.js" defer></script>' if live else ""
    again = '<noscript><meta http-equiv="refresh" content="5"></noscript>' if live else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{e(view.name)}: {e(STATES[view.outcome.state])}</title>\n<style>\n{style()}\n</style>\n{again}{script}"
        f'</head>\n<body>\n<main id="main">\n{content(view, live=live)}</main>\n</body>\n</html>\n'
    )


def style() -> str:
    return asset("fedsub.study.report", "page.css") + asset("fedsub.deploy", "status.css")


def asset(package: str, name: str) -> str:
    return (files(package) / "assets" / name).read_text(encoding="utf-8")


def content(view: View, *, live: bool = True) -> str:
    """All within <main>; the page replaces it by a newer one."""
    parts = [_head(view, live=live), _tiles(view), _charts(view), _nodes(view), _refused(view), _heat(view.heat)]
    return "".join([*parts, _processes(view), _events(view)])


def _head(view: View, *, live: bool) -> str:
    o = view.outcome
    stamp = time.strftime("%H:%M:%S", time.localtime(view.now))
    lead = f"{o.sentence()}"
    if (left := view.left()) is not None:
        lead += f" About {duration(left)} to go."
    where = f"Nodes connect to {view.entrance}" if view.entrance else ""
    if where and not view.proxied:
        where += ", without a proxy: from this machine alone"
    share = 100 * o.round / o.rounds if o.rounds else 0
    bar = (
        f'<div class="progress" role="progressbar" aria-label="rounds" aria-valuemin="0" aria-valuemax="{o.rounds}" '
        f'aria-valuenow="{o.round}"><svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{share:.2f}" height="1"/></svg></div>'
    )
    links = '<a href="/metrics">metrics</a> · <a href="/status.json">JSON</a> · ' if live else ""
    return (
        f'<header><p class="state {o.state}">{e(STATES[o.state])}</p><h1>{e(view.name)}</h1>\n'
        f'<p role="status">{e(lead)}</p>\n{bar}\n<p class="small">{e(where)}</p>\n'
        f'<p class="small">{links}<span id="stamp">{"as of" if live else "written at"} {stamp}</span></p></header>\n'
    )


def _tiles(view: View) -> str:
    o, online = view.outcome, sum(node.online for node in view.nodes)
    tiles = [("round", f"{o.round:,}", f"of {o.rounds:,}"), ("nodes", f"{online:,}", f"online of {len(view.nodes):,}")]
    if view.cohort:
        lost = int(view.history[-1].get("lost", 0)) if view.history else 0
        tiles.append(("last cohort", f"{len(view.cohort):,}", f"{lost} lost" if lost else "all answered"))
    tiles.append(("bytes down", size(view.down), "sent to nodes"))
    tiles.append(("bytes up", size(view.up), "sent by nodes"))
    if view.seconds:
        tiles.append(("last round", duration(view.seconds[-1]), "from sending to the new model"))
    shown = {name: value for name, value in view.latest().items() if name.rpartition(".")[2] not in HIDDEN}
    for name, value in sorted(shown.items(), key=lambda item: item[0].startswith("train."))[:4]:
        tiles.append(
            (
                "loss at clients" if name == "loss" else short(name, unit=False),
                f"{value:.4g}",
                f"round {view.metrics[name][-1][0]:,}",
            )
        )
    text = "".join(
        f'<div class="tile"><dt>{e(name)}</dt><dd>{e(value)}<span>{e(under)}</span></dd></div>'
        for name, value, under in tiles
    )
    return f'<dl class="tiles">{text}</dl>\n'


def _charts(view: View) -> str:
    """A chart for every kind of metric, with a line for every split."""
    kinds: dict[str, dict[str, Points]] = {}
    for name, points in view.metrics.items():
        split, _, kind = name.rpartition(".")
        shown = [(float(r), v) for r, v in points if v == v and abs(v) != float("inf")]
        if len(shown) > 1 and kind not in HIDDEN:
            kinds.setdefault(kind, {})[_split(split)] = shown
    out = "".join(_figure(f"m{i}", with_unit(kind), lines, "round") for i, (kind, lines) in enumerate(kinds.items()))
    return f'<section><h2>Curves</h2>\n<div class="charts">{out}</div></section>\n' if out else ""


def _split(split: str) -> str:
    named = {"": "at clients, on their batches", "train": "training samples"}
    return named.get(split, f"{split} samples")


def _figure(name: str, title: str, lines: dict[str, Points], xlabel: str, *, log: bool = False) -> str:
    curves = []
    for place, (label, points) in enumerate(lines.items()):
        kept = [*points[: -1 : -(-len(points) // POINTS)], points[-1]]
        x, y = [p[0] for p in kept], [p[1] for p in kept]
        curves.append(Line(label, place, (Curve(x, y, list(y), list(y)),)))
    ends = "; ".join(f"{label}: {p[0][1]:.4g} to {p[-1][1]:.4g}" for label, p in lines.items())
    chart = Chart(
        name, "", description=f"{title} by {xlabel}. {ends}", xlabel=xlabel, ylabel=title, lines=tuple(curves),
        whole=not log, log=log,
    )  # fmt: skip
    return f"<figure>{picture(chart, name)}</figure>"


def _nodes(view: View) -> str:
    if not view.nodes:
        return ""
    cohort = {str(client) for client in view.cohort}
    rows = [_node(node, node.client in cohort) for node in view.nodes[:LISTED]]
    head = ["client", "name", "now", "rounds", "lost", "last accepted", "down", "up"]
    more = len(view.nodes) - len(rows)
    said = f'<p class="small">{more:,} more are in the JSON.</p>\n' if more > 0 else ""
    left = [f"<li>{e(n.name or n.client)}: {e(n.left_out)}</li>" for n in view.nodes if n.left_out]
    why = f"<h3>Left out</h3>\n<ul>{''.join(left[:10])}</ul>\n" if left else ""
    shown = _named("nodes", table(head, rows, "nodes", kind="result"))
    return f"<section><h2>Who is there</h2>\n{shown}{said}{why}</section>\n"


def _node(node: Node, drawn: bool) -> list[str]:
    now = "left out" if node.left_out else "away" if not node.online else "online" if node.joined else "not joined"
    mark = Html(f'<span class="dot {now.replace(" ", "-")}"></span>{now}{", drawn last" if drawn else ""}')
    return [
        node.client, node.name or "–", mark, f"{node.rounds:,}", f"{node.lost:,}", f"{node.accepted:,}",
        size(node.down), size(node.up),
    ]  # fmt: skip


def _refused(view: View) -> str:
    if not view.counts:
        return ""
    titles = {
        "refused": "refused: damaged, foreign or not what was asked for", "late": "after the deadline",
        "failed": "answers that were errors", "too_large": "too large", "rejoined": "nodes that came back",
        "gone": "nodes that went away while they owed an answer", "asked again": "rounds in which nobody answered",
        "sent again": "letters that were sent again",
    }  # fmt: skip
    rows = [[titles.get(key, key.replace("_", " ")), f"{count:,}"] for key, count in view.counts.items()]
    listed = "".join(f"<li>{e(text)}</li>" for text in reversed(view.refused))
    last = f"<details><summary>The last refusals</summary><ul>{listed}</ul></details>\n" if listed else ""
    return f"<section><h2>Messages not taken</h2>\n{table(['what', 'count'], rows, 'messages')}{last}</section>\n"


def _heat(heat: Sequence[Heat]) -> str:
    if not heat:
        return ""
    head = ["table rows", "rows", "held", "hottest", "90 %", "median", "10 %", "coldest"]
    rows = [[h.space, f"{h.rows:,}", f"{h.held:,}", *(f"{q:,.4g}" for q in h.quantiles)] for h in heat]
    figures = ""
    lines = {}
    for h in heat[:6]:
        if len(h.ranked) > 1:
            at = [min(len(h.ranked), round(len(h.ranked) ** (i / 80))) for i in range(81)]
            lines[h.space] = [(float(rank), float(h.ranked[rank - 1])) for rank in dict.fromkeys(at)]
    if lines:
        figures = _figure("heat", "clients that hold a row", lines, "rank of the row, hottest first", log=True)
    text = table(head, rows, "heat", kind="result")
    about = '<p class="small">How many clients hold a row, over the rows that somebody holds.</p>'
    return f'<section><h2>Heat</h2>\n{about}{text}<div class="charts">{figures}</div></section>\n'


def _processes(view: View) -> str:
    if not view.children:
        return ""
    rows = [
        [str(c.get("name")), "runs" if c.get("runs") else "ended, is started again", str(c.get("pid")),
         duration(view.now - float(c.get("since", view.now))), str(c.get("restarts", 0))]
        for c in view.children
    ]  # fmt: skip
    shown = _named("programs", table(["program", "now", "pid", "for", "restarts"], rows, "programs", kind="result"))
    well = sum(bool(c.get("runs")) for c in view.children)
    return (
        f'<section><h2>Programs on this machine</h2>\n<details data-keep="programs"><summary>{well} of '
        f"{len(view.children)} run</summary>{shown}</details></section>\n"
    )


def _events(view: View) -> str:
    lines = [[time.strftime("%d %b %H:%M:%S", time.localtime(at)), text] for at, text in reversed(view.events)]
    return f"<section><h2>Events</h2>\n{table(['time', 'event'], lines, 'events')}</section>\n" if lines else ""


def _named(name: str, shown: str) -> str:
    """A table with a class of its own, for the columns that are words."""
    return f'<div class="{name}">{shown}</div>'


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"
