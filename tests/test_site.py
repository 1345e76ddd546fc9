"""The site: every page stands somewhere, every public name is in the reference; building it is slow."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fedsub as fs

ROOT = Path(__file__).resolve().parents[1]


def part(name: str) -> ModuleType:
    """A file of the site's machinery, which is no package."""
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / "docs/_site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_is_in_the_reference() -> None:
    text = "\n".join(part("reference").pages().values())
    for name in fs.__all__:
        assert f"fs.{name}" in text, name
    for name in ("fedsub.node.Node", "fedsub.testing.check_part", "fs.methods.fedsubavg", "fs.servers.Yogi"):
        assert f"heading: {name}\n" in text, name


def test_every_page_stands_in_a_section() -> None:
    tree = str(part("sections").nav([], []))
    for page in (ROOT / "docs").rglob("*.md"):
        assert f"{page.relative_to(ROOT / 'docs').as_posix()}'" in tree, page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("mkdocs", "mkdocstrings", "nbconvert"):
        pytest.importorskip(name, reason="make docs installs it")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.mark.slow
def test_the_built_reference_has_every_public_name(site: Path) -> None:
    names = part("reference").names()
    text = "".join(file.read_text() for file in (site / "reference").glob("*.html"))
    assert not [path for _, path in names if f'id="{path}"' not in text]
    assert len(names) > 150


@pytest.mark.slow
def test_notebooks_are_pages_with_their_pictures(site: Path) -> None:
    for name in ("first_comparison", "own_module"):
        page = (site / f"notebooks/{name}.html").read_text()
        (picture, *_) = re.findall(r'src="([^"]*\.png)"', page)
        assert (site / "notebooks" / picture).stat().st_size > 5_000
        assert (site / f"notebooks/{name}.ipynb").exists()


@pytest.mark.slow
def test_the_search_works_from_the_disk(site: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.locator("input[name=query]").first.fill("dispersion")
    page.locator(".md-search-result__item").first.wait_for(timeout=10_000)
    assert "heat.html" in page.locator(".md-search-result__item a").first.get_attribute("href")
    assert not problems
    assert all(url.startswith(("file:", "data:", "blob:", "about:")) for url in asked)
