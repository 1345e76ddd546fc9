"""New samples of a trained split model: what the same modules say in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sides import OPTIONS, columns, label, shop, world

import fedsub as fs
from fedsub import vertical
from fedsub.errors import CheckpointError, ConfigError, WireError
from fedsub.vertical import link
from fedsub.vertical.link import Direct


def momentum(lr: float) -> fs.servers.Add:
    return fs.servers.Add(lr=lr, momentum=0.6)


def expected(found: vertical.Outcome, side: vertical.LabelParty, party: vertical.Party) -> np.ndarray:
    own, other = side.parts["test"], party.parts["test"]
    every = np.arange(own.samples)
    batch: dict[str, Any] = {n: torch.from_numpy(a) for n, a in own.gather(every, local=False).items()}
    theirs = {n: torch.from_numpy(a) for n, a in other.gather(every, local=False).items()}
    with torch.no_grad():
        return found.result.module()(batch | {"shop": found.bottoms["shop"](theirs)}).numpy()


def test_parties_in_one_process(tmp_path: Path) -> None:
    side, party = label(3, ("shop",), momentum(0.2)), shop(momentum(0.5))
    found = vertical.run(side, [party], out=tmp_path / "run", **OPTIONS)
    whole, ids = columns(), side.parts["test"].client_ids.tolist()
    towns = [whole["town"][whole["id"].index(one)] for one in ids]
    unlabelled = fs.Clients.from_arrays({"id": ids, "town": towns}, client="id", ids=["town"], vocabulary=side.data)
    said = vertical.predict(side, [party], unlabelled, tmp_path / "run")
    assert np.abs(said - expected(found, side, party)).max() < 1e-14
    with pytest.raises(WireError, match=r"does not have part 2 of the data"):
        vertical.predict(side, [vertical.Party("shop", party.bottom, party.data, {}, party.tables)], unlabelled,
                         tmp_path / "run")  # fmt: skip


def test_a_party_elsewhere_answers_from_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side, party = label(3, ("shop",), momentum(0.2)), shop(momentum(0.5))
    halves: list[vertical.FeatureHalf] = []

    def dial(_: object) -> Direct:
        if halves:
            assert halves[-1].store is not None
            halves[-1].store.close()
        halves.append(vertical.FeatureHalf(party, tmp_path / "shop", resume=(tmp_path / "shop").exists()))
        return Direct(halves[-1])

    monkeypatch.setattr(link.Remote, "dial", dial)
    far = link.Remote("shop", "127.0.0.1", 9)
    vertical.run(side, [far], out=tmp_path / "run", **OPTIONS)
    here = vertical.run(side, [party], **OPTIONS)
    said = vertical.predict(side, [far], side.parts["test"], tmp_path / "run")
    assert len(halves) == 2
    assert np.abs(said - expected(here, side, party)).max() < 1e-14


def test_refusals(tmp_path: Path) -> None:
    side, (party,) = world(1)
    vertical.run(side, [party], out=tmp_path / "run", **OPTIONS)
    data = fs.Clients.from_arrays({"id": ["x", "y"], "town": [7, 8]}, client="id", ids=["town"])
    with pytest.raises(ConfigError, match=r"numbers 'town' otherwise"):
        vertical.predict(side, [party], data, tmp_path / "run")
    (tmp_path / "run" / "bottom-shop.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"shop was not in this process"):
        vertical.predict(side, [party], side.parts["test"], tmp_path / "run")
    with pytest.raises(ConfigError, match=r"part of shop|test of shop"):
        vertical.Party("shop", party.bottom, party.data, {"test": _renumbered()}, party.tables)


def _renumbered() -> fs.Clients:
    return fs.Clients.from_arrays({"id": ["x", "y"], "item": [7, 8], "price": [0.1, 0.2]}, client="id", ids=["item"],
                                  values=["price"])  # fmt: skip
