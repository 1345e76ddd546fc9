"""Heat as a secure sum between nodes, before the first round: the server sees counts, and nobody's rows.

Clients add the vectors of all tables at once: 1, or their number of samples, at each row in which they count. The
setting follows from the mechanism, those who take part and the most that one may count for, so a node works it out
itself and takes no other. A sum that is given up opened nothing, and is played again with those who are left; one that
was opened is the last of the run: counts of those who stayed, beside the counts of all, would show the rows of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedsub.disk.files import write_atomic
from fedsub.errors import MethodError, NoUsableClient, SecureSumError, WireError
from fedsub.node.agree import digest
from fedsub.node.summing import Summing, told_setting
from fedsub.privacy.heat import AddedHeat, Holdings, PrivateHeat
from fedsub.round import wire
from fedsub.secure import Registry, SecureClient, Segment, Setting
from fedsub.secure.ring import TYPES

if TYPE_CHECKING:
    from fedsub.node.node import Node
    from fedsub.node.remote import Remote

Array = np.ndarray
Crossed = tuple[int, int]  # bytes down, bytes up
ATTEMPTS = 3
DONE = "heat-counted"  # the file that says that this client was counted in the run


def planned(
    mechanism: AddedHeat, run: int, number: int, people: Array, rows: Mapping[str, int], most: int, weighted: bool
) -> Setting:
    """The sum over these people, each of whom counts for at most ``most`` in a row."""
    count = len(people)
    bits = next((bits for bits in TYPES if most * count < 2**bits), 64)
    segments = tuple(Segment(space, size, bits, most) for space, size in rows.items())
    setting = Setting.plan(
        run, number, people.tolist(), segments, adversarial=mechanism.adversarial, dropping=mechanism.dropping,
        context=b"heat" + digest([mechanism, weighted]).to_bytes(7, "little"),
    )  # fmt: skip
    least = int(count * (1 + mechanism.adversarial) / 2) + 1  # two groups of so many share one that does not collude
    return replace(setting, least=min(max(least, setting.least), count))


def add_up(
    remote: Remote, mechanism: AddedHeat, rows: Mapping[str, int], weighted: bool, number: int, known: Registry | None
) -> tuple[Array, dict[str, Array], Crossed]:
    """(whose rows are counted, the counts by space, bytes)."""
    run, sizes = remote.letters.run, remote.server.population.sizes
    people, summing, why = np.array(sorted(remote.joined)), Summing(remote, known), ""
    for _ in range(ATTEMPTS):
        if len(people) < 2:
            raise NoUsableClient(f"{len(people)} clients are left for the heat, and a secure sum takes two. {why}")
        most = mechanism.most(int(sizes[people].max()), weighted)
        added = summing.added(planned(mechanism, run, number, people, rows, most, weighted), wire.ADD_HEAT, {})
        if added.sums is not None:
            down, up = (sum(crossed[side] for crossed in summing.bytes.values()) for side in (0, 1))
            return np.array(added.clients), {space: added.sums[space] for space in rows}, (down, up)
        people, why = np.array(added.clients, np.int64), added.why
    raise NoUsableClient(f"The heat could not be counted in {ATTEMPTS} secure sums. {why}")


class HeatSum:
    """A node's side."""

    def __init__(self, node: Node, mechanism: PrivateHeat | None, weighted: bool, samples: int):
        self.node, self.mechanism, self.weighted, self.samples = node, mechanism, weighted, samples
        self.client: SecureClient | None = None

    def answer(self, message: wire.Envelope) -> bytes:
        node, mechanism = self.node, self.mechanism
        assert node.letters is not None
        if not isinstance(mechanism, AddedHeat) or not mechanism.hidden:
            raise WireError("A secure sum of heat came, and this node's method has none; refused.")
        if (message.run, message.client) != (node.letters.run, node.number):
            raise WireError(f"A message of run {message.run} for client {message.client} came; refused.")
        if node.sums.round:
            raise WireError("A secure sum of heat came after the first round; refused.")
        if self._done.exists():
            raise WireError(
                f"This client was counted in run {message.run} already, and another count beside the first could show "
                f"whose rows are whose; refused. Begin another run; or delete {self._done}, if you mean "
                "that."
            )
        setting = told_setting(message, node.number)
        self._check(mechanism, setting)
        values = {segment.name: self._vector(mechanism, segment) for segment in setting.segments}
        hello = node.begin(setting, values)
        self.client = node.sum
        return hello

    def told(self) -> None:
        """Before shares for unmasking go out: this client is about to be counted."""
        if self.client is not None and self.client is self.node.sum:
            assert self.node.letters is not None
            write_atomic(self._done, str(self.node.letters.run).encode())

    @property
    def _done(self) -> Path:
        assert self.node.store is not None
        return self.node.store.folder / DONE

    def _check(self, mechanism: AddedHeat, setting: Setting) -> None:
        spaces = self.node.heat.spaces
        rows, told = {name: space.size for name, space in spaces.items()}, setting.segments[0].most or 1
        most = mechanism.most(told, self.weighted)
        try:
            people = np.array(setting.participants)
            own = planned(mechanism, setting.run, setting.round, people, rows, most, self.weighted)
        except MethodError as err:
            raise WireError(f"A secure sum of heat came that cannot be held: {err}") from err
        if replace(own, session=setting.session) != setting:
            raise SecureSumError(
                f"A secure sum of heat came over other tables, with another graph or for another mechanism than "
                f"{mechanism.title}, as here; nothing was sent."
            )

    def _vector(self, mechanism: AddedHeat, segment: Segment) -> Array:
        """What this client counts for, row by row."""
        space = self.node.heat.spaces[segment.name]
        held = Holdings.of(space, np.array([self.samples]) if self.weighted else None)
        given = mechanism.given(held, self.node.heat.words(mechanism, segment.name))
        out = np.zeros(segment.length, np.uint64)
        out[np.asarray(given.space.rows)] = int(given.weights[0])
        return out
