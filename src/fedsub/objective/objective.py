"""`Objective`: what is learned. A module, a loss, and which columns index which of its tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedsub.checks import check_number
from fedsub.errors import ObjectiveError, nearest
from fedsub.objective.inits import Init
from fedsub.objective.lazy import Drawn, Lazy
from fedsub.objective.losses import Batch, Loss

L2 = float | Mapping[str, float]  # one number, or numbers by parameter pattern


@dataclass(frozen=True)
class Objective:
    """Module + loss + ``tables={parameter name: column or columns that index its rows}``.

    The module is an ordinary ``nn.Module``. It is called with the batch, a dict of column name to
    tensor [B, …]; or, with ``inputs=("x", "y")``, with those columns as positional arguments. The loss
    gets the module's output and the batch and returns one value per sample (see `fedsub.objective.losses`).

    Parameters not named in ``tables`` are dense: every client gets them whole. Parameters with
    ``requires_grad=False`` are constants that never travel. Id columns that no table uses are refused, unless they
    stand in ``unused``.

    A client trains on its own rows of a table, so a table may only be looked up: one that the module uses whole
    (weight tying, a penalty on all rows) is refused. ``whole`` names tables for which the client's own rows are
    meant where the module says all: training and evaluation then differ in that, and clients are not batched.

    ``l2`` adds (l2/2)‖x‖² to what every client minimises, over all trained parameters it holds: its own rows of the
    tables and the dense ones. So l2 is a modulus of strong convexity of convex losses, whatever the method.
    Reported losses are without it. By parameter pattern, ``l2={"items.*": 1e-4}``: to each local step's gradient of a
    parameter is added l2 times its value, for the first pattern that fits its name; of a table in all rows that the
    client holds, whether the batch names them or not. Parameters that no pattern fits have none.

    ``lazy`` names tables that are never in memory as a whole, with the initialiser of their rows
    (`fedsub.objective.inits`): what the module itself has in them is not looked at, so it may be on the device "meta".
    Those of `fedsub.Lazy` need not be named.

    ``own`` names patterns of parameters that are meant to be every client's own; a method that would share them is
    refused, unless it says what is personal.

        Objective(Scorer(clients.size("item")), losses.binary("label"), tables={"items.weight": "item"})
    """

    module: nn.Module
    loss: Loss
    tables: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    inputs: Sequence[str] | None = None
    unused: Sequence[str] = ()
    l2: L2 = 0.0
    whole: Sequence[str] = ()
    own: Sequence[str] = ()
    lazy: Mapping[str, Init] = field(default_factory=dict)
    recipe: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)  # see `fedsub.objective.recipe`

    def __post_init__(self) -> None:
        if not isinstance(self.module, nn.Module):
            raise ObjectiveError(f"module must be a torch.nn.Module object, got {self.module!r}.")
        if not callable(self.loss):
            raise ObjectiveError(f"loss must be a function (output, batch) -> values, got {self.loss!r}.")
        if not isinstance(self.tables, Mapping):
            raise ObjectiveError(f"tables must map parameter names to columns, got {self.tables!r}.")
        if isinstance(self.whole, str) or not isinstance(self.whole, Sequence):
            raise ObjectiveError(
                f"whole must be a tuple of names of tables, like ('items.weight',); got {self.whole!r}."
            )
        for name in self.whole:
            if name not in self.tables:
                raise ObjectiveError(
                    f"whole names {name!r}, which tables does not declare; {nearest(str(name), self.tables)}"
                )
        params = dict(self.module.named_parameters())
        for name, p in params.items():
            if isinstance(p, nn.parameter.UninitializedParameter) or (p.is_meta and name not in self.lazy):
                raise ObjectiveError(
                    f"Parameter {name!r} has no values yet (a Lazy… module of torch, or meta); initialise the module "
                    "first, or say how its rows begin: lazy={name: fedsub.inits.Normal(0.01)}."
                )
        if not params:
            raise ObjectiveError("The module has no parameters to train.")
        self._check_l2(params)
        for name, columns in self.tables.items():
            if name not in params:
                raise ObjectiveError(f"tables names {name!r}, which the module lacks; {nearest(name, params)}")
            if not self.columns_of(name):
                raise ObjectiveError(
                    f"No column indexes the table {name!r} (tables gives it {columns!r}); name its column, "
                    "or leave it out of tables to send it whole."
                )
            if not params[name].requires_grad:
                raise ObjectiveError(
                    f"Table {name!r} has requires_grad=False, so it would never train; leave it out of tables."
                )
            if params[name].ndim < 1:
                raise ObjectiveError(f"Table {name!r} is a scalar; a table needs rows.")
        self._check_lazy(params)

    def _check_lazy(self, params: Mapping[str, nn.Parameter]) -> None:
        if not isinstance(self.lazy, Mapping) or not all(isinstance(one, Init) for one in self.lazy.values()):
            raise ObjectiveError(
                "lazy must map tables to initialisers, {'items.weight': fedsub.inits.Normal(0.01)}; got "
                f"{self.lazy!r}."
            )
        for name in self.drawn:
            if name not in self.tables:
                known = "" if name in params else f" {nearest(name, params)}"
                raise ObjectiveError(
                    f"{name!r} is lazy and no table: a lazy parameter must be looked up by a column's ids; give it in "
                    f"tables={{{name!r}: column}}.{known}"
                )

    @cached_property
    def drawn(self) -> dict[str, Drawn]:
        """The lazy tables as they are before training, by name."""
        params, out = dict(self.module.named_parameters()), {}
        for prefix, part in self.module.named_modules():
            if isinstance(part, Lazy):
                out[f"{prefix}.weight" if prefix else "weight"] = part.drawn
        for name, init in self.lazy.items():
            if name in params and name not in out:
                out[name] = Drawn(params[name].shape, params[name].dtype, init)
            else:
                out.setdefault(name, Drawn(torch.Size((0,)), torch.float32, init))
        return out

    def shape_of(self, name: str) -> torch.Size:
        """The shape of a parameter, of a lazy table as a whole."""
        return self.drawn[name].shape if name in self.drawn else self.module.get_parameter(name).shape

    def _check_l2(self, names: Collection[str]) -> None:
        if not isinstance(self.l2, Mapping):
            check_number("l2", self.l2, least=0, error=ObjectiveError)
            return
        for pattern, value in self.l2.items():
            check_number(f"l2[{pattern!r}]", value, least=0, error=ObjectiveError)
            if not any(fnmatchcase(name, str(pattern)) for name in names):
                raise ObjectiveError(f"l2 names {pattern!r}, which fits no parameter; they are {', '.join(names)}.")

    def l2_of(self, name: str) -> float:
        """The l2 of a parameter."""
        if not isinstance(self.l2, Mapping):
            return self.l2
        return next((value for pattern, value in self.l2.items() if fnmatchcase(name, pattern)), 0.0)

    def columns_of(self, table: str) -> tuple[str, ...]:
        columns = self.tables[table]
        return (columns,) if isinstance(columns, str) else tuple(columns or ())

    def output(self, module: nn.Module, batch: Batch) -> Tensor:
        """What ``module`` says to a batch."""
        if self.inputs is None:
            return module(batch)
        return module(*[batch[name] for name in self.inputs])


def of_seed(objective: Objective | Callable[[int], Objective], seed: int) -> Objective:
    """The objective of a seed: the same one for all, or what a function of the seed makes.

    While the function runs, torch's random numbers start from the seed, so that modules are initialised anew for every
    seed and alike for the same one; afterwards torch's own go on as if nothing had happened.
    """
    if isinstance(objective, Objective):
        return objective
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = objective(seed)
    if not isinstance(made, Objective):
        raise ObjectiveError(
            f"objective({seed}) returned {type(made).__name__} {repr(made)[:60]}, expected "
            "fedsub.Objective(module, loss, tables)."
        )
    return made
