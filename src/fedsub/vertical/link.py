"""`Link`: the label party's line to one feature party. It asks, hears, counts bytes, and notices who is gone.

An answer that is damaged, foreign or not of the expected form is refused and counted, and the question is put again:
answers follow from a party's state, so the second one is the same. What is late, of a step that is over, is dropped.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from fedsub.checks import check_number, check_whole
from fedsub.errors import ConfigError, RunError, WireError
from fedsub.round import wire
from fedsub.round.channels import Channel, connect
from fedsub.round.letters import check_finite
from fedsub.trees import Tree
from fedsub.vertical import agreed
from fedsub.vertical.party import FeatureHalf, check_name

TRIES = 3
PAUSE = 0.2  # seconds between two attempts to reach somebody


class PartyLost(RunError):
    """A feature party does not answer any more. The run can go on when it is back."""


@dataclass(frozen=True)
class Remote:
    """A feature party that is another process: it listens at an address (`fedsub.vertical.serve`).

    ``tls`` is a context of `fedsub.round.channels.client_tls`; ``patience`` is how many seconds to wait until the party
    is there, at the start and whenever it is lost; ``wait`` how long an answer may take.
    """

    name: str
    host: str
    port: int
    tls: ssl.SSLContext | None = field(default=None, compare=False)
    patience: float = 60.0
    wait: float = 600.0

    def __post_init__(self) -> None:
        check_name(self.name)
        check_whole(f"port of {self.name}", self.port, 1, 65535, error=ConfigError)
        for name in ("patience", "wait"):
            check_number(f"{name} of {self.name}", getattr(self, name), least=0, error=ConfigError)

    def dial(self) -> Channel:
        """A channel, once the party listens; RunError when patience is over."""
        until = time.monotonic() + self.patience
        while True:
            try:
                return connect(self.host, self.port, tls=self.tls, wait=self.wait)
            except WireError as err:
                if isinstance(err.__cause__, ssl.SSLCertVerificationError):
                    raise RunError(f"{self.name} is there, but not to be trusted. {err}") from err
                if time.monotonic() > until:
                    raise RunError(
                        f"{self.name} was not reached within {self.patience:g} s. {err} Start it "
                        f"(fedsub vertical run … --party {self.name} --listen {self.host}:{self.port}), or wait longer "
                        "(patience=, --patience)."
                    ) from err
                time.sleep(PAUSE)


class Direct:
    """A channel to a party in this process: what is sent is answered when it is received."""

    def __init__(self, half: FeatureHalf):
        self.half, self._waiting = half, list[bytes]()

    def send(self, data: bytes) -> None:
        self._waiting.append(self.half.answer(data))

    def receive(self) -> bytes | None:
        return self._waiting.pop(0) if self._waiting else None


class Link:
    """``number`` is the party's place among the feature parties."""

    def __init__(self, name: str, number: int, dial: Callable[[], Channel], half: FeatureHalf | None = None):
        self.name, self.number, self.half = name, number, half
        self._dial, self._channel, self.run = dial, None, 0
        self.down = self.up = 0  # bytes so far
        self._strange = True  # nothing was heard on this line yet
        self.refused: list[str] = []

    @property
    def remote(self) -> bool:
        return self.half is None

    def open(self, run: int) -> None:
        """Reach the party, anew if there was a line before."""
        if self.half is None or self._channel is None:
            self.close()
            self._channel, self._strange = self._dial(), True
        self.run = run

    def close(self) -> None:
        if (hang_up := getattr(self._channel, "close", None)) is not None:
            hang_up()
        self._channel = None

    def send(self, kind: int, round: int, tensors: Tree | None = None, flags: int = 0) -> bytes:
        """Put a question; `hear` takes its answer."""
        question = wire.write(wire.Envelope(kind, round, self.number, 0, self.run, flags, tensors=tensors or {}))
        self._put(question)
        return question

    def _put(self, question: bytes) -> None:
        if self._channel is None:
            raise PartyLost(f"There is no line to {self.name}.")
        self._channel.send(question)
        self.down += len(question)

    def hear(self, question: bytes, kind: int, round: int, expected: wire.Expected | None) -> Tree:
        """The answer to a question, which is put again while what comes cannot be used.

        ``expected`` None: any tensors will do, and the caller looks at them.
        """
        tries = 1
        while True:
            data = self._receive()
            try:
                message = wire.read(data)
                if message.kind != agreed.NO and message.round < round and message.run == self.run:
                    continue  # late: the answer to an earlier question
                if message.kind == agreed.NO:
                    raise WireError(f"It refuses: {agreed.said(message)}")
                if message.kind != kind:
                    raise WireError(f"Expected a message of kind {kind}, got kind {message.kind}.")
                like = expected if expected is not None else {n: agreed.like(v) for n, v in message.tensors.items()}
                wire.check(message, like, run=self.run, round=round, client=self.number)
                check_finite(message.tensors)
                return message.tensors
            except WireError as err:
                self.refused.append(f"{self.name}: {err}")
                if tries == TRIES:
                    raise WireError(
                        f"{TRIES} answers of {self.name} in a row could not be used, and nothing of them was. {err}"
                    ) from err
                tries += 1
                self._put(question)

    def _receive(self) -> bytes:
        assert self._channel is not None
        why = "it does not answer"
        try:
            if (data := self._channel.receive()) is not None:
                self.up, self._strange = self.up + len(data), False
                return data
            if closed := getattr(self._channel, "closed", ""):
                hint = ", before it said anything; see whether it takes this side's certificate, and what it reports"
                why = f"it {closed}{hint if self._strange else ''}"
        except WireError as err:
            self.refused.append(f"{self.name}: {err}")
            why = str(err).removesuffix(".")
        self.close()
        raise PartyLost(f"{self.name} is lost: {why}.")

    def joined(self, question: bytes) -> Tensor:
        """The answer to JOIN: an empty tensor like the party's activations."""
        found = self.hear(question, agreed.JOINED, 0, None)
        z = found.get("z")
        if len(found) != 1 or z is None or z.ndim < 1 or len(z) or not z.is_floating_point():
            raise WireError(f"{self.name} does not say what its activations are like; install the same version.")
        return z

    def ask(
        self, kind: int, answer: int, round: int, tensors: Tree | None = None, expected: wire.Expected | None = None
    ) -> Tree:
        return self.hear(self.send(kind, round, tensors), answer, round, expected or {})
