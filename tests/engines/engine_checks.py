"""Methods to try the engines with; two engines compared round by round; what no engine takes."""

from __future__ import annotations

import pytest
from engine_modules import DATA
from worlds import trainer_for

import fedsub as fs
from fedsub.errors import ObjectiveError


def methods() -> dict[str, fs.Method]:
    common = {"lr": 0.3, "clients_per_round": 5}
    return {
        "short batches": fs.methods.fedsubavg(local_steps=3, batch_size=4, **common),
        "epochs": fs.methods.fedprox(local_epochs=2, batch_size=3, mu=0.5, **common),
        "all local data": fs.methods.fedavg(local_steps=2, batch_size=None, **common),
        "replacement": fs.methods.sampled_heat(
            local_steps=3, batch_size=4, batches="replacement", replacement=True, **common
        ),
        "adam": fs.methods.fedsubavg(solver="adam", local_epochs=1, batch_size=2, **common),
        # Of eight clients' gradients one in ten is above the first norm, and nearly all above the second.
        "few clipped": fs.methods.fedsubavg(clip_norm=1.25, local_steps=5, batch_size=4, **common),
        "most clipped": fs.methods.fedsubavg(clip_norm=0.15, local_steps=5, batch_size=4, **common),
    }


def assert_rounds_agree(method, objective, clients, *, rounds: int, update: float, whole: float) -> None:
    """Every round starts from the same parameters; ``update`` is relative to the largest change."""
    one = trainer_for(method, objective, clients, "serial", seed=3)
    many = trainer_for(method, objective, clients, "batched", seed=3)
    for number in range(1, rounds + 1):
        before = {n: p.clone() for n, p in one.params.items()}
        a, b = one.round(number), many.round(number)
        assert a.loss == pytest.approx(b.loss, rel=1e-5)
        for name, p in one.params.items():
            worst = float((p - many.params[name]).abs().max())
            change = float((p - before[name]).abs().max())
            assert change > 0, f"{name} did not move"
            assert worst <= update * change, f"round {number}: {name} differs by {worst / change:.2g}"
            assert worst <= whole * float(p.abs().max()), (number, name)
            many.params[name].copy_(p)


def refused(goal: fs.Objective, clients=DATA, words: str = "", kind=ObjectiveError) -> None:
    for engine in ("serial", "batched"):
        with pytest.raises(kind) as caught:
            fs.run(methods()["short batches"], goal, clients, rounds=1, engine=engine)
        assert words in str(caught.value), str(caught.value)
