"""What one call of a torch function does with the tensors it is given: look rows up, read their form, or use them.

A lookup reads the rows that ids name and nothing else; that is all that may be done with a client's few rows as
with the full table. Reading a shape or a type says nothing about rows. Everything else uses a tensor whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsub.torch_private import property_read

_FORM = {
    "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "element_size", "is_contiguous",
    "is_floating_point", "is_complex", "is_signed", "is_same_size", "get_device", "__len__", "__hash__",
    "new_zeros", "new_ones", "new_full", "new_empty", "new_tensor",
}  # fmt: skip
_FORM_PROPERTIES = {
    "shape", "dtype", "device", "ndim", "requires_grad", "layout", "is_leaf", "is_cpu", "is_cuda", "is_meta", "is_mps",
    "is_mkldnn", "is_nested", "is_quantized", "is_sparse", "is_sparse_csr", "is_xla", "is_xpu", "itemsize", "nbytes",
    "name", "grad_fn", "output_nr", "retains_grad", "_version",
}  # fmt: skip
_TAKES_FORM_OF_SECOND = {"to", "type_as"}  # x.to(table): its type and device


class Lookup(NamedTuple):
    table: Tensor
    ids: Tensor
    padding: int | None = None
    rewrites: bool = False  # whether the rows that are read are changed in place


def _embedding(input, weight, padding_idx=None, max_norm=None, *_, **__) -> Lookup | None:
    return Lookup(weight, input, padding_idx, max_norm is not None)


def _embedding_bag(input, weight, offsets=None, max_norm=None, *_, padding_idx=None, **__) -> Lookup | None:
    return Lookup(weight, input, padding_idx, max_norm is not None)


def _raw_embedding(weight, indices, padding_idx=-1, *_, **__) -> Lookup | None:
    return Lookup(weight, indices, padding_idx)


def _getitem(table, index) -> Lookup | None:
    first = index[0] if isinstance(index, tuple) and index else index  # table[ids, 0] reads rows by id too
    if not isinstance(first, Tensor) or first.dtype == torch.bool or first.is_floating_point():
        return None
    return Lookup(table, first)


def _along_rows(input, dim, index, **_) -> Lookup | None:
    return Lookup(input, index) if dim in (0, -input.ndim) else None


_LOOKUPS: dict[Any, Callable[..., Lookup | None]] = {
    F.embedding: _embedding,
    F.embedding_bag: _embedding_bag,
    torch.embedding: _raw_embedding,
    Tensor.__getitem__: _getitem,
    torch.index_select: _along_rows,
    Tensor.index_select: _along_rows,
    torch.gather: _along_rows,
    Tensor.gather: _along_rows,
}


def lookup(func: Any, args: tuple, kwargs: dict[str, Any]) -> Lookup | None:
    """Which rows of what the call reads by ids, if that is what it does."""
    read = _LOOKUPS.get(func)
    if read is None:
        return None
    if func in (Tensor.index_select, Tensor.gather):  # a method's tensor comes first, by no name
        args, kwargs = (), {**dict(zip(("input", "dim", "index"), args, strict=False)), **kwargs}
    return read(*args, **kwargs)


def used(func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[str, list[Tensor]]:
    """The name of what is called, as a user would write it, and the tensors whose values it reads whole."""
    if (read := property_read(func)) is not None:
        return f".{read}", [] if read in _FORM_PROPERTIES else list(tensors(args))
    name = getattr(func, "__name__", str(func))
    if name in _FORM:
        return name, []
    if name in _TAKES_FORM_OF_SECOND:
        args, kwargs = args[:1], {}
    return name, list(tensors((args, kwargs)))


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in arguments, also those in lists, tuples and dicts (``torch.cat([a, b])``)."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors(each)
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))
