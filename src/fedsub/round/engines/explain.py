"""Why a module or a loss failed on a batch: what was called with which shapes and types, where, and what to do.

The call is made again, watched, so that the message can name the last operation and what it was given.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import fedsub
from fedsub.errors import ObjectiveError
from fedsub.objective.losses import Batch
from fedsub.objective.problem import Problem

NOT_THE_USERS = (str(Path(torch.__file__).parent), str(Path(fedsub.__file__).parent), "<frozen", "<string>")
TYPES = re.compile(r"dtype|scalar type|result type|\bLong\b|\bDouble\b", re.IGNORECASE)
CLASSES = re.compile(
    r"[Tt]arget -?\d+ is out of bounds|index -?\d+ is out of bounds for dimension 1|same number of dim"
)
FAR = re.compile(r"index out of range|out of bounds", re.IGNORECASE)


class _Last(TorchFunctionMode):
    """Remembers the call of torch that is under way."""

    func: Any = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.func, self.args, self.kwargs = func, args, kwargs or {}
        return func(*args, **self.kwargs)


def failed(problem: Problem, module: nn.Module, batch: Batch, error: Exception, when: str) -> ObjectiveError:
    """The refusal of an objective whose module or loss raised ``error`` on a batch."""
    output, who, last = None, "module", _Last()
    try:
        with last:
            output = problem.objective.output(module, batch)
            last.func, who = None, "loss"
            problem.objective.loss(output, batch)
        last.func, who = None, "module or loss"  # not again: it fails now and then
    except Exception as again:
        error = again
    call, said = _call(last), f"{type(error).__name__}: {str(error).strip().rstrip('.')}"
    hint = _hint(problem, batch, output, who, error, last)
    given = f" The module gave {_shown(output)}." if who == "loss" else ""
    of_call = f" (in {call})" if call else ""
    return ObjectiveError(
        f"The {who} failed {when}{_where(error)}, with {said}{of_call}.{hint}{given} The batch holds "
        f"{_shown(dict(dict.items(batch)))}."
    )


def _hint(problem: Problem, batch: Batch, output: Any, who: str, error: Exception, last: _Last) -> str:
    """What to do, as a sentence with a space before it, or ""."""
    inputs, text = problem.objective.inputs, str(error)
    function = problem.objective.module.forward if who == "module" else problem.objective.loss
    counts = len(inputs) if who == "module" and inputs is not None else 1 if who == "module" else 2
    if isinstance(error, TypeError) and not _takes(function, counts):
        if who == "module":
            how = "forward(self, batch)" if inputs is None else f"forward(self, {', '.join(inputs)})"
        else:
            how = "loss(output, batch)"
        return f" It is called with {counts} argument{'s' * (counts > 1)}; write it as {how}."
    if any(isinstance(a, dict) for a in (*last.args, *last.kwargs.values())) or "'Columns' object" in text:
        if who == "loss":
            return (
                " A loss is called as loss(output, batch), where the batch is a dict of all columns: take the "
                "label from it, as in lambda output, batch: F.mse_loss(output, batch['y'], reduction='none'), or use "
                "fs.losses."
            )
        return (
            " forward is called with the batch, a dict of all columns: take columns of it, as in batch['item'], or "
            "name those that forward takes: Objective(…, inputs=('item',))."
        )
    if isinstance(error, AttributeError):
        return ""
    if who == "loss" and CLASSES.search(text):
        return f" {_classes(problem, output)}"
    name = getattr(last.func, "__name__", "")
    if name == "embedding" and TYPES.search(text):
        return " An embedding is looked up by whole numbers: read the column as ids, or turn it into them by .long()."
    if TYPES.search(text):
        return (
            " The types do not fit each other: cast one of them (.float(), .long()). Ids and whole-number values are "
            "int64, all other columns float32, labels too."
        )
    if FAR.search(text):
        return (
            " A client's module has the rows of its own submodel: ids run from 0 to their number − 1. Look ids up as "
            "they come, without adding to them, and number other tables by columns of their own."
        )
    if name == "linear" and "shapes" in text and len(last.args) > 1:
        seen, taken = last.args[0].shape[-1], last.args[1].shape[-1]
        return f" The linear layer takes {taken} numbers a sample and is given {seen}: nn.Linear({seen}, …)."
    return ""


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with so many arguments; True if that is not known."""
    if isinstance(function, nn.Module):
        function = function.forward
    try:
        inspect.signature(function).bind(*[None] * count)
    except ValueError:
        return True
    except TypeError:
        return False
    return True


def too_few_classes(problem: Problem, output: Any) -> str:
    """The sentence about classes that a module has no number for, "" if there are none: other clients may hold them."""
    label = problem.clients.columns[problem.objective.loss.label].values  # type: ignore[attr-defined]
    short = isinstance(output, Tensor) and output.ndim == 2 and len(label) and output.shape[1] <= label.max()
    return _classes(problem, output) if short else ""


def _classes(problem: Problem, output: Any) -> str:
    """The labels beside the numbers that the module gives for each."""
    label = getattr(problem.objective.loss, "label", None) or problem.clients.label
    has = f"{output.shape[-1]}" if isinstance(output, Tensor) and output.ndim > 1 else "one"
    known = "Class labels count the numbers that the module gives each sample, from 0."
    if not isinstance(label, str) or label not in problem.clients.columns:
        return f"{known} It gives {has}."
    largest = int(problem.clients.columns[label].values.max())
    other = "; for labels 0 and 1 and one number use fs.losses.binary" if largest <= 1 else ""
    needed = f"the module must give {largest + 1} numbers a sample"
    return f"Labels {label!r} go to {largest}, so {needed}; it gives {has}{other}."


def _where(error: Exception) -> str:
    """The last line of the user's own code on the way to the error."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(NOT_THE_USERS)]
    if not frames:
        return ""
    line = f": {shorten(frames[-1].line, 100, placeholder=' …')}" if frames[-1].line else ""
    return f", at {Path(frames[-1].filename).name}, line {frames[-1].lineno}{line}"


def _call(last: _Last) -> str:
    """The last operation with what it was given, such as ``linear(float32 [4, 7], float32 [1, 4])``."""
    name = getattr(last.func, "__name__", "")
    given = (a for a in (*last.args, *last.kwargs.values()) if isinstance(a, Tensor | dict | list | tuple))
    shown = ["the batch" if isinstance(a, dict) else _shown(a) for a in given]
    return f"{name.strip('_')}({', '.join(shown)})" if name and shown else ""


def _shown(value: Any) -> str:
    """A tensor by type and shape, and what holds tensors."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, dict):
        return (
            ", ".join(f"{name} {_shown(v)}" for name, v in dict.items(value) if name != "sample_mask") or "no columns"
        )
    if isinstance(value, list | tuple):
        return f"[{', '.join(_shown(v) for v in value[:4])}{', …' if len(value) > 4 else ''}]"
    return type(value).__name__
