"""`Party`: who has features and no labels; `FeatureHalf`: its half of a run, which answers questions in bytes.

It sends the activations of its bottom and is sent their gradients. Its features, its tables and their rows stay where
they are. A question that it cannot use changes nothing and is answered by NO.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsub.checks import check_seed, check_whole
from fedsub.data.clients import Clients
from fedsub.errors import ConfigError, FedsubError, ObjectiveError, WireError
from fedsub.method.described import describe
from fedsub.objective.code import code_of
from fedsub.objective.losses import Batch
from fedsub.objective.objective import Objective
from fedsub.objective.problem import Problem
from fedsub.round import wire
from fedsub.round.evaluate import same_numbering
from fedsub.round.letters import check_finite
from fedsub.round.quiet import one_thread, same_random_state
from fedsub.round.remembered import Moved, Remembered
from fedsub.trees import Tree
from fedsub.vertical import agreed
from fedsub.vertical.side import Opened, Side, optimiser_of
from fedsub.vertical.store import Store

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")


def no_loss(output: Tensor, batch: Batch) -> Tensor:
    """A number a sample that depends on all activations, of which there is a row for each: the loss is elsewhere."""
    count = len(batch["sample_mask"])
    if output.ndim < 1 or len(output) != count:
        raise ObjectiveError(
            f"The module makes activations {list(output.shape)} of {count} samples; return one row for each, [b, …]."
        )
    return output.flatten(1).sum(1) if output.ndim > 1 else output


def check_name(name: object) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(
            f"A party's name is up to 40 letters, digits, - and _ and begins with a letter; got {name!r}."
        )
    return name


@dataclass(frozen=True)
class Party:
    """A feature party: a bottom that makes activations z [b, …] of a batch, and the data it reads.

    ``data`` are the samples to train on, ``parts`` those of other parts, such as {"test": …}; every sample is a client
    of its own whose id the label party's sample has too. ``tables`` and ``inputs`` are as in `fedsub.Objective`.
    ``optimiser``: a rate for SGD, one of `fedsub.servers`, or a factory of torch.optim.
    """

    name: str
    bottom: nn.Module
    data: Clients
    parts: Mapping[str, Clients] = field(default_factory=dict)
    tables: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    optimiser: Any = 0.1
    inputs: Sequence[str] | None = None
    unused: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_name(self.name)
        optimiser_of(self.optimiser)
        for name, part in {"data": self.data, **self.parts}.items():
            if not isinstance(part, Clients):
                raise ConfigError(f"{name} of {self.name} must be Clients, got a {type(part).__name__}.")
            agreed.ids_digest(part, self.name)
            for space, own in self.data.spaces.items():
                if not same_numbering(part.spaces.get(space), own):
                    raise ConfigError(
                        f"{name} of {self.name} numbers the rows of {space!r} otherwise than the training data; cut "
                        "both from the same data, or read it with vocabulary= the training data."
                    )

    @property
    def objective(self) -> Objective:
        return Objective(self.bottom, no_loss, self.tables, self.inputs, self.unused)

    def describe(self) -> dict[str, Any]:
        """All that its numbers depend on, as plain JSON values."""
        objective = self.objective
        own = {n: p for n, p in self.bottom.named_parameters() if p.requires_grad or n in self.tables}
        return {
            "name": self.name,
            "optimiser": describe(optimiser_of(self.optimiser)),
            "data": self.data.fingerprint,
            "splits": {name: part.fingerprint for name, part in self.parts.items()},
            "parameters": {n: [list(p.shape), str(p.dtype).removeprefix("torch.")] for n, p in own.items()},
            "tables": {name: list(objective.columns_of(name)) for name in self.tables},
            "code": code_of(objective),
        }


class FeatureHalf:
    """Answers the label party. ``folder`` is its run directory; without one it keeps nothing beyond its memory."""

    def __init__(self, party: Party, folder: str | Path | None = None, *, resume: bool = False):
        self.party, self.problem = party, Problem.bind(party.objective, party.data)
        self.params = self.problem.params()
        self.rule = optimiser_of(party.optimiser)
        self.at = torch.zeros((), dtype=torch.int64)  # steps taken
        self.refused = 0  # messages that could not be used
        self.ended = False
        self.side: Side | None = None
        self.state: Remembered | None = None
        self.store = None if folder is None else Store(Path(folder), resume)
        self._joined: dict[str, int] = {}
        self._parts = {agreed.ids_digest(part, party.name): part for part in (party.data, *party.parts.values())}
        self._opened: tuple[int, Opened] | None = None

    def answer(self, data: bytes) -> bytes:
        """The answer to one message; NO where it cannot be used, and then nothing has changed."""
        round = number = 0
        try:
            asked = wire.read(data)
            round, number = asked.round, asked.client
            if asked.kind != agreed.JOIN:
                if self.side is None or asked.run != self._joined["run"]:
                    raise WireError("This party has not joined that run; begin with JOIN.")
                wire.check(replace(asked, tensors={}), {}, client=self._joined["number"])
            if asked.kind not in self._answers:
                raise WireError(f"There is no question of kind {asked.kind}.")
            with one_thread(), same_random_state(self.params):
                kind, tensors = self._answers[asked.kind](self, asked)
            round += asked.kind == agreed.BACK and kind == agreed.Z  # activations are those of the next step
        except FedsubError as err:
            kind, tensors = agreed.NO, agreed.text(str(err))
        except Exception as err:  # of the party's own module, which saw its first batch without a complaint
            last = traceback.extract_tb(err.__traceback__)[-1]
            why = f"{type(err).__name__}: {err} ({Path(last.filename).name}, line {last.lineno})"
            kind, tensors = agreed.NO, agreed.text(f"The module of {self.party.name} failed with {why}.")
        if kind == agreed.NO:
            self.refused += 1
        run = self._joined.get("run", 0)
        return wire.write(wire.Envelope(kind, round, number, run=run, tensors=tensors))

    def _join(self, asked: wire.Envelope) -> tuple[int, Tree]:
        numbers = {"seed": agreed.NUMBER, "batch_size": agreed.NUMBER, "steps": agreed.NUMBER}
        wire.check(asked, {**numbers, "samples": (torch.int64, (None,)), "digests": (torch.int64, (None,))})
        said = {name: int(asked.tensors[name]) for name in numbers}
        check_seed("seed", said["seed"], error=WireError)
        for name in ("batch_size", "steps"):
            check_whole(name, said[name], 1, error=WireError)
        self._check_same(asked.tensors["samples"].tolist(), asked.tensors["digests"].tolist())
        joined = {"run": asked.run, "number": asked.client, **said}
        if self._joined != joined:
            if self._joined:
                raise WireError(f"This party is in a run with other settings ({self._joined}, now {joined}).")
            side = Side(self.problem, self.params, self.rule, seed=said["seed"], place=asked.client)
            first = agreed.batch_of(said["seed"], self.party.data.samples, said["batch_size"], 1)
            side.inspect(first, {})
            small, tables, moved = side.kept()
            state = Remembered(
                {"at": self.at, **small, **{n: self.params[n] for n in self.problem.dense}},
                {**tables, **{n: self.params[n] for n in self.problem.tables}},
                {**moved, **side.moved}, all_rows=self.rule.whole_tables,
            )  # fmt: skip
            if self.store is not None:
                self.store.open(self.party, self.problem, self.params, state, said)
            self.side, self.state, self._joined = side, state, joined
        assert self.side is not None
        self._opened = None
        return agreed.JOINED, {"z": self.side.say(self.party.data, np.zeros(1, np.int64), {}, int(self.at))[0][:0]}

    def _check_same(self, samples: list[int], digests: list[int]) -> None:
        """Refuse a label party whose samples are not these, or in another order."""
        if len(samples) != len(digests) or not digests:
            raise WireError("JOIN must name one digest for every part of the data.")
        for place, (count, digest) in enumerate(zip(samples, digests, strict=True)):
            own = self._parts.get(digest)
            if own is None or (place == 0 and own is not self.party.data):
                there = ", ".join(f"{part.samples:,}" for part in self._parts.values())
                what = "the samples to train on" if place == 0 else f"part {place + 1} of the data"
                raise WireError(
                    f"{self.party.name} does not have {what} of the label party ({count:,} samples there; here parts "
                    f"of {there}): other ids, or another cut. Align the ids (fedsub vertical align), and cut both "
                    "sides alike."
                )

    def _begin(self, asked: wire.Envelope) -> tuple[int, Tree]:
        wire.check(asked, {})
        assert self.side is not None
        assert self.state is not None
        step = asked.round * self._joined["steps"]
        self._opened, self.ended = None, False
        if self.store is not None:
            self.store.go_to(asked.round, self.params, self.problem, self.state)
            if int(self.at) != step:
                raise WireError(f"The checkpoint of round {asked.round} is of step {int(self.at)}, expected {step}.")
        elif int(self.at) != step:
            if step:
                raise WireError(
                    f"{self.party.name} keeps no checkpoints and stands at step {int(self.at)}, not {step}; give it a "
                    "run directory (out=, --out)."
                )
            self._restart()
        self.side.forget()
        return agreed.READY, {}

    def _restart(self) -> None:
        """Back to the start, in place: tensors that others hold stay the same ones."""
        assert self.side is not None
        for name, value in self.problem.params(copy=False).items():
            self.params[name].copy_(value)
        for name, value in self.rule.init(self.params, tuple(self.problem.tables)).items():
            self.side.state[name].copy_(value)
        self.at.zero_()

    def _forward(self, asked: wire.Envelope) -> tuple[int, Tree]:
        wire.check(asked, {}, round=int(self.at) + 1)
        return agreed.Z, self._activations(asked.round)

    def _activations(self, step: int) -> Tree:
        assert self.side is not None
        if self._opened is None or self._opened[0] != step:
            size, samples = self._joined["batch_size"], self.party.data.samples
            batch = agreed.batch_of(self._joined["seed"], samples, size, step)
            opened = self.side.open(batch, {}, step)
            no_loss(opened.output, opened.batch)
            self._opened = step, opened
        return {"z": self._finite(self._opened[1].output.detach(), step)}

    def _finite(self, z: Tensor, step: int) -> Tensor:
        if not bool(torch.isfinite(z).all()):
            raise WireError(
                f"The activations of {self.party.name} hold NaN or infinity at step {step}; lower its rate, or look "
                "at its plain value columns."
            )
        return z

    def _back(self, asked: wire.Envelope) -> tuple[int, Tree]:
        assert self.side is not None
        if asked.round != int(self.at):  # else it was done already, and only the answer was lost
            if self._opened is None or self._opened[0] != asked.round:
                raise WireError(f"A gradient of step {asked.round} came at step {int(self.at)}, unasked.")
            opened = self._opened[1]
            wire.check(asked, {"gradient": agreed.like(opened.output)})
            check_finite(asked.tensors)
            gradients = torch.autograd.grad(
                opened.output, tuple(opened.leaves.values()), asked.tensors["gradient"], allow_unused=True
            )
            self._opened = None
            self.side.advance(opened, gradients, asked.round)
            self.at.fill_(asked.round)
        if asked.flags == agreed.MORE:
            return agreed.Z, self._activations(asked.round + 1)
        return agreed.READY, {}

    def _ask(self, asked: wire.Envelope) -> tuple[int, Tree]:
        wire.check(asked, {"part": agreed.NUMBER, "samples": (torch.int64, (None,))})
        assert self.side is not None
        part = self._parts.get(int(asked.tensors["part"]))
        samples = asked.tensors["samples"].numpy()
        if part is None or not len(samples) or samples.min() < 0 or samples.max() >= part.samples:
            raise WireError(f"{self.party.name} does not have those samples; cut the data of both sides alike.")
        if len(samples) > agreed.AT_ONCE:
            raise WireError(f"A question is about at most {agreed.AT_ONCE:,} samples, this one about {len(samples):,}.")
        z, _ = self.side.say(part, samples, {}, int(self.at))
        return agreed.Z, {"z": self._finite(z, int(self.at))}

    def _save(self, asked: wire.Envelope) -> tuple[int, Tree]:
        wire.check(asked, {})
        if asked.round * self._joined["steps"] != int(self.at):
            raise WireError(f"Round {asked.round} cannot be saved at step {int(self.at)}.")
        if self.store is not None:
            assert self.state is not None
            self.store.save(asked.round, self.params, self.problem, self.state)
        return agreed.READY, {}

    def _end(self, asked: wire.Envelope) -> tuple[int, Tree]:
        wire.check(asked, {})
        assert self.side is not None
        self.side.settle(int(self.at))
        if self.store is not None:
            self.store.finish(asked.round, self.problem, self.params, self.refused)
        self.ended = True
        return agreed.READY, {}

    _answers = {  # noqa: RUF012
        agreed.JOIN: _join, agreed.BEGIN: _begin, agreed.FORWARD: _forward, agreed.BACK: _back, agreed.ASK: _ask,
        agreed.SAVE: _save, agreed.END: _end,
    }  # fmt: skip

    def learned(self, values: Mapping[str, Tensor], step: int) -> None:
        """Take what was learned up to a step."""
        for name, value in self.params.items():
            if name not in values or values[name].shape != value.shape:
                raise WireError(f"What {self.party.name} learned has no {name} of the shape {list(value.shape)}.")
            value.copy_(values[name])
        self.at.fill_(step)

    def kept(self) -> tuple[Tree, Tree, Mapping[str, Moved]]:
        """What a simulation's checkpoint keeps of this party, by names that begin with the party's."""
        assert self.side is not None
        name = f"{self.party.name}/"
        small, tables, moved = self.side.kept(name)
        small |= {f"{name}at": self.at} | {f"{name}{n}": self.params[n] for n in self.problem.dense}
        tables |= {f"{name}{n}": self.params[n] for n in self.problem.tables}
        return small, tables, moved | {f"{name}{n}": one for n, one in self.side.moved.items()}

    def module(self) -> nn.Module:
        """The bottom with what it learned: an ordinary module."""
        from fedsub.round.engines.base import template

        made = template(self.problem, next(iter(self.params.values())).device)
        own = dict(made.named_parameters())
        values = self.params if self.side is None else self.side.whole(int(self.at))
        for name, value in values.items():
            own[name].data = value.clone()
        return made.eval()
