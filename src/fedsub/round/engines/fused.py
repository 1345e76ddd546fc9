"""One LSTM layer of many clients, each by the processor's own fused kernel.

Torch's CPU kernel for an LSTM layer (oneDNN) takes a whole sequence of one client at once: products and gates of a time
step stay in the core's own cache. Where a client's layer is large, that saves more than what is lost by calling it
client by client; where it is small, `fedsub.round.engines.lstm` has all clients in one operation.

Every client is computed alone, so how clients are grouped cannot change a bit; and the kernel runs outside the
interpreter lock for as long as a whole sequence takes, so threads do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsub.torch_private import fused_lstm_layer, fused_lstm_layer_backward, has_fused_lstm

# Multiplications T B H² of a client's recurrence from which the kernel is faster, measured with H from 24 to 100,
# batches of 5 and 32, 10 and 30 time steps.
LARGE = 340_000


def suits(x: Tensor, hidden: int) -> bool:
    """Whether a layer with inputs x [T, B, I] is left to the kernel.

    Decided by what it is, never by time, for the last bits depend on it.
    """
    size = x.shape[0] * x.shape[1] * hidden**2
    return size >= LARGE and x.device.type == "cpu" and x.dtype == torch.float32 and has_fused_lstm()


def joined(size: int, in_dims: Sequence[int | None], args: Sequence[Tensor]) -> list[Tensor]:
    """Arguments of an operation over clients that is itself mapped over ``size`` of them: these join the first
    dimension."""
    return [
        (a.movedim(d, 0) if d is not None else a.expand(size, *a.shape)).flatten(0, 1)
        for a, d in zip(args, in_dims, strict=True)
    ]


@torch.library.custom_op("fedsub::fused_lstm", mutates_args=())
def fused_lstm(
    x: Tensor, h: Tensor, c: Tensor, wi: Tensor, wh: Tensor, b: Tensor
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """x [k, T, B, I], h and c [k, B, H], wi [k, 4H, I], wh [k, 4H, H], b [k, 4H] of k clients.

    Returns h_t [k, T, B, H], the last cell [k, B, H], and what the kernel keeps of each client for its gradient.
    """
    k, steps, batch, _ = x.shape
    y, last = x.new_empty(k, steps, batch, wh.shape[2]), torch.empty_like(c, memory_format=torch.contiguous_format)
    nothing, kept = torch.zeros_like(b[0]), []
    given = (t.unbind(0) for t in (y, last, *_whole(x, wi, wh, b, h, c)))
    for out, cell, own_x, own_wi, own_wh, own_b, own_h, own_c in zip(*given, strict=True):
        found = fused_lstm_layer(own_x, own_wi, own_wh, own_b, nothing, own_h, own_c)
        out.copy_(found[0])
        cell.copy_(found[1])
        kept.append(found[2])
    return y, last, kept


@torch.library.custom_op("fedsub::fused_lstm_backward", mutates_args=())
def fused_lstm_backward(
    dy: Tensor, dlast: Tensor | None, x: Tensor, h: Tensor, c: Tensor, wi: Tensor, wh: Tensor, b: Tensor,
    y: Tensor, last: Tensor, kept: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, h, c, wi, wh, b."""
    grads = tuple(torch.empty(t.shape, dtype=t.dtype) for t in (x, h, c, wi, wh, b))
    nothing = torch.zeros_like(b[0])
    into = zip(*(g.unbind(0) for g in grads), strict=True)
    given = zip(*(t.unbind(0) for t in _whole(dy, x, wi, wh, b, h, c, y, last)), strict=True)
    of_cells = [None] * len(x) if dlast is None else dlast.contiguous().unbind(0)
    for places, own, of_cell, room in zip(into, given, of_cells, kept, strict=True):
        own_dy, own_x, own_wi, own_wh, own_b, own_h, own_c, own_y, own_last = own
        found = fused_lstm_layer_backward(
            own_dy, of_cell, own_x, own_wi, own_wh, own_b, nothing, own_h, own_c, own_y, own_last, room
        )
        for place, value in zip(places, found, strict=True):
            place.copy_(value)
    return grads  # type: ignore[return-value]


def _whole(*tensors: Tensor) -> list[Tensor]:
    """In memory in one piece, of every client: the kernel reads its gradient's inputs as if they were."""
    return [tensor.contiguous() for tensor in tensors]


@fused_lstm.register_fake
def _(x, h, c, wi, wh, b):
    k, steps, batch, _ = x.shape
    y = x.new_empty(k, steps, batch, wh.shape[2])
    # How much the kernel keeps it alone knows; nothing is planned by it.
    return y, x.new_empty(c.shape), [x.new_empty(0, dtype=torch.uint8) for _ in range(k)]


@fused_lstm_backward.register_fake
def _(dy, dlast, x, h, c, wi, wh, b, y, last, kept):
    return tuple(torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (x, h, c, wi, wh, b))


def _keep(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)
    y, last, kept = output
    ctx.save_for_backward(*inputs, y, last, *kept)


def _gradient(ctx, dy, dlast, dkept):
    *inputs, y, last = ctx.saved_tensors[:8]
    if dy is None:
        dy = torch.zeros_like(y)
    return torch.ops.fedsub.fused_lstm_backward(dy, dlast, *inputs, y, last, ctx.saved_tensors[8:])


fused_lstm.register_autograd(_gradient, setup_context=_keep)


@fused_lstm.register_vmap
def _(info, in_dims, *args):
    size = info.batch_size
    y, last, kept = torch.ops.fedsub.fused_lstm(*joined(size, in_dims, args))
    return (y.unflatten(0, (size, -1)), last.unflatten(0, (size, -1)), kept), (0, 0, [None] * len(kept))
