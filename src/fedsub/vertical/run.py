"""`run`: train a split model, with parties in this process, elsewhere, or both."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from fedsub.checks import check_whole
from fedsub.data.clients import Clients
from fedsub.disk.files import write_atomic
from fedsub.disk.tensorfile import Source, TensorFile
from fedsub.errors import ConfigError, MethodError
from fedsub.objective.losses import Loss
from fedsub.objective.objective import Objective
from fedsub.privacy.noise import Secret
from fedsub.round.evaluate import Evaluate
from fedsub.running.callbacks import Callback
from fedsub.running.keep import values_of
from fedsub.running.result import Result, Target
from fedsub.running.run import run as train
from fedsub.vertical import agreed
from fedsub.vertical.link import Direct, Link, PartyLost, Remote
from fedsub.vertical.party import FeatureHalf, Party
from fedsub.vertical.protection import Protection, check_protections
from fedsub.vertical.side import optimiser_of
from fedsub.vertical.split import Split

BOTTOMS = "bottom-{}.safetensors"


@dataclass(frozen=True)
class LabelParty:
    """Who has the labels. ``module`` gets a batch in which every party's activations stand under its name.

    ``parts`` are evaluated besides the training data, such as {"test": …}. ``secret``, at least 16 random bytes that
    nobody else has, is where ``protections`` draw from; without it they draw from the seed, in simulations only.

    ``own`` are samples that the other parties lack, numbered as ``data`` is: after each step with the others the label
    party takes ``own_steps`` on batches of these, in which no activations stand (`fedsub.vertical.joined`).
    """

    module: nn.Module
    loss: Loss
    data: Clients
    parts: Mapping[str, Clients] = field(default_factory=dict)
    tables: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    optimiser: Any = 0.1
    protections: Sequence[Protection] = ()
    secret: Any = None
    unused: Sequence[str] = ()
    own: Clients | None = None
    own_steps: int = 1

    @property
    def objective(self) -> Objective:
        return Objective(self.module, self.loss, self.tables, unused=self.unused)


@dataclass(frozen=True)
class Outcome:
    """The label party's `Result`, and the trained bottoms of the parties that were in this process."""

    result: Result
    bottoms: Mapping[str, nn.Module] = field(default_factory=dict, repr=False)
    refused: tuple[str, ...] = field(default=(), repr=False)  # messages that could not be used, in sentences


def run(
    label: LabelParty,
    parties: Sequence[Party | Remote],
    *,
    rounds: int,
    batch_size: int = 256,
    steps: int = 100,
    seed: int = 0,
    evaluate: Evaluate | None = None,
    target: str | Target | None = None,
    stop_at_target: bool = False,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    checkpoint_every: int = 1,
    callbacks: Sequence[Callback] = (),
    returns: int = 5,
    settings: dict[str, Any] | None = None,
) -> Outcome:
    """Train a split model for ``rounds`` rounds of ``steps`` batches.

    A `Party` is played in this process, a `Remote` is another one. When a remote party is lost, the run waits until it
    is back (`Remote.patience`) and goes on from the last checkpoint, all parties from the same one; at most ``returns``
    times without a new checkpoint in between. That needs ``out``, and a directory of its own at the party.
    All else is as in `fedsub.run`.
    """
    check_whole("rounds", rounds, 1, error=ConfigError)
    check_whole("returns", returns, 0, error=ConfigError)
    _check(label, parties, evaluate)
    links = tuple(_link(party, number) for number, party in enumerate(parties))
    arguments: dict[str, Any] = {
        "rounds": rounds, "seed": seed, "evaluate": evaluate, "target": target, "stop_at_target": stop_at_target,
        "out": out, "checkpoint_every": checkpoint_every, "callbacks": callbacks, "settings": settings,
    }  # fmt: skip
    described = {p.name: p.describe() if isinstance(p, Party) else "elsewhere" for p in parties}
    news: list[str] = []
    left, saved = returns, _saved(out)
    while True:
        method = Split(
            optimiser_of(label.optimiser), batch_size, steps, described, check_protections(label.protections),
            None if label.secret is None else Secret.of(label.secret), links, tuple(label.parts.values()), news,
            "" if label.own is None else label.own.fingerprint, 0 if label.own is None else label.own_steps, label.own,
        )  # fmt: skip
        try:
            result = train(
                method, label.objective, label.data, splits={"train": label.data, **label.parts}, resume=resume,
                **arguments,
            )  # fmt: skip
            for link in links:
                link.ask(agreed.END, agreed.READY, rounds)
            break
        except PartyLost as lost:
            left, saved = (returns, now) if (now := _saved(out)) != saved else (left - 1, saved)
            if out is None or left < 0:
                hint = "give both a directory (out=)" if out is None else "see what became of it"
                raise PartyLost(f"{lost} Without it the run cannot go on; {hint}, and resume.") from lost
            news.append(f"{lost} It is waited for, and all go on from the last checkpoint.")
            resume = True
        finally:
            for link in links:
                link.close()
    bottoms = {link.name: link.half.module() for link in links if link.half is not None}
    _keep(out, links)
    return Outcome(result, bottoms, tuple(said for link in links for said in link.refused))


def _link(party: Party | Remote, number: int) -> Link:
    if isinstance(party, Remote):
        return Link(party.name, number, party.dial)
    half = FeatureHalf(party)
    return Link(party.name, number, lambda: Direct(half), half)


def _saved(out: str | os.PathLike[str] | None) -> tuple[str, ...]:
    return () if out is None else tuple(sorted(p.name for p in (Path(out) / "checkpoints").glob("*.json")))


def _check(label: LabelParty, parties: Sequence[Party | Remote], evaluate: Evaluate | None) -> None:
    if not isinstance(label, LabelParty):
        raise ConfigError(f"label must be a LabelParty(module, loss, data, …), got {label!r}.")
    check_whole("own_steps", label.own_steps, 1, error=ConfigError)
    if label.own is not None and not isinstance(label.own, Clients):
        raise ConfigError(f"own of the label party must be Clients, got a {type(label.own).__name__}.")
    names = []
    for party in parties:
        if not isinstance(party, Party | Remote):
            raise ConfigError(f"A feature party is a Party or a Remote, got {party!r}.")
        names.append(party.name)
    if len(set(names)) != len(names):
        raise ConfigError(f"Parties have names of their own, got {', '.join(names)}.")
    for name in names:
        if name in label.data.columns or name == "sample_mask":
            raise ConfigError(
                f"The label party has a column {name!r}, where the activations of {name!r} belong; rename it."
            )
    if evaluate is not None and (evaluate.ranking is not None or evaluate.norms is not None):
        raise ConfigError(
            "Other parties hold parts of the model and of its data: lists of items and the gradient's norms cannot be "
            "measured; leave ranking= and norms= out."
        )
    if label.protections and label.secret is None and any(isinstance(p, Remote) for p in parties):
        raise MethodError(
            "Protections of a run with other processes need a secret: the seed is told to the parties, who could draw "
            "the same numbers. Give secret=, at least 16 random bytes, or env:NAME."
        )


def _keep(out: str | os.PathLike[str] | None, links: Sequence[Link]) -> None:
    """The trained bottoms of a simulation, beside the label party's model."""
    for link in links if out is not None else ():
        if link.half is None:
            continue
        values = values_of(link.half.party.bottom, link.half.params)
        path = Path(str(out)) / BOTTOMS.format(link.name)
        write_atomic(path, TensorFile({name: Source(value) for name, value in values.items()}).write)
