"""How does a module use its tables? One eager forward on one client's submodel, watched.

Training on submodels is sound if a table is only *looked up* by ids of its own columns. The probe finds
what would run and be wrong: a table used whole (weight tying, a penalty on all rows), an undeclared
embedding fed with renumbered ids, a table fed by the wrong column, padding that is not row 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedsub.errors import FedsubError, ObjectiveError
from fedsub.objective.losses import Batch, CrossEntropy
from fedsub.objective.problem import Problem
from fedsub.round.engines.explain import failed, too_few_classes
from fedsub.round.engines.rewrite import RANDOM, RAW_RANDOM
from fedsub.round.engines.tables import lookup, tensors, used

SQUEEZE = " A module that ends in nn.Linear(…, 1) gives a column; let forward end with .squeeze(-1)."


@dataclass
class Usage:
    """What the probe saw."""

    looked_up: set[str] = field(default_factory=set)
    whole: dict[str, str] = field(default_factory=dict)  # table -> the function or property that used it whole
    dropout: bool = False
    random: str | None = None  # a random function that is not dropout
    scalar_loss: bool = False


class _Watch(TorchFunctionMode):
    def __init__(self, problem: Problem, params: dict[str, nn.Parameter], batch: Batch, usage: Usage):
        super().__init__()
        self.problem, self.usage = problem, usage
        self.names = {id(p): n for n, p in params.items()}
        self.originals = {id(p): n for n, p in problem.objective.module.named_parameters()}
        self.columns = {
            _storage(dict.__getitem__(batch, c)): c
            for c, col in problem.clients.columns.items()
            if col.space is not None
        }

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for value in tensors((args, kwargs)):
            if id(value) in self.originals:
                raise ObjectiveError(
                    f"A copy of the module still uses parameter {self.originals[id(value)]!r} of the original (a "
                    "function kept as an attribute, bound to the module?), so it would never train; make it a method."
                )
        if found := lookup(func, args, kwargs):
            if found.rewrites and (name := self.names.get(id(found.table))) is not None:
                raise ObjectiveError(
                    f"The module looks up {name!r} with max_norm, which rewrites the rows that are read: the forward "
                    "would train past the method, and evaluation would change the model. Leave max_norm out; scale "
                    "what was looked up instead (F.normalize, torch.renorm), or bound the server's step: clip_rows=…."
                )
            self._lookup(found.ids, found.table, found.padding)
        else:
            name, values = used(func, args, kwargs)
            for value in values:
                table = self.names.get(id(value))
                if table in self.problem.tables:
                    self.usage.whole.setdefault(table, name)
            if func is F.dropout and kwargs.get("training", args[2] if len(args) > 2 else True):
                self.usage.dropout |= bool(kwargs.get("p", args[1] if len(args) > 1 else 0.5) > 0)
            if func in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu):
                self.usage.dropout |= any(isinstance(a, float) and a > 0 for a in args)
            if func in (F.multi_head_attention_forward, F.scaled_dot_product_attention):
                self.usage.dropout |= any(isinstance(a, float) and a > 0 for a in [*args, kwargs.get("dropout_p", 0.0)])
            if (name in RANDOM or func in RAW_RANDOM) and self.usage.random is None:
                self.usage.random = name
        return func(*args, **kwargs)

    def _lookup(self, ids: Tensor, table: Tensor, padding: int | None) -> None:
        name, column = self.names.get(id(table)), self.columns.get(_storage(ids))
        if name is None:
            return
        if name not in self.problem.tables:
            if column is not None:
                raise ObjectiveError(
                    f"The module looks up {name!r} with column {column!r}, but tables does not declare it; "
                    f"add {name!r}: {column!r} to tables."
                )
            return
        space = self.problem.tables[name]
        if column is not None and column not in space.columns:
            raise ObjectiveError(
                f"The module looks up {name!r} with column {column!r}, but tables says it is indexed by "
                f"{', '.join(self.problem.objective.columns_of(name))}; correct tables or the module."
            )
        if padding is not None and padding >= 0 and (padding != 0 or not space.padding):
            raise ObjectiveError(
                f"{name!r} is an embedding with padding_idx={padding}; on submodels only row 0 can be padding, and "
                f"only if it is reserved: read the data with padding=({space.name!r},) and use padding_idx=0."
            )
        self.usage.looked_up.add(name)


def probe(problem: Problem, module: nn.Module, batch: Batch) -> Usage:
    """Run ``module`` (already holding one client's submodel) on that client's batch and watch."""
    usage = Usage()
    params = dict(module.named_parameters())
    buffers = {n: b.clone() for n, b in module.named_buffers()}
    try:
        with _Watch(problem, params, batch, usage):
            output = problem.objective.output(module, batch)
            losses = problem.objective.loss(output, batch)
    except FedsubError:
        raise
    except KeyError as err:
        raise ObjectiveError(
            f"The module or loss asks for column {err}, which the data lacks; {_having(problem)}"
        ) from err
    except Exception as err:
        raise failed(problem, module, batch, err, "on a client's first batch") from err
    if isinstance(problem.objective.loss, CrossEntropy) and (lacking := too_few_classes(problem, output)):
        raise ObjectiveError(lacking)
    if not isinstance(losses, Tensor):
        raise ObjectiveError(f"The loss returned {type(losses).__name__}; return a tensor with one value per sample.")
    size = len(dict.__getitem__(batch, "sample_mask"))  # not through batch: that would count as read by the module
    if losses.ndim == 0:
        usage.scalar_loss = True
    elif losses.shape != (size,):
        raise ObjectiveError(
            f"The loss returned shape {tuple(losses.shape)} for {size} samples; return one value per sample, "
            f"shape ({size},)." + (SQUEEZE if losses.ndim == 2 else "")
        )
    if not losses.requires_grad:
        raise ObjectiveError("The loss does not depend on any trained parameter (detach, no_grad, or integers?).")
    for name, buffer in module.named_buffers():
        if not torch.equal(buffer, buffers[name]):
            raise ObjectiveError(
                f"Training changes the buffer {name!r} (batch normalisation?), and buffers do not travel between "
                "clients and server; use LayerNorm or GroupNorm, or BatchNorm with track_running_stats=False."
            )
    for name, how in usage.whole.items():
        if name not in problem.objective.whole:
            raise ObjectiveError(
                f"The table {name!r} is used whole (by {how}), not only looked up: a client, which has just its own "
                "rows, would train another loss than is evaluated on all of them. Leave it out of tables and read "
                f"{', '.join(problem.objective.columns_of(name))} under values= (every client then gets all rows), or "
                f"give Objective(..., whole=({name!r},)) if the client's own rows are meant."
            )
    for name in problem.tables:
        if name not in usage.looked_up and name not in usage.whole:
            raise ObjectiveError(
                f"The module never looks up the table {name!r}, so no column indexes it; remove it from tables, "
                "or use it in forward."
            )
    return usage


def _having(problem: Problem) -> str:
    return f"The batch has {', '.join(problem.clients.columns)} and sample_mask."


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if isinstance(tensor, Tensor) else 0
