"""The documentation is complete and its links lead somewhere."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

from fedsub.methods import CATALOGUE
from fedsub.round.transport import play

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


def python_of(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda p: str(p.relative_to(ROOT)))
def test_files_that_pages_name_are_there(page: Path):
    """Of the package (`round/server.py`, with or without src/fedsub/) or of the repository (`tests/test_docs.py`)."""
    for name in re.findall(r"`([a-z_]+/[a-z_0-9/]*(?:\.py)?)`", page.read_text()):
        where = [ROOT / name, ROOT / "src/fedsub" / name]
        ours = name.endswith(".py") or page.name in ("CONTRIBUTING.md", "architecture.md")
        assert not ours or any(path.exists() for path in where), name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_pages_import_is_there(page: Path):
    for code in python_of(page):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedsub"):
                if str(node.module).startswith("fedsub.flower"):
                    pytest.importorskip("flwr")
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{node.module}.{alias.name}"


def test_a_part_of_ones_own_is_as_the_page_says(capsys: pytest.CaptureFixture[str]):
    """The example of docs/extending.md, run: the part, its check and a training that learns."""
    codes, names = python_of(ROOT / "docs/extending.md"), {}
    for code in codes:
        exec(code, names)
    assert any("check_part(Latest())" in code for code in codes)
    assert float(capsys.readouterr().out) < 0.65  # a coin has 0.693
    lines = codes[0].partition("class Latest")[2].splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 20


def test_the_round_on_the_page_is_the_round():
    assert inspect.getsource(play) in (ROOT / "docs/architecture.md").read_text()


PAGES = ["gossip", "leaks", "metrics", "ranking", "serving", "theory", "vertical", "vertical_privacy"]


@pytest.mark.parametrize("page", PAGES)
def test_pages_that_stand_alone_run(
    page: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for code in python_of(ROOT / f"docs/{page}.md"):
        if "0.0.0.0" not in code and "new_samples" not in code:  # a part that waits for others, or for data
            exec(code, names)
    assert capsys.readouterr().out
