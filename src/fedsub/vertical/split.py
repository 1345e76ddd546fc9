"""`Split`: the split model as a method of `fedsub.run`, and the label party's half of it.

    feature party p    z_p = g_p(x_p)                        label party    ŷ = h(x, z_1, …, z_P), the mean loss ℓ
                       learns from ∂ℓ/∂z_p       ←  ∂ℓ/∂z_p                 learns from ∂ℓ/∂(own parameters)

O. Gupta, R. Raskar, "Distributed learning of deep neural network over multiple agents", J. Netw. Comput. Appl. 2018;
P. Vepakomma et al., "Split learning for health", 2018. A step costs 2·b·dim(z) numbers for every feature party, one
message in each direction. The loss is a mean over the batch, so that a gradient carries its 1/b.

The label party's module is called with its batch, in which every feature party's activations stand under the party's
name (`fedsub.vertical.joined`). Between two steps with the others it may take steps of its own (`fedsub.vertical.own`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsub.checks import check_whole
from fedsub.data.clients import Clients
from fedsub.errors import ObjectiveError, RunError
from fedsub.method.described import describe
from fedsub.method.servers import ServerRule
from fedsub.method.training import OF_CLIENTS, Algorithm, Options, Prepared, Trains
from fedsub.objective.problem import Problem
from fedsub.privacy.noise import Secret
from fedsub.round.ledger import RoundReport
from fedsub.round.predict import Elsewhere
from fedsub.round.remembered import Remembered
from fedsub.trees import Tree
from fedsub.vertical import agreed
from fedsub.vertical.link import Link
from fedsub.vertical.own import OwnSteps
from fedsub.vertical.protection import Protection, protected
from fedsub.vertical.side import Opened, Side


@dataclass(frozen=True)
class Split(Algorithm):
    """``steps`` batches are a round. ``links`` are the lines to the feature parties, ``parties`` what is known of them.

    `fedsub.vertical.run` makes one.
    """

    optimiser: ServerRule
    batch_size: int
    steps: int
    parties: Mapping[str, Any]
    protections: tuple[Protection, ...] = ()
    secret: Secret | None = field(default=None, compare=False)
    links: tuple[Link, ...] = field(default=(), repr=False, compare=False)
    parts: tuple[Clients, ...] = field(default=(), repr=False, compare=False)  # what is evaluated besides
    news: list[str] = field(default_factory=list, repr=False, compare=False)  # for the events of the run, once
    own: str = ""  # the fingerprint of samples that the label party has alone
    own_steps: int = 0  # after each step with the others
    own_data: Clients | None = field(default=None, repr=False, compare=False)
    name: str = field(default="Split", init=False)
    pooled: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        check_whole("batch_size", self.batch_size, 1)
        check_whole("steps", self.steps, 1)

    def prepare(self, problem: Problem, params: Tree, options: Options) -> Prepared:
        options.refuse("A split model", "on_bad_update", *OF_CLIENTS)
        trainer = LabelHalf(self, problem, params, options.seed)
        named = ", ".join(f"{link.name} {list(z.shape[1:])}" for link, z in trainer.z.items()) or "nobody"
        news = (*self.news, *trainer.notes)
        self.news.clear()
        return Prepared(
            trainer, f"split model: activations of {named}; {self.steps} steps of {self.batch_size} samples a round",
            trainer.side.columns, notes=news,
        )  # fmt: skip

    def describe(self) -> dict[str, Any]:
        return describe(self)


class LabelHalf(Trains):
    """Asks the feature parties for activations, and sends them what they learn from."""

    def __init__(self, method: Split, problem: Problem, params: Tree, seed: int):
        self.method, self.problem, self.params, self.seed = method, problem, params, seed
        self.engine = SimpleNamespace(name="split")
        self.side = Side(problem, params, method.optimiser, seed=seed, place=len(method.links))
        self.secret = (method.secret or _of_seed(seed)).words(seed).key
        self.label = getattr(problem.objective.loss, "label", None)
        self.z: dict[Link, Tensor] = {}  # of every party an empty tensor like its activations
        self._round: int | None = None  # the round after which the parties stand
        self.notes: list[str] = []
        self._join()
        self.own: OwnSteps | None = None
        if method.own_data is not None:
            count, size = method.own_steps, method.batch_size
            self.own = OwnSteps(self.side, problem.objective, method.own_data, count, size, seed)
        small, tables, moved = self.side.kept("label/")
        moved |= self.side.moved
        for link in method.links:
            if link.half is not None:
                theirs = link.half.kept()
                small, tables, moved = small | theirs[0], tables | theirs[1], {**moved, **theirs[2]}
        whole = method.optimiser.whole_tables or any(k.half and k.half.rule.whole_tables for k in method.links)
        self.state = Remembered(small, tables, moved, all_rows=bool(whole))

    def _join(self) -> None:
        method, own = self.method, self.problem.clients
        parts = [own, *[part for part in method.parts if part is not own]]
        digests = list(dict.fromkeys(agreed.ids_digest(part, "the label party") for part in parts))
        counts = {agreed.ids_digest(part, "the label party"): part.samples for part in parts}
        run = agreed.run_number(self.seed, method.batch_size, method.steps, digests[0])
        said = {name: torch.tensor(value) for name, value in self._settings().items()}
        said |= {"samples": torch.tensor([counts[d] for d in digests]), "digests": torch.tensor(digests)}
        for link in method.links:
            link.open(run)
            question = link.send(agreed.JOIN, 0, said)
            self.z[link] = link.joined(question)
        first = agreed.batch_of(self.seed, own.samples, method.batch_size, 1)
        self.side.inspect(first, {link.name: torch.zeros(len(first), *z.shape[1:], dtype=z.dtype)
                                  for link, z in self.z.items()})  # fmt: skip
        self.silent = [link for link, z in self.z.items() if not z.shape[1:].numel()]
        for link in self.silent:
            self.notes.append(f"{link.name} has no activations (dimension 0): it is not asked, and nothing is sent")

    def _settings(self) -> dict[str, int]:
        return {"seed": self.seed, "batch_size": self.method.batch_size, "steps": self.method.steps}

    def _go_to(self, round: int) -> None:
        """Have all parties stand at the end of a round."""
        if self._round != round:
            for link in self.method.links:
                link.ask(agreed.BEGIN, agreed.READY, round)
            self._round = round
            self.side.forget()

    def round(self, number: int) -> RoundReport:
        self._go_to(number - 1)
        self._round = None  # in between: who is lost now must begin this round anew
        links = [link for link in self.z if link not in self.silent]
        before = [(link.down, link.up, len(link.refused)) for link in self.method.links]
        first, last = (number - 1) * self.method.steps + 1, number * self.method.steps
        asked = [(link, link.send(agreed.FORWARD, first)) for link in links]
        losses = []
        for step in range(first, last + 1):
            samples = agreed.batch_of(self.seed, self.problem.clients.samples, self.method.batch_size, step)
            came = {link: self._hear(link, question, step, len(samples)) for link, question in asked}
            loss, gradients = self._step(samples, came, step)
            losses.append(loss)
            asked = [
                (link, link.send(agreed.BACK, step, {"gradient": g}, agreed.MORE * (step < last)))
                for link, g in gradients.items()
            ]
            if self.own is not None:
                self.own.take(step, self._clock(step - 1) + 1)
        for link, question in asked:
            link.hear(question, agreed.READY, last, {})
        self._round = number
        bytes_of = [(k.down - down, k.up - up) for k, (down, up, _) in zip(self.method.links, before, strict=True)]
        down, up = np.array(bytes_of, np.int64).reshape(-1, 2).T
        notes = [said for k, (_, _, known) in zip(self.method.links, before, strict=True) for said in k.refused[known:]]
        return RoundReport(
            np.arange(len(self.method.links)), float(np.mean(losses)), down, up,
            measured={"refused": float(len(notes))} if notes else {}, notes=tuple(f"refused: {n}" for n in notes),
        )  # fmt: skip

    def _hear(self, link: Link, question: bytes, step: int, count: int) -> Tensor:
        """Activations of a step. They answer FORWARD of that step, or BACK of the one before."""
        z = self.z[link]
        return link.hear(question, agreed.Z, step, {"z": (z.dtype, (count, *z.shape[1:]))})["z"]

    def _clock(self, step: int) -> int:
        """Steps of the label party's optimiser up to the end of a step with the others."""
        return step * (1 + (0 if self.own is None else self.own.count))

    def _step(self, samples: np.ndarray, came: Mapping[Link, Tensor], step: int) -> tuple[float, dict[Link, Tensor]]:
        for z in came.values():
            z.requires_grad_()
        others = {link.name: z for link, z in came.items()} | self._nothing(len(samples))
        clock = self._clock(step - 1) + 1
        opened = self.side.open(samples, others, clock)
        values = self.problem.objective.loss(opened.output, opened.batch)
        loss = values.mean()
        if not bool(torch.isfinite(loss)):
            raise RunError(f"The loss of step {step} is {loss.item()}; lower the rates, or scale plain value columns.")
        leaves = tuple(opened.leaves.values())
        found = torch.autograd.grad(loss, (*leaves, *came.values()), allow_unused=True)
        self.side.advance(opened, found[: len(leaves)], clock)
        sent = {}
        for (link, z), gradient in zip(came.items(), found[len(leaves) :], strict=True):
            gradient = torch.zeros_like(z) if gradient is None else gradient
            sent[link] = self._protected(gradient, opened, step, link)
        return float(loss.detach()), sent

    def _protected(self, gradient: Tensor, opened: Opened, step: int, link: Link) -> Tensor:
        if not self.method.protections:
            return gradient
        if self.label is None:
            raise ObjectiveError("Protections need the labels, and this loss does not say which column has them.")
        flat = gradient.flatten(1) if gradient.ndim > 1 else gradient[:, None]
        labels = opened.batch[self.label]
        changed = protected(self.method.protections, flat, labels, self.secret, step, link.number)
        return changed.reshape(gradient.shape)

    def _nothing(self, count: int) -> Tree:
        return {k.name: torch.zeros(count, *self.z[k].shape[1:], dtype=self.z[k].dtype) for k in self.silent}

    def model(self, number: int) -> Joint:
        return Joint(self, number)

    def stand_at(self, number: int) -> None:
        """Have all parties where the model of a round is to be asked; they cannot go back while training goes on."""
        if self._round not in (None, number):
            raise RunError(f"The model of round {number} is gone: the parties stand after round {self._round}.")
        self._go_to(number)

    def settle(self, number: int) -> None:
        self.side.settle(self._clock(number * self.method.steps))

    def saves(self, number: int, run: Path) -> None:
        for link in self.method.links:
            if link.remote:
                link.ask(agreed.SAVE, agreed.READY, number)

    def activations(self, link: Link, clients: Clients, samples: np.ndarray) -> Tensor:
        """What a party says to some samples of a part of the data."""
        z = self.z[link]
        about = {"part": torch.tensor(agreed.ids_digest(clients, "the label party")),
                 "samples": torch.from_numpy(samples.astype(np.int64))}  # fmt: skip
        return link.ask(agreed.ASK, agreed.Z, 0, about, {"z": (z.dtype, (len(samples), *z.shape[1:]))})["z"]


class Joint(Elsewhere):
    """The model after a round: the label party's module is here, the others' are asked."""

    def __init__(self, half: LabelHalf, number: int):
        self.half, self.number, self.step = half, number, number * half.method.steps

    @property
    def shared(self) -> Tree:
        return self.half.side.whole(self.step)

    def answer(self, clients: Clients, chosen: np.ndarray) -> tuple[np.ndarray, Tensor]:
        losses, outputs = [], []
        for output, batch in self._said(clients, chosen):
            values = self.half.problem.objective.loss(output, batch)
            losses.append(values.expand(len(output)).double().cpu().numpy())
            outputs.append(output.cpu())
        return np.concatenate(losses), torch.cat(outputs)

    def outputs(self, clients: Clients, chosen: np.ndarray) -> Tensor:
        """The outputs alone, of samples whose labels need not be known."""
        return torch.cat([output.cpu() for output, _ in self._said(clients, chosen)])

    def _said(self, clients: Clients, chosen: np.ndarray) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        half = self.half
        half.stand_at(self.number)
        for begin in range(0, len(chosen), agreed.AT_ONCE):
            samples = chosen[begin : begin + agreed.AT_ONCE]
            others = {k.name: half.activations(k, clients, samples) for k in half.z if k not in half.silent}
            yield half.side.say(clients, samples, others | half._nothing(len(samples)), self.step)


def _of_seed(seed: int) -> Secret:
    """In a simulation nobody has to be kept from guessing."""
    return Secret.of(seed.to_bytes(32, "little"))
