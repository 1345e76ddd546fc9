"""What a run remembers: tables that share their rows tell the same ones."""

from __future__ import annotations

import torch

from fedsub.round.remembered import Moved, Remembered


def test_tables_that_share_rows_tell_the_same() -> None:
    shared, own = Moved(10), Moved(4)
    tables = {"part/slot/w": torch.zeros(10), "client/x": torch.zeros(4)}
    state = Remembered({}, tables, {"w": shared, "part/slot/w": shared, "client/x": own})
    state.note("w", torch.tensor([3, 1, 3]))
    state.note("client/x", torch.tensor([2]))
    moved = state.take_moved()
    assert moved is not None
    assert {name: rows.tolist() for name, rows in moved.items()} == {
        "w": [1, 3],
        "part/slot/w": [1, 3],
        "client/x": [2],
    }
    assert all(not len(rows) for rows in (state.take_moved() or {}).values())
