"""The app in Flower's own simulation: what it needs, what it refuses, and that it trains the same model."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Iterator

import pytest
from sites import make

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedsub[flower]'")
pytest.importorskip("cryptography")

import fedsub as fs
from fedsub.deploy import commands
from fedsub.deploy import simulate as simulation
from fedsub.deploy.site import Site
from fedsub.errors import ConfigError, MissingExtra
from fedsub.flower import host


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    forget()
    made = make(tmp_path_factory.mktemp("simulated"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["prepare.py", "--scale", "0.02"])
        runpy.run_path(str(made.folder / "prepare.py"), run_name="__main__")
    yield made
    forget()


def forget() -> None:
    """The app of another folder."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "demo_app"]:
        del sys.modules[name]


def with_ray(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    monkeypatch.setattr(simulation, "find_spec", lambda name: None if name == "ray" and not there else object())


def test_without_ray_it_says_what_to_install(site, monkeypatch):
    with_ray(monkeypatch, False)
    with pytest.raises(MissingExtra, match=r"Ray.*flower-simulation"):
        simulation.simulate(site)


def test_a_secure_sum_is_refused(site, monkeypatch):
    with_ray(monkeypatch, True)
    path = site.folder / "demo_app/task.py"
    before = path.read_text()
    path.write_text(before.replace('lr=config["lr"],', 'lr=config["lr"], secure=fs.SecureSum(0.5),'))
    try:
        with pytest.raises(ConfigError, match="secure sum"):
            simulation.simulate(Site.open(site.folder))
    finally:
        path.write_text(before)


def test_without_data_there_is_nobody_to_simulate(site, monkeypatch):
    with_ray(monkeypatch, True)
    data = site.folder / "data"
    data.rename(site.folder / "elsewhere")
    try:
        with pytest.raises(ConfigError, match=r"client-000000 is not there"):
            simulation.simulate(site)
    finally:
        (site.folder / "elsewhere").rename(data)


def test_a_simulated_node_gets_what_a_real_one_is_started_with(site, tmp_path, monkeypatch):
    known = {"1": commands.node_config(site, 1)}
    (tmp_path / "nodes.json").write_text(json.dumps(known))
    given = {"partition-id": 1, "num-partitions": 2}
    assert host.simulated(given) == given
    monkeypatch.setenv(commands.SIMULATED, str(tmp_path / "nodes.json"))
    assert host.simulated(given) == given | known["1"]
    assert host.simulated({"client": 4}) == {"client": 4}
    with pytest.raises(ConfigError, match="no configuration of node 2"):
        host.simulated({"partition-id": 2})


@pytest.mark.slow
def test_flowers_simulation_trains_what_fedsubs_does(site):
    pytest.importorskip("ray", reason="Ray is not installed; pip install 'fedsub[flower-simulation]'")
    from fedsub.deploy.app_check import importing, load_task

    played = simulation.simulate(site, rounds=2)
    found, config = fs.load(played.out), site.config
    prepare = runpy.run_path(str(site.folder / "prepare.py"))
    frame = prepare["table"](fs.movielens_like(scale=0.02), 2)  # as the fixture had it made
    clients, _ = fs.Clients.from_frame(frame, "node", ids=list(prepare["FEATURES"]), label="label").split(0.9, seed=0)
    sizes = {name: space.size for name, space in clients.spaces.items()}
    with importing(site):
        task = load_task(site)
        expected = fs.run(task.method(config), task.objective(sizes), clients, rounds=2, seed=0, engine="serial")
    assert played.nodes == 2
    assert found.params is not None
    assert expected.params is not None
    for name, value in expected.params.items():
        assert (found.params[name] == value).all(), name
