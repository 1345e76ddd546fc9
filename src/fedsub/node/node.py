"""`Node`: one client by itself. It has its data, its memory and what it was sent; it returns bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch

from fedsub.checks import check_seed
from fedsub.data.clients import Clients
from fedsub.data.narrowed import Narrowed
from fedsub.errors import WireError
from fedsub.method.codecs.wire import encode_rows
from fedsub.method.groups import Cohort
from fedsub.method.part import Start
from fedsub.method.parts import SecureSum
from fedsub.method.slots import Method
from fedsub.node import heat
from fedsub.node.agree import method_digest, model_digest
from fedsub.node.heat_sums import HeatSum
from fedsub.node.noise import OwnNoise
from fedsub.node.secret import SECURE, SecretSums
from fedsub.node.share import alone
from fedsub.node.store import Store
from fedsub.objective.objective import Objective
from fedsub.objective.problem import Problem
from fedsub.round import wire
from fedsub.round.client import ClientHalf
from fedsub.round.engines.base import Plan
from fedsub.round.engines.inspecting import inspect
from fedsub.round.engines.serial import Serial
from fedsub.round.here import keep
from fedsub.round.letters import Letters, check_finite
from fedsub.round.memory import ClientState, first_words
from fedsub.round.messages import Downlink, Uplink
from fedsub.round.quiet import one_thread
from fedsub.round.schema import REPORTS, Schema, expected
from fedsub.round.secure.opening import check_tables
from fedsub.secure import Identity, SecureClient, Setting
from fedsub.secure.wire import MAGIC

MakeObjective = Callable[[Mapping[str, int]], Objective]  # (space -> how many rows its tables need)


class Node:
    """A client's half of a run, for one client.

    ``data`` is a directory with this client's samples alone, under the numbering that all clients share (see
    `hand_out`). ``objective`` makes the objective for tables of given sizes: the node's tables have only the rows that
    it holds. ``number`` is the client's place in the population, from which its randomness follows. What it keeps lies
    in ``folder``. The node runs only what is installed on it; messages hold numbers.

    ``identity``: its signing key and those that are registered of the others; one that lies beside the data is found.
    With it the node takes part in secure sums of registered clients alone.
    """

    def __init__(
        self,
        data: str | os.PathLike[str] | Clients,
        objective: MakeObjective,
        method: Method,
        number: int,
        folder: str | os.PathLike[str],
        identity: Identity | None = None,
    ):
        own = data if isinstance(data, Clients) else Clients.open(data, verify=True)
        self.method, self.number, self.own = method, number, own
        self.held = {name: np.asarray(space.rows, np.int64) for name, space in own.spaces.items()}
        self._rows = {name: space.size for name, space in own.spaces.items()}
        self._holds = _digest(self.held)
        local = alone(own)
        self.problem = Problem.bind(objective({n: s.size for n, s in local.spaces.items()}), local)
        self.params = self.problem.params()
        self._tables = {name: space.name for name, space in self.problem.tables.items()}
        self.counts = {name: len(self.held[name]) for name in self.problem.spaces}
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.store: Store | None = None  # of the run that it has joined
        self.samples = int(own.sizes[0])
        self.memory = self._forgotten()
        self.heat = heat.Answering(
            heat.private_heat(method), {s: own.spaces[s] for s in dict.fromkeys(self._tables.values())}, folder
        )
        spaces = len(dict.fromkeys(self._tables.values()))
        asked = self.heat.mechanism.spends(spaces) if self.heat.mechanism is not None else ()
        sent = Schema(method.parts, self.params, self._tables).spaces
        asked += tuple(s for part in method.parts if isinstance(part, SecureSum) for s in part.spends(len(sent)))
        self.noise = OwnNoise(method, folder, asked)
        self.plays = self.noise.own(method)  # what it computes with: the method that was agreed on, with own noise
        self.half: ClientHalf | None = None
        self.letters: Letters | None = None
        self.sum: SecureClient | None = None  # the secure sum that is under way
        self.sums = SecretSums(self)
        self.heat_sum = HeatSum(self, self.heat.mechanism, heat.weighs(method), self.samples)
        self.identity = identity if identity is not None or isinstance(data, Clients) else Identity.find(data)
        if self.identity is not None:
            self.identity.check(number)

    def hello(self) -> bytes:
        """The first message: what this node runs, how many samples it has, and rows that the server may know."""
        tensors = {
            "method": torch.tensor(method_digest(self.method)),
            "model": torch.tensor(model_digest(self.params, self._tables)),
            "samples": torch.tensor(self.samples),
        }
        for field in self._described().hello(heat.tells_rows(self.method)):
            kind, _, space = field.name.partition("/")
            if kind == "rows":
                tensors[field.name] = _bytes(encode_rows(self.held[space], self._rows[space]))
        if self.identity is not None and heat.adds_in_secret(self.method):
            tensors["identities"] = torch.tensor(self.identity.known.digest)
        return wire.write(wire.Envelope(wire.HELLO, 0, self.number, tensors=tensors))

    def join(self, welcome: bytes) -> None:
        """Take the server's answer to `hello`: the run, its seed, what is reported, and first values of one's own."""
        message = wire.read(welcome, wire.WELCOME)
        if message.flags == wire.REFUSED:
            wire.check(message, {}, client=self.number)
            raise WireError(
                f"The server leaves client {self.number} out: it runs another method or model, has other identities "
                "or none, or did not say which rows it holds; give both the same settings, names, shapes, types, keys."
            )
        reports = tuple(name for name in REPORTS if f"report/{name}" in message.tensors)
        schema = self._described(reports)
        if self.sums.secure is not None:
            check_tables(self.sums.secure, schema, self.problem.objective.whole)
        head = {"round": 0, "client": self.number, "repeat": 0, "flags": 0, "accepted": 0}
        wire.check(message, expected(schema.welcome(), self.counts), **head)
        check_finite(message.tensors)
        seed, at = int(message.tensors["seed"]), self._alone
        check_seed("seed", seed, error=WireError)
        trial = ClientHalf(self.problem, self.plays, Plan(()), seed, reports, at)
        batches = trial.draw(Cohort.of(np.array([self.number])), 0)
        plan, _ = inspect(self.problem, self.params, 0, batches)
        if self.letters is not None and self.letters.run != message.run:  # rounds are counted from 1 again
            self.sum, self.sums = None, SecretSums(self)
        self.letters = None  # until all is on disk: a node that could not write has not joined
        if self.store is not None:  # of another run, or as it was before the server asked anew
            self.memory = self._forgotten()
        self.store = Store(self.folder, message.run)
        if self.memory.tensors and self.store.holds not in (None, self._holds):
            raise WireError(
                f"The data of client {self.number} have other rows than when it joined this run, and what it keeps is "
                "by row. Put the data back, or begin a new run."
            )
        self.store.holds = self._holds
        if not self.store.rounds:
            self.memory.fill(self.method.parts, lambda name, clients: self._start(name, message, seed))
            self.store.save(self.memory, 0)
        self.store.welcome = welcome
        self.half = ClientHalf(self.problem, self.plays, plan, seed, reports, at)
        self.engine = Serial(self.problem, plan)
        self.letters = Letters(schema, self._rows, message.run, self.problem.padding)

    def _forgotten(self) -> ClientState:
        return ClientState.of(self.method.parts, self.problem, self.params)

    def rejoin(self, run: int) -> bool:
        """Go on with a run that this node had joined before it was restarted; False: it has to say hello.

        So has one whose data have changed since: the server remembers which rows it named.
        """
        store = Store(self.folder, run)
        known = store.welcome if store.holds == self._holds else None
        if known is not None:
            self.join(known)
        return known is not None

    def _described(self, reports: tuple[str, ...] = ()) -> Schema:
        return Schema(self.method.parts, self.params, self._tables, reports)

    def _start(self, name: str, message: wire.Envelope, seed: int) -> Start:
        space = self.problem.tables.get(name)
        value = message.tensors.get(f"first/{name}")
        if value is None:  # shared: no part makes first values from it
            value, mean, spread = torch.zeros_like(self.params[name]), 0.0, 0.0
        else:
            mean, spread = message.tensors[f"moments/{name}"].tolist()
        words = first_words(seed, name, np.array([self.number]))
        if space is None:
            return Start(value.unsqueeze(0), np.ones(1, np.int64), words, mean, spread)
        return Start(value, space.counts, words, mean, spread, padded=space.padding)

    def _alone(self, numbers: np.ndarray) -> np.ndarray:
        return np.zeros(len(numbers), np.int64)

    def answer(self, data: bytes) -> bytes:
        """Answer an invitation with the wanted rows, a downlink with what came of it, and a question of heat."""
        if self.letters is None or self.half is None:
            raise WireError("This node has not joined a run yet; send its hello and take the welcome first.")
        if data[: len(MAGIC)] == MAGIC:
            return self._add(data)
        message = wire.read(data)
        if message.kind in SECURE:
            return self.sums.answer(message)
        if message.kind == wire.ASK_HEAT:
            return self.heat.answer(message, self.letters.run, self.number)
        if message.kind == wire.ADD_HEAT:
            return self.heat_sum.answer(message)
        if self.sums.secure is not None:
            raise WireError("This node's method adds in secret, and somebody asked it in the clear; refused.")
        if message.kind == wire.INVITE:
            wire.check(message, {}, run=self.letters.run, client=self.number)
            assert self.store is not None
            self.store.invited = message.round
            self.store.forget(message.accepted)
            return self.letters.ask(message, self.held)
        return self._work(data)

    def begin(self, setting: Setting, values: Mapping[str, np.ndarray]) -> bytes:
        """Take part in a secure sum; its first message."""
        self.sum = SecureClient(setting, self.number, values, identity=self.identity)
        return self.sum.hello()

    def _add(self, data: bytes) -> bytes:
        """A message of the secure sum that is under way."""
        if self.sum is None:
            raise WireError("A message of a secure sum came, and none is under way; refused.")
        answer = self.sum.receive(data)
        if not self.sum.waits:
            self.heat_sum.told()
        return answer

    def _work(self, data: bytes) -> bytes:
        assert self.letters is not None
        assert self.half is not None
        down, accepted = self.letters.read_down(data, self.number, self.counts)
        assert self.store is not None
        if down.round != (invited := self.store.invited):
            raise WireError(f"A task of round {down.round} came, and the invitation was to {invited}; refused.")
        with one_thread():
            if down.probe:
                return self.letters.write_up(self.half.ask(down), down.round, down.probe)
            return self.letters.write_up(self.train(down, accepted), down.round)

    def train(self, down: Downlink, accepted: int, left: Narrowed | None = None) -> Uplink:
        """Local work from what was kept after round ``accepted``; what is kept now is on disk when it returns.

        ``left``: what is left of its samples, where only some rows came.
        """
        assert self.half is not None
        assert self.store is not None
        if accepted >= down.round:
            raise WireError(f"A task of round {down.round} came after round {accepted} had been accepted; refused.")
        if remembers := bool(self.memory.tensors):
            self.store.load(self.memory, accepted)
        if left is not None and not left.clients.samples:
            uplink = self.half.rest(down, self.memory)
            self.noise.tell(uplink)
            if remembers:
                self.store.save(self.memory, down.round)
            return uplink
        batches = self.half.draw(down.who, down.round, left=None if left is None else left.clients)
        uplink, kept = self.half.train(self.engine, down, self.memory, batches)
        self.noise.tell(uplink)
        if remembers and down.who.repeats[0] == 0:  # what is kept is that of a client's first draw
            keep(self.memory, uplink, kept, self.half)
            self.store.save(self.memory, down.round)  # before it is sent: else a crash would lose it
        return uplink


def _digest(rows: Mapping[str, np.ndarray]) -> str:
    """Of the rows of every space."""
    found = blake2b(digest_size=16)
    for space in sorted(rows):
        found.update(f"{space}:{len(rows[space])}:".encode() + rows[space].tobytes())
    return found.hexdigest()


def _bytes(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())
