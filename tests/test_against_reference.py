"""`fedsub.run` against formulas in numpy (`reference`): averages × local work × servers × clipping, in both engines.

The other contracts compare engines with each other, and would not notice what is wrong in both.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from reference import (
    AVERAGES,
    EXACT,
    ROUNDED,
    SEVERAL,
    TOLERANCE,
    UNEVEN,
    Settings,
    World,
    assert_close,
    play,
    simulate,
    start_of,
)

import fedsub as fs

ENGINES = pytest.mark.parametrize("engine", ["serial", "batched"])
ROUNDS = 4
CLIP = 0.02  # of the longest mean steps of a row, some are longer
LOCALS = {
    "SGD": Settings(),
    "steps": Settings(steps=3, batch_size=2),
    "all data": Settings(steps=2, batch_size=None),
    "momentum": Settings(momentum=0.5),
    "prox": Settings(mu=0.8, steps=3),
    "scaffold": Settings(scaffold=True),
    "prox, scaffold": Settings(mu=0.8, scaffold=True),
    "FedNova": Settings(nova=True, batch_size=2),
    "FedNova, momentum": Settings(nova=True, batch_size=2, momentum=0.5),
    "FedNova, prox": Settings(nova=True, batch_size=2, mu=0.8),
    "scaffold, FedNova": Settings(scaffold=True, nova=True, batch_size=2),
}
SERVERS = ("add", "momentum", "adam", "yogi", "adagrad")
SAMPLERS = {"everyone": fs.Everyone(), "some": fs.Uniform(4), "repeated": fs.Uniform(5, replacement=True)}


def cases() -> list[tuple[str, str, str, str, float | None]]:
    """Every local work with half of the averages; servers, samplers and clipping take turns."""
    found = []
    for (i, local), (j, average) in product(enumerate(LOCALS), enumerate(AVERAGES)):
        scaffold, at = LOCALS[local].scaffold, len(found)
        if (i + j) % 2 or (scaffold and average == "sampled holders"):  # the latter is refused
            continue
        # What a client drawn twice keeps is told elsewhere; batches of other widths are traced anew, which takes long.
        names = list(SAMPLERS)[: 1 if LOCALS[local].batch_size is None else 2 if scaffold else 3]
        found.append((local, average, SERVERS[at % 5], names[at % len(names)], CLIP if at % 3 == 1 else None))
    return found


def check(world: World, s: Settings, sampler: Any, folder: Path, tolerance: float, **options: Any) -> None:
    found, cohorts = play(world, s.method(sampler), folder, ROUNDS, **options)
    start = start_of(world.objective())
    expected = simulate(world, start, s, cohorts)
    assert_close(found, expected, tolerance)
    assert max(abs(expected[k] - start[k]).max() for k in start) > 1e-3  # something happened


@ENGINES
@pytest.mark.parametrize(("local", "average", "server", "sampler", "clip"), cases())
def test_run_is_the_formula(
    engine: str, local: str, average: str, server: str, sampler: str, clip: float | None, tmp_path: Path
) -> None:
    s = replace(LOCALS[local], average=average, server=server, clip_rows=clip)
    check(EXACT, s, SAMPLERS[sampler], tmp_path / "run", TOLERANCE, engine=engine)


@ENGINES
@pytest.mark.parametrize(("average", "server"), list(zip([*AVERAGES] * 2, [*SERVERS] * 3, strict=False)))
def test_run_is_the_formula_where_nothing_is_even(engine: str, average: str, server: str, tmp_path: Path) -> None:
    s = Settings(average=average, server=server, batch_size=3, clip_rows=CLIP if server == "add" else None)
    check(UNEVEN, s, fs.Uniform(3), tmp_path / "run", ROUNDED, engine=engine)


FURTHER = {  # codecs, own parameters, softened corrections, servers and samplers beyond the grid above
    "sign": (Settings(average="samples", codec="sign", server_lr=0.02), fs.Uniform(4)),
    "EF-sign": (Settings(average="holders by samples", codec="ef-sign"), fs.Uniform(4)),
    "EF-sign, Adam": (Settings(codec="ef-sign", server="adam"), fs.sampling.BySize(4)),
    "top-k": (Settings(average="holders", codec="topk"), fs.sampling.Poisson(4)),
    "top-k, prox, momentum": (Settings(codec="topk", share=0.1, mu=0.8, server="momentum"), fs.Uniform(4)),
    "FedPer": (Settings(average="samples", personal="out.weight"), fs.Uniform(4)),
    "FedPer, holders": (Settings(average="holders", personal="out.weight", server="yogi"), fs.sampling.BySize(4)),
    "FedPer, a table": (Settings(personal="emb.weight", batch_size=2), fs.Uniform(4)),
    "FedPer, top-k": (Settings(personal="out.bias", codec="topk"), fs.Uniform(4)),
    "tempered": (Settings(average="holders by samples", temper=0.5), fs.Uniform(4)),
    "capped": (Settings(average="holders", cap=2.0), fs.sampling.Poisson(3)),
    "tempered, capped, adagrad": (Settings(average="holders", temper=0.7, cap=1.5, server="adagrad"), fs.Uniform(4)),
    "frequency": (Settings(average="holders", server="frequency"), fs.Uniform(4)),
    "frequency, by size": (Settings(average="samples", server="frequency", power=1.0), fs.sampling.BySize(3)),
    "history": (Settings(average="samples", server="history"), fs.Uniform(4)),
    "history, Poisson": (Settings(average="holders", server="history", rho=0.25, beta=0.8), fs.sampling.Poisson(1)),
    "by size, repeated": (Settings(average="samples"), fs.sampling.BySize(5, replacement=True)),
    "Poisson, scaffold": (Settings(scaffold=True), fs.sampling.Poisson(2)),
}


@ENGINES
@pytest.mark.parametrize("name", FURTHER)
def test_further_compositions_are_the_formula(engine: str, name: str, tmp_path: Path) -> None:
    s, sampler = FURTHER[name]
    world = SEVERAL if s.codec == "topk" else EXACT if s.average == "holders" else UNEVEN
    check(world, s, sampler, tmp_path / "run", ROUNDED, engine=engine)


def test_the_cases_cover_what_they_should() -> None:
    found = cases()
    assert len(found) >= 30
    for at, names in ((0, LOCALS), (1, AVERAGES), (2, SERVERS), (3, SAMPLERS)):
        assert {case[at] for case in found} == set(names)
    for server in SERVERS:
        assert {case[4] for case in found if case[2] == server} == {None, CLIP}
