"""The LSTM of many clients at once is torch's LSTM, values and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import vmap

from fedsub.round.engines import fused, lstm
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


@pytest.mark.parametrize("batch_first", [False, True])
def test_the_fused_kernel_is_torchs_layer_of_every_client_alone(batch_first: bool, monkeypatch) -> None:
    """Outputs and all gradients are those of ``torch.nn.LSTM`` on each client's own values."""
    monkeypatch.setattr(fused, "LARGE", 1)
    torch.manual_seed(0)
    clients, steps, batch, inputs, hidden = 3, 4, 3, 5, 7
    shapes = [(steps, batch, inputs), (batch, hidden), (batch, hidden), (4 * hidden, inputs), (4 * hidden, hidden)]
    data = [torch.randn(clients, *shape) for shape in [*shapes, (4 * hidden,)]]
    if batch_first:  # the same values, lying elsewhere
        data[0] = torch.randn(clients, batch, steps, inputs).transpose(1, 2)
    of_y = torch.randn(clients, batch, steps, hidden).transpose(1, 2)
    of_c = torch.randn(clients, batch, hidden)

    own = [t.detach().requires_grad_() for t in data]
    y, h, c = vmap(lstm.lstm_layer)(*own)
    found = [y, h, *torch.autograd.grad((y * of_y).sum() + (h * of_c).sum() + (c * of_c).sum(), own)]
    for k in range(clients):
        module = torch.nn.LSTM(inputs, hidden)
        x, first, cell, wi, wh, b = (t[k].detach() for t in data)
        given = [t.contiguous().requires_grad_() for t in (x, first, cell)]
        with torch.no_grad():
            for name, value in {"weight_ih": wi, "weight_hh": wh, "bias_ih": b, "bias_hh": torch.zeros_like(b)}.items():
                module.get_parameter(f"{name}_l0").copy_(value)
        out, (last, end) = module(given[0], (given[1][None], given[2][None]))
        total = (out * of_y[k]).sum() + (last[0] * of_c[k]).sum() + (end[0] * of_c[k]).sum()
        weights = [module.get_parameter(f"{name}_l0") for name in ("weight_ih", "weight_hh", "bias_ih")]
        for a, e in zip(found, [out, last[0], *torch.autograd.grad(total, [*given, *weights])], strict=True):
            torch.testing.assert_close(a[k], e, rtol=1e-5, atol=1e-6)


def test_only_large_layers_are_left_to_the_fused_kernel(monkeypatch) -> None:
    monkeypatch.setattr(fused, "has_fused_lstm", lambda: True)
    assert fused.suits(torch.zeros(30, 5, 25), 100)
    assert not fused.suits(torch.zeros(30, 5, 25), 32)
    assert not fused.suits(torch.zeros(30, 5, 25, dtype=torch.float64), 100)
    monkeypatch.setattr(fused, "has_fused_lstm", lambda: False)
    assert not fused.suits(torch.zeros(30, 5, 25), 100)
