"""A secure sum taken apart by hypothesis: any order of messages, losses, duplicates, replays and ends of stages."""

from contextlib import suppress

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from runs import Run

from fedsub.errors import FedsubError, SecureSumError, WireError
from fedsub.secure import SecureServer, Segment, shamir, wire

PICK = st.integers(0, 10**6)


class Secure(RuleBasedStateMachine):
    @initialize(count=st.integers(2, 6), seed=st.integers(0, 100))
    def start(self, count, seed):
        self.run = Run.of(count, Segment("v", 7, 16, most=1000), Segment("c", 2, 8, most=3), seed=seed)
        self.clients, self.server = self.run.clients(), SecureServer(self.run.setting)
        self.up = [c.hello() for c in self.clients.values()]
        self.down: list[tuple[int, bytes]] = []
        self.told: dict[int, bytes] = {}
        self.held: dict[int, dict[int, bytes]] = {}

    @rule(pick=PICK)
    def a_message_reaches_the_server(self, pick):
        with suppress(WireError, SecureSumError):
            self.server.receive(self.up[pick % len(self.up)])

    @precondition(lambda self: self.server.waiting)
    @rule()
    def all_that_was_sent_reaches_the_server(self):
        for data in self.up:
            with suppress(WireError, SecureSumError):
                self.server.receive(data)

    @precondition(lambda self: self.down)
    @rule(pick=PICK)
    def a_message_reaches_its_client(self, pick):
        self.deliver(*self.down[pick % len(self.down)])

    @precondition(lambda self: self.down)
    @rule()
    def all_that_was_sent_reaches_the_clients(self):
        for number, data in self.down:
            self.deliver(number, data)

    def deliver(self, number, data):
        client = self.clients[number]
        if client.held:
            self.held[number] = dict(client.held)
        try:
            answer = client.receive(data)
        except FedsubError:
            return
        if answer not in self.up:
            self.up.append(answer)
        if wire.read(answer, tuple(range(1, 10))).stage == wire.UNMASK:
            assert self.told.setdefault(number, answer) == answer  # it never answers two ways

    @precondition(lambda self: self.down or self.up)
    @rule(pick=PICK, at=PICK, bit=st.integers(0, 7), cut=st.booleans())
    def a_damaged_message_is_refused(self, pick, at, bit, cut):
        messages = self.up + [data for _, data in self.down]
        data = bytearray(messages[pick % len(messages)])
        if cut:
            data = data[: at % len(data)]
        else:
            data[at % len(data)] ^= 1 << bit
        for machine in (self.server, *self.clients.values()):
            try:
                machine.receive(bytes(data))
            except (WireError, SecureSumError):
                continue
            raise AssertionError("damage was not noticed")

    @precondition(lambda self: self.server.stage and not self.server.stopped)
    @rule()
    def the_server_ends_its_stage(self):
        try:
            self.down += list(self.server.advance().items())
        except SecureSumError:
            assert self.server.summed is None

    @invariant()
    def no_sum_is_wrong(self):
        if getattr(self, "server", None) and self.server.summed is not None:
            assert len(self.server.summed.clients) >= self.run.setting.least
            self.run.assert_exact(self.server.summed)

    @invariant()
    def nobody_told_both_shares_of_anybody(self):
        for number, answer in getattr(self, "told", {}).items():
            body = bytes(wire.read(answer, (wire.UNMASK,)).body)
            rows = {body[i : i + shamir.SHARE] for i in range(0, len(body), shamir.SHARE)}
            for both in self.held[number].values():
                assert not {both[: shamir.SHARE], both[shamir.SHARE :]} <= rows


SLOW = [HealthCheck.filter_too_much, HealthCheck.too_slow]
Secure.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=SLOW, derandomize=True
)
TestSecure = Secure.TestCase


def test_the_machine_reaches_sums():
    """What the state machine does can end in a sum: its rules in the straight order."""
    state = Secure()
    state.start(count=5, seed=1)
    for _ in range(5):
        state.all_that_was_sent_reaches_the_server()
        state.the_server_ends_its_stage()
        if state.down:
            state.all_that_was_sent_reaches_the_clients()
    assert state.server.summed is not None
    state.no_sum_is_wrong()
    state.nobody_told_both_shares_of_anybody()
    assert len(state.told) == 5
    assert np.array_equal(state.server.summed.sums["v"], state.run.plain(state.run.setting.participants)["v"])
