"""Heat that somebody adds, over bytes: counts by a secure sum, and a histogram with noise, with one or without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from node.processes import SEED, data, objective
from node.test_secret_nodes import SIZES, Channel, population

import fedsub as fs
from fedsub.errors import MethodError, NoUsableClient, SecureSumError, WireError
from fedsub.node import Node, hand_out, heat, serve
from fedsub.node.heat import question
from fedsub.node.heat_sums import planned
from fedsub.node.post import Channels
from fedsub.node.remote import Remote
from fedsub.node.rounds import Rounds
from fedsub.node.summing import as_tensor
from fedsub.objective.population import Population
from fedsub.privacy.heat import AddedHeat, CentralHistogram, Holdings, RandomizedResponse, SecureCount
from fedsub.privacy.heat.words import NOISE, draws, simulated
from fedsub.round import wire
from fedsub.secure import wire as sums

MECHANISMS: dict[str, AddedHeat] = {
    "secure sum": SecureCount(),
    "secure sum, sparse": SecureCount(adversarial=0.05, dropping=0.05),
    "histogram": CentralHistogram(2.0, rows=6, most_samples=5),
    "histogram, secure": CentralHistogram(2.0, rows=6, most_samples=5, secure=True),
    "histogram, secure, normal": CentralHistogram(2.0, rows=6, delta=1e-3, most_samples=5, secure=True),
}


def method(mechanism: Any, weighting: str = "samples") -> fs.Method:
    return fs.methods.fedsubavg(
        lr=0.2, local_steps=2, batch_size=3, clients_per_round=4, heat=mechanism, weighting=weighting
    )


def channels(folder: Path, how: fs.Method, deaf: dict[int, Any] | None = None) -> dict[int, Channel]:
    """To nodes whose words are those of the simulation."""
    out = {}
    for number, at in hand_out(data(), folder / "data").items():
        node = Node(at, objective, how, number, folder / f"memory-{number}")
        node.heat.words = lambda _, space, n=number: simulated(SEED, space, np.array([n]))  # type: ignore[method-assign]
        out[number] = Channel(node, (deaf or {}).get(number))
    return out


def first_model() -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in objective(SIZES).module.named_parameters()}


def joined(folder: Path, how: fs.Method, **more: Any) -> tuple[Remote, dict[int, Channel]]:
    found = channels(folder, how, **more)
    played = Rounds(how, first_model(), population(), Channels(found), seed=SEED)
    played.admit()
    for channel in found.values():
        channel.crossed.clear()
    return played.remote, found


@pytest.fixture
def noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation's, which a server does not take: all clients know the seed."""
    monkeypatch.setattr(heat, "noise_of", lambda space, number: draws(SEED, space, NOISE, number))


@pytest.mark.parametrize("weighting", ["samples", "clients"])
@pytest.mark.parametrize("name", MECHANISMS)
def test_nodes_give_what_the_simulation_counts(name: str, weighting: str, tmp_path: Path, noise: None) -> None:
    how = method(MECHANISMS[name], weighting)
    population().save(tmp_path / "population.safetensors", heat=False)
    known = Population.open(tmp_path / "population.safetensors")
    found = channels(tmp_path, how)
    served = serve(how, first_model(), known, found, rounds=2, seed=SEED)
    run = fs.run(how, objective(SIZES), data(), rounds=2, seed=SEED, engine="serial")
    assert served.refused == []
    for parameter, value in run.params.items():
        assert torch.equal(served.params[parameter], value), parameter
    assert served.notes
    assert set(served.notes) <= set(run.events)
    crossed = [(down, up) for c in found.values() for down, up in zip(c.crossed[::2], c.crossed[1::2], strict=True)]
    kinds = (wire.ASK_HEAT, wire.ADD_HEAT)
    own = [(d, u) for d, u in crossed if d[:4] == sums.MAGIC or wire.read(d).kind in kinds]
    assert served.asked == (sum(len(d) for d, _ in own), sum(len(u) for _, u in own))
    if MECHANISMS[name].hidden:  # all that went up belongs to the sum, and nothing in it can be read
        assert all(up[:4] == sums.MAGIC for _, up in own)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_estimate_is_the_simulated_one(weighted: bool, tmp_path: Path, noise: None) -> None:
    """Row by row, with deviations; the padding row was not asked and everybody holds it."""
    for at, mechanism in enumerate(MECHANISMS.values()):
        remote, _ = joined(tmp_path / str(at), method(mechanism, "samples" if weighted else "clients"))
        asked, _ = heat.ask(remote, mechanism)
        clients = data()
        for space in SIZES:
            held = Holdings.of(clients.spaces[space], clients.sizes if weighted else None)
            found, expected = asked.private_heat(mechanism, space, weighted), mechanism.estimate(held, SEED)
            assert np.array_equal(found.heat, expected.heat)
            assert np.array_equal(found.deviation, expected.deviation)
            assert found.whole == expected.whole


def at_stage(stage: int) -> Callable[[bytes], bool]:
    return lambda sent: sent[:4] == sums.MAGIC and sums.HEAD.unpack_from(sent)[2] == stage


@pytest.mark.parametrize(("stage", "counted"), [(sums.ROSTER, 6), (sums.INBOX, 6), (sums.SURVIVORS, 8)])
def test_who_drops_out_is_left_out_and_the_others_stand_for_all(stage: int, counted: int, tmp_path: Path) -> None:
    """Σ over those who stayed, times W by what they weigh together; who had sent its values is counted whole."""
    mechanism, clients = SecureCount(), data()
    remote, _ = joined(tmp_path, method(mechanism), deaf=dict.fromkeys((2, 5), at_stage(stage)))
    asked, _ = heat.ask(remote, mechanism)
    stay = [c for c in range(8) if counted == 8 or c not in (2, 5)]
    for space in SIZES:
        expected = np.zeros(SIZES[space])
        for c in stay:
            expected[clients.spaces[space].rows_of(c)] += clients.sizes[c]
        expected *= clients.sizes.sum() / clients.sizes[stay].sum()
        if clients.spaces[space].padding:
            expected[0] = clients.sizes.sum()
        assert asked.private_heat(mechanism, space, True).heat == pytest.approx(expected, rel=1e-12)


def test_a_sum_that_is_given_up_is_played_again_with_those_who_are_left(tmp_path: Path) -> None:
    """Four of eight vanish after they masked nothing: three are too few to open it, and four are a sum of their own."""
    mechanism = SecureCount()
    gone = dict.fromkeys((1, 3, 4, 6), at_stage(sums.INBOX))
    remote, found = joined(tmp_path, method(mechanism), deaf=gone)
    asked, crossed = heat.ask(remote, mechanism)
    stay = np.array([0, 2, 5, 7])
    slot = data().spaces["slot"]
    exact = sum((np.isin(np.arange(6), slot.rows_of(c)) * float(data().sizes[c]) for c in stay), np.zeros(6))
    scale = data().sizes.sum() / data().sizes[stay].sum()
    assert asked.private_heat(mechanism, "slot", True).heat == pytest.approx(exact * scale, rel=1e-12)
    assert sum(d[:4] != sums.MAGIC for d in found[0].crossed[::2]) == 2  # two settings
    assert sum(map(sum, ([len(d) for d in c.crossed] for c in found.values()))) == sum(crossed)
    alone, _ = joined(tmp_path / "alone", method(mechanism), deaf=dict.fromkeys(range(7), lambda sent: True))
    with pytest.raises(NoUsableClient, match="1 clients are left"):
        heat.ask(alone, mechanism)


def test_noise_of_a_server_is_nobody_elses(tmp_path: Path) -> None:
    """Two questions get two noises, of the deviation that the estimate says, and the seed decides neither; of one there
    is one estimate, however often it is read."""
    mechanism = CentralHistogram(0.5, rows=40, most_samples=12)
    remote, _ = joined(tmp_path, method(mechanism))
    asked = [heat.ask(remote, mechanism, number)[0] for number in range(2)]
    first, second = (one.private_heat(mechanism, "item", True) for one in asked)
    assert not np.array_equal(first.heat, second.heat)
    assert np.array_equal(first.heat, asked[0].private_heat(mechanism, "item", True).heat)
    exact = SecureCount().estimate(Holdings.of(data().spaces["item"], data().sizes), 0).heat
    errors = np.concatenate([first.heat - exact, second.heat - exact])
    assert 0.5 < errors.std() / first.deviation[-1] < 1.6


def test_a_client_is_counted_once(tmp_path: Path) -> None:
    mechanism = SecureCount()
    remote, found = joined(tmp_path, method(mechanism))
    heat.ask(remote, mechanism)
    before = [n.node.folder / f"run-{1:016x}" / "heat-counted" for n in found.values()]
    assert all(path.read_text() == "1" for path in before)
    with pytest.raises(NoUsableClient, match="0 clients are left"):
        heat.ask(remote, mechanism, number=1)
    setting = planned(mechanism, 1, 1, np.arange(8), SIZES, 12, True)
    told = {"setting": as_tensor(setting.write())}
    node = found[2].node
    again = wire.write(wire.Envelope(wire.ADD_HEAT, 1, 2, run=1, tensors=told))
    with pytest.raises(WireError, match="counted in run 1 already"):
        node.answer(again)
    fresh = joined(tmp_path, method(mechanism))[1][2].node  # the same folder, a new process
    with pytest.raises(WireError, match="counted in run 1 already"):
        fresh.answer(again)


def test_what_a_node_refuses(tmp_path: Path) -> None:
    """Another mechanism, graph, table or weight than its own method's; and what its method does not ask for."""
    mechanism = SecureCount()
    node = joined(tmp_path, method(mechanism))[1][2].node
    fine = planned(mechanism, 1, 0, np.arange(8), SIZES, 12, True)

    def answer(setting, **head: int) -> bytes:
        told = wire.Envelope(wire.ADD_HEAT, setting.round, 2, run=1, tensors={"setting": as_tensor(setting.write())})
        return node.answer(wire.write(replace(told, **head)))

    sparse = planned(SecureCount(adversarial=0.05, dropping=0.05), 1, 0, np.arange(8), SIZES, 12, True)
    for odd in (
        sparse, planned(mechanism, 1, 0, np.arange(8), SIZES, 12, False),
        planned(mechanism, 1, 0, np.arange(8), {"item": 40}, 12, True), replace(fine, context=b""),
        replace(fine, least=8), replace(fine, segments=(replace(fine.segments[0], most=13), fine.segments[1])),
    ):  # fmt: skip
        with pytest.raises(SecureSumError, match="nothing was sent"):
            answer(odd)
    assert node.sum is None
    with pytest.raises(WireError, match="not of this round"):
        answer(fine, round=1)
    with pytest.raises(WireError, match="not of this round"):
        answer(planned(mechanism, 1, 0, np.array([0, 1, 3, 4]), SIZES, 12, True))
    with pytest.raises(WireError, match="of run 9"):
        answer(fine, run=9)
    node.sums.round = 1
    with pytest.raises(WireError, match="after the first round"):
        answer(fine)
    node.sums.round = 0
    assert answer(fine)[:4] == sums.MAGIC
    for other in (RandomizedResponse(1.0), CentralHistogram(1.0, rows=6, most_samples=5)):
        node = joined(tmp_path / type(other).__name__, method(other))[1][2].node
        with pytest.raises(WireError, match="this node's method has none"):
            answer(fine)
    asked = question(CentralHistogram(9.0, rows=6, most_samples=5), SIZES, 0, 2, 1)
    with pytest.raises(WireError, match="not by"):
        node.answer(asked)


def test_a_client_that_weighs_more_than_anybody_may_leaves(tmp_path: Path) -> None:
    """It is 12 samples heavy, and the sum was proved for 11: it sends nothing, and the others are counted."""
    mechanism = SecureCount()
    remote, _ = joined(tmp_path, method(mechanism))
    sizes = remote.server.population.sizes.copy()
    sizes[3] = 11
    remote.server.population = replace(remote.server.population, sizes=sizes)
    asked, _ = heat.ask(remote, mechanism)
    held = [c for c in range(8) if c != 3]
    exact = sum((np.isin(np.arange(6), data().spaces["slot"].rows_of(c)) * float(sizes[c]) for c in held), np.zeros(6))
    scale = sizes.sum() / sizes[held].sum()
    assert asked.private_heat(mechanism, "slot", True).heat == pytest.approx(exact * scale, rel=1e-12)


def test_a_client_that_tells_more_rows_than_it_may_is_left_out(tmp_path: Path) -> None:
    mechanism = CentralHistogram(2.0, rows=2, most_samples=5)
    remote, found = joined(tmp_path, method(mechanism))
    found[4].node.heat.mechanism = CentralHistogram(2.0, rows=30, most_samples=5)
    found[4].node.heat.answer = _more(found[4].node)  # type: ignore[method-assign]
    asked, _ = heat.ask(remote, mechanism)
    assert any("client 4" in line and "rows, of which a client tells 2" in line for line in remote.refused)
    assert asked.private_heat(mechanism, "item", False).whole == 8


def _more(node: Node) -> Callable[..., bytes]:
    def answer(message: wire.Envelope, run: int, client: int) -> bytes:
        mechanism = node.heat.mechanism
        assert mechanism is not None
        told = {f"heat/{s}": as_tensor(node.heat._told(mechanism, s, 0)) for s in node.heat.spaces}
        return wire.write(replace(message, kind=wire.TELL_HEAT, tensors=told))

    return answer


def test_settings_of_counts() -> None:
    assert fs.methods.fedsubavg(heat="secure:adversarial=0.05").average.heat == SecureCount(adversarial=0.05)  # type: ignore[union-attr]
    found = fs.methods.fedsubavg(heat="histogram:1,rows=50,most_samples=9,secure").average.heat  # type: ignore[union-attr]
    assert found == CentralHistogram(1.0, rows=50, most_samples=9, secure=True)
    assert found.upload(1000) == 2000
    with pytest.raises(MethodError, match="adversarial of SecureCount"):
        SecureCount(adversarial=1.0)
    with pytest.raises(MethodError, match="secure of CentralHistogram"):
        CentralHistogram(1.0, rows=5, secure=1)  # type: ignore[arg-type]
