"""Servers refuse settings that make no sense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedsub.errors import MethodError
from fedsub.method.servers import EMA, Adagrad, Adam, Add, FrequencyAware, ScaffoldHistory, TorchOptimiser, Yogi
from fedsub.method.servers.base import check_groups_of

LRS, ADAPTIVE = (0, -1, float("nan"), "1", True), (Adam, Yogi, Adagrad)

GROUPS = ({"a": {"tau": 1}}, {"a": 0.5}, ["a"], {"a": {"lr": 0}}, {"a": {"lr": "x"}})

BAD: list[tuple[Callable[..., object], dict[str, Any]]] = [
    *[(kind, {"lr": v}) for kind in (Add, FrequencyAware, *ADAPTIVE) for v in LRS],
    *[(Add, {"momentum": v}) for v in (-0.1, 1, 1.5, None, float("inf"))],
    *[(kind, {"beta1": v}) for kind in ADAPTIVE for v in (-0.1, 1, "0")],
    *[(kind, {"beta2": v}) for kind in (Adam, Yogi) for v in (-0.1, 1, None)],
    *[(kind, {"tau": v}) for kind in ADAPTIVE for v in (0, -1e-3, float("nan"))],
    *[(kind, {"sparse_server": "yes"}) for kind in (Add, *ADAPTIVE)],
    *[(ScaffoldHistory, {"rho": v}) for v in (0, -0.1, 1.1)],
    *[(ScaffoldHistory, {"rho": 0.1, "beta": v}) for v in (-0.1, 1.1, "x")],
    (ScaffoldHistory, {"rho": 0.1, "sparse_server": None}),
    *[(FrequencyAware, {"power": v}) for v in (-0.5, None, float("inf"))],
    *[(kind, {"groups": v}) for kind in (Add, FrequencyAware, *ADAPTIVE) for v in GROUPS],
    (TorchOptimiser, {"make": torch.optim.SGD([torch.ones(2)])}),
    (TorchOptimiser, {"make": "adam"}),
    (TorchOptimiser, {"make": torch.optim.SGD, "sparse_server": 1}),
]


@pytest.mark.parametrize(("kind", "arguments"), BAD, ids=lambda v: getattr(v, "__name__", str(v)))
def test_bad_arguments_are_refused(kind, arguments) -> None:
    with pytest.raises(MethodError, match=r"\.$"):
        kind(**arguments)


def test_a_pattern_that_fits_nothing_is_refused() -> None:
    with pytest.raises(MethodError, match="fits no parameter"):
        check_groups_of(EMA(server=Add(groups={"itms.*": {"lr": 0.5}})), ["items.weight"])
