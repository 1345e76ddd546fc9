"""The app is bound at the server and on every node that is here before anything starts; skipped without Flower."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sites import make, set_in

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedsub[flower]'")
pytest.importorskip("cryptography")

from fedsub.deploy.check import _within, check
from fedsub.deploy.site import Site
from fedsub.study.costs.flower import EXCHANGE


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Site:
    site = make(tmp_path_factory.mktemp("app"))
    with pytest.MonkeyPatch.context() as patch:  # in this process: another one would import torch anew
        patch.setattr(sys, "argv", ["prepare.py", "--scale", "0.02"])
        runpy.run_path(str(site.folder / "prepare.py"), run_name="__main__")
    return site


def refused(site: Site) -> list[str]:
    from fedsub.deploy.app_check import app_is_whole

    return [one.sentence for one in _within(app_is_whole, Site.open(site.folder)) if one.level == "refused"]


@pytest.fixture
def site(whole: Site):
    """The deployment, whose files are put back afterwards."""
    files = [whole.folder / "demo_app/task.py", whole.folder / "pyproject.toml", whole.folder / "deploy.toml"]
    before = [(path, path.read_text()) for path in files]
    yield whole
    for path, text in before:
        path.write_text(text)


def test_what_was_just_made_is_whole_and_its_bytes_are_known(site):
    found = [one for one in check(site) if one.about in ("app", "sizes")]
    assert [one.level for one in found] == ["fine", "fine"]
    assert "fedsubavg, 2 clients" in found[0].sentence
    assert "a round sends a node" in found[1].sentence
    part = re.search(r"Flower's part ([\d.]+) kB down, ([\d.]+) kB up", found[1].sentence)
    assert part is not None
    assert float(part[1]) == pytest.approx(EXCHANGE.down / 1000, abs=0.1)
    assert float(part[2]) == pytest.approx(EXCHANGE.up / 1000, abs=0.1)


def replaced(old: str, new: str, name: str = "demo_app/task.py") -> Callable[[Site], None]:
    def change(site: Site) -> None:
        path = site.folder / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return change


@pytest.mark.parametrize(("change", "said"), [
    (replaced("import fedsub as fs", "import fedsub as fs\nimport no_such_module"), "No module named 'no_such_module'"),
    (replaced("task = Task", "tusk = Task"), "cannot import name 'task'"),
    (replaced("fs.methods.fedsubavg", "fs.methods.l2gd"), "task.method failed: TypeError: l2gd()"),
    (replaced("clients-per-round = 1", "clients-per-round = 3", "pyproject.toml"), "3"),
    (replaced("rounds = 20", "rounds = 0", "pyproject.toml"), "rounds"),
    (replaced('/ "outline"', '/ "client-000000"'), "samples"),
    (replaced('(sizes, "lr")', '({"movie": sizes["movie"]}, "lr")'), "No table uses the id column gender"),
    (replaced('Path(node["data"])', 'Path(node["data"]).parent / "nowhere"'), "Node 0"),
    (replaced("deadline = 60.0", "piece = 20_000_000\ndeadline = 60.0", "pyproject.toml"), "proxy.body_mb"),
])  # fmt: skip
def test_what_would_fail_later_is_refused_now(site, change, said):
    change(site)
    found = refused(site)
    assert found
    assert said in found[0]


def test_a_secure_sum_needs_nodes_that_stay(site):
    replaced(
        "        lr=config", "        secure=fs.SecureSum(0.5), heat=fs.privacy.heat.SecureCount(),\n        lr=config"
    )(site)
    stock = set_in(site, 'kind = "resident"', 'kind = "stock"')
    assert "adds in secret" in refused(stock)[0]
    assert not any("adds in secret" in said for said in refused(set_in(stock, 'kind = "stock"', 'kind = "resident"')))


def test_a_run_directory_of_somebody_elses_is_refused_and_one_that_barely_began_is_not(site):
    out = site.folder / "runs" / "second"
    out.mkdir(parents=True, exist_ok=True)
    other = set_in(site, 'out = "runs/first"', 'out = "runs/second"')
    (out / "live.json").write_text("{}")
    assert not refused(other)
    (out / "thesis.tex").write_text("mine")
    assert "holds other files (thesis.tex)" in refused(other)[0]
    (out / "thesis.tex").unlink()


def test_a_test_set_of_another_vocabulary(site, tmp_path: Path):
    import fedsub as fs

    other = fs.movielens_like(scale=0.03)
    other.save(tmp_path / "other")
    replaced('Path(config["folder"]) / "data" / "test"', f'Path("{tmp_path / "other"}")')(site)
    assert "task.test has another vocabulary" in refused(site)[0]
