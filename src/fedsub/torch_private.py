"""Everything of torch that is no public interface, in one place: what to look at when a new torch comes out.

Nothing else in fedsub relies on a name of torch that begins with an underscore, or on how torch writes code. What only
the traced engine needs is looked for when it is called, so that a torch without it costs speed (the serial engine
takes over) and no run. ``tests/test_torch_private.py`` holds each function against public operations.
"""

# What torch does not export is what this file is for; everywhere else it is an error.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

# Minor releases with which every test of fedsub was run.
TESTED = ("2.13",)

# One call for a list of tensors, by which torch.optim itself steps: x += α y, x *= α, x = y, x = 0 for each.
foreach_add_ = torch._foreach_add_
foreach_mul_ = torch._foreach_mul_
foreach_copy_ = torch._foreach_copy_
foreach_zero_ = torch._foreach_zero_

# Adam's step in one pass over memory, the kernel of torch.optim.Adam(fused=True).
fused_adam_ = torch._fused_adam_

# What torch.compile would ask before every call though it cannot have changed: constants and code of fedsub.
_FIXED = {
    "BUILTIN_MATCH", "CLASS_MATCH", "CLOSURE_MATCH", "CONSTANT_MATCH", "MODULE_MATCH", "NOT_PRESENT_IN_GENERIC_DICT",
    "TYPE_MATCH",
}  # fmt: skip


_LSTM = 2  # torch's number of the mode, where one function serves LSTM, GRU and RNN


def has_fused_lstm() -> bool:
    """Whether torch has the CPU kernel of a whole LSTM layer, and it is switched on."""
    there = hasattr(torch.ops.aten, "mkldnn_rnn_layer") and hasattr(torch.ops.aten, "mkldnn_rnn_layer_backward")
    return there and torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)


def fused_lstm_layer(
    x: Tensor, wi: Tensor, wh: Tensor, bi: Tensor, bh: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(outputs [T, B, H], last cell [B, H], what the gradient needs) of an LSTM layer, x [T, B, I], in one call.

    Relies on aten.mkldnn_rnn_layer, which torch.nn.LSTM calls on the CPU; without enable_grad it keeps nothing for
    the gradient, though told to train.
    """
    with torch.enable_grad():
        found = torch.ops.aten.mkldnn_rnn_layer.default(
            x, wi, wh, bi, bh, h, c, False, [], _LSTM, wh.shape[1], 1, True, False, False, True
        )
    return found[0], found[2], found[3]


def fused_lstm_layer_backward(
    dy: Tensor, dlast: Tensor | None, x: Tensor, wi: Tensor, wh: Tensor, bi: Tensor, bh: Tensor, h: Tensor, c: Tensor,
    y: Tensor, last: Tensor, kept: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, h, c, wi, wh and of either bias, from those of outputs and last cell, with what
    `fused_lstm_layer` returned. Relies on aten.mkldnn_rnn_layer_backward."""
    dx, dwi, dwh, db, _, dh, dc = torch.ops.aten.mkldnn_rnn_layer_backward.default(
        x, wi, wh, bi, bh, h, c, y, y[-1], last, dy, None, dlast,
        False, _LSTM, wh.shape[1], 1, True, True, False, [], False, kept,
    )  # fmt: skip
    return dx, dh, dc, dwi, dwh, db


def untested() -> str:
    """The clause that says that this torch was never tested; "" if it was."""
    release = ".".join(torch.__version__.split(".")[:2])
    if release in TESTED:
        return ""
    return f"this torch {release} was never tested with fedsub's traced engine (tested: {', '.join(TESTED)})"


# What torch says when it cannot map or record a module, and what it means; {0} is what the pattern's group finds.
_MEANING = (
    (
        r"data-dependent control flow|Boolean value of Tensor|truth value",
        "forward or loss decides by the values of a tensor (if, while, assert), and clients that are computed together "
        "may differ in them; torch.where chooses by value",
    ),
    (
        r"\.item\(\)|to a Python|GuardOnDataDependent|_local_scalar_dense",
        "forward or loss makes a Python number of a tensor (.item(), float(), int(), tolist()), which differs from "
        "client to client; keep it a tensor",
    ),
    (
        r"dynamic shape.*aten::_?(\w+?)\d*\.",
        "{0} gives a result whose shape depends on the values, which differ from client to client; a mask "
        "(torch.where, multiplying by 0 and 1) keeps the shape",
    ),
    (
        r"data pointer|have storage|numpy",
        "forward or loss leaves torch (.numpy(), .data_ptr()); use operations of torch",
    ),
    (
        r"in-?place",
        "forward or loss changes a tensor in place that all clients share; write x = x + y for x += y",
    ),
    (
        r"random(?:ness)? ",
        "forward or loss draws random numbers of its own; only dropout can be drawn per client",
    ),
    (
        r"[Bb]atching rule.*?aten::_?(\w+)",
        "torch cannot compute {0} for many clients at once; use another operation",
    ),
)


def reason(err: Exception) -> str:
    """Why tracing or generated code failed, in a sentence, and whether this torch was ever tested."""
    text = " ".join(str(err).split())
    for pattern, meaning in _MEANING:
        if found := re.search(pattern, text):
            said = meaning.format(*found.groups())
            break
    else:
        first = re.split(r"(?<=[.!?])\s", text)[0].rstrip(".")  # a sentence of torch's as a whole
        why = type(err).__name__ + (f": {first}" if first else "")
        said = f"forward or loss does what torch cannot record for many clients at once ({why})"
    return f"{said}; {untested()}" if untested() else said


def property_read(func: Any) -> str | None:
    """The property of a tensor that a call seen by a TorchFunctionMode reads, such as "T"; None for other calls.

    Relies on properties arriving as ``__get__`` bound to a descriptor that knows its name.
    """
    if getattr(func, "__name__", "") != "__get__":
        return None
    return getattr(getattr(func, "__self__", None), "__name__", "__get__")


def without_dispatch(func: FunctionType) -> FunctionType:
    """The same function, not asking for modes at its own door, so that a mode can see what it calls.

    Relies on functions of torch.nn.functional asking by the global names has_torch_function and …_unary.
    """
    never = {"has_torch_function": lambda *_: False, "has_torch_function_unary": lambda *_: False}
    clone = FunctionType(
        func.__code__, {**func.__globals__, **never}, func.__name__, func.__defaults__, func.__closure__
    )
    clone.__kwdefaults__ = func.__kwdefaults__
    return clone


def record(
    step: Callable[..., tuple[Tensor, ...]], long: Sequence[tuple[int, Tensor]], others: Sequence[Tensor]
) -> GraphModule:
    """The operations of ``step(*long, *others)``; of each (rows, like) in ``long`` only the form is made, no memory.

    Relies on FakeTensorMode, and on make_fx taking its tensors beside real ones.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        forms = [torch.empty((rows, *t.shape[1:]), dtype=t.dtype, device=t.device) for rows, t in long]
    given = [fake.from_tensor(t) for t in others]
    return make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(*forms, *given)


def map_arguments(arguments: Any, change: Callable[[Any], Any]) -> Any:
    """A node's arguments with every value in them, also in lists and slices, changed; relies on torch.fx.node."""
    from torch.fx.node import map_aggregate

    return map_aggregate(arguments, change)


def flat_arguments(graph: GraphModule) -> None:
    """Have the code of the graph take its arguments one by one, whatever was traced; relies on torch.fx.graph."""
    from torch.fx.graph import CodeGen

    graph.graph.set_codegen(CodeGen())


# Public functions that are an operation under another name: they take their arguments in half the time.
_PUBLIC: dict[str, Callable[..., Any]] = {
    **{f"{name}.Tensor": getattr(torch, name) for name in ("add", "sub", "mul", "div")},
    **{f"{name}_.Tensor": getattr(Tensor, f"{name}_") for name in ("add", "sub", "mul", "div")},
    **{
        f"{name}.default": getattr(torch, name)
        for name in ("neg", "sigmoid", "tanh", "relu", "exp", "bmm", "unsqueeze", "embedding", "clone", "cat")
    },
    **{f"{name}_.default": getattr(Tensor, f"{name}_") for name in ("sigmoid", "tanh", "relu", "exp")},
    **{f"{name}.default": getattr(Tensor, name) for name in ("view", "reshape", "expand", "new_zeros")},
    **{f"{name}.int": getattr(torch, name) for name in ("transpose", "select")},
    "sum.dim_IntList": torch.sum,
    "squeeze.dims": torch.squeeze,
    "squeeze.dim": torch.squeeze,
    "index_add_.default": Tensor.index_add_,
    "sym_size.int": Tensor.size,
}


def called_directly(graph: GraphModule) -> Callable[..., tuple[Tensor, ...]]:
    """The graph as a Python function that calls the operations themselves.

    The generated code finds each operation by a chain of attributes and calls it through a wrapper; for a small
    model that costs as much as the arithmetic. What has a public name of its own is called by that. Relies on the code
    naming operations torch.ops.aten.NAME.OVERLOAD (one that is named otherwise is called as torch would), and on their
    ``_op``, what the wrapper calls.
    """
    code = graph.graph.python_code("self")
    names = dict(code.globals)

    def direct(match: re.Match[str]) -> str:
        name = f"_{match[1]}_{match[2]}"
        operation = f"{match[1]}.{match[2]}"
        names[name] = _PUBLIC.get(operation) or getattr(getattr(torch.ops.aten, match[1]), match[2])._op
        return f"{name}("

    exec(re.sub(r"torch\.ops\.aten\.(\w+)\.(\w+)\(", direct, code.src), names)
    return functools.partial(names["forward"], graph)


def results(operation: Any) -> tuple[str, ...] | None:
    """Of each result of an operation: "fresh" memory, "view" of an input's, or an input "written"; None if unknown.

    Relies on the ``_schema`` of operations.
    """
    schema = getattr(operation, "_schema", None)
    if schema is None:
        return None
    aliases = [r.alias_info for r in schema.returns]
    return tuple("fresh" if a is None else "written" if a.is_write else "view" for a in aliases)


def vary_rows(tensor: Tensor) -> None:
    """Tell torch.compile that the tensor's number of rows changes; relies on torch._dynamo."""
    torch._dynamo.mark_dynamic(tensor, 0)


def compiled(function: Callable[..., Any], *, vectors: bool) -> Callable[..., Any]:
    """The function compiled, for ids that are known to be valid; without vector instructions unless ``vectors``.

    Relies on names of options of torch.compile and of the guards that it checks before each call. Checked is what can
    change between calls: tensors, shapes and torch's state, not the function's own code and constants, which must be
    frozen.
    """
    options: dict[str, Any] = {
        "assert_indirect_indexing": False,
        "guard_filter_fn": lambda entries: [entry.guard_type not in _FIXED for entry in entries],
    }
    if not vectors:
        options["cpp.simdlen"] = 1
    return torch.compile(function, dynamic=False, options=options)


class Counted(TorchDispatchMode):
    """What operations on tensors cost while it is entered, counted: calls, bytes that they write, multiplications.

    ``flops`` are those of matrix products and convolutions (two for a multiplication and an addition); a layer that
    one call computes, such as a recurrent one, is not looked into.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.bytes, self.flops = 0, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        packet = func.overloadpacket
        if packet in flop_registry:
            self.flops += int(flop_registry[packet](*args, **kwargs, out_val=out))
        if not func.is_view:
            self.calls += 1
            self.bytes += _bytes(out if out is not None else args[:1])  # foreach operations change their first list
        return out


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return sum(map(_bytes, value)) if isinstance(value, list | tuple) else 0
