"""Any optimiser of torch at the server."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsub.checks import check_flag
from fedsub.errors import MethodError
from fedsub.method.servers.rule import ServerRule
from fedsub.trees import Tree, add_rows, put_rows, take_rows

MANY_ROWS = 1_000_000


@dataclass(frozen=True)
class TorchOptimiser(ServerRule):
    """A step of ``make(parameters)``, a torch.optim.Optimizer, with the pseudo-gradient −Δ.

        TorchOptimiser(lambda tensors: torch.optim.AdamW(tensors, lr=0.01))

    fedsub does not know the optimiser's rule, so rows that nobody sent cannot catch up later: every round steps
    **whole tables**, with gradient 0 where nobody sent. For large tables take ``sparse_server=True``, which
    steps only the round's rows (and their state; counters are shared by all rows), or fedsub's own servers
    (`Add` with momentum, `Adam`, `Yogi`, `Adagrad`). Under ``sparse_server`` the rule must be elementwise.

    The optimiser is made anew each round and given its state: what it keeps elsewhere (in its param_groups, or
    a scheduler) is not kept. State must be tensors of the parameter's shape or single numbers, as for SGD,
    Adam, AdamW, Adagrad and RMSprop.
    """

    make: Callable[[list[Tensor]], torch.optim.Optimizer]
    sparse_server: bool = False

    def __post_init__(self) -> None:
        check_flag("sparse_server", self.sparse_server)
        if not callable(self.make) or isinstance(self.make, torch.optim.Optimizer):
            raise MethodError(
                "TorchOptimiser needs a function that makes an optimiser for a list of tensors, like "
                f"lambda tensors: torch.optim.Adam(tensors, lr=0.01); got {self.make!r}."
            )

    @property
    def whole_tables(self) -> bool:
        return not self.sparse_server

    @property
    def rowwise(self) -> bool:
        return self.sparse_server

    def init(self, params: Tree, tables: Collection[str]) -> Tree:
        large = [name for name in tables if len(params[name]) > MANY_ROWS]
        if large and not self.sparse_server:
            warnings.warn(
                f"TorchOptimiser steps every row of {', '.join(large)} in every round: lazy catch-up is not possible "
                "for an optimiser whose rule fedsub does not know. Use sparse_server=True, or fedsub's own servers.",
                stacklevel=2,
            )
        # A throw-away step from zero along zero tells what state there is; only its counters move.
        tiny = {
            name: torch.zeros((2, *p.shape[1:]) if name in tables else p.shape, dtype=p.dtype, device=p.device)
            for name, p in params.items()
        }
        optimiser = self._optimiser(list(tiny.values()))
        for value in tiny.values():
            value.grad = torch.zeros_like(value)
        try:
            optimiser.step()
        except (TypeError, RuntimeError, ValueError) as error:
            raise _unfit(optimiser, f"its step(), given dense gradients and no closure, fails: {error}") from error
        state: Tree = {}
        for name, value in tiny.items():
            state[f"begun/{name}"] = torch.zeros((), dtype=torch.int32)
            for key, made in optimiser.state[value].items():
                if made is not None:  # a momentum that is switched off
                    state[f"{key}/{name}"] = _first(made, value, params[name], optimiser, key)
        return state

    def step(self, params: Tree, mean: Tree, rows: dict[str, Tensor], state: Tree, round: int) -> None:
        names = [name for name in params if name in mean]
        sparse = {name: rows[name] for name in names if name in rows and self.sparse_server}
        keys = {name: [key[: -len(name) - 1] for key in state if key.endswith(f"/{name}")] for name in names}
        work = {n: take_rows(params[n], sparse[n]) if n in sparse else params[n].detach() for n in names}
        optimiser = self._optimiser(list(work.values()))
        for name, value in work.items():
            if name in rows and name not in sparse:
                value.grad = torch.zeros_like(value)
                add_rows(value.grad, rows[name], -mean[name])
            else:
                value.grad = -mean[name]
            if state[f"begun/{name}"]:  # before the first step, the optimiser makes its state itself
                optimiser.state[value] = {
                    key: take_rows(held, sparse[name]) if name in sparse and held.ndim else held
                    for key in keys[name]
                    if key != "begun"
                    for held in [state[f"{key}/{name}"]]
                }
        optimiser.step()
        for name, value in work.items():
            for key, new in optimiser.state[value].items():
                held = state.get(f"{key}/{name}")
                if new is None or new is held:
                    continue
                if held is None:
                    raise _unfit(optimiser, f"its state {key!r} of {name} was not there after a first step")
                if name in sparse and held.ndim:
                    put_rows(held, sparse[name], new)
                else:
                    held.copy_(new.reshape(held.shape))
            if name in sparse:
                put_rows(params[name], sparse[name], value)
            state[f"begun/{name}"].fill_(1)

    def _optimiser(self, tensors: list[Tensor]) -> torch.optim.Optimizer:
        optimiser = self.make(tensors)
        if not isinstance(optimiser, torch.optim.Optimizer):
            raise MethodError(
                f"make of TorchOptimiser returned {optimiser!r}, not a torch.optim.Optimizer; it should be like "
                "lambda tensors: torch.optim.Adam(tensors, lr=0.01)."
            )
        given = {id(t) for t in tensors}
        if {id(t) for group in optimiser.param_groups for t in group["params"]} != given:
            raise MethodError(
                "make of TorchOptimiser must return a new optimiser of exactly the tensors it is given, each time; "
                f"it was given {len(tensors)} and returned one of others: {type(optimiser).__name__}."
            )
        return optimiser


def _first(made: object, tiny: Tensor, param: Tensor, optimiser: torch.optim.Optimizer, key: str) -> Tensor:
    """A slot before the first step, of the parameter's real size."""
    if not isinstance(made, Tensor):
        raise _unfit(optimiser, f"its state {key!r} is a {type(made).__name__}")
    if made.ndim == 0 or (made.numel() == 1 and made.shape != tiny.shape):
        return torch.zeros((), dtype=made.dtype, device=made.device)  # a counter; the first step sets it
    if made.shape == tiny.shape:
        return made.clone() if tiny.shape == param.shape else made[:1].expand(param.shape).clone()
    raise _unfit(optimiser, f"its state {key!r} has shape {list(made.shape)} for a parameter of {list(tiny.shape)}")


def _unfit(optimiser: torch.optim.Optimizer, seen: str) -> MethodError:
    return MethodError(
        f"TorchOptimiser cannot use {type(optimiser).__name__}: {seen}. It needs an optimiser whose state is tensors "
        "of the parameter's shape or single numbers; use SGD, Adam, AdamW, Adagrad or RMSprop."
    )
