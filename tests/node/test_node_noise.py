"""`LocalDP` between nodes: a server that knows method and seed, and asks as it likes, cannot take the noise off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from node.processes import SEED, data, objective
from node.test_node import SIZES, Direct, population

import fedsub as fs
from fedsub.errors import CheckpointError, WireError
from fedsub.node import Node, Served, serve
from fedsub.node.agree import method_digest
from fedsub.node.noise import SECRET, TOLD
from fedsub.node.share import only

LOUD = fs.LocalDP(clip=1e-6, noise=1e6)  # what is sent is noise of deviation 1


def method(part: fs.Part) -> fs.Method:
    return fs.Method(
        local=fs.SGD(lr=0.2, local_steps=2, batch_size=3), average=fs.OverClients("clients"), server=fs.Add(),
        sampler=fs.Everyone(), parts=(part,),
    )  # fmt: skip


def nodes(folder: Path, how: fs.Method) -> dict[int, Node]:
    clients = data()
    return {n: Node(only(clients, n), objective, how, n, folder / str(n)) for n in range(len(clients))}


def play(how: fs.Method, found: dict[int, Node], rounds: int = 1, shift: float = 0.0) -> Served:
    params = {n: p.detach().clone() + shift for n, p in objective(SIZES).module.named_parameters()}
    return serve(how, params, population(), {n: Direct(node) for n, node in found.items()}, rounds=rounds, seed=SEED)


def moved(model: dict[str, torch.Tensor], shift: float = 0.0) -> np.ndarray:
    first = objective(SIZES).module.get_parameter("items.weight").detach() + shift
    return (model["items.weight"] - first).numpy()[1:].ravel()


def alike(a: np.ndarray, b: np.ndarray) -> float:
    return float(abs(np.corrcoef(a, b)[0, 1]))


def test_noise_is_the_nodes_own_and_none_is_used_for_two_updates(tmp_path: Path) -> None:
    how = method(LOUD)
    found = nodes(tmp_path / "a", how)
    first, again, other = (play(how, found, shift=shift).params for shift in (0.0, 0.0, 1e-3))
    assert torch.equal(first["items.weight"], again["items.weight"])  # the same task gets the same bytes
    assert moved(first).std() > 0.05
    assert alike(moved(first), moved(other, 1e-3)) < 0.5  # another model, the same seed and round: other noise
    elsewhere = play(how, nodes(tmp_path / "b", how)).params
    assert alike(moved(first), moved(elsewhere)) < 0.5
    simulated = fs.run(how, objective(SIZES), data(), rounds=1, seed=SEED, engine="serial").params
    assert alike(moved(first), moved(simulated)) < 0.5  # which everybody can compute who knows the seed
    assert (tmp_path / "a/0" / SECRET).stat().st_mode & 0o077 == 0


def test_a_node_keeps_its_budget_whatever_the_server_counts(tmp_path: Path) -> None:
    how = method(fs.LocalDP.calibrated(clip=0.3, epsilon=4.0, participations=2))
    found = nodes(tmp_path, how)
    for shift in (0.0, 0.0, 0.1):  # the same again tells nothing more
        play(how, found, shift=shift)
    with pytest.raises(WireError, match=r"2 times, and epsilon=4 at delta=1e-05 allows no more; nothing was sent"):
        play(how, found, shift=0.2)  # a server that begins at 0 every time
    (tmp_path / "0" / TOLD).write_text("{}")
    with pytest.raises(CheckpointError, match="begin at 0 gives away more"):
        play(how, found, shift=0.3)


def test_what_a_node_said_about_heat_is_spent_from_the_same_budget(tmp_path: Path) -> None:
    heat = fs.privacy.RandomizedResponse(epsilon=0.5, rows=2)
    part = fs.LocalDP(clip=0.3, noise=4.0, epsilon=8.0)
    how = replace(method(part), average=fs.OverHolders("clients", heat=heat))
    asked, alone = (Node(only(data(), 0), objective, one, 0, tmp_path / one.name) for one in (how, method(part)))
    assert 0 < asked.noise.most < alone.noise.most


def test_a_secret_of_the_server_is_not_compared(tmp_path: Path) -> None:
    """Noise of CentralDP must be foreseen by no client: the server has a key that they are not given."""
    open_, keyed = (method(fs.CentralDP(clip=0.3, noise=1.0, secret=secret)) for secret in (None, "ab" * 32))
    assert method_digest(open_) == method_digest(keyed)
    assert method_digest(open_) != method_digest(method(fs.CentralDP(clip=0.3, noise=2.0)))
    served = play(keyed, nodes(tmp_path, open_), rounds=2)
    assert not served.left_out
    simulated = fs.run(keyed, objective(SIZES), data(), rounds=2, seed=SEED, engine="serial")
    assert all(torch.equal(served.params[name], value) for name, value in simulated.params.items())
