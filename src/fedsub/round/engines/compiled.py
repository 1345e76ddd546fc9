"""Several local steps of a chunk as one compiled function (torch.compile)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedsub.method.groups import Group
from fedsub.method.slots import Method, Part, Work
from fedsub.round.engines.trace import Traced
from fedsub.trees import Tree

# Compile time grows with the number of operations; unrolling a few steps of a small model removes most of
# the cost of calling compiled code.
MOST_OPERATIONS = 340
NARROW = 16  # values of a vector register

# What torch.compile would ask before every call though it cannot have changed: constants and code of fedsub.
_FIXED = {
    "BUILTIN_MATCH", "CLASS_MATCH", "CLOSURE_MATCH", "CONSTANT_MATCH", "MODULE_MATCH", "NOT_PRESENT_IN_GENERIC_DICT",
    "TYPE_MATCH",
}  # fmt: skip


def impure(method: Method) -> str | None:
    """The name of a slot whose local step depends on more than tensors, and so cannot be compiled."""
    slots = [*[part for part in method.parts if _acts_in_steps(part)], method.local]
    return next((type(s).__name__ for s in slots if not s.pure_step), None)


def _acts_in_steps(part: Part) -> bool:
    return type(part).grad is not Part.grad or type(part).begin is not Part.begin


def _adds_gradients(method: Method) -> bool:
    """Whether a step only adds a multiple of the gradient: then rows may be added one by one."""
    return not any(_acts_in_steps(part) for part in method.parts) and method.local.linear


def _about_inputs(entries) -> list[bool]:
    """Check before each call what can change between calls: tensors, shapes and torch's state, not our own code.

    Each `CompiledSteps` belongs to one method and one traced step, whose objects are frozen.
    """
    return [entry.guard_type not in _FIXED for entry in entries]


def _options(traced: Traced) -> dict[str, Any]:
    # Ids were checked against their tables when the data was read.
    options: dict[str, Any] = {"assert_indirect_indexing": False, "guard_filter_fn": _about_inputs}
    if traced.width < NARROW:
        options["cpp.simdlen"] = 1  # vectors that are never full take longer than single values
    return options


class CompiledSteps:
    """`run` takes ``unroll`` steps: gradients, parts and the local solver's update in one call."""

    def __init__(self, traced: Traced, names: Sequence[str], n_tables: int, method: Method, steps: int):
        self.n_tables, self.owned = n_tables, not _adds_gradients(method)
        most = max(1, MOST_OPERATIONS // max(1, traced.operations))
        self.unroll = max(n for n in range(1, steps + 1) if steps % n == 0 and n <= most)
        gradient = traced.loose(n_tables) if _adds_gradients(method) else traced.plain()
        self._compiled = torch.compile(
            _steps(gradient, names, method, self.unroll), dynamic=False, options=_options(traced)
        )

    def run(
        self,
        leaves: list[Tensor],
        sent: list[Tensor],
        group: Group,
        offsets: list[Tensor],
        columns: list[Tensor],
        weights: Tensor,
        words: Tensor,
    ) -> tuple[list[Tensor], Tensor]:
        """(new parameters, losses [unroll, c]); nothing is changed in place."""
        # Parts and clipping may need to know whose a row is; a plain step does not ask.
        owners = [group.owners(name) for name in group.counts] if self.owned else []
        for tensor in (*leaves[: self.n_tables], *sent[: self.n_tables], *owners):
            torch._dynamo.mark_dynamic(tensor, 0)  # a new cohort has another number of rows: do not recompile
        return self._compiled(leaves, sent, owners, offsets, columns, weights, words)


def _steps(gradient: Callable[..., tuple[Tensor, ...]], names: Sequence[str], method: Method, unroll: int):
    tables = list(names)

    def steps(leaves, sent, owners, offsets, columns, weights, words):
        params: Tree = dict(zip(tables, [leaf.clone() for leaf in leaves], strict=True))
        held = dict(zip(tables, owners, strict=False))
        group = Group(len(words[0]), True, held, held)  # owners are known: counts are never read
        scales = {name: scale for name in tables if (scale := method.local.scale(name)) != 1.0}
        work = Work(0, 0, method.local.lr, dict(zip(tables, sent, strict=True)), group, scales=scales)
        losses = []
        for s in range(unroll):
            values, *found = gradient(*params.values(), *offsets, *[c[s] for c in columns], weights[s], words[s])
            grads = dict(zip(tables, found, strict=True))
            for name, lookups in grads.items():
                if isinstance(lookups, list):
                    for ids, rows in lookups:
                        params[name].index_add_(0, ids, rows, alpha=-work.rate(name))
            grads = {name: g for name, g in grads.items() if not isinstance(g, list)}
            for part in method.parts:
                grads = part.grad(grads, params, work)
            method.local.step({name: params[name] for name in grads}, grads, None, work)
            losses.append((values * weights[s]).sum(1))
        return list(params.values()), torch.stack(losses)

    return steps
