"""The documentation is complete and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedsub.methods import CATALOGUE

ROOT = Path(__file__).parent.parent
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_method_has_a_page_and_a_picture(name: str):
    text = (ROOT / f"docs/methods/{name}.md").read_text()
    for heading in ("When to use it", "Cost", "Run it", "Picture"):
        assert f"## {heading}\n" in text, heading
    assert f"../images/methods/{name}.png" in text
    assert f"docs/images/methods {name}`" in text  # the command that made it
    assert 5_000 < (ROOT / f"docs/images/methods/{name}.png").stat().st_size < 40_000
    assert f"(methods/{name}.md)" in (ROOT / "docs/methods.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        assert other.exists(), target
        if anchor and other.suffix == ".md":
            assert anchor in anchors(other.read_text()), target
