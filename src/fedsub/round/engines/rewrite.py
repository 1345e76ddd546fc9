"""Function modes that let a user's ordinary module run on submodels, for one client or for many.

`Rewrite` is active while the module's forward runs. It replaces

- lookups in a table: the module sees the client's local ids; the rows of client k start at ``offset[k]``
  in the arena, so the lookup is done at ``ids + offset``;
- dropout: masks come from a counter (seed, round, client, step), the same in every engine;
- LSTM, GRU, RNN: written out in operations that vmap understands (batched engine only).

The module itself is never changed.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedsub.round.engines.recurrent import NotBatchable, gru_cell, lstm_cell, recurrent
from fedsub.torch_private import without_dispatch

RECURRENT = {torch.lstm: "lstm", torch.gru: "gru", torch.rnn_tanh: "rnn_tanh", torch.rnn_relu: "rnn_relu"}
RANDOM = {
    f.__name__
    for f in (
        torch.rand, torch.randn, torch.rand_like, torch.randn_like, torch.randint, torch.randint_like,
        torch.bernoulli, torch.multinomial, torch.normal, torch.randperm, torch.poisson,
        F.alpha_dropout, F.feature_alpha_dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.gumbel_softmax, F.rrelu,
    )
} | {"bernoulli_", "normal_", "uniform_", "random_", "exponential_", "gumbel_"}  # fmt: skip


# Below torch.nn.functional: never counted per client, and their names collide with functions that are.
RAW_RANDOM = {
    torch.dropout,
    torch.alpha_dropout,
    torch.feature_dropout,
    torch.native_dropout,
    torch.rrelu,
    torch.dropout_,
}


# Lookups that are not redirected to the arena.
OTHER_LOOKUPS = {torch.embedding, torch.gather, Tensor.gather}


class Rewrite(TorchFunctionMode):
    """``tables``: [(arena, offset of this client)]; ``key``: this step's random word, or None if unused."""

    def __init__(self, tables: list[tuple[Tensor, Tensor]], key: Tensor | int | None, *, batched: bool):
        super().__init__()
        self.tables, self.key, self.batched, self.calls = tables, key, batched, 0

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout:
            return self._dropout(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._attention(func, *args, **kwargs)
        if func is F.multi_head_attention_forward:
            with self:  # look inside it: its dropout and attention are ours too
                return without_dispatch(func)(*args, **kwargs)
        if func in RECURRENT and _drops_between_layers(args):
            return self._recurrent(RECURRENT[func], *args)
        if not self.batched:
            return func(*args, **kwargs)
        if func is F.embedding:
            return self._embedding(func, *args, **kwargs)
        if func is F.embedding_bag:
            return self._embedding_bag(func, *args, **kwargs)
        if func is torch.Tensor.__getitem__ and self._offset(args[0]) is not None:
            return self._getitem(*args)
        if func in (torch.index_select, torch.Tensor.index_select) and self._offset(args[0]) is not None:
            dim, index = args[1], args[2]
            if dim != 0:
                raise NotBatchable("the module selects columns of a table (index_select)")
            return torch.embedding(args[0], index + self._offset(args[0]))
        if func in OTHER_LOOKUPS and any(self._offset(a) is not None for a in (*args, *kwargs.values())):
            raise NotBatchable(
                f"the module makes a lookup by {func.__name__}; table[ids] or nn.Embedding can be batched"
            )
        if func in RECURRENT:
            return self._recurrent(RECURRENT[func], *args)
        if func is torch.lstm_cell:
            x, (h, c), wi, wh, *bias = args
            bi, bh = bias if bias else (None, None)
            projected = x @ wi.t() if bi is None else x @ wi.t() + bi
            return lstm_cell(projected, h, c, wh, bh)
        if func is torch.gru_cell:
            x, h, wi, wh, *bias = args
            bi, bh = bias if bias else (None, None)
            return gru_cell(x @ wi.t() if bi is None else x @ wi.t() + bi, h, wh, bh)
        return func(*args, **kwargs)

    def _offset(self, table: Any) -> Tensor | None:
        for arena, offset in self.tables:
            if table is arena:
                return offset
        return None

    def _embedding(
        self,
        func,
        input,
        weight,
        padding_idx=None,
        max_norm=None,
        norm_type=2.0,
        scale_grad_by_freq=False,
        sparse=False,
    ):
        offset = self._offset(weight)
        if offset is None:
            return func(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        if max_norm is not None or scale_grad_by_freq:
            raise NotBatchable("the module has an embedding with max_norm or scale_grad_by_freq")
        out = torch.embedding(weight, input + offset)
        if padding_idx is not None:  # the padding row gets no gradient
            out = torch.where((input == padding_idx).unsqueeze(-1), out.detach(), out)
        return out

    def _embedding_bag(
        self, func, input, weight, offsets=None, max_norm=None, norm_type=2, scale_grad_by_freq=False, mode="mean",
        sparse=False, per_sample_weights=None, include_last_offset=False, padding_idx=None,
    ):  # fmt: skip
        offset = self._offset(weight)
        if offset is None and input.ndim != 2:
            raise NotBatchable("the module has an EmbeddingBag over a flat list with offsets")
        if max_norm is not None or scale_grad_by_freq or offsets is not None or input.ndim != 2:
            raise NotBatchable("the module has an EmbeddingBag with offsets, max_norm or scale_grad_by_freq")
        out = torch.embedding(weight, input if offset is None else input + offset)
        real = None if padding_idx is None else (input != padding_idx).unsqueeze(-1)
        if mode == "max":
            if real is not None:
                raise NotBatchable("the module has an EmbeddingBag with mode='max' and padding_idx")
            return out.amax(1)
        if per_sample_weights is not None:
            out = out * per_sample_weights.unsqueeze(-1)
        if real is not None:
            out = torch.where(real, out, 0.0)
        if mode == "sum":
            return out.sum(1)
        return out.mean(1) if real is None else out.sum(1) / real.sum(1).clamp(min=1)

    def _getitem(self, table, index):
        if isinstance(index, Tensor) and not index.is_floating_point() and index.dtype != torch.bool:
            offset = self._offset(table)
            assert offset is not None
            return torch.embedding(table, index + offset)
        raise NotBatchable("the module slices a table other than by a tensor of ids")

    def _recurrent(self, kind: str, *args):
        if isinstance(args[3], list | tuple):  # (data, batch_sizes, hx, weights, …): packed sequences
            raise NotBatchable("the module uses pack_padded_sequence; pad, and mask what is padded")
        x, hx, *rest = args
        return recurrent(kind, x, hx if kind == "lstm" else (hx,), *rest, drop=self._drop)

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return self._drop(input, p) if training and p > 0 else input

    def _drop(self, x: Tensor, p: float) -> Tensor:
        """Zero each value with probability p, scale the rest by 1/(1−p)."""
        if self.key is None:
            raise NotBatchable("the module has dropout that the setup did not see")
        self.calls += 1
        if p >= 1:
            return x * 0
        keep = _bits(self.key, self.calls, x) >= int(p * 2**31)
        return torch.where(keep, x * (1 / (1 - p)), torch.zeros((), dtype=x.dtype, device=x.device))

    def _attention(self, func, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **other):
        if not dropout_p:
            return func(query, key, value, attn_mask, 0.0, is_causal, scale=scale, **other)
        scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
            scores = scores.masked_fill(~ones.tril(), float("-inf"))
        if attn_mask is not None:
            scores = (
                scores.masked_fill(~attn_mask, float("-inf")) if attn_mask.dtype == torch.bool else scores + attn_mask
            )
        return self._drop(scores.softmax(-1), dropout_p) @ value


def _drops_between_layers(args: tuple) -> bool:
    """Whether an RNN of padded sequences draws dropout masks: (x, hx, weights, biases, layers, p, train, …)."""
    return not isinstance(args[3], list | tuple) and args[4] > 1 and args[5] > 0 and args[6]


def _bits(key: Tensor | int, call: int, like: Tensor) -> Tensor:
    """31 random bits for every value of ``like``, a hash of (key, call, position)."""
    place = torch.arange(like.numel(), device=like.device).reshape(like.shape)
    word = (place + call * 0x9E3779B1) ^ key
    for factor in (0x45D9F3B, 0x119DE1F3):
        word = ((word ^ (word >> 15)) * factor) & 0x7FFFFFFF
    return word ^ (word >> 16)
