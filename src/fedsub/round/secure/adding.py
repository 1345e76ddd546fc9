"""Two ways to add the same whole numbers: by the protocol, message by message, or plainly.

Both give the same sums and the same bytes; the tests compare them. Clients that are ``lost`` share their secrets and
then vanish, which is the hardest place: others have masked with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedsub.errors import SecureSumError
from fedsub.secure import SecureClient, SecureServer, Setting, run_protocol, sum_bytes, wire

Array = np.ndarray
Vector = Mapping[str, Array]  # by segment


@dataclass(frozen=True)
class Added:
    """What came of one sum: ring elements, whose they are, and bytes by place among the participants."""

    sums: Vector | None  # None: it was given up
    clients: tuple[int, ...]  # or who is left, if it was given up
    down: Array
    up: Array
    why: str = ""


def plainly(setting: Setting, total: Callable[[], Vector], lost: frozenset[int] = frozenset()) -> Added:
    """The sum of all who are not lost, in the rings of the setting, without a message."""
    came = np.array([client not in lost for client in setting.participants])
    left = tuple(client for client in setting.participants if client not in lost)
    enough = int(came.sum()) >= setting.least
    down, up = sum_bytes(setting, came, opened=enough)
    if not enough:
        return Added(None, left, down, up, f"{int(came.sum())} clients were left, {setting.least} are needed")
    found = total()
    sums = {s.name: np.asarray(found[s.name]).astype(s.dtype) for s in setting.segments}
    return Added(sums, left, down, up)


def by_protocol(
    setting: Setting, vector: Callable[[int], Vector], lost: frozenset[int] = frozenset(),
    check: Callable[[Setting], None] = lambda told: None,
) -> Added:  # fmt: skip
    """Every message is written, carried and read, the setting too; client and server share nothing else.

    ``vector`` gives a client's values when its upload is due; ``check`` is what it makes sure of before it takes part.
    """
    written, network, clients = setting.write(), _Counted(setting, lost), {}
    for number in setting.participants:
        told = Setting.read(written)
        check(told)
        clients[number] = SecureClient(told, number, lambda number=number: vector(number))
    try:
        summed = run_protocol(clients, SecureServer(setting), network)
    except SecureSumError as err:
        left = tuple(client for client in setting.participants if client not in lost)
        return Added(None, left, network.down, network.up, str(err))
    return Added(summed.sums, summed.clients, network.down, network.up)


@dataclass
class _Counted:
    """A network that loses what comes of some clients once their secrets are shared, and counts bytes."""

    setting: Setting
    lost: frozenset[int]
    down: Array = field(init=False)
    up: Array = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.setting.participants)
        self.down, self.up = np.full(count, len(self.setting.write()), np.int64), np.zeros(count, np.int64)

    def carry(self, messages: list[tuple[int, bytes]]) -> Iterable[tuple[int, bytes]]:
        for client, data in messages:
            stage = wire.HEAD.unpack_from(data)[2]
            if client in self.lost and stage > wire.INBOX:
                continue
            side = self.up if stage % 2 else self.down
            side[self.setting.places[client]] += len(data)
            if client not in self.lost or stage < wire.INBOX:  # sent, and nobody is there any more
                yield client, data
