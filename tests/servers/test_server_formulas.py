"""Servers against the formulas of their papers."""

from __future__ import annotations

import pytest
import torch
from every_server import DOUBLE, steps
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsub.method.servers import Adagrad, Adam, FrequencyAware, ScaffoldHistory, Yogi


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (Adam(0.01), (0.00905028, 0, -0.00010024)),
        (Yogi(0.01), (0.00904988, 0, -0.00010001)),
        (Adagrad(0.01), (0.0099005, 0, -0.0009902)),
    ],
    ids=["adam", "yogi", "adagrad"],
)
def test_the_first_round_of_an_adaptive_server(server, expected) -> None:
    step = steps(server, torch.tensor([[0.1, 0.0, -2e-4]], dtype=DOUBLE))[0]
    assert step.tolist() == pytest.approx(expected, rel=0, abs=6e-8)
    assert step[1] == 0


def test_under_a_constant_update_adam_takes_steps_of_limited_size() -> None:
    update = torch.tensor([0.1, 1e-3, -2e-5], dtype=DOUBLE)
    last = steps(Adam(0.01), update.repeat(4000, 1))[-1]
    torch.testing.assert_close(last, 0.01 * update / (update.abs() + 1e-3), rtol=1e-9, atol=0)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), exponent=st.floats(-3, 3), kind=st.sampled_from([Adam, Yogi, Adagrad]))
def test_a_heat_coefficient_is_a_tau(seed: int, exponent: float, kind) -> None:
    c = 10**exponent
    updates = torch.randn(12, 5, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed)) * 0.01
    torch.testing.assert_close(
        steps(kind(tau=1e-3), c * updates), steps(kind(tau=1e-3 / c), updates), rtol=1e-9, atol=1e-15
    )


def test_history_approaches_a_constant_update_geometrically() -> None:
    server, d = ScaffoldHistory(rho=0.1), torch.tensor([1.0, -3.0], dtype=DOUBLE)
    params = {"w": torch.zeros(2, dtype=DOUBLE)}
    state = server.init(params, ())
    for r in range(1, 60):
        before, h = params["w"].clone(), state["h/w"].clone()
        server.step(params, {"w": d}, {}, state, r)
        torch.testing.assert_close(d - state["h/w"], d * 0.9**r, rtol=1e-10, atol=0)
        torch.testing.assert_close(params["w"] - before, 0.5 * d + 0.5 * h)


def test_frequency_counts_the_rounds_of_a_row() -> None:
    server = FrequencyAware(2.0, power=0.5)
    params = {"t": torch.zeros(4, 2), "w": torch.zeros(3), "s": torch.zeros(())}
    state = server.init(params, ["t"])
    assert state["count/t"].shape == (4,)
    assert state["count/w"].shape == (1,)
    for r, rows in enumerate([[1, 3], [3], [3, 0]], 1):
        mean = {"t": torch.ones(len(rows), 2), "w": torch.ones(3), "s": torch.tensor(1.0)}
        server.step(params, mean, {"t": torch.tensor(rows)}, state, r)
    three = 2 * (1 + 2**-0.5 + 3**-0.5)
    torch.testing.assert_close(params["t"], torch.tensor([[2.0] * 2, [2.0] * 2, [0.0] * 2, [three] * 2]))
    torch.testing.assert_close(params["w"], torch.full((3,), three))
    torch.testing.assert_close(params["s"], torch.tensor(three))
    assert state["count/t"].tolist() == [1, 1, 0, 3]
