"""A feature party as a process: it listens, and answers the label party until training is over.

Whoever says JOIN last is the label party; a line that it leaves behind when it is killed holds up nobody. Who may
connect is for TLS to say (`fedsub.round.channels.server_tls` with ``clients=``); of those, ``only`` names the one that
is the label party, by the common name of its certificate.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from fedsub.errors import FedsubError, WireError
from fedsub.round import wire
from fedsub.round.channels import Listener, Tcp
from fedsub.vertical import agreed
from fedsub.vertical.party import FeatureHalf

LINGER = 10.0  # seconds for the label party to hang up, or ask again, once all is over
Told = Callable[[str], None]


class Server:
    """Answers on one line at a time. ``tell`` hears what happens, in sentences."""

    def __init__(
        self, half: FeatureHalf, listener: Listener, tell: Told = lambda sentence: None, only: str | None = None
    ):  # fmt: skip
        self.half, self.listener, self.tell, self.only = half, listener, tell, only
        self._turn = threading.Lock()
        self._current: Tcp | None = None
        self._over = threading.Event()

    def run(self) -> None:
        """Until the label party has said that training is over, and hung up."""
        accepting = threading.Thread(target=self._accept, daemon=True)
        accepting.start()
        try:
            self._over.wait()
        finally:
            self.listener.close()
            if self._current is not None:
                self._current.close()
            accepting.join(LINGER)

    def _accept(self) -> None:
        while (channel := self.listener.accept()) is not None:
            threading.Thread(target=self._talk, args=(channel,), daemon=True).start()

    def _talk(self, channel: Tcp) -> None:
        """Answer one line as long as it is the label party's."""
        with channel:
            try:
                while (data := channel.receive()) is not None:
                    with self._turn:
                        answer = self._take_over(channel, data) or self.half.answer(data)
                    channel.send(answer)
                    if self.half.ended:
                        self._end_soon()
            except FedsubError as err:
                self.half.refused += 1
                self.tell(f"refused: {err}")
            if channel is self._current:
                self.tell(f"the line ended: {channel.closed or 'closed here'}")
                if self.half.ended:
                    self._over.set()

    def _end_soon(self) -> None:
        timer = threading.Timer(LINGER, self._over.set)
        timer.daemon = True  # a label party that hangs up ends it sooner
        timer.start()

    def _take_over(self, channel: Tcp, data: bytes) -> bytes | None:
        """From now on this line is the label party's; else the answer that says why not. No JOIN: WireError."""
        if channel is self._current:
            return None
        try:
            wire.read(data, agreed.JOIN)
        except WireError as err:
            raise WireError(f"it does not begin with JOIN: {err}") from err
        if self.only is not None and channel.name != self.only:
            self.half.refused += 1
            self.tell(f"refused {channel.name or 'somebody without a certificate'}: only {self.only} may join")
            why = f"{self.half.party.name} takes {self.only} for its label party, and nobody else (only=, --only)."
            return wire.write(wire.Envelope(agreed.NO, 0, 0, tensors=agreed.text(why)))
        before, self._current = self._current, channel
        self.tell(f"joined by {channel.name or 'a label party'}")
        if before is not None:
            before.close("another line took its place")
        return None


def serve(
    half: FeatureHalf, listener: Listener, tell: Told = lambda sentence: None, only: str | None = None
) -> None:  # fmt: skip
    """Answer the label party until training is over; ``only`` is the common name that its certificate must have."""
    Server(half, listener, tell, only).run()
