"""`predict`: what a trained split model says to new samples, of which every party has its part."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.torch import load_file

from fedsub.data.clients import Clients
from fedsub.errors import CheckpointError, ConfigError
from fedsub.objective.problem import Problem
from fedsub.round.evaluate import same_numbering
from fedsub.round.quiet import one_thread
from fedsub.running.load import load
from fedsub.vertical.link import Direct, Link, Remote
from fedsub.vertical.party import FeatureHalf, Party
from fedsub.vertical.run import BOTTOMS, LabelParty
from fedsub.vertical.side import optimiser_of
from fedsub.vertical.split import LabelHalf, Split


def predict(
    label: LabelParty, parties: Sequence[Party | Remote], data: Clients, run: str | os.PathLike[str]
) -> np.ndarray:
    """The module's outputs for the samples of ``data``, [n, …]; ``run`` is the label party's run directory.

    Parties are as in training. ``data`` are the label party's columns, numbered like its training data, without need of
    a label; every other party has the same samples among its ``parts``. A remote party goes back to the checkpoint of
    the run's last round, and answers: dim(z) numbers a sample cross.
    """
    folder = Path(run)
    trained = load(folder)
    try:
        said = trained.config["method"]
        batch_size, steps, seed = said["batch_size"], said["steps"], trained.config["seed"]
    except (KeyError, TypeError) as err:
        raise CheckpointError(f"{folder} is no run of fedsub.vertical; name the label party's run directory.") from err
    for name, space in data.spaces.items():
        if name in label.data.spaces and not same_numbering(space, label.data.spaces[name]):
            raise ConfigError(
                f"The new data numbers {name!r} otherwise than the training data; read it with vocabulary= the latter."
            )
    links = tuple(_link(party, number, folder, trained.round * steps) for number, party in enumerate(parties))
    method = Split(optimiser_of(label.optimiser), batch_size, steps, {}, links=links, parts=(data,))
    problem = Problem.bind(label.objective, label.data)
    if said.get("type") != "Split" or {n: list(p.shape) for n, p in trained.params.items()} != {
        n: list(p.shape) for n, p in problem.params(copy=False).items()
    }:
        raise CheckpointError(f"{folder} holds another model than the label party's module.")
    try:
        with one_thread():
            half = LabelHalf(method, problem, trained.params, seed)
            half.side.settled(trained.round * steps)
            return half.model(trained.round).outputs(data, np.arange(data.samples)).double().numpy()
    finally:
        for link in links:
            link.close()


def _link(party: Party | Remote, number: int, folder: Path, step: int) -> Link:
    if isinstance(party, Remote):
        return Link(party.name, number, party.dial)
    half, path = FeatureHalf(party), folder / BOTTOMS.format(party.name)
    if not path.exists():
        raise CheckpointError(f"{path} is missing: {party.name} was not in this process when the run was trained.")
    half.learned(load_file(path), step)
    return Link(party.name, number, lambda: Direct(half), half)
