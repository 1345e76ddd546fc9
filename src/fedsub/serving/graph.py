"""A module as a plain Python function of its state dict and a batch, as `torch.export` traces it; or as ONNX.

    def compute(state, batch):
        p_items_weight = state['items.weight']
        item = batch['item']
        embedding = torch.ops.aten.embedding.default(p_items_weight, item)
        …

Such a function needs torch and nothing of the module's own code. A module whose path through its code depends on values
cannot be traced; `NotTraced` says so.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedsub.errors import FedsubError, MissingExtra
from fedsub.trees import Tree

Batch = dict[str, Tensor]
LONGEST = 300  # characters of a reason
ONNX_HINT = "model.onnx needs the packages onnx and onnxscript: pip install -e '.[onnx]'"


class NotTraced(FedsubError, RuntimeError):
    """A module whose computation cannot be written down."""


@dataclass(frozen=True)
class Traced:
    """``code`` is the function ``compute(state, batch)``; ``constants`` are tensors that it finds in ``state`` too."""

    code: str
    constants: Tree
    program: Any  # torch.export.ExportedProgram


def trace(module: nn.Module, inputs: tuple[str, ...] | None, make: Callable[[int], Batch]) -> Traced:
    """The module, called with a batch or, with ``inputs``, with these columns; ``make`` makes a batch of some samples.

    The function is tried on batches of other sizes against the module.
    """
    batch = make(3)
    names = list(inputs) if inputs is not None else list(batch)
    rows = {name: {0: torch.export.Dim.AUTO} for name in batch}
    arguments = (batch,) if inputs is None else tuple(batch[n] for n in inputs)
    shapes = (rows,) if inputs is None else tuple(rows[n] for n in inputs)
    try:
        with _quietly(), torch.no_grad():
            program = torch.export.export(module, arguments, dynamic_shapes=shapes)
            made = _function(program, names)
            compute = compiled(made.code)
            state = {n: v for n, v in module.state_dict().items() if isinstance(v, Tensor)} | made.constants
            for count in (3, 1, 7):
                some = make(count)
                expected = module(some) if inputs is None else module(*[some[n] for n in inputs])
                torch.testing.assert_close(compute(state, some), expected, rtol=1e-5, atol=1e-6)
    except (Exception, SystemExit) as error:
        raise NotTraced(f"torch.export cannot write the module down ({_reason(error)}).") from error
    return made


def compiled(code: str) -> Callable[[Tree, Batch], Tensor]:
    """The function that the code defines."""
    names: dict[str, Any] = {}
    exec(HEAD + code, names)
    return names["compute"]


HEAD = "import torch\nfrom math import inf, nan\nfrom torch import device\n\n\n"
CHECKS = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range")


def _function(program: Any, names: list[str]) -> Traced:
    graph = copy.deepcopy(program.graph)
    for node in reversed(list(graph.nodes)):
        if any(check in str(node.target) for check in CHECKS) and not node.users:
            graph.erase_node(node)
    if (odd := next((n for n in graph.nodes if n.op == "get_attr"), None)) is not None:
        raise ValueError(f"it calls {odd.target}, a function of functions")
    signature = program.graph_signature
    kept = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    fixed = signature.inputs_to_lifted_tensor_constants
    fixed = {**fixed, **{k: v for k, v in kept.items() if v in signature.non_persistent_buffers}}
    given = iter(names)
    lines = []
    for node in (n for n in graph.nodes if n.op == "placeholder"):
        if node.name in kept or node.name in fixed:
            lines.append(f"    {node.name} = state[{kept.get(node.name) or fixed[node.name]!r}]")
        else:
            lines.append(f"    {node.name} = batch[{next(given)!r}]")
    source = graph.python_code("self", verbose=False).src
    body = [line for line in source.splitlines() if line.startswith("    ") and not line.startswith("    return")]
    (end,) = [n for n in graph.nodes if n.op == "output"]
    if len(end.args[0]) != 1:
        raise ValueError(f"it returns {len(end.args[0])} tensors, expected one")
    body = [_without_deletions(line) for line in body]
    code = "\n".join(["def compute(state, batch):", *lines, *body, f"    return {end.args[0][0].name}", ""])
    constants = {v: program.constants[v].detach().clone() for v in fixed.values()}
    return Traced(code, constants, program)


def _without_deletions(line: str) -> str:
    """`x = f(y);  y = None` without its second half."""
    return line.partition(";  ")[0]


def write_onnx(path: Path, traced: Traced, names: list[str]) -> None:
    """The same as an ONNX file, whose inputs are called as the columns and whose output is ``output``."""
    try:
        import onnx  # type: ignore[import-not-found]  # noqa: F401
        import onnxscript  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        raise MissingExtra(f"{ONNX_HINT} ({error}).") from error
    try:
        with _quietly():
            made = torch.onnx.export(
                traced.program, dynamo=True, input_names=names, output_names=["output"], verbose=False
            )
            assert made is not None
            made.save(str(path))
    except Exception as error:
        path.unlink(missing_ok=True)
        raise NotTraced(f"The module cannot be written as ONNX ({_reason(error)}).") from error


def _reason(error: BaseException) -> str:
    """The first line of what torch says."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    text = f"{type(error).__name__}: {line}" if line else type(error).__name__
    return text if len(text) <= LONGEST else text[:LONGEST].rpartition(" ")[0] + " …"


@contextmanager
def _quietly() -> Iterator[None]:
    """Without torch's own talk: what matters of it is in the message."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
