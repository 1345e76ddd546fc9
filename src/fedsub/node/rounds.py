"""`Rounds`: a server without data plays the rounds of a method with clients that it reaches by post.

Clients may come, go and come back. Whoever says hello is compared with what the server runs and welcomed, at the start
of any round; one that runs something else is told, and counts as lost whenever it is drawn. What the server must know
of its population is read from a file, or counted from the hellos of all before the first round (`Door.census`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import torch

from fedsub.checks import check_seed
from fedsub.errors import DataError, MethodError, NoUsableClient, WireError
from fedsub.method.parts import SecureSum
from fedsub.method.parts.bounded import BoundedUpdate
from fedsub.method.slots import Method
from fedsub.node.door import Door, Hello
from fedsub.node.heat import ask, private_heat, tells_rows, weighs
from fedsub.node.post import Post, plain
from fedsub.node.remote import Remote
from fedsub.node.secret_remote import SecretRemote
from fedsub.objective.population import Population
from fedsub.round.kept import OfServer
from fedsub.round.ledger import RoundReport
from fedsub.round.letters import Letters
from fedsub.round.served import ServedRounds
from fedsub.round.server import ServerHalf
from fedsub.round.transport import Transport, play
from fedsub.secure import Registry
from fedsub.trees import Model, Tree

log = logging.getLogger("fedsub")


@dataclass
class Patience:
    """How a server waits. ``start``: seconds until all have said hello, 0: as long as it takes. ``tries``: how often a
    cohort of which nobody answers is asked again, until the round is left out. ``pause``: seconds in between.
    ``back``: seconds for which a server that was restarted waits until all of its clients are there again.
    ``fewest``: with so many clients, or more, the first round begins when ``start`` is over; the others are counted
    when they come. 0: all have to be there.
    """

    start: float = 600.0
    tries: int = 3
    pause: float = 1.0
    back: float = 60.0
    fewest: int = 0


@dataclass
class Seen:
    """What the server can tell of its clients and their letters, for people who watch."""

    joined: set[int] = field(default_factory=set)
    left_out: dict[int, str] = field(default_factory=dict)  # clients that said something else than is expected, why
    refused: list[str] = field(default_factory=list)  # messages that were not taken, and why
    counts: dict[str, int] = field(default_factory=dict)
    accepted: dict[int, int] = field(default_factory=dict)  # the last round of each client that entered the model
    waiting: str = ""  # for whom, in a sentence

    def count(self, name: str, number: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + number


class Rounds(ServedRounds):
    """``params`` is the shared model, trained in place.

    ``population`` is what is known of the clients. With ``names`` instead, which has their number and the names of
    tables, it is counted when everybody has said hello. ``heat_known``: what clients said of private heat is in it, and
    they are not asked again. ``patience``: None: who is not there is not waited for, and a round that nobody answers
    ends the run. ``tell`` is called when something has changed.
    """

    def __init__(
        self, method: Method, params: Tree, population: Population | None, post: Post, *,
        names: Population | None = None, heat_known: bool = False, seed: int = 0, run: int = 1,
        rounds: int | None = None, patience: Patience | None = None,
        identities: Registry | str | os.PathLike[str] | None = None, tell: Callable[[Seen], None] = lambda seen: None,
    ):  # fmt: skip
        check_seed("seed", seed)
        self._tried, self._begun = 0, False
        self.engine = SimpleNamespace(name="nodes")
        self.method, self.params, self.post, self.seed = method, params, post, seed
        self.rounds, self.patience, self.tell, self.seen = rounds, patience, tell, Seen()
        about = population or names
        assert about is not None
        self.door = Door(method, params, about, identities)
        self._fewest = self._may_begin_with(population)
        self._came: list[int] = []  # clients that were absent, since the last round
        self.asked = (0, 0)  # bytes down and up of what was asked about heat
        self._run = torch.tensor(run)  # restored with a checkpoint, so that nodes know the run again
        self._waiting: dict[int, Hello] = {}
        self._played: tuple[Remote, Transport] | None = None
        self._known = heat_known
        self.population = population or self._counted(len(about))
        self.server = ServerHalf(method, self.population, params, seed=seed, rounds=rounds)
        self.accepted = torch.zeros(len(about), dtype=torch.int64)
        self.safe: torch.Tensor | None = None  # what a checkpoint knows of them, in a run that writes some
        self._state: OfServer | None = None

    @property
    def state(self) -> OfServer:
        """Made when it is first asked for: what an average keeps needs heat, which clients may have to be asked for."""
        if self._state is None:
            self._ask()
            self._state = OfServer(self.server, more={"nodes/accepted": self.accepted, "nodes/run": self._run})
        return self._state

    @property
    def remote(self) -> Remote:
        return self._at_work()[0]

    def _at_work(self) -> tuple[Remote, Transport]:
        """What reaches the clients of the run: made once its number is known for good."""
        if self._played is None:
            letters = Letters(self.server.schema, self.population.rows, int(self._run), self.population.padding)
            remote = Remote(
                self.server, letters, self.post, self.seen.joined, self.accepted, self.safe, self.seen.refused,
                self._once_more if self.patience is not None else None,
            )  # fmt: skip
            secure = next((part for part in self.method.parts if isinstance(part, SecureSum)), None)
            over = remote if secure is None else SecretRemote(remote, secure, self.door.signers)
            self._played = remote, over
        return self._played

    # Who is there

    def _hear(self) -> None:
        """Read the hellos that came; they are answered by `admit`."""
        for client, data in self.post.hellos().items():
            if client in self.seen.joined or client in self.seen.left_out:
                self.seen.count("rejoined")
            self.seen.joined.discard(client)
            self.seen.left_out.pop(client, None)
            self._waiting.pop(client, None)
            if self._played is not None:
                self.remote.known.forget(client)
            try:
                if not 0 <= client < (clients := len(self.door.names)):
                    raise WireError(f"Client {client} is not of this run, whose clients are 0 … {clients - 1}.")
                self._waiting[client] = self.door.read(client, data)
            except WireError as err:
                self.seen.left_out[client] = plain(str(err))
                log.warning("left out client %s: %s", client, plain(str(err)))
                if data is not None:
                    self.post.tell([(client, self.door.refusal(client, int(self._run)))])
        for client in set(self.post.gone()) & self.seen.joined:
            self.seen.joined.discard(client)
            self.seen.count("gone")

    def admit(self) -> None:
        """Welcome all who said hello."""
        self._hear()
        if not self._waiting:
            return
        reports = self.server.schema.reports
        for client, hello in self._waiting.items():
            if client in self.population.absent:
                self.population = self.population.joined(client, hello.samples, hello.rows)
                self._came.append(client)
        if self.population is not self.server.population:
            self.server.meet(self.population)
        said = [(client, self.door.welcome(hello, int(self._run), self.seed, reports))
                for client, hello in self._waiting.items()]  # fmt: skip
        self.seen.joined.update(self._waiting)
        self._waiting = {}
        self.post.tell(said)
        self.tell(self.seen)

    def _counted(self, clients: int) -> Population:
        """The population, from everybody's hello."""

        def missing() -> list[int]:
            return [client for client in range(clients) if client not in self._waiting]

        def whom() -> str:
            return f"{len(missing())} of {clients} clients: {_some(missing())}"

        begin = lambda: clients - len(missing()) >= self._fewest > 0  # noqa: E731
        self._must(lambda: not missing(), whom, self._hear, begin)
        if missing():
            log.info("the first round begins without %s", whom())
        return self.door.census(self._waiting)

    def _may_begin_with(self, population: Population | None) -> int:
        """With how many clients a run may begin, 0: all; refused where one that comes later cannot be counted."""
        fewest = self.patience.fewest if self.patience is not None and population is None else 0
        if not fewest:
            return 0
        assert self.patience is not None
        clients, why = len(self.door.names), ""
        if any(isinstance(part, BoundedUpdate | SecureSum) for part in self.method.parts):
            why = "what is promised of privacy is reckoned for clients that are known from the start"
        elif not tells_rows(self.method):
            why = "the server learns heat from all clients at once, in private"
        elif not 0 < fewest <= clients:
            why = f"it is between 1 and {clients}, the number of clients"
        elif not self.patience.start:
            why = "the server waits for all without end (patience=0)"
        if why:
            raise MethodError(
                f"fewest={fewest}, with how many clients a run of {self.method.name} may begin: {why}. Leave it out, "
                "or give a population=."
            )
        return fewest

    def _wait(
        self, done: Callable[[], bool], whom: Callable[[], str], hear: Callable[[], None], seconds: float
    ) -> bool:
        """Whether it was done within so many seconds; 0: there is no end."""
        begun, patience = time.monotonic(), self.patience or Patience()
        hear()
        while not (found := done()) and not (seconds and time.monotonic() - begun > seconds):
            if self.seen.waiting != (said := f"waiting for {whom()}"):
                self.seen.waiting = said
                self.tell(self.seen)
            time.sleep(patience.pause)
            hear()
        self.seen.waiting = ""
        return found

    def _must(
        self, done: Callable[[], bool], whom: Callable[[], str], hear: Callable[[], None],
        enough: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        seconds = (self.patience or Patience()).start
        if not self._wait(done, whom, hear, seconds) and not enough():
            why = "; ".join([*self.seen.left_out.values()][:3])
            raise NoUsableClient(
                f"Waited {seconds:g} s for {whom()}. {why} Start them, or wait longer (patience; 0: without end). What "
                "was trained is saved."
            )

    def _ask(self) -> None:
        """Ask for private heat, once."""
        mechanism = private_heat(self.method)
        if mechanism is None or self._known or not self.population.tables:
            return
        self._known = True
        self.admit()
        self._need_somebody(0)
        self.population, self.asked = ask(self.remote, mechanism, known=self.door.signers)
        self.server.population = self.population

    def _need_somebody(self, number: int) -> None:
        if self.seen.joined:
            return
        if self.patience is None:
            why = "; ".join([*self.seen.left_out.values()][:3]) or "there is no channel to any"
            raise NoUsableClient(f"Round {number}: no client has joined. {why}")
        self._must(lambda: bool(self.seen.joined), lambda: "any client", self.admit)

    def _once_more(self) -> bool:
        """Nobody of a cohort answered: whether to ask again."""
        assert self.patience is not None
        self._tried += 1
        if self._tried > self.patience.tries:
            return False
        self.seen.count("asked again")
        time.sleep(self.patience.pause)
        self.admit()
        self._need_somebody(0)
        return True

    # Trains

    def round(self, number: int) -> RoundReport:
        _ = self.state
        self.admit()
        if self.patience is not None and not self._begun:
            everybody = [c for c in range(len(self.door.names)) if c not in self.population.absent]
            self._wait(
                lambda: all(c in self.seen.joined or c in self.seen.left_out for c in everybody),
                lambda: f"clients {_some([c for c in everybody if c not in self.seen.joined])}",
                self.admit, self.patience.back,
            )  # fmt: skip
        self._begun = True
        self._need_somebody(number)
        self._tried, before = 0, len(self.seen.refused)
        report = play(self.server, self._at_work()[1], number)
        refused = self.seen.refused[before:]
        measured = {"refused": float(len(refused))} if refused else {}
        self.seen.count("refused", len(refused))
        for name, count in self.post.news().items():
            self.seen.count(name, count)
        if self._tried:
            measured["asked_again"] = float(self._tried)
        self.seen.accepted = dict(enumerate(self.accepted.tolist()))
        del self.seen.refused[: max(0, len(self.seen.refused) - KEPT)]
        self.tell(self.seen)
        notes = tuple(f"refused a message of {said}" for said in refused[:SAID])
        if self._came:
            whom, self._came = _some(self._came), []
            notes = (f"clients that came late take part: {whom}; there are {self.population.present} now", *notes)
        return replace(report, measured=report.measured | measured, notes=(*report.notes, *notes))

    def model(self, number: int) -> Model:
        return self.server.model(number)

    @property
    def notes(self) -> tuple[str, ...]:
        """How heat was learned."""
        _ = self.state
        return tuple(getattr(self.server.average, "notes", ()))

    def keep(self, path: Path) -> None:
        """Write what is known of the clients, for a server that goes on."""
        mechanism = private_heat(self.method)
        asked = (mechanism, weighs(self.method)) if mechanism is not None and self._known else None
        try:
            self.population.save(path, heat=mechanism is None, asked=asked)
        except DataError:  # nobody knows the heat, and the average does without
            self.population.save(path, heat=False, asked=asked)


KEPT, SAID = 10_000, 20  # refused messages that are remembered; that a round's events name


def _some(clients: list[int]) -> str:
    return ", ".join(map(str, clients[:5])) + (" …" if len(clients) > 5 else "")
