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
from torch import nn
from worlds import bag, envelope, equal, item_data, shared_model, trainer_for

import fedsub as fs
from fedsub.disk.checkpoint import Checkpoints
from fedsub.disk.files import JsonLines
from fedsub.errors import MethodError
from fedsub.method import codecs, sampling, servers
from fedsub.method.codecs.wire import encode_rows
from fedsub.method.part import Part
from fedsub.method.parts import Personal

DATA = item_data((1, 7, 4, 9, 2, 5, 8, 3), items=12, width=3)
ROUNDS = 4
LOCAL = fs.SGD(lr=0.3, local_steps=None, local_epochs=1, batch_size=4)  # steps differ by client

PARTS = {
    "none": (),
    "Prox": (fs.Prox(0.5),),
    "Scaffold II": (fs.ControlVariates("II"),),
    "Scaffold I": (fs.ControlVariates("I"),),
    "FedNova": (fs.NormalisedSteps(),),
    "ClipRows": (fs.ClipRows(0.05),),
    "Prox, Scaffold": (fs.Prox(0.5), fs.ControlVariates("II")),
    "FedPer": (Personal(("out.weight",)),),
}
AVERAGES = {
    "clients": fs.OverClients(),
    "samples": fs.OverClients("samples"),
    "holders": fs.OverHolders(),
    "holders by samples": fs.OverHolders("samples"),
    "holders unbiased": fs.OverHolders("unbiased"),
    "holders tempered": fs.OverHolders(temper=0.5, max_coef=2.0),
    "sampled holders": fs.OverSampledHolders("samples"),
}
SERVERS = {
    "Add": fs.Add(0.7),
    "momentum": fs.Add(momentum=0.6),
    "Adam": servers.Adam(lr=0.05),
    "Yogi": servers.Yogi(lr=0.05),
    "Adagrad": servers.Adagrad(lr=0.05),
    "frequency": servers.FrequencyAware(),
    "history": servers.ScaffoldHistory(),
    "torch": servers.TorchOptimiser(partial(torch.optim.Adam, lr=0.02)),
    "Adam sparse": servers.Adam(lr=0.05, sparse_server=True),
}
CODECS = {
    "plain": (),
    "Sign": (codecs.Sign(),),
    "EF-Sign": (codecs.ErrorFeedbackSign(),),
    "TopK": (codecs.TopK(0.3),),
    "RandomK": (codecs.RandomK(0.3),),
    "Int8": (codecs.Int8(),),
}
SAMPLERS = {
    "Uniform": fs.Uniform(4),
    "replacement": fs.Uniform(5, replacement=True),
    "BySize": sampling.BySize(4),
    "Poisson": sampling.Poisson(4),
    "pow-d": sampling.PowerOfChoice(3, 6),
    "rpow-d": sampling.PowerOfChoice(3, 6, "rpow"),
    "UCB": sampling.UCB(3),
    "Available": sampling.Available(fs.Uniform(3), sampling.Daily(4, 0.5)),
    "Everyone": fs.Everyone(),
}
CHOICES = (PARTS, AVERAGES, SERVERS, CODECS, SAMPLERS)

# The pairs that make no sense, and a word of the reason that is given.
REFUSED = {
    # The sign of a mean does not change when it is multiplied by a positive coefficient per row.
    **{("Sign", average): "correction would be lost" for average in AVERAGES if average.startswith("holders")},
    # Nor does that of an update when it is divided by the number of steps.
    ("FedNova", "Sign"): "would be lost",
    # c must be a mean of c_i; a mean over those holders that were sampled is none.
    **{(part, "sampled holders"): "sampled holders" for part in PARTS if "Scaffold" in part},
    # The loss of the shared model alone says nothing about a client's own.
    ("FedPer", "pow-d"): "means nothing",
    # What was left out before would be sent twice.
    **{(codec, "replacement"): "drawn twice" for codec in ("EF-Sign", "TopK", "RandomK")},
}


def build(parts: str, average: str, server: str, codec: str, sampler: str) -> fs.Method:
    return fs.Method(
        local=LOCAL, parts=PARTS[parts] + CODECS[codec], average=AVERAGES[average], server=SERVERS[server],
        sampler=SAMPLERS[sampler],
    )  # fmt: skip


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
    """Allowed combinations in which every allowed pair of choices occurs: each time the best of some random ones."""
    draw = np.random.default_rng(0)
    values = [list(choice) for choice in CHOICES]
    missing = {
        ((i, a), (j, b))
        for i, j in combinations(range(len(values)), 2)
        for a, b in product(values[i], values[j])
        if (a, b) not in REFUSED and (b, a) not in REFUSED
    }
    found = []
    while missing:
        seed = min(missing)
        best, most = (), 0
        for _ in range(60):
            names = [str(draw.choice(v)) for v in values]
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


class Halt(fs.Callback):
    def on_round(self, record) -> None:
        if record["round"] == 3:
            raise InterruptedError


def goal_of() -> fs.Objective:
    return bag(DATA, seed=3, dim=2, dtype=torch.float64)


SHAPES = {"out.weight": 2, "out.bias": 1}  # dense values; a row of emb.weight has two
PRIVATE = {"FedPer": "out.weight"}  # by part: what is not sent


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
    assert sum(len(p.sent_slots) for p in method.parts) == sum(len(p.payloads) for p in method.parts) == twice
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
            slot = tree("scaffold.variate") if twice else {}
            assert down == envelope({}) + envelope(tree("model") | slot) + values * (1 + twice)
            asked = envelope({"rows/ids": 1}) + len(encode_rows(rows, space.size))
            payload = tree("scaffold.variate") if twice and client not in met else {}
            met.add(client)
            low = high = values
            update = tree("update")
            if codec != "plain":
                low, high = encoded_bytes(codec, [2 * len(rows), *dense.values()])
                update = {"coded": 1}
            rest = up - asked - envelope(update | payload | numbers) - 8 * len(numbers) - values * bool(payload)
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


def saved(folder: Path) -> dict:
    """Everything that the last checkpoint of a run holds."""
    snapshot, _ = Checkpoints(folder / "checkpoints").load()
    return {**snapshot.tensors, **snapshot.tables}


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


# ---------------------------------------------------------------------- what clients keep

ENGINES = pytest.mark.parametrize("engine", ["serial", "batched"])


def mapped_files() -> list[str]:
    """The nameless files that this process has mapped into memory."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "(deleted)" in line]


@ENGINES
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_state_in_files_is_state_in_memory(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = fs.methods.scaffold(codec="topk:0.3", lr=0.3, local_steps=2, batch_size=4, clients_per_round=4)
    options = {"rounds": 4, "engine": engine, "checkpoint_every": 2}
    plain = fs.run(method, goal_of(), DATA, out=tmp_path / "memory", **options)
    monkeypatch.setattr("fedsub.round.memory.MAPPED_FROM", 1)
    trainer = trainer_for(method, goal_of(), DATA, engine)
    stored = trainer.memory.tensors["scaffold.variate/emb.weight"]
    assert stored.abs().sum() == 0
    assert len(mapped_files()) >= len(trainer.memory.tensors)
    out = tmp_path / "not" / "there" / "yet"
    with pytest.raises(InterruptedError):
        fs.run(method, goal_of(), DATA, out=out, callbacks=[Halt()], **options)
    mapped = fs.run(method, goal_of(), DATA, out=out, resume=True, **options)
    assert equal(mapped.params, plain.params)
    assert equal(saved(out), saved(tmp_path / "memory"))
    assert not [f for f in (tmp_path / "not" / "there").iterdir() if f != out]  # the files have no names


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.5], dtype=torch.float64))
        self.emb = nn.Embedding(4, 1, dtype=torch.float64)
        nn.init.ones_(self.emb.weight)

    def forward(self, batch):
        return (self.emb(batch["ids"]).sum((-1, -2)) + self.x) / batch["v"].double()


def lines(v) -> tuple[fs.Objective, fs.Clients]:
    """Client i has the loss (row i mod 4 + x)/v_i: a gradient of infinity where v is 0."""
    n = len(v)
    clients = fs.Clients.from_arrays(
        {"ids": np.arange(n)[:, None] % 4, "v": np.array(v, np.float32)},
        offsets=np.arange(n + 1), ids=["ids"], values=["v"], sizes={"ids": 4},
    )  # fmt: skip
    return fs.Objective(Line(), lambda z, batch: z, {"emb.weight": "ids"}), clients


@ENGINES
@pytest.mark.parametrize("chunk", [None, 2])
def test_a_rejected_client_keeps_its_state(engine: str, chunk) -> None:
    goal, clients = lines([1.0, 0.0, 2.0, 4.0, 0.5])
    method = fs.methods.scaffold(codec="ef-sign", lr=0.1, local_steps=2, batch_size=1, clients_per_round=None)
    trainer = trainer_for(method, goal, clients, engine, chunk=chunk)
    kept = trainer.memory.tensors
    for value in kept.values():
        value.fill_(0.3)
    report = trainer.round(1)
    assert report.rejected.tolist() == [1]
    for key, value in kept.items():
        changed = (value != 0.3).reshape(5, -1).any(1).tolist()
        assert changed[1] is False, key
        assert torch.isfinite(value).all(), key
    assert (kept["scaffold.variate/x"][[0, 2, 3, 4]] != 0.3).all()
    assert all(torch.isfinite(v).all() for v in trainer.params.values())
    # c is still the mean of what the others changed.
    others = (kept["scaffold.variate/x"] - 0.3).sum() / 5
    torch.testing.assert_close(trainer.server.slots["scaffold"]["variate"]["x"].sum(), others)


class Count(Part):
    """Each client keeps how often it took part."""

    client_slots = ("rounds",)

    def finish(self, message, params, work) -> None:
        kept = work.client[self.key]["rounds"]
        work.client[self.key]["rounds"] = {name: value + 1 for name, value in kept.items()}


@ENGINES
@pytest.mark.parametrize("chunk", [None, 2])
def test_a_client_drawn_twice_reads_the_same_state_both_times(engine: str, chunk) -> None:
    method = fs.methods.fedavg(lr=0.1, local_steps=1, batch_size=4, clients_per_round=12, replacement=True)
    method = fs.Method(
        local=method.local, average=method.average, server=method.server, sampler=method.sampler, parts=(Count(),)
    )
    trainer = trainer_for(method, goal_of(), DATA, engine, chunk=chunk)
    times, twice = np.zeros(8), 0
    for number in range(1, 5):
        drawn = trainer.round(number).clients
        twice += len(drawn) - len(np.unique(drawn))
        times[np.unique(drawn)] += 1
    assert twice > 10
    kept = trainer.memory.tensors
    np.testing.assert_array_equal(kept["count.rounds/out.bias"].numpy()[:, 0], times)
    owner = np.repeat(np.arange(8), DATA.spaces["ids"].counts)
    np.testing.assert_array_equal(kept["count.rounds/emb.weight"].numpy()[:, 0], times[owner])


def test_what_moved_takes_bounded_memory() -> None:
    """Without a directory nobody asks which rows moved."""
    method = fs.methods.scaffold(lr=0.3, local_steps=1, batch_size=2, clients_per_round=4)
    trainer = trainer_for(method, goal_of(), DATA, "serial")
    for number in range(1, 31):
        trainer.round(number)
    for moved in (*trainer.server.moved.values(), *trainer.memory.moved.values()):
        assert sum(map(len, moved._listed)) <= moved.size
    rows = trainer.state.take_moved()
    assert rows["emb.weight"].tolist() == np.unique(DATA.spaces["ids"].rows).tolist()
    assert not len(trainer.state.take_moved()["emb.weight"])


# ---------------------------------------------------------------------- rounds in which nobody takes part


@ENGINES
@pytest.mark.parametrize("server", ["Add", "momentum", "Adam", "history", "torch"])
def test_empty_rounds_leave_the_model_as_it_is(engine: str, server: str, tmp_path: Path) -> None:
    """Also where a server's momentum would carry tables, and not dense parameters, on."""
    method = fs.Method(
        local=LOCAL, average=fs.OverClients(), server=SERVERS[server], sampler=sampling.Poisson(1)
    )  # fmt: skip
    trainer = trainer_for(method, goal_of(), DATA, engine)
    before = {n: v.clone() for n, v in shared_model(trainer, 0).items()}
    empty = []
    for number in range(1, 11):
        report = trainer.round(number)
        after = {n: v.clone() for n, v in shared_model(trainer, number).items()}
        assert equal(before, after) == (len(report.clients) == 0)
        if not len(report.clients):
            empty.append(number)
            assert math.isnan(report.loss)
            assert report.total_down == report.total_up == 0
        before = after
    assert 2 <= len(empty) <= 8
    # They are in the history, and a run goes on after them as if it had not stopped.
    options = {"rounds": 10, "engine": engine, "checkpoint_every": 2}
    result = fs.run(method, goal_of(), DATA, out=tmp_path / "a", **options)
    assert [r["round"] for r in result.history[1:] if not r["clients"]] == empty
    assert equal(result.params, before)
    with pytest.raises(InterruptedError):
        fs.run(method, goal_of(), DATA, out=tmp_path / "b", callbacks=[Halt()], **options)
    again = fs.run(method, goal_of(), DATA, out=tmp_path / "b", resume=True, **options)
    assert equal(again.params, result.params)
    assert (tmp_path / "a" / "metrics.jsonl").read_bytes() == (tmp_path / "b" / "metrics.jsonl").read_bytes()
