"""Private heat over bytes: nodes answer as the simulation's clients do, once and for all, and only what was agreed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from node.processes import SEED, data, objective
from node.test_node import SIZES, Direct, population

import fedsub as fs
from fedsub.errors import CheckpointError, DataError, WireError
from fedsub.node import Node, Served, hand_out, serve
from fedsub.node.heat import question
from fedsub.node.post import Channels
from fedsub.node.rounds import Rounds
from fedsub.objective.population import Population
from fedsub.privacy.heat import Hadamard, PermanentResponse, PrivateHeat, RandomizedResponse, SecureCount
from fedsub.privacy.heat.words import simulated
from fedsub.round import wire

MECHANISMS = {
    "response": RandomizedResponse(epsilon=2.0, rows=5),
    "permanent": PermanentResponse(preset=2),
    "hadamard": Hadamard(3.0, rows=8, reports=2),
    "sketch": Hadamard(3.0, rows=8, reports=4, width=16, hashes=5),
}


def method(heat: PrivateHeat, weighting: str = "samples") -> fs.Method:
    return fs.methods.fedsubavg(
        lr=0.2, local_steps=2, batch_size=3, clients_per_round=4, heat=heat, weighting=weighting
    )


def nodes(folder: Path, how: fs.Method) -> dict[int, Node]:
    """Nodes whose words are those of the simulation."""
    out = {}
    for number, at in hand_out(data(), folder / "data").items():
        out[number] = Node(at, objective, how, number, folder / f"memory-{number}")
        out[number].heat.words = lambda _, space, n=number: simulated(SEED, space, np.array([n]))  # type: ignore[method-assign]
    return out


def served(folder: Path, how: fs.Method, found: dict[int, Node]) -> Served:
    population().save(folder / "population.safetensors", heat=False)
    known = Population.open(folder / "population.safetensors")
    params = {n: p.detach().clone() for n, p in objective(known.rows).module.named_parameters()}
    return serve(how, params, known, {n: Direct(node) for n, node in found.items()}, rounds=3, seed=SEED)


@pytest.mark.parametrize("weighting", ["samples", "clients"])
@pytest.mark.parametrize("name", MECHANISMS)
def test_nodes_answer_as_the_simulation_does(name: str, weighting: str, tmp_path: Path) -> None:
    how = method(MECHANISMS[name], weighting)
    over_bytes = served(tmp_path, how, nodes(tmp_path, how))
    simulated_run = fs.run(how, objective(SIZES), data(), rounds=3, seed=SEED, engine="serial")
    for parameter, value in simulated_run.params.items():
        assert torch.equal(over_bytes.params[parameter], value), parameter
    assert set(over_bytes.notes) <= set(simulated_run.events)
    assert any("clipped" in note for note in over_bytes.notes)
    exact = fs.run(method(None, weighting), objective(SIZES), data(), rounds=3, seed=SEED, engine="serial")  # type: ignore[arg-type]
    assert any(not torch.equal(simulated_run.params[p], exact.params[p]) for p in exact.params)


def joined(folder: Path, heat: PrivateHeat) -> Node:
    """A node that has joined run 1, with words of its own secret."""
    how = method(heat)
    (folder / "data").mkdir(parents=True, exist_ok=True)
    at = hand_out(data(), folder / "data", [2])[2]
    node = Node(at, objective, how, 2, folder / "memory")
    params = {n: p.detach().clone() for n, p in objective(SIZES).module.named_parameters()}
    Rounds(how, params, population(), Channels({2: Direct(node)})).admit()
    return node


def bits_of(node: Node, number: int, mechanism: PermanentResponse | RandomizedResponse) -> np.ndarray:
    told = wire.read(node.answer(question(mechanism, SIZES, number, 2, 1)), wire.TELL_HEAT).tensors
    return np.concatenate([mechanism.unpack(told[f"heat/{s}"].numpy().tobytes(), n)[0] for s, n in SIZES.items()])


def test_a_lasting_answer_stands_and_a_repeated_question_gets_the_same(tmp_path: Path) -> None:
    mechanism = PermanentResponse(p1=0.75, p2=0.25, p3=0.9, p4=0.1)
    node = joined(tmp_path, mechanism)
    first = bits_of(node, 0, mechanism)
    assert np.array_equal(first, bits_of(node, 0, mechanism))
    many = np.array([bits_of(node, number, mechanism) for number in range(200)])
    share = many.mean(0)  # 0.9 or 0.1: the lasting answers, and nothing of the truth beneath
    assert ((abs(share - 0.9) < 0.09) | (abs(share - 0.1) < 0.09)).all()
    again = joined(tmp_path, mechanism)  # the same folder, a new process
    assert np.array_equal(first, bits_of(again, 0, mechanism))
    for space in again.heat.spaces:  # even when the data are others
        held = replace(again.heat.spaces[space], rows=np.zeros(0, np.int64), row_offsets=np.zeros(2, np.int64))
        again.heat.spaces = {**again.heat.spaces, space: held}
    assert np.array_equal(first, bits_of(again, 0, mechanism))


def test_nodes_have_secrets_of_their_own(tmp_path: Path) -> None:
    mechanism = RandomizedResponse(epsilon=0.01)
    a, b = (bits_of(joined(tmp_path / name, mechanism), 0, mechanism) for name in "ab")
    assert not np.array_equal(a, b)
    assert (tmp_path / "a/memory/heat-secret").stat().st_size == 32


def test_a_damaged_memo_is_not_answered_anew(tmp_path: Path) -> None:
    mechanism = RandomizedResponse(epsilon=1.0)
    node = joined(tmp_path, mechanism)
    bits_of(node, 0, mechanism)
    for path in (tmp_path / "memory").glob("heat-*"):
        if path.name != "heat-secret":
            path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="once answered"):
        bits_of(node, 0, mechanism)


def test_only_the_agreed_question_is_answered(tmp_path: Path) -> None:
    agreed, other = RandomizedResponse(epsilon=1.0), RandomizedResponse(epsilon=5.0)
    node = joined(tmp_path, agreed)
    for asked, seen in (
        (question(other, SIZES, 0, 2, 1), "not by"),
        (question(agreed, {**SIZES, "item": 50}, 0, 2, 1), "50 rows"),
        (question(agreed, {"item": 40}, 0, 2, 1), "slot"),
        (question(agreed, SIZES, 0, 3, 1), "client"),
        (question(agreed, SIZES, 0, 2, 9), "run"),
    ):
        with pytest.raises(WireError, match=seen):
            node.answer(asked)
    plain = joined(tmp_path / "plain", SecureCount())
    with pytest.raises(WireError, match="asks none"):
        plain.answer(question(agreed, SIZES, 0, 2, 1))


def test_a_client_that_does_not_answer_is_left_out(tmp_path: Path) -> None:
    class Silent(Direct):
        def send(self, data: bytes) -> None:
            if wire.read(data).kind == wire.ASK_HEAT:
                self.waiting.append(None if self.node.number == 1 else b"nonsense")
            else:
                super().send(data)

    how = method(RandomizedResponse(epsilon=8.0), "clients")
    found = nodes(tmp_path, how)
    channels = {n: Silent(node) if n in (1, 2) else Direct(node) for n, node in found.items()}
    params = {n: p.detach().clone() for n, p in objective(SIZES).module.named_parameters()}
    served = serve(how, params, population(), channels, rounds=1, seed=SEED)
    assert [line for line in served.refused if line.startswith("client 2")]
    assert any("8 rows" in note or "coefficients" in note for note in served.notes)


def test_a_population_without_heat_needs_somebody_to_ask(tmp_path: Path) -> None:
    exact = method(None)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="saved without"):
        served(tmp_path, exact, nodes(tmp_path, exact))
