"""The page in a real browser: values under the pointer, methods on and off, axes, zoom, widths, paper, no scripts.

The browser is that of tests/conftest.py; skipped where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_results import make
from test_pages import LOSSES, search

from fedsub.running.result import Target
from fedsub.study.comparing import Comparison
from fedsub.study.report import write_book, write_report, write_search

WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
NASTY = 'A "very" <b>long</b> name of a method_with_settings'


def comparison(*more: str) -> Comparison:
    """Three methods, three seeds, a target and two splits: the table that once was cut off at 1300 pixels."""
    curves = {"FedAvg": (0.69, 0.68, 0.66), NASTY: (0.69, 0.64, 0.60), "central": (0.69, 0.63, 0.61)}
    curves |= dict.fromkeys(more, (0.69, 0.67, 0.65))
    runs = {
        label: [make(label, s, tuple(v + s / 1000 for v in values), splits=("train", "test"),
                     bytes_=0 if label == "central" else 1_000_000) for s in range(3)]
        for label, values in curves.items()
    }  # fmt: skip
    return Comparison(runs, Target.parse("train.ce<=0.65"), "train.ce")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(comparison(), tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def further(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A search, many methods with names of any length, and all of it on one page."""
    folder = tmp_path_factory.mktemp("further")
    many = comparison(*(f"{'long_' * (i % 9)}name{'without_a_space' * (i % 3)} {i}" for i in range(30)))
    found = search({NASTY: LOSSES["FedAvg"], "FedSubAvg": LOSSES["FedSubAvg"]})
    parts = {"first": comparison(), "x" * 90: comparison("another"), "search": found}
    return {
        "search": write_search(found, folder / "search"),
        "many": write_book({"many": many}, folder / "many.html"),
        "book": write_book(parts, folder / "book.html"),
    }


@pytest.fixture
def open_page(browser: Any, file: Path) -> Iterator[Any]:
    contexts = []

    def opened(width: int = 1300, path: Path = file, **options: Any) -> Any:
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(5000)
        page.problems = []
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("console", lambda said: page.problems.append(said.text) if said.type == "error" else None)
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        assert not [p for page in context.pages for p in page.problems]
        context.close()


def over(page: Any, share: float, views: Any) -> None:
    """Put the pointer over a chart, at this share of its width."""
    area = views.locator(".u-over")
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    page.mouse.move(box["x"] + share * box["width"], box["y"] + 0.5 * box["height"])


def test_the_pointer_shows_values_and_a_method_can_be_switched_off(open_page):
    page = open_page()
    views = page.locator(".views").first
    assert views.locator("figure svg[role=img]").first.is_hidden()  # the chart stands in its place
    over(page, 0.98, views)
    tip = views.locator(".tip")
    assert tip.inner_text().split("\n")[:3] == ["rounds: 20", "FedAvg", "0.6610 (0.6600 to 0.6620)"]
    assert NASTY[:20] in tip.inner_text()
    page.locator(".key button", has_text="FedAvg").first.click()
    over(page, 0.98, views)
    assert "FedAvg" not in tip.inner_text()
    assert "0.6010" in tip.inner_text()
    pressed = page.locator(".key button", has_text="FedAvg").evaluate_all("all => all.map(b => b.ariaPressed)")
    assert set(pressed) == {"false"}  # in every chart of the page
    page.locator(".key button", has_text="FedAvg").first.click()
    over(page, 0.98, views)
    assert "FedAvg" in tip.inner_text()


def test_axes_zoom_and_keyboard(open_page):
    page = open_page()
    views = page.locator(".views").first
    reset = views.get_by_text("reset zoom")
    assert reset.is_disabled()
    area = views.locator(".u-over")
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.95 * box["width"], box["y"] + 62, steps=3)
    page.mouse.up()
    assert reset.is_enabled()
    views.locator(".plot").focus()
    page.keyboard.press("ArrowRight")
    reset.click()
    assert reset.is_disabled()
    for name in ("log y", "log x"):
        button = views.get_by_text(name)
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
    over(page, 0.98, views)
    assert "rounds: 20" in views.locator(".tip").inner_text()
    views.get_by_text("by bytes").click()
    over(page, 0.98, views)
    assert "megabytes per participating client: 2" in views.locator(".tip").inner_text()
    assert "central" not in views.locator(".tip").inner_text()  # moves nothing
    views.get_by_text("by heat").click()
    over(page, 0.9, views)
    assert views.locator(".tip").inner_text().startswith("hottest")
    assert views.get_by_text("log x").is_hidden()


@pytest.mark.parametrize(("width", "scheme"), [(1300, "light"), (400, "dark")])
def test_no_page_is_wider_than_its_window(open_page, width, scheme):
    page = open_page(width, color_scheme=scheme)
    assert page.evaluate(WIDE) == 0
    assert page.locator(".views.live-on").count() == page.locator(".views").count() == 3
    if width == 1300:  # nothing of the table is out of sight
        beyond = "boxes => boxes.map(box => box.scrollWidth - box.clientWidth)"
        assert set(page.locator("#table .scroll").evaluate_all(beyond)) == {0}
    colours = "e => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor]"
    ink, paper = page.locator("body").evaluate(colours)
    assert (ink, paper) == {"light": ("rgb(31, 35, 40)", "rgb(255, 255, 255)"),
                            "dark": ("rgb(230, 232, 235)", "rgb(21, 24, 28)")}[scheme]  # fmt: skip


@pytest.mark.parametrize("name", ["search", "many", "book"])
@pytest.mark.parametrize("width", [1300, 400])
def test_no_further_page_is_wider_either(open_page, further, name, width):
    page = open_page(width, further[name])
    assert page.evaluate(WIDE) == 0
    assert page.locator(".views.live-on").count() == page.locator(".views").count() > 1
    if name == "many" and width == 1300:
        beyond = "boxes => boxes.map(box => box.scrollWidth - box.clientWidth)"
        assert set(page.locator("#c1-table .scroll").evaluate_all(beyond)) == {0}


def test_a_search_shows_values_by_rate(open_page, further):
    page = open_page(path=further["search"])
    views = page.locator(".views").first
    over(page, 0.98, views)
    tip = views.locator(".tip").inner_text()
    assert tip.split("\n")[0] == "lr: 10"
    assert "0.7100 (0.7000 to 0.7200)" in tip
    assert views.get_by_text("log x").get_attribute("aria-pressed") == "true"


def test_a_method_is_switched_off_in_its_chapter_alone(open_page, further):
    page = open_page(path=further["book"])
    buttons = page.locator(".key button", has_text="FedAvg")
    buttons.first.click()
    by_chapter = "all => all.map(b => [b.closest('.views').dataset.group, b.ariaPressed])"
    pressed = dict(buttons.evaluate_all(by_chapter))
    assert pressed == {"c1": "false", "c2": "true"}


def test_on_paper_and_without_scripts_every_picture_is_there(open_page):
    printed = open_page(color_scheme="dark")
    printed.emulate_media(media="print", color_scheme="dark")
    silent = open_page(400, java_script_enabled=False)
    for page in (printed, silent):
        pictures = page.locator("figure > svg[role=img]")
        assert pictures.count() == 3 * 2 + 2
        assert all(picture.is_visible() for picture in pictures.all())
        assert page.locator(".u-wrap:visible").count() == 0
    assert printed.locator("body").evaluate("e => getComputedStyle(e).backgroundColor") == "rgb(255, 255, 255)"
    assert "0.6610" in silent.content()
