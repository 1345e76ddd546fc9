"""The site: every page stands somewhere, every public name is in the reference; building it is slow."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

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


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="make docs installs it")
    pytest.importorskip("mkdocstrings", reason="make docs installs it")
    import subprocess

    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, env=None,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert "fedsubavg" in (tmp_path / "site/reference/methods.html").read_text()
