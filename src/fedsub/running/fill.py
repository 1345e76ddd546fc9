"""A copy of a module with other values in it, without a second copy of its tables."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedsub.disk.tensorfile import savable
from fedsub.errors import ObjectiveError
from fedsub.running.keep import constants
from fedsub.trees import Tree


def filled(module: nn.Module, values: Tree, config: Mapping[str, Any], path: Path) -> nn.Module:
    """A copy of ``module`` in eval mode; parameters share the memory of ``values``, buffers are copied.

    Names and shapes must be those of the run in ``path``. What was not saved (constants in a checkpoint) is taken from
    the module, whose constants must then be those of the run's ``config``.
    """
    parameters = dict(module.named_parameters())
    buffers = {n: v for n, v in module.state_dict(keep_vars=True).items() if isinstance(v, Tensor)}
    buffers = {n: v for n, v in buffers.items() if not isinstance(v, nn.Parameter)}
    _check(parameters | buffers, set(module.state_dict()), values, config, path)
    if fixed := [n for n, v in (parameters | buffers).items() if n not in values and savable(v)]:
        _check_constants(module, fixed, config, path)
    put: dict[int, Any] = {}
    for name, p in parameters.items():
        if name in values:
            put[id(p)] = nn.Parameter(values[name], requires_grad=p.requires_grad)
    for name, buffer in buffers.items():
        if name in values:
            put[id(buffer)] = values[name].clone()
    try:
        return copy.deepcopy(module, put).to(torch.device("cpu")).eval()
    except Exception as error:
        raise ObjectiveError(
            f"The module cannot be copied ({type(error).__name__}: {error}). Keep locks, files and results of forward "
            "out of its attributes."
        ) from error


def _check(own: Mapping[str, Tensor], names: set[str], values: Tree, config: Mapping[str, Any], path: Path) -> None:
    wrong = [f"the module has no {name}" for name in values if name not in own and name not in names]
    for name, value in own.items():
        if name in values:
            if value.shape != values[name].shape and name not in config.get("lazy", {}):
                wrong.append(f"{name} is {list(value.shape)} in the module and {list(values[name].shape)} in the run")
        elif name not in config["parameters"] and isinstance(value, nn.Parameter) and value.requires_grad:
            wrong.append(f"the run has not trained {name}")
    if wrong:
        more = f", and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise ObjectiveError(
            f"The module does not fit the run in {path}: {'; '.join(wrong[:5])}{more}. Pass the module that was "
            "trained, made with the same sizes."
        )


def _check_constants(module: nn.Module, names: list[str], config: Mapping[str, Any], path: Path) -> None:
    if constants(module) != config.get("constants"):
        raise ObjectiveError(
            f"{', '.join(names[:5])} of the module, which training keeps as they are, are not those of the run in "
            f"{path}. Pass the module that was trained, or go on with the run to its end, when they are saved."
        )
