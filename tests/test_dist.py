"""What `make dist` makes: a wheel and a source distribution, each installed where nothing else is, and used there."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMES = "import fedsub, sys; [getattr(fedsub, name) for name in fedsub.__all__]; print(fedsub.__file__)"
COMPARE = ("compare", "movielens-like", "--scale", "0.01", "--rounds", "2", "--methods", "fedavg,fedsubavg", "-q")


def done(*command: object, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, **options)  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build", reason="make dist installs it")
    folder = tmp_path_factory.mktemp("dist")
    made = done(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    if "Could not find a version" in made.stderr + made.stdout:
        pytest.skip("what the build needs cannot be fetched here")
    assert made.returncode == 0, made.stdout + made.stderr
    return folder


@pytest.mark.slow
def test_they_hold_what_they_should(built: Path) -> None:
    (wheel,), (source,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as file:
        inside = set(file.namelist())
    assets = "fedsub/study/report/assets/"
    for name in ("py.typed", *(f"study/report/assets/{a}" for a in ("page.js", "page.css", "uPlot.iife.min.js"))):
        assert f"fedsub/{name}" in inside, name
    assert any(name.endswith("licenses/LICENSE") for name in inside)
    assert f"{assets}uPlot.LICENSE" in inside
    assert not [name for name in inside if name.startswith("tests/")]
    modules = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src/fedsub").rglob("*.py")}
    assert modules <= inside
    with tarfile.open(source) as file:
        held = {name.partition("/")[2] for name in file.getnames()}
    for name in ("README.md", "CITATION.cff", "Makefile", "mkdocs.yml", "docs/notebooks/own_module.ipynb",
                 "tests/test_dist.py", "examples/own_data.py"):  # fmt: skip
        assert name in held, name


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_it_installs_and_works_where_nothing_else_is(built: Path, kind: str, tmp_path: Path) -> None:
    """Dependencies too are installed anew (from pip's cache the second time)."""
    assert done(sys.executable, "-m", "venv", "fresh", cwd=tmp_path).returncode == 0
    here = tmp_path / "fresh" / ("Scripts" if sys.platform == "win32" else "bin")
    (file,) = built.glob(kind)
    made = done(here / "python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", file, cwd=tmp_path)
    if "Could not find a version" in made.stderr:
        pytest.skip("dependencies cannot be fetched here")
    assert made.returncode == 0, made.stderr
    clean = {"PATH": str(here), "HOME": str(tmp_path)}  # no PYTHONPATH that leads to these sources
    said = done(here / "python", "-c", NAMES, cwd=tmp_path, env=clean)
    assert said.returncode == 0, said.stderr
    assert str(tmp_path) in said.stdout
    ran = done(here / "fedsub", *COMPARE, "--out", "run", cwd=tmp_path, env=clean)
    assert ran.returncode == 0, ran.stderr
    page = (tmp_path / "run/report.html").read_text()
    assert "uPlot" in page
    assert "FedSubAvg" in page
