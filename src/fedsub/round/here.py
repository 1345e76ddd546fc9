"""Clients in this process: the first transport, and the one of simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch

from fedsub import rng
from fedsub.data.narrowed import Narrowed
from fedsub.errors import NoUsableClient
from fedsub.method.groups import Cohort
from fedsub.round.client import ClientHalf
from fedsub.round.crew.base import Crew, Done, Scene
from fedsub.round.engines.base import Engine
from fedsub.round.layout import Asked, asked_of
from fedsub.round.ledger import Ledger
from fedsub.round.memory import ClientState
from fedsub.round.messages import Downlink, Kept, Uplink
from fedsub.round.server import Opened
from fedsub.round.transport import Answers


def delivers(cohort: Cohort, lost: float, *, seed: int, round: int) -> np.ndarray:
    """Which clients of a cohort deliver, if each is lost with a chance of ``lost``; bool [K]."""
    if not lost:
        return np.ones(len(cohort), bool)
    return rng.uniform(cohort.words(seed, rng.LOSS, round)) >= lost


class Here:
    """All clients' data is at hand; their work is done in groups, by an engine and a crew."""

    def __init__(
        self, half: ClientHalf, engine: Engine, memory: ClientState, ledger: Ledger, crew: Crew, *,
        lost: float = 0.0, strict: bool = False,
    ):  # fmt: skip
        """``lost``: the chance that a client never delivers; ``strict``: one that refuses itself stops the run."""
        self.half, self.engine, self.memory, self.ledger, self.lost = half, engine, memory, ledger, lost
        self.strict, self.crew = strict, crew
        self.tracking = True  # whether anybody will ask which entries of the memory moved
        self._kept: list[tuple[Uplink, Kept]] = []

    def rows(self, number: int, cohort: Cohort) -> dict[str, Asked]:
        return asked_of(self.half.problem.spaces, cohort.clients)

    def ask(self, opened: Opened) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        down = opened.downlink(slice(0, len(opened.cohort)))
        answer = self.half.ask(down)
        up = self.ledger.asked(opened.cohort, opened.asked)
        up += self.ledger.up(answer.who, answer.refused, down.counts, probe=True)
        return answer.seen["loss"], self.ledger.down(down.counts, len(down.who), probe=True), up

    def exchange(self, opened: Opened) -> Answers:
        down = self.ledger.down(_counts(opened), len(opened.cohort))
        up = self.ledger.asked(opened.cohort, opened.asked)
        opened, stays = self.reached(opened)
        done = None
        if self.crew.deadline is not None:
            opened, came, done = self._in_time(opened)
            stays = stays[came]
        sums = opened.server.sums(opened.layout)
        refused, encoded, seen = self.work(opened, sums.add, done=done)
        up[stays] += self.ledger.up(opened.cohort, refused, _counts(opened), encoded)
        notes, self.crew.notes = tuple(self.crew.notes), []
        return Answers(sums, opened.cohort, stays, refused, seen, down, up, notes=notes)

    def _in_time(self, opened: Opened) -> tuple[Opened, np.ndarray, list[Done]]:
        """(the round with those whose work came before the crew's deadline, their places in the cohort, their work)."""
        done = list(self._train(opened, None)) if len(opened.cohort) else []
        came = np.concatenate([np.zeros(0, np.int64), *[np.arange(at.start, at.stop) for at, *_ in done]])
        if len(came) == len(opened.cohort):
            return opened, came, done
        moved, begin = list[Done](), 0
        for at, uplink, kept in done:
            moved.append((slice(begin, begin + at.stop - at.start), uplink, kept))
            begin = moved[-1][0].stop
        return opened.server.narrow(opened, came), came, moved

    def reached(self, opened: Opened) -> tuple[Opened, np.ndarray]:
        """(the round with those who deliver, their places in the cohort)."""
        stays = np.flatnonzero(delivers(opened.cohort, self.lost, seed=self.half.seed, round=opened.number))
        return (opened if len(stays) == len(opened.cohort) else opened.server.narrow(opened, stays)), stays

    def work(
        self, opened: Opened, add: Callable[[Uplink, slice], None], own: Narrowed | None = None,
        done: Iterable[Done] | None = None,
    ) -> tuple[np.ndarray, np.ndarray | None, dict[str, np.ndarray]]:  # fmt: skip
        """Have all clients of a round train, and ``add`` what they send, in cohort order.

        ``own``: what is left of their samples, where only some of their rows came; ``done``: what they did already.
        Returns who refused, the bytes of encoded updates if there are any, and what is told in the clear.
        """
        told = []  # of an uplink just what is small: the rest is in the sums
        if done is None:
            done = self._train(opened, own) if len(opened.cohort) else ()
        for where, uplink, kept in done:
            add(uplink, where)
            told.append((uplink.refused, uplink.lengths, uplink.seen))
            if kept:
                self._kept.append((uplink, kept))
            if self.strict and uplink.refused.any():
                ids = self.half.problem.clients.client_ids[uplink.who.clients[uplink.refused]]
                raise NoUsableClient(
                    f"Round {opened.number}: client {', '.join(map(str, ids[:5]))} found NaN or infinity in what it "
                    "would send; lower lr."
                )
        refused = np.concatenate([np.zeros(0, bool), *[refused for refused, _, _ in told]])
        lengths = [lengths for _, lengths, _ in told if lengths is not None]
        seen = {name: np.concatenate([seen[name] for _, _, seen in told]) for name in self.half.reports if told}
        return refused, np.concatenate(lengths) if lengths else None, seen

    def gather(self, opened: Opened) -> list[tuple[Uplink, Kept]]:
        """What all clients of a round send and keep, in groups, for whoever adds it up at another time."""
        sent: list[Uplink] = []
        self.work(opened, lambda uplink, where: sent.append(uplink))
        kept = {id(uplink): kept for uplink, kept in self._kept}
        self.forget()
        return [(uplink, kept.get(id(uplink), {})) for uplink in sent]

    def forget(self) -> None:
        """The round did not enter the model: clients keep what they had."""
        self._kept = []

    def _train(self, opened: Opened, own: Narrowed | None) -> Iterator[Done]:
        """(where in the cohort, uplink, what is kept) of every group, in cohort order."""
        half = self.half
        batches = half.draw(opened.cohort, opened.number, left=None if own is None else own.clients)

        def down(where: slice) -> Downlink:
            sent = opened.downlink(where)
            return sent if own is None else half.put_aside(sent, own.held_by(where))

        def groups(engine: Engine) -> list[slice]:
            return engine.split(batches, lambda where: half.example(opened.downlink(where)))

        scene = Scene(half, opened.cohort, self.memory, batches, down, own is not None)
        engine = self.engine.settle(len(opened.cohort), groups, scene.train)
        return self.crew.train(scene, engine, groups(engine))

    def accept(self, number: int, answers: Answers) -> None:
        """Write what clients keep; only now, so that a client that takes part twice reads the same both times."""
        for uplink, kept in self._kept:
            keep(self.memory, uplink, kept, self.half, note=self.tracking)
        self.forget()


def keep(memory: ClientState, uplink: Uplink, kept: Kept, half: ClientHalf, *, note: bool = True) -> None:
    """Store what a group of clients keeps: of those that delivered, and of each its first draw."""
    good = ~uplink.refused & (uplink.who.repeats == 0)
    if not good.any():
        return
    at, tables = half.places(uplink.who.clients), half.problem.tables
    for part, slots in kept.items():
        for slot, tree in slots.items():
            if not good.all():
                which = {n: np.repeat(good, tables[n].counts[at]) if n in tables else good for n in tree}
                tree = {n: value[torch.from_numpy(which[n]).to(value.device)] for n, value in tree.items()}
            memory.write(f"{part}.{slot}", at[good], tree, note=note)


def _counts(opened: Opened) -> dict[str, np.ndarray]:
    return {space: rows.counts for space, rows in opened.layout.items()}
