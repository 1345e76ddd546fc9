"""The status page and /metrics: one truth, read from the run's directory; in a real browser it refreshes by itself.

The browser is that of tests/conftest.py; those tests are skipped where there is none.
"""

from __future__ import annotations

import http.client
import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sites import make, write_live, write_rounds

pytest.importorskip("cryptography")

from fedsub.deploy import metrics, page
from fedsub.deploy.site import Site
from fedsub.deploy.view import Watcher
from fedsub.deploy.web import serving, write_page
from fedsub.objective.population import Population

WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    made = make(tmp_path_factory.mktemp("page"))
    write_rounds(made, 5)
    write_live(made)
    heat = np.array([4.0, 0.0, 1.0, 2.0, 2.0])
    Population(
        np.array([3, 3, 3, 3]), {"items.weight": "item"}, (), {"item": 5}, lambda space, weighted: heat
    ).save(made.out / "population.safetensors")  # fmt: skip
    return made


@pytest.fixture
def address(site: Site) -> Iterator[str]:
    with serving(site, 0) as found:
        yield found


def test_what_is_shown_is_what_was_written(site):
    view = Watcher(site).look()
    assert (view.down, view.up) == (5 * 3000, 5 * 5000)
    assert view.cohort == [0, 1]
    assert view.latest() == pytest.approx({"loss": 0.65, "test.ce": 0.665, "test.auc": 0.55})
    first, second = view.nodes
    assert (first.rounds, first.lost, first.down, first.up, first.accepted) == (5, 0, 5000, 10000, 3)
    assert (second.rounds, second.lost, second.online, second.left_out) == (5, 1, False, "runs another method")
    (heat,) = view.heat
    assert (heat.rows, heat.held) == (5, 4)
    held = np.array([4.0, 2.0, 2.0, 1.0])
    assert heat.quantiles == pytest.approx([4.0, np.quantile(held, 0.9), 2.0, np.quantile(held, 0.1), 1.0])
    assert view.counts["refused"] == 2


def test_time_that_is_left(site):
    view = Watcher(site).look()
    assert view.left() is None  # nobody plays

    running = replace(view, outcome=replace(view.outcome, state="running"))
    assert running.left() == pytest.approx(15 * 1.5)


LINE = re.compile(r'[a-z_]+(\{[a-z_]+="([^"\\\n]|\\.)*"(,[a-z_]+="([^"\\\n]|\\.)*")*\})? (-?[\d.e+-]+|NaN|[+-]Inf)')


def test_metrics_are_in_prometheus_format(site, address):
    with urllib.request.urlopen(f"{address}metrics") as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        text = answer.read().decode()
    assert text == metrics.text(Watcher(site).look())
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            assert name not in kinds  # a block for each
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            assert LINE.fullmatch(line), line
            assert re.match(r"[a-z_]+", line)[0] in kinds, line  # type: ignore[index]
    assert all(name.endswith("_total") for name, kind in kinds.items() if kind == "counter")
    for line in ('fedsub_state{state="interrupted"} 1', 'fedsub_state{state="running"} 0', "fedsub_round 5",
                 'fedsub_bytes_total{direction="up"} 25000', 'fedsub_nodes{state="online"} 1', "fedsub_lost_total 1",
                 'fedsub_messages_total{what="refused"} 2', 'fedsub_metric{name="test.auc"} 0.55',
                 'fedsub_heat{space="item",quantile="0.5"} 2.0'):  # fmt: skip
        assert line in text.splitlines(), line


def test_labels_hold_anything_and_numbers_that_are_none():
    assert metrics._labels({"a": 'x"\\\n'}) == '{a="x\\"\\\\\\n"}'
    assert [metrics._value(v) for v in (float("nan"), float("inf"), -float("inf"), 3, 0.5)] == [
        "NaN", "+Inf", "-Inf", "3", "0.5"
    ]  # fmt: skip


def test_json_says_the_same(address):
    with urllib.request.urlopen(f"{address}status.json") as answer:
        found = json.load(answer)
    assert found["outcome"]["round"] == 5
    assert [node["client"] for node in found["nodes"]] == ["0", "1"]
    assert "ranked" not in found["heat"][0]


def test_names_from_elsewhere_are_text(site):
    text = page.render(Watcher(site).look())
    assert "<b>node-1" not in text
    assert "&lt;b&gt;node-1&lt;/b&gt;" in text
    assert "<script>alert" not in text


@pytest.mark.parametrize("host", ["evil.example.org", "evil.example.org:8080", "127.0.0.1.evil.org", ""])
def test_a_page_elsewhere_cannot_read_it_by_a_name_of_its_own(address, host):
    port = int(address.rsplit(":", 1)[1].rstrip("/"))
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.putrequest("GET", "/status.json", skip_host=True)
    connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 421
    assert b"round" not in answer.read()
    connection.close()


@pytest.mark.parametrize(("method", "path", "status"), [
    ("GET", "/../deploy.toml", 404), ("GET", "/certs/server.key", 404), ("POST", "/", 501), ("PUT", "/main", 501),
    ("HEAD", "/", 200),
])  # fmt: skip
def test_it_reads_and_nothing_else(address, method, path, status):
    connection = http.client.HTTPConnection(address[7:-1])
    connection.request(method, path)
    answer = connection.getresponse()
    assert answer.status == status
    assert answer.status != 200 or "default-src 'none'" in answer.headers["Content-Security-Policy"]
    connection.close()


def test_before_anything_is_there_the_page_is(tmp_path):
    empty = make(tmp_path)
    text = page.render(Watcher(empty).look())
    assert "Nothing was started yet." in text
    assert "fedsub_round 0" in metrics.text(Watcher(empty).look())


def test_half_a_line_and_a_damaged_file_do_not_end_it(tmp_path):
    one = make(tmp_path)
    write_rounds(one, 3)
    with open(one.out / "metrics.jsonl", "a") as file:
        file.write('{"round": 4, "loss"')
    (one.out / "population.safetensors").write_bytes(b"\0" * 20)
    (one.out / "live.json").write_text('{"clients": 3, "counts": []')
    view = Watcher(one).look()
    assert (view.outcome.round, view.heat, view.counts) == (3, [], {})
    assert "Curves" in page.render(view)


# In a browser


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    contexts = []

    def opened(url: str, width: int = 1300, quiet: bool = True, **options: Any) -> Any:
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(15_000)
        page.quiet, page.problems = quiet, []
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("console", lambda said: page.problems.append(said.text) if said.type == "error" else None)
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        assert not [p for page in context.pages if page.quiet for p in page.problems]
        context.close()


@pytest.mark.parametrize(("width", "scheme"), [(1300, "light"), (400, "dark")])
def test_no_page_is_wider_than_its_window(open_page, address, width, scheme):
    shown = open_page(address, width, color_scheme=scheme)
    assert shown.evaluate(WIDE) == 0
    assert shown.locator("h1").inner_text() == "demo-app"
    assert shown.locator("figure svg[role=img]").count() == 4  # cross-entropy, AUC, loss; heat
    for heading in ("Curves", "Who is there", "Messages not taken", "Heat"):
        assert shown.get_by_role("heading", name=heading).is_visible()


def test_it_refreshes_by_itself_and_what_was_opened_stays_open(open_page, site, address):
    shown = open_page(address)
    assert "Interrupted after round 5 of 20" in shown.locator("[role=status]").inner_text()
    details = shown.locator("details", has_text="The last refusals")
    details.locator("summary").click()
    assert "is no number" in details.inner_text()
    try:
        write_rounds(site, 7)
        shown.locator("[role=status]", has_text="round 7 of 20").wait_for()
        assert shown.locator(".tile", has_text="round").first.locator("dd").inner_text().startswith("7")
        assert details.evaluate("one => one.open")
        assert shown.evaluate(WIDE) == 0
    finally:
        write_rounds(site, 5)


def test_it_says_when_nobody_answers_and_when_somebody_does_again(open_page, site):
    with serving(site, 0) as first:
        shown = open_page(first, quiet=False)  # the browser itself complains of the lost connection
        port = int(first.rsplit(":", 1)[1].rstrip("/"))
    alert = shown.locator("#silent")
    alert.wait_for()
    assert "No answer since" in alert.inner_text()
    with serving(site, port):
        alert.wait_for(state="detached")


def test_the_page_as_a_file_is_whole(open_page, site, tmp_path):
    path = write_page(site, tmp_path / "status.html")
    shown = open_page(path.as_uri(), 400)
    assert shown.evaluate(WIDE) == 0
    assert "<script" not in path.read_text()
    assert "written at" in shown.locator("#stamp").inner_text()
