"""One contract for all combinations of parts, average, server, codec and sampler.

All are built, and those that make no sense are refused with the reason (`REFUSED`). Of the rest every *pair* of
choices is run: serial equals batched, neither chunk size nor an interruption changes a bit, bytes add up.
That both engines are right is the matter of `test_against_reference`, which knows the values from formulas.
"""

from __future__ import annotations

import math
from functools import cache, partial
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
import torch
from slot_choices import CHOICES, DATA, NARROW, REFUSED, Halt, build, goal_of, saved
from worlds import envelope, equal

import fedsub as fs
from fedsub.disk.files import JsonLines
from fedsub.errors import MethodError
from fedsub.method import servers
from fedsub.method.codecs.wire import encode_rows

ROUNDS = 4


def reasons(names) -> list[str]:
    return [reason for pair, reason in REFUSED.items() if set(pair) <= set(names)]


def refusal(names) -> str:
    """Why a combination is refused; "" if it is not."""
    try:
        build(*names)
    except MethodError as error:
        return str(error)
    return ""


def test_every_combination_is_built_or_refused_with_the_reason() -> None:
    count = 0
    for names in product(*CHOICES):
        expected = reasons(names)
        said = refusal(names)
        count += bool(said)
        if expected:
            assert any(reason in said for reason in expected), (names, said)
            assert said[0].isupper(), said
            assert said.endswith("."), said
        else:
            assert not said, names
    assert 0 < count < math.prod(map(len, CHOICES)) / 3


@cache
def covering() -> list[tuple[str, ...]]:
    """Allowed combinations in which every allowed pair of choices occurs; pairs with a narrow part by themselves."""
    parts, *others = [list(choice) for choice in CHOICES]
    wide = _covering([[p for p in parts if p not in NARROW], *others], 0)
    return wide + _covering([list(NARROW), *others], 1)


def _covering(values: list[list[str]], alone: int) -> list[tuple[str, ...]]:
    """Each time the best of some random ones. With ``alone`` only the pairs of the first so many slots count."""
    draw = np.random.default_rng(0)
    missing = {
        ((i, a), (j, b))
        for i, j in combinations(range(len(values)), 2)
        for a, b in product(values[i], values[j])
        if (a, b) not in REFUSED and (b, a) not in REFUSED and (not alone or i < alone)
    }
    found = []
    while missing:
        seed = min(missing)
        fixed = dict(seed)
        fitting = values  # of few choices that fit chance would not find one
        if alone:
            fitting = [[v for v in choice if not reasons((*fixed.values(), v))] for choice in values]
        best, most = (), 0
        for _ in range(60):
            names = [str(draw.choice(v)) for v in fitting]
            for at, value in seed:
                names[at] = value
            if not reasons(names):
                new = len(missing & set(combinations(enumerate(names), 2)))
                if new > most:
                    best, most = tuple(names), new
        assert best, f"{seed} cannot be covered"
        missing -= set(combinations(enumerate(best), 2))
        found.append(best)
    return found


SHAPES = {"out.weight": 2, "out.bias": 1}  # dense values; a row of emb.weight has two

PRIVATE = {"FedPer": "out.weight"}  # by part: what is not sent
SENT = {  # by part: what crosses beside model and update, down and up
    "Scaffold": (["scaffold.variate"], ["scaffold.variate"]),
    "FSVRG": (["fsvrg.gradient", "fsvrg.frequency"], ["fsvrg.frequency"]),
}


def _slots(part: fs.Part) -> tuple[str, ...]:
    return part.sent_slots


def _payloads(part: fs.Part) -> tuple[str, ...]:
    return part.payloads


def exactly(size: int) -> tuple[int, int]:
    return size, size


def encoded_bytes(codec: str, sizes: list[int]) -> tuple[int, int]:
    """(fewest, most) bytes of an update of doubles, by hand."""
    most = [math.ceil(d * 0.3) for d in sizes]
    bits = [math.ceil(d / 8) for d in sizes]
    if codec == "Sign":
        return exactly(sum(bits))
    if codec == "EF-Sign":
        return exactly(sum(bits) + len(sizes) * 8)
    if codec == "Int8":
        return exactly(sum(sizes) + len(sizes) * 8)
    if codec == "RandomK":
        return exactly(8 * sum(most) + 8)  # and a seed
    # TopK: places as a bitmap at most, and which it is
    return 8 * sum(most) + len(sizes), 8 * sum(most) + sum(bits) + len(sizes)


def check_bytes(names: tuple[str, ...], folder: Path, history: list[dict]) -> None:
    """Every message by hand: an invitation and what is sent down; row ids and what comes back up."""
    parts, _, _, codec, sampler = names
    method = build(*names)
    twice = "Scaffold" in parts
    slots, payloads = ([f"{p.key}.{n}" for p in method.parts for n in names(p)] for names in (_slots, _payloads))
    assert (slots, payloads) == SENT.get("Scaffold" if twice else parts, ([], []))
    space = DATA.spaces["ids"]
    dense = {name: size for name, size in SHAPES.items() if name != PRIVATE.get(parts)}
    ndim = {"emb.weight": 2} | {name: 2 if name == "out.weight" else 1 for name in dense}

    def tree(name: str) -> dict[str, int]:
        return {f"{name}/{parameter}": n for parameter, n in ndim.items()}

    sums = ["weight", "count", "loss"] + ["fednova.effective"] * (parts == "FedNova")
    seen = {"rpow-d": ["loss"], "UCB": ["loss", "deviation"]}.get(sampler, [])
    numbers = {f"sum/{n}": 0 for n in sums} | {f"seen/{n}": 0 for n in seen}
    for row, record in zip(JsonLines.read(folder / "traffic.jsonl"), history[1:], strict=True):
        met: set[int] = set()
        for client, down, up in zip(row["clients"], row["down"], row["up"], strict=True):
            rows = space.rows_of(client)
            values = 8 * (2 * len(rows) + sum(dense.values()))
            slot = {name: n for one in slots for name, n in tree(one).items()}
            assert down == envelope({}) + envelope(tree("model") | slot) + values * (1 + len(slots))
            asked = envelope({"rows/ids": 1}) + len(encode_rows(rows, space.size))
            told = payloads if client not in met or not twice else []  # a client that keeps something tells it once
            payload = {name: n for one in told for name, n in tree(one).items()}
            met.add(client)
            low = high = values
            update = tree("update")
            if codec != "plain":
                low, high = encoded_bytes(codec, [2 * len(rows), *dense.values()])
                update = {"coded": 1}
            rest = up - asked - envelope(update | payload | numbers) - 8 * len(numbers) - values * len(told)
            assert low <= rest <= high
        probed = row.get("probed", [])
        assert bool(probed) == (sampler == "pow-d")
        for client, down, up in zip(probed, row.get("probe_down", []), row.get("probe_up", []), strict=True):
            rows = space.rows_of(client)
            values = 8 * (2 * len(rows) + sum(SHAPES.values()))
            assert down == envelope({}) + envelope(tree("model")) + values
            asked = envelope({"rows/ids": 1}) + len(encode_rows(rows, space.size))
            assert up == asked + envelope({"seen/loss": 0}) + 8
        assert sum(row["down"]) + sum(row.get("probe_down", [])) == record["down"]
        assert sum(row["up"]) + sum(row.get("probe_up", [])) == record["up"]


@pytest.mark.parametrize("at", range(len(covering())))
def test_contract(at: int, tmp_path: Path) -> None:
    names = covering()[at]
    goal, done = goal_of(), {}
    for engine, chunks in (("serial", (None, None)), ("batched", (8, 2))):
        options = {
            "method": build(*names), "objective": goal, "clients": DATA, "rounds": ROUNDS, "engine": engine,
            "seed": 5, "evaluate": fs.Evaluate(every=2), "checkpoint_every": 2,
        }  # fmt: skip
        out, again = tmp_path / engine, tmp_path / f"{engine}-again"
        result = done[engine] = fs.run(out=out, chunk=chunks[0], **options)
        assert result.engine == engine, names
        assert all(torch.isfinite(v).all() for v in result.params.values()), names
        assert not equal(result.params, {n: p.detach() for n, p in goal.module.named_parameters()})
        check_bytes(names, out, result.history)
        if at % 2 == (engine == "serial"):  # the engines take turns at being killed: a pair occurs more than once
            if engine == "batched":
                other = fs.run(chunk=chunks[1], **options)
                assert equal(other.params, result.params), names
                assert str(other.history) == str(result.history), names  # NaN is not equal to itself
            continue
        # Killed after round 3, resumed from round 2, and in chunks of another size: the same run.
        with pytest.raises(InterruptedError):
            fs.run(out=again, callbacks=[Halt()], chunk=chunks[1], **options)
        resumed = fs.run(out=again, resume=True, chunk=chunks[1], **options)
        assert equal(resumed.params, result.params), names
        for file in ("metrics.jsonl", "traffic.jsonl"):
            assert (again / file).read_bytes() == (out / file).read_bytes(), names
        assert equal(saved(out), saved(again)), names
    for name, value in done["serial"].params.items():
        gap = float((done["batched"].params[name] - value).abs().max())
        assert gap <= 1e-9 * max(1.0, float(value.abs().max())), (names, name)
    ours, theirs = ([r["loss"] for r in done[e].history[1:]] for e in done)
    assert ours == pytest.approx(theirs, rel=1e-9, nan_ok=True), names


def test_sums_of_numbers_do_not_depend_on_the_chunk() -> None:
    """FedNova's norms are no whole numbers with momentum: added in another order they would differ in the last bit."""
    settings = {"lr": 0.3, "local_epochs": 1, "batch_size": 2, "clients_per_round": None, "momentum": 0.7}
    method = fs.methods.fednova(**settings)
    runs = [fs.run(method, goal_of(), DATA, rounds=2, engine="batched", chunk=c).params for c in (2, 4, 8)]
    assert equal(runs[0], runs[1])
    assert equal(runs[0], runs[2])


def test_functions_in_a_method_are_told_apart_by_their_arguments(tmp_path: Path) -> None:
    """A directory goes on with an equal optimiser at the server, and with no other."""

    def start(lr: float, **options):
        method = fs.methods.fedavg(clients_per_round=4)
        server = servers.TorchOptimiser(partial(torch.optim.Adam, lr=lr))
        method = fs.Method(local=method.local, average=method.average, server=server, sampler=method.sampler)
        return fs.run(method, goal_of(), DATA, rounds=3, out=tmp_path / "run", checkpoint_every=2, **options)

    with pytest.raises(InterruptedError):
        start(0.02, callbacks=[Halt()])
    with pytest.raises(fs.errors.CheckpointError, match="lr"):
        start(0.03, resume=True)
    assert len(start(0.02, resume=True).history) == 4
