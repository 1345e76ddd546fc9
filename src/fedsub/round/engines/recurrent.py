"""LSTM, GRU and RNN written in operations that vmap understands.

``nn.LSTM`` and kin call fused kernels that cannot be mapped over clients; these functions take the same
arguments and give the same numbers (to rounding).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedsub.round.engines.lstm import lstm_layer

Dropout = Callable[[Tensor, float], Tensor]


class NotBatchable(Exception):
    """The module uses something that cannot be run for many clients at once; the text says what."""


def lstm_cell(x: Tensor, h: Tensor, c: Tensor, wh: Tensor, bh: Tensor | None) -> tuple[Tensor, Tensor]:
    """One step; ``x`` is already projected to the gates (input, forget, cell, output)."""
    gates = x + _affine(h, wh, bh)
    i, f, g, o = gates.chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_cell(x: Tensor, h: Tensor, wh: Tensor, bh: Tensor | None) -> Tensor:
    xr, xz, xn = x.chunk(3, -1)
    hr, hz, hn = _affine(h, wh, bh).chunk(3, -1)
    z = (xz + hz).sigmoid()
    n = (xn + (xr + hr).sigmoid() * hn).tanh()
    return n + z * (h - n)


def recurrent(
    kind: str,
    x: Tensor,
    hx: Sequence[Tensor],
    weights: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    drop: Dropout,
) -> tuple[Tensor, ...]:
    """The padded-sequence form of ``torch.lstm`` (kind "lstm"), "gru", "rnn_tanh" and "rnn_relu"."""
    if batch_first:
        x = x.transpose(0, 1)
    directions = 2 if bidirectional else 1
    per_layer = 4 if has_biases else 2
    if len(weights) != num_layers * directions * per_layer:
        raise NotBatchable("the module has an LSTM with proj_size")
    last_h, last_c = [], []
    for layer in range(num_layers):
        outputs = []
        for way in range(directions):
            k = layer * directions + way
            wi, wh, *b = weights[k * per_layer : (k + 1) * per_layer]
            bi, bh = b if has_biases else (None, None)
            h, c = hx[0][k], hx[1][k] if kind == "lstm" else None
            if c is not None:
                bias = wi.new_zeros(len(wi)) if bi is None or bh is None else bi + bh
                y, h, c = lstm_layer(x if way == 0 else x.flip(0), h, c, wi, wh, bias)
                outputs.append(y if way == 0 else y.flip(0))
                last_h.append(h)
                last_c.append(c)
                continue
            # One product projects the inputs of all time steps.
            projected = _affine(x, wi, bi)
            steps = range(len(x)) if way == 0 else range(len(x) - 1, -1, -1)
            seen: dict[int, Tensor] = {}
            for t in steps:
                if kind == "gru":
                    h = gru_cell(projected[t], h, wh, bh)
                else:
                    h = projected[t] + _affine(h, wh, bh)
                    h = h.tanh() if kind == "rnn_tanh" else h.relu()
                seen[t] = h
            outputs.append(torch.stack([seen[t] for t in range(len(x))]))
            last_h.append(h)
        x = torch.cat(outputs, -1) if directions == 2 else outputs[0]
        if dropout and train and layer < num_layers - 1:
            # Masks follow positions with the batch first: a sample's mask must not depend on the batch's size.
            x = drop(x.transpose(0, 1), dropout).transpose(0, 1)
    out = x.transpose(0, 1) if batch_first else x
    if kind == "lstm":
        return out, torch.stack(last_h), torch.stack(last_c)
    return out, torch.stack(last_h)


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out = x @ weight.t()
    return out if bias is None else out + bias
