"""The supervisor: starts a deployment's programs, submits the app, and sees to it that the run comes to its end.

A program that ends is started again; a server app that ends before the run does is submitted again and goes on from its
checkpoint. Only when several submissions in a row bring no new round does it give up and say why.
"""

from __future__ import annotations

import signal
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedsub.deploy import commands
from fedsub.deploy.flower import ENDED, Flower
from fedsub.deploy.outcome import Outcome, finished, live, outcome, roll, rounds_done
from fedsub.deploy.processes import Child, born, stop_all, tail
from fedsub.deploy.registered import Registered
from fedsub.deploy.site import Site
from fedsub.disk.files import JsonLines
from fedsub.errors import RunError

TICK = 0.25
ASK_EVERY = 10.0  # seconds between two questions to Flower, which cost half a second of a processor each
KEYS_EVERY = 5.0
READY = 90.0  # seconds that a SuperLink may take to start
DEAF = 45.0  # seconds without an answer after which it is started again
EVENTS = 50
Process = tuple[int, str]  # number and time of birth


class Supervisor:
    """``say`` is given every sentence for people; ``stop`` ends it from elsewhere."""

    def __init__(self, site: Site, say: Callable[[str], None], *, stop: threading.Event | None = None):
        self.site, self._print = site, say
        self.stop = stop or threading.Event()
        self.flower, self.roll = Flower(site), roll(site)
        self.link, self.exec = commands.superlink(site), commands.superexec(site)
        self.proxy = commands.reverse_proxy(site)
        self.nodes: list[Child] = []
        self.told: dict[str, Any] = {"out": str(site.out), "submissions": 0, "flower": "", "run": "", "why": ""}
        self.events: list[dict[str, Any]] = []
        self._app: Process | None = None  # the server app, once it was seen
        self._before: Process | None = None  # who trained there before it was submitted
        self._at_submission, self._fruitless, self._submitted = 0, 0, 0.0
        self._asked = self._keys_looked = 0.0
        self._heard = time.monotonic()

    @property
    def children(self) -> list[Child]:
        return [child for child in (self.link, self.exec, self.proxy, *self.nodes) if child is not None]

    def run(self) -> Outcome:
        """Until the run is finished, has failed for good, or somebody stops it."""
        self.site.state.mkdir(parents=True, exist_ok=True)
        with self.roll.taken(), self._signals():
            try:
                for name in self.roll.end_leftovers():
                    self.say(f"Stopped {name}, which an earlier supervisor had left behind.")
                self._start()
                while not self.stop.is_set():
                    if self._tick():
                        break
                    self.stop.wait(TICK)
                else:
                    self.told |= {"stopped": True, "why": "Somebody stopped it."}
            finally:
                self._end()
        return outcome(self.site)

    def say(self, sentence: str) -> None:
        event = {"time": time.time(), "event": sentence}
        self.events = [*self.events, event][-EVENTS:]
        log = JsonLines(self.site.state / "events.jsonl")
        log.append(event)
        log.close()
        self._print(sentence)
        self._write()

    # Starting

    def _start(self) -> None:
        self._write()
        self.flower.prepare()
        self.link.start()
        self._wait_for_link()
        self.exec.start()
        if self.proxy is not None:
            self.proxy.start()
        self.say(f"Nodes connect to {commands.entrance(self.site)}")
        self.keys = Registered(self.site, self.flower)
        self._look_at_keys()
        self.nodes = [commands.node(self.site, k) for k in range(self.site.settings.nodes.local)]
        for node in self.nodes:
            node.start()
        if self.nodes:
            self.say(f"{len(self.nodes)} {self.site.settings.nodes.kind} nodes run on this machine")
        self._stop_older_runs()
        self._submit()

    def _wait_for_link(self) -> None:
        end = time.monotonic() + READY
        while not self.healthy():
            if self.stop.is_set():
                return
            if not self.link.runs:
                raise RunError(f"The SuperLink does not start. {self.link.log} ends with:\n{tail(self.link.log, 5)}")
            if time.monotonic() > end:
                raise RunError(f"The SuperLink did not answer within {READY:.0f} s; see {self.link.log}.")
            time.sleep(0.1)
        self._heard = time.monotonic()

    def healthy(self) -> bool:
        """Whether the SuperLink answers."""
        url = f"https://127.0.0.1:{self.site.settings.server.port}/health"
        try:
            context = ssl.create_default_context(cafile=str(self.site.authority))
            with urllib.request.urlopen(url, context=context, timeout=3) as answer:
                return answer.status == 200
        except (OSError, ValueError):
            return False

    def _stop_older_runs(self) -> None:
        """What an earlier supervisor submitted and could not end must not write beside the new one."""
        for run in self.flower.runs():
            if not str(run.get("status", "")).startswith(ENDED):
                with suppress(RunError):
                    self.flower.stop(str(run["run-id"]))

    def _submit(self) -> None:
        self._at_submission, self._app, self._before = rounds_done(self.site.out), None, _trainer(self.site.out)
        self._submitted = time.time()
        self.told |= {"run": self.flower.submit(), "flower": "pending"}
        self.told["submissions"] += 1
        self._asked = time.monotonic()
        at = f", which goes on after round {self._at_submission}" if self._at_submission else ""
        self.say(f"Submitted run {self.told['run']}{at}")

    # Watching

    def _tick(self) -> bool:
        """One look at everything; True when there is nothing more to do."""
        for child in self.children:
            before = child.restarts
            if sentence := child.watch():
                self.say(sentence)
            if child.restarts != before:
                self._write()
        now = time.monotonic()
        if finished(self.site):
            self.told |= {"flower": self._last_status(), "why": ""}
            return True
        if now - self._keys_looked > KEYS_EVERY and self.link.runs:
            self._look_at_keys()
        gone = self._app_is_gone()
        if gone or now - self._asked > ASK_EVERY:
            return self._ask(gone)
        return False

    def _ask(self, gone: bool) -> bool:
        """How is the run? Submitted again if it ended without a result."""
        self._asked = time.monotonic()
        if not self.healthy():
            if time.monotonic() - self._heard > DEAF and self.link.runs:
                self.say("The SuperLink does not answer; it is started again.")
                self.link.stop()
                self.link.start()
                self._heard = time.monotonic()
            return False
        self._heard = time.monotonic()
        details = ""
        try:
            if gone:  # Flower would notice after a minute
                with suppress(RunError):  # it may have noticed
                    self.flower.stop(self.told["run"])
            status, details = self.flower.status(self.told["run"])
        except RunError as error:
            self.say(str(error))
            return False
        self.told["flower"] = status
        self._write()
        if finished(self.site) or not (status.startswith(ENDED) or gone):
            return False
        said = live(self.site.out)
        why = said.get("why") if said.get("time", 0) >= self._submitted else ""
        why = why or details or "It ended without a result."
        return self._again(
            f"The server app has ended ({status}). {why}" if not gone else f"The server app is gone. {why}"
        )

    def _again(self, why: str) -> bool:
        done = rounds_done(self.site.out)
        self._fruitless = 0 if done > self._at_submission else self._fruitless + 1
        (self.site.state / "logs" / f"serverapp-{self.told['run']}.log").write_text(self.flower.log(self.told["run"]))
        if self._fruitless >= self.site.settings.run.tries:
            self.told |= {"gave_up": True, "why": why}
            self.say(f"{why} Given up after {self._fruitless} submissions without a new round.")
            return True
        self.say(why)
        self._submit()
        return False

    def _app_is_gone(self) -> bool:
        """Whether the process that trains into the run's directory was seen, and is no more."""
        if self._app is not None:
            return not _lives(self._app)
        found = _trainer(self.site.out)
        if found is not None and found != self._before and _lives(found):
            self._app = found
        return False

    def _last_status(self) -> str:
        """Flower's word on a run that is finished; it takes a moment to know."""
        status = self.told["flower"]
        for _ in range(10):
            with suppress(RunError):
                status, _ = self.flower.status(self.told["run"])
            if status.startswith(ENDED) or self.stop.is_set():
                break
            time.sleep(0.5)
        return status

    def _look_at_keys(self) -> None:
        self._keys_looked = time.monotonic()
        try:
            for sentence in self.keys.follow():
                self.say(sentence)
        except RunError as error:
            self.say(str(error))

    # Ending

    def _end(self) -> None:
        run = self.told["run"]
        if run and self.link.runs and not str(self.told["flower"]).startswith(ENDED):
            with suppress(RunError):
                self.flower.stop(run)
                self.told["flower"] = f"{ENDED}:stopped"
        stop_all([*self.nodes, *([self.proxy] if self.proxy else []), self.exec])
        stop_all([self.link])
        self._write(ended=True)

    def _write(self, ended: bool = False) -> None:
        proxied = self.proxy is not None
        self.roll.write(
            self.children, **self.told, events=self.events, ended=ended, proxied=proxied,
            entrance=commands.entrance(self.site),
        )  # fmt: skip

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C end it in order."""
        before = {}

        def asked(number: int, frame: object) -> None:
            self.stop.set()

        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                before[number] = signal.signal(number, asked)
        except ValueError:  # not the main thread
            pass
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _trainer(out: Path) -> Process | None:
    """Who trains into a run's directory, or did so last: its lock says."""
    try:
        pid = int((out / ".lock").read_text())
    except (OSError, ValueError):
        return None
    return pid, born(pid) or ""


def _lives(process: Process) -> bool:
    return bool(process[1]) and born(process[0]) == process[1]
