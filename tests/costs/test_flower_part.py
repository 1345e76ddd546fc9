"""What Flower adds at the socket: the formula by hand, its edges, and the command that shows it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from fedsub.cli import app
from fedsub.errors import ConfigError
from fedsub.study.costs import at_socket
from fedsub.study.costs.flower import EXCHANGE, LOOK, OBJECT, TLS, TRIP, looks, objects


def test_a_round_of_small_messages_is_an_exchange_of_nine_requests():
    made = at_socket(1160, 1254)
    assert (made.requests, made.looks) == (9, 0)
    assert made.fixed.down == pytest.approx(EXCHANGE.down + 1160 * 22 / 16384)
    assert made.total.up == pytest.approx(1254 + EXCHANGE.up + 1254 * 22 / 16384)


def test_a_message_in_pieces_has_two_objects_for_each_and_four_more():
    assert [objects(size, 100) for size in (0, 100, 101, 300, 301)] == [3, 3, 8, 10, 12]
    made, small = at_socket(301, 50, piece=100), at_socket(100, 50, piece=100)
    assert made.requests - small.requests == 9
    assert made.fixed.up - small.fixed.up == pytest.approx(9 * OBJECT.up)
    assert made.fixed.down - small.fixed.down == pytest.approx(9 * OBJECT.down + 201 * TLS)


def test_a_waiting_node_asks_ever_more_seldom():
    def counted(seconds: float, poll: float, idle: float) -> int:
        at, found, pause = 0.0, 0, min(idle, max(poll, seconds / 2))
        while (at := at + pause + TRIP) <= seconds:
            found, pause = found + 1, min(idle, 1.5 * pause)
        return found

    for seconds in (0.0, 0.12, 0.14, 1.0, 7.77, 100.0):
        for poll, idle in ((0.1, 1.0), (0.2, 5.0), (1.0, 1.0)):
            assert looks(seconds, exchanges=1, poll=poll, idle=idle) == counted(seconds, poll, idle)
    assert looks(2.0, exchanges=2) == 2 * looks(1.0)
    assert looks(0.5, requests=20) == 0
    quick, slow = at_socket(1000, 1000), at_socket(1000, 1000, seconds=60)
    assert slow.fixed.up - quick.fixed.up == pytest.approx(slow.looks * LOOK.up)


def test_what_makes_no_sense_is_refused():
    good: dict[str, Any] = {"down": 1.0, "up": 1.0}
    cases: list[dict[str, Any]] = [
        {"down": -1.0}, {"exchanges": 0}, {"piece": 0}, {"poll": 0.0}, {"poll": 2.0}, {"seconds": -1.0},
    ]  # fmt: skip
    for wrong in cases:
        with pytest.raises(ConfigError, match="at least poll"):
            at_socket(**(good | wrong))


def test_the_command_shows_payload_part_and_sum():
    done = CliRunner().invoke(app, ["costs", "--flower", "1160", "1254", "--seconds", "2", "--json"])
    assert done.exit_code == 0, done.output
    said, made = json.loads(done.stdout), at_socket(1160, 1254, seconds=2)
    assert said["total"] == {"down": made.total.down, "up": made.total.up}
    assert said["fixed"]["up"] == made.fixed.up
    assert "11,737" in CliRunner().invoke(app, ["costs", "--flower", "1160", "1254", "--seconds", "2"]).output
