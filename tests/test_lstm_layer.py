"""The LSTM of many clients at once is torch's LSTM, values and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import vmap

from fedsub.round.engines import lstm
from fedsub.round.engines.lstm import lstm_layer


def leaves(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@settings(max_examples=25, deadline=None)
@given(steps=st.integers(1, 6), batch=st.integers(1, 4), inputs=st.integers(1, 5), hidden=st.integers(1, 7))
def test_a_layer_is_torchs(steps: int, batch: int, inputs: int, hidden: int) -> None:
    torch.manual_seed(steps)
    module = torch.nn.LSTM(inputs, hidden).double()
    x, h, c = leaves((steps, batch, inputs), (batch, hidden), (batch, hidden))
    wi, wh, bi, bh = (
        module.get_parameter(name) for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    )
    of_y, of_h, of_c = torch.randn(3, steps, batch, hidden, dtype=torch.float64)

    def gradients(y, last, cell):
        total = (y * of_y).sum() + (last * of_h[0]).sum() + (cell * of_c[0]).sum()
        return [y, *torch.autograd.grad(total, [x, h, c, wi, wh, bi])]

    y, (last, cell) = module(x, (h[None], c[None]))
    expected = gradients(y, last[0], cell[0])
    found = gradients(*lstm_layer(x, h, c, wi, wh, bi + bh))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("clients", [2, 5, 11])
def test_many_clients_are_each_alone_to_the_last_bit(clients: int, monkeypatch) -> None:
    """Whatever the number of clients, and however they are grouped to fit the cache."""
    torch.manual_seed(0)
    steps, batch, inputs, hidden = 4, 3, 5, 7
    shapes = [(steps, batch, inputs), (batch, hidden), (batch, hidden), (4 * hidden, inputs), (4 * hidden, hidden)]
    data = [torch.randn(11, *shape)[:clients] for shape in [*shapes, (4 * hidden,)]]

    def run(some: list[torch.Tensor]) -> list[torch.Tensor]:
        own = [t.clone().requires_grad_() for t in some]
        out = vmap(lambda x, h, c, wi, wh, b: lstm_layer(x, h, c, wi, wh, b)[0])(*own)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), own)]

    together = run(data)
    monkeypatch.setattr(lstm, "GROUP_BYTES", 1)  # groups of three, or four
    for a, b in zip(run(data), together, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(run([t[:2] for t in data]), together, strict=True):
        assert torch.equal(a, b[:2])
