"""One LSTM layer of many clients as one operation, with its gradient written by hand.

    i, f, o = σ(·)    a = tanh(·)    of    x_t Wiᵀ + h_{t−1} Whᵀ + b        (gates in torch's order: i, f, a, o)
    c_t = f c_{t−1} + i a            h_t = o tanh(c_t)

Autograd of the time steps one by one adds every step's gradient to the weights in turn. Here a step's share of
the gates' gradient is kept, and one product over all steps gives the gradient of each weight; the inputs of
all steps are projected by one product as well. What is left in the loop over time is one product and a few
elementwise operations, for all clients together.

The operations over clients are laid out so that a client's numbers do not depend on how many share them: a
time step's values of different clients do not touch in memory, so no vector register mixes two of them.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from fedsub.round.engines.fused import joined, suits
from fedsub.round.engines.steady import widened

# The recurrent weights of a group of clients should stay in a core's own cache from one time step to the next.
GROUP_BYTES = 1_700_000


@torch.library.custom_op("fedsub::lstm", mutates_args=())
def lstm(x: Tensor, h: Tensor, c: Tensor, wi: Tensor, wh: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x [k, T, B, I], h and c [k, B, H], wi [k, 4H, I], wh [k, 4H, H], b [k, 4H] of k clients.

    Returns h_t, c_t and tanh(c_t) [k, T, B, H], and σ of the gates [k, T, B, 4H], where a has σ(2z) = (a + 1)/2:
    then all four take one operation.
    """
    k, steps, batch, _ = x.shape
    hidden = wh.shape[2]
    y, cells, bent = (x.new_empty(k, steps, batch, hidden) for _ in range(3))
    gates = x.new_empty(k, steps, batch, 4 * hidden)
    cell_rows = slice(2 * hidden, 3 * hidden)
    for group in _groups(k, wh):
        here = gates[group]
        flat = x[group].reshape(len(here), steps * batch, -1)
        torch.baddbmm(b[group].unsqueeze(1), flat, wi[group].transpose(1, 2), out=here.view(len(here), -1, 4 * hidden))
        here[..., cell_rows].mul_(2)
        # Copied once, so that each product takes half the time.
        across = wh[group].transpose(1, 2).clone(memory_format=torch.contiguous_format)
        across[:, :, cell_rows].mul_(2)
        before, cell, product = h[group], c[group], x.new_empty(len(here), batch, 4 * hidden)
        for gate, i, f, s, o, out, now, tanh in zip(
            *(each.unbind(1) for each in (here, *here.chunk(4, -1), y[group], cells[group], bent[group])), strict=True
        ):
            torch.bmm(before, across, out=product)  # into memory in one piece: torch takes its fast way only then
            gate.add_(product).sigmoid_()
            torch.mul(f, cell, out=now)
            now.addcmul_(i, s, value=2).sub_(i)  # a = 2s − 1
            torch.tanh(now, out=tanh)
            torch.mul(o, tanh, out=out)
            before, cell = out, now
    return y, cells, bent, gates


@torch.library.custom_op("fedsub::lstm_backward", mutates_args=())
def lstm_backward(
    dy: Tensor, dcells: Tensor | None, x: Tensor, h: Tensor, c: Tensor, wi: Tensor, wh: Tensor,
    y: Tensor, cells: Tensor, bent: Tensor, gates: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, h, c, wi, wh, b."""
    k, steps, batch, inputs = x.shape
    hidden = wh.shape[2]
    grads = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (x, h, c, wi, wh)]
    grads.append(x.new_empty(k, 4 * hidden))
    for group in _groups(k, wh):
        here = gates[group]
        dx, dh, dc, dwi, dwh, db = (g[group] for g in grads)
        dz, through = _factors(here, cells[group], bent[group], c[group])
        weights, later = widened(wh[group], batch), dc.zero_()
        coming, passed = dy[group].unbind(1), None if dcells is None else dcells[group].unbind(1)
        of_cell, of_out = (part.unbind(1) for part in dz.view(*here.shape[:3], 4, hidden).split((3, 1), 3))
        steps_dz, steps_f, steps_through = dz.unbind(1), here[..., hidden : 2 * hidden].unbind(1), through.unbind(1)
        product = x.new_empty(len(here), batch, weights.shape[2])
        grown = product[..., :hidden].copy_(coming[-1])
        for t in range(steps - 1, -1, -1):
            later.addcmul_(grown, steps_through[t])
            if passed is not None:
                later.add_(passed[t])
            of_cell[t].mul_(later.unsqueeze(2))
            of_out[t].mul_(grown.unsqueeze(2))
            later.mul_(steps_f[t])
            torch.bmm(steps_dz[t], weights, out=product)
            if t:
                grown.add_(coming[t - 1])
        dh.copy_(grown)
        flat, rows = dz.view(len(here), steps * batch, 4 * hidden), x[group].reshape(len(here), steps * batch, inputs)
        seen = torch.cat([h[group].unsqueeze(1), y[group, :-1]], 1).view(len(here), steps * batch, hidden)
        torch.bmm(flat.transpose(1, 2), rows, out=dwi)
        torch.bmm(flat.transpose(1, 2), seen, out=dwh)
        across = widened(wi[group], steps * batch)
        if across.shape[2] == inputs:
            torch.bmm(flat, across, out=dx.view(rows.shape))
        else:
            dx.view(rows.shape).copy_(torch.bmm(flat, across)[..., :inputs])
        torch.sum(flat, 1, out=db)
    return tuple(grads)  # type: ignore[return-value]


def _factors(gates: Tensor, cells: Tensor, bent: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """What dc (for the output gate: dh) is multiplied by to give dz of each gate; and what dh adds to dc.

    None of it needs a gradient, so it is found for all time steps at once.
    """
    i, f, s, o = gates.chunk(4, -1)
    a = (s * 2).sub_(1)
    past = torch.cat([first.unsqueeze(1), cells[:, :-1]], 1)
    out = torch.empty_like(gates)
    of_i, of_f, of_a, of_o = out.chunk(4, -1)
    aten = torch.ops.aten
    aten.sigmoid_backward.grad_input(a, i, grad_input=of_i)
    aten.sigmoid_backward.grad_input(past, f, grad_input=of_f)
    aten.tanh_backward.grad_input(i, a, grad_input=of_a)
    aten.sigmoid_backward.grad_input(bent, o, grad_input=of_o)
    return out, aten.tanh_backward(o, bent)


def _groups(k: int, weights: Tensor) -> list[slice]:
    """Clients in groups of like size, never a single one beside others: torch treats one matrix in another way."""
    size = max(3, GROUP_BYTES // max(1, weights[0].numel() * weights.element_size()))
    pieces = -(-k // size)
    return [slice(a, b) for a, b in pairwise(k * n // pieces for n in range(pieces + 1))]


@lstm.register_fake
def _(x, h, c, wi, wh, b):
    k, steps, batch, _ = x.shape
    return *(x.new_empty(k, steps, batch, wh.shape[2]) for _ in range(3)), x.new_empty(k, steps, batch, wh.shape[1])


@lstm_backward.register_fake
def _(dy, dcells, x, h, c, wi, wh, y, cells, bent, gates):
    like = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (x, h, c, wi, wh)]
    return (*like, x.new_empty(len(wh), wh.shape[1]))


def _keep(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:5], *output)


def _gradient(ctx, dy, dcells, dbent, dgates):
    assert dbent is None
    assert dgates is None
    x, h, c, wi, wh, y, cells, bent, gates = ctx.saved_tensors
    if dy is None:
        dy = torch.zeros_like(y)
    return torch.ops.fedsub.lstm_backward(dy, dcells, x, h, c, wi, wh, y, cells, bent, gates)


lstm.register_autograd(_gradient, setup_context=_keep)


@lstm.register_vmap
def _(info, in_dims, *args):
    size = info.batch_size
    out = torch.ops.fedsub.lstm(*joined(size, in_dims, args))
    return tuple(o.unflatten(0, (size, -1)) for o in out), (0, 0, 0, 0)


def lstm_layer(x: Tensor, h: Tensor, c: Tensor, wi: Tensor, wh: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One client: x [T, B, I], h and c [B, H]; returns all outputs, the last output and the last cell."""
    own = [t.unsqueeze(0) for t in (x, h, c, wi, wh, b)]
    if suits(x, wh.shape[1]):
        y, last, _ = torch.ops.fedsub.fused_lstm(*own)
        return y[0], y[0, -1], last[0]
    y, cells, *_ = torch.ops.fedsub.lstm(*own)
    return y[0], y[0, -1], cells[0, -1]
