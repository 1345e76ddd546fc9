"""What `fedsub deploy new` writes is whole: it parses, compiles, fits together, and keeps its secrets."""

from __future__ import annotations

import shutil
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest
from sites import make

pytest.importorskip("cryptography")

from fedsub.deploy import keys
from fedsub.deploy.scaffold import new
from fedsub.deploy.site import Site
from fedsub.errors import ConfigError


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return make(tmp_path_factory.mktemp("scaffold"), nodes=3)


def test_every_file_is_written_and_none_has_a_hole(site):
    files = {p.relative_to(site.folder).as_posix() for p in site.folder.rglob("*") if p.is_file()}
    for name in ("pyproject.toml", "deploy.toml", "prepare.py", "Makefile", "README.md", ".gitignore", "compose.yaml",
                 "Dockerfile", "demo_app/task.py", "demo_app/server_app.py", "demo_app/client_app.py",
                 "systemd/demo-app-server.service", "systemd/demo-app-node@.service", "certs/ca.crt",
                 "certs/server.key", "certs/runtime.secret", "keys/node-2", "keys/node-2.pub"):  # fmt: skip
        assert name in files, name
    for name in files:
        if not name.startswith(("certs/", "keys/")):
            text = (site.folder / name).read_text()
            assert "{{" not in text, name
            if name.endswith(".py"):
                compile(text, name, "exec")


def test_flower_finds_the_app_and_every_setting_that_the_server_is_given(site):
    app = tomllib.loads((site.folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["components"] == {"serverapp": "demo_app.server_app:app", "clientapp": "demo_app.client_app:app"}
    assert set(site.config) == set(app["config"])  # flwr refuses a key that the app has not
    assert site.config["out"] == str(site.folder / "runs/first")
    assert app["config"]["clients-per-round"] == 2


def test_secrets_are_nobody_elses_and_never_in_what_is_shipped(site):
    for name in ("certs/ca.key", "certs/server.key", "certs/runtime.secret", "keys/node-0"):
        assert stat.S_IMODE((site.folder / name).stat().st_mode) == 0o600, name
    ignored = (site.folder / ".gitignore").read_text().split()
    assert {"certs/", "keys/*", "state/", "runs/", "data/"} <= set(ignored)
    if shutil.which("git"):
        subprocess.run(["git", "init", "-q"], cwd=site.folder, check=True)
        told = subprocess.run(
            ["git", "status", "--short", "--untracked-files=all"], cwd=site.folder, capture_output=True, text=True,
            check=True,
        ).stdout  # fmt: skip
        shutil.rmtree(site.folder / ".git")
        assert "keys/node-0.pub" in told
        assert "keys/node-0\n" not in told
        assert "certs" not in told


def test_containers_see_their_own_data_and_key_alone(site):
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load((site.folder / "compose.yaml").read_text())["services"]
    assert set(found) == {"server", "node-0", "node-1", "node-2"}
    mounts = found["node-1"]["volumes"]
    assert {m.split(":")[0] for m in mounts} == {
        "./certs/ca.crt", "./keys/node-1", "./data/client-000001", "./state/nodes/1"
    }  # fmt: skip
    assert not any("data/client" in m for m in found["server"]["volumes"])
    assert found["server"]["ports"] == [f"{site.listens[1]}:{site.listens[1]}"]  # the proxy and nothing else
    assert "server" in site.settings.server.names


def test_units_are_what_systemd_takes(site):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    for name in ("demo-app-server.service", "demo-app-node@.service"):
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(site.folder / "systemd" / name)], capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        said = [line for line in done.stderr.splitlines() if name in line and "is not executable" not in line]
        assert not said, said


def test_a_node_key_is_one_that_flower_takes_and_is_never_overwritten(tmp_path):
    public = keys.make_node_key(tmp_path / "node-7")
    assert keys.read_public(public).curve.name == "secp384r1"
    before = (tmp_path / "node-7").read_bytes()
    with pytest.raises(ConfigError, match="never overwritten"):
        keys.make_node_key(tmp_path / "node-7")
    assert (tmp_path / "node-7").read_bytes() == before


@pytest.mark.parametrize(("name", "said"), [
    ("Demo", "small letters"), ("a" * 40, "up to 32"), ("json", "Python module 'json'"), ("class", "'class'"),
    ("fedsub", "'fedsub'"),
])  # fmt: skip
def test_names_that_cannot_be_an_app_are_refused_before_anything_is_written(tmp_path: Path, name: str, said: str):
    with pytest.raises(ConfigError, match=said):
        new(tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        new(tmp_path / "demo")
    assert [p.name for p in (tmp_path / "demo").iterdir()] == ["mine.txt"]


def test_a_mistake_in_deploy_toml_is_told_with_its_place(site):
    path = site.folder / "deploy.toml"
    before = path.read_text()
    try:
        for old, wrong, said in (
            ('kind = "resident"', 'kind = "residnt"', "nodes.kind"),
            ("[page]", "[pages]", "there is no setting 'pages'; did you mean 'page'"),
            ('listen = "127.0.0.1:', 'listen = "127.0.0.1;', "proxy.listen is .*expected HOST:PORT"),
        ):
            path.write_text(before.replace(old, wrong))
            with pytest.raises(ConfigError, match=said):
                Site.open(site.folder)
    finally:
        path.write_text(before)
    with pytest.raises(ConfigError, match=r"no deploy\.toml"):
        Site.open(site.folder / "certs")
