"""What every run has whose rounds a `ServerHalf` plays, wherever its clients are."""

from __future__ import annotations

from typing import Any

from fedsub.data.clients import Clients
from fedsub.method.training import Trains
from fedsub.round.private import EPSILON
from fedsub.round.server import ServerHalf


class ServedRounds(Trains):
    """Ends when the server's privacy budget does, and says what was spent of it."""

    server: ServerHalf

    def settle(self, number: int) -> None:
        self.server.settle(number)

    def measures(self, splits: dict[str, Clients]) -> dict[str, float]:
        return {} if self.server.private is None else {EPSILON: self.server.private.epsilon}

    def stops(self, number: int) -> str:
        return "" if self.server.private is None else self.server.private.stops(number)

    def spent(self) -> dict[str, Any]:
        return {} if self.server.private is None else self.server.private.describe()
