"""The rounds of asynchronous training: one for every step of the server, in which those who began before it train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedsub.errors import CheckpointError
from fedsub.families.asynchronous.flight import Done
from fedsub.families.asynchronous.queue import Costs, Due, Flight, Queue
from fedsub.families.asynchronous.staleness import staleness_of
from fedsub.method.groups import Cohort
from fedsub.method.slots import Method
from fedsub.objective.problem import Problem
from fedsub.round.clock.devices import Devices
from fedsub.round.clock.seconds import client_seconds, samples_trained
from fedsub.round.engines.base import Engine, Plan
from fedsub.round.here import delivers, keep
from fedsub.round.kept import OfServer
from fedsub.round.layout import asked_of
from fedsub.round.ledger import RoundReport
from fedsub.round.prepare import Trainer
from fedsub.trees import Tree

if TYPE_CHECKING:
    from fedsub.families.asynchronous.method import Asynchronous

CLOCK = "clock"  # of a round's record: simulated seconds since the start
_WORK = "local_steps", "local_epochs", "batch_size", "batches"
FLIGHTS, DONE = "flights/", "done/"  # in a checkpoint: who trains, and what they have computed


class AsynchronousTrainer(Trainer):
    """A server and clients in one process, on a simulated clock."""

    def __init__(
        self, how: Asynchronous, devices: Devices, problem: Problem, method: Method, params: Tree, engine: Engine,
        plan: Plan, **options,
    ):  # fmt: skip
        super().__init__(problem, method, params, engine, plan, **options)
        self.how, self.devices, self.staleness = how, devices, staleness_of(how.staleness)
        self.queue = Queue(
            np.flatnonzero(problem.clients.sizes > 0), self.cost, buffer=how.size, concurrency=how.places,
            seed=self.server.seed, at_once=how.at_once, most_stale=how.most_stale, deadline=how.deadline,
            overhead=devices.overhead,
            there=devices.there if devices.online is not None else None,
        )  # fmt: skip
        self.local_work = {name: getattr(method.local, name) for name in _WORK}
        # What a codec writes decides how long it travels, so that it must be known at once.
        self.early = self.server.schema.codec is not None
        self.done: dict[int, Done] = {}  # by client that trains or waits
        self.state = InTheAir(self)

    def cost(self, number: int, clients: np.ndarray) -> Costs:
        """What it takes some clients to train in a round."""
        ledger, cohort = self.here.ledger, Cohort.of(clients)
        counts = {name: space.counts[clients] for name, space in self.problem.spaces.items()}
        asked = ledger.asked(cohort, asked_of(self.problem.spaces, clients))
        down = ledger.down(counts, len(clients))
        lost = ~delivers(cohort, self.here.lost, seed=self.here.half.seed, round=number)
        lengths = None
        if self.early and not lost.all():
            self.train(number, clients[~lost])
            lengths = np.zeros(len(clients), np.int64)
            lengths[~lost] = [self._length(client) for client in clients[~lost].tolist()]
        up = asked + np.where(lost, 0, ledger.up(cohort, np.zeros(len(clients), bool), counts, lengths))
        samples = samples_trained(self.local_work, clients, self.problem.clients.sizes)
        return Costs(client_seconds(self.devices, clients, down, up, samples), down, asked, lost)

    def _length(self, client: int) -> int:
        lengths = self.done[client].uplink.lengths
        return int(lengths[0]) if lengths is not None else 0

    def rows(self, name: str, clients: np.ndarray) -> np.ndarray | None:
        """How many rows of a table each client holds; None of a dense parameter."""
        space = self.problem.tables.get(name)
        return None if space is None else space.counts[clients]

    def train(self, number: int, clients: np.ndarray) -> None:
        """Have clients train from the model as it is now."""
        cohort = Cohort.of(np.sort(clients))
        opened = self.server.open(number, cohort, self.here.rows(number, cohort))
        for uplink, kept in self.here.gather(opened):
            for one in Done(uplink, kept).split(self.rows):
                self.done[int(one.uplink.who.clients[0])] = one

    def round(self, number: int) -> RoundReport:
        """A step of the server, and all that happens before it."""
        due = self.queue.step(number)
        self._train(number, due)
        arrived = np.array([flight.client for flight in due.arrived], np.int64)
        ages = np.array([number - flight.round for flight in due.arrived], np.float64)
        weights = self.staleness.weights(ages)
        done = Done.join([self.done.pop(client).times(s) for client, s in zip(arrived.tolist(), weights, strict=True)])
        cohort = Cohort.of(arrived)
        opened = self.server.open(number, cohort, self.here.rows(number, cohort))
        sums = self.server.sums(opened.layout)
        sums.add(done.uplink, slice(0, len(arrived)))
        self.server.close(number, len(arrived), sums)
        if done.kept:
            keep(self.memory, done.uplink, done.kept, self.here.half, note=self.here.tracking)
        return self._report(due, done, sums.loss, ages)

    def _train(self, number: int, due: Due) -> None:
        """Those who began since the last step, and whose updates will be asked for."""
        for flight in (*due.lost, *due.late):
            self.done.pop(flight.client, None)
        flights = [*due.arrived, *self.queue.flights.values()]
        begun = [f.client for f in flights if f.round == number and not f.lost and f.client not in self.done]
        if begun:
            self.train(number, np.array(begun, np.int64))

    def _report(self, due: Due, done: Done, loss: float, ages: np.ndarray) -> RoundReport:
        """Bytes are counted where clients end: of those who did not answer, only what they asked for goes up."""
        arrived = done.uplink.who
        counts = {name: space.counts[arrived.clients] for name, space in self.problem.spaces.items()}
        sent = self.here.ledger.up(arrived, done.uplink.refused, counts, done.uplink.lengths)
        flights = [*due.arrived, *due.lost, *due.late]
        up = np.array([flight.asked for flight in flights], np.int64)
        up[: len(sent)] += sent
        notes, self.here.crew.notes = tuple(self.here.crew.notes), []
        order = np.argsort([flight.client for flight in flights], kind="stable")
        return RoundReport(
            clients=np.array([flight.client for flight in flights], np.int64)[order],
            loss=loss,
            down=np.array([flight.down for flight in flights], np.int64)[order],
            up=up[order],
            lost=np.flatnonzero(order >= len(sent)),
            rejected=arrived.clients[done.uplink.refused],
            measured={CLOCK: self.queue.clock, "staleness": float(ages.mean()), "stalest": float(ages.max())},
            notes=notes,
        )


_WHOLE = tuple(field.name for field in fields(Flight) if field.name != "ends")


class InTheAir(OfServer):
    """What a checkpoint keeps besides: the clock, who trains, and what they have computed."""

    def __init__(self, trainer: AsynchronousTrainer):
        super().__init__(trainer.server, trainer.here)
        self._trainer = trainer

    def small(self) -> Tree:
        queue, done = self._trainer.queue, self._trainer.done
        flights = sorted(queue.flights.values(), key=lambda flight: flight.client)
        out = super().small() | {FLIGHTS + "clock": torch.tensor(queue.clock, dtype=torch.float64)}
        if flights:
            whole = [[int(getattr(flight, name)) for name in _WHOLE] for flight in flights]
            out[FLIGHTS + "whole"] = torch.tensor(whole, dtype=torch.int64)
            out[FLIGHTS + "ends"] = torch.tensor([flight.ends for flight in flights], dtype=torch.float64)
        if done:
            joined = Done.join([done[client] for client in sorted(done)])
            out |= {DONE + name: value for name, value in joined.tensors().items()}
        return out

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        super().restore(tensors)
        if FLIGHTS + "clock" not in tensors:
            raise CheckpointError("The checkpoint is of a run that was not asynchronous; start again elsewhere.")
        flights = []
        if FLIGHTS + "whole" in tensors:
            ends = tensors[FLIGHTS + "ends"].tolist()
            for row, end in zip(tensors[FLIGHTS + "whole"].tolist(), ends, strict=True):
                values = dict(zip(_WHOLE, row, strict=True))
                flights.append(Flight(**values | {"ends": end, "lost": bool(values["lost"])}))
        self._trainer.queue.put(float(tensors[FLIGHTS + "clock"]), flights)
        done = {name.removeprefix(DONE): value for name, value in tensors.items() if name.startswith(DONE)}
        joined = Done.of(done).split(self._trainer.rows) if done else ()
        self._trainer.done = {int(one.uplink.who.clients[0]): one for one in joined}
