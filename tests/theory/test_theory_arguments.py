"""Numbers that no theorem is about are refused with a sentence, whichever function they are given to."""

from __future__ import annotations

from typing import Any

import pytest

import fedsub as fs
from fedsub.errors import ConfigError

NAN, INF = float("nan"), float("inf")
RATE: dict[str, Any] = {
    "gap": 1.0, "lr": 0.1, "horizon": 10, "n_clients": 4, "clients_per_round": 2, "local_steps": 2, "n_min": 1,
    "smoothness": 1.0, "variance": 1.0, "gradient_bound": 1.0,
}  # fmt: skip
COROLLARY = {name: value for name, value in RATE.items() if name not in ("lr", "horizon")}
ALIKE: dict[str, Any] = {
    "mu": 1.0, "smoothness": 2.0, "variance": 1.0, "gradient_bound": 1.0, "distance": 1.0, "workers": 2, "horizon": 10,
    "period": 2,
}  # fmt: skip
DIFFER: dict[str, Any] = {
    "mu": 1.0, "smoothness": 2.0, "shares": [0.5, 0.5], "deviations": [1.0, 1.0], "gradient_bound": 1.0,
    "heterogeneity": 0.1, "distance": 1.0, "local_steps": 2, "clients_per_round": 1,
}  # fmt: skip
NONCONVEX: dict[str, Any] = {
    "gap": 1.0, "lr": 0.1, "horizon": 10, "workers": 2, "interval": 2, "smoothness": 2.0, "variance": 1.0,
    "gradient_bound": 1.0,
}  # fmt: skip
PATHS: dict[str, Any] = {"shares": [0.5, 0.5], "accumulations": [[1, 1], [1]]}
CASES = [
    (fs.theory.rate_bound, RATE), (fs.theory.corollary, COROLLARY), (fs.theory.local_sgd_bound, ALIKE),
    (fs.theory.non_iid_bound, DIFFER), (fs.theory.non_convex_bound, NONCONVEX),
    (fs.theory.surrogate_weights, PATHS), (fs.theory.effective_steps, PATHS),
    (fs.theory.slowdown, {"steps": [1, 2], "effective": 1.5}),
    (fs.theory.longest_period, {"horizon": 10, "workers": 2}),
    (fs.theory.longest_interval, {"workers": 2, "horizon": 10}),
    (fs.theory.suboptimality_bound, {"elementwise": 1.0, "mu": 1.0}),
    (fs.theory.suggested_lr, {"n_min": 1, "clients_per_round": 2, "n_clients": 4, "horizon": 10}),
]  # fmt: skip


@pytest.mark.parametrize(("function", "good"), CASES, ids=[function.__name__ for function, _ in CASES])
def test_what_is_no_number_for_a_theorem_is_refused_by_its_name(function: Any, good: dict[str, Any]) -> None:
    function(**good)
    for name, value in good.items():
        several = isinstance(value, list)
        lone: list[Any] = [NAN, INF, -1, "x"] if not several else [[NAN] * len(value), "x", []]
        for bad in lone:
            if name == "heterogeneity" and bad == -1:
                continue  # by rounding it may lie below 0
            with pytest.raises(ConfigError, match=f"{name}|do not fit"):
                function(**{**good, name: bad})


def test_zero_where_something_is_divided_by_it() -> None:
    for name in ("lr", "horizon", "n_min", "clients_per_round"):
        with pytest.raises(ConfigError, match=name):
            fs.theory.rate_bound(**{**RATE, name: 0})
    with pytest.raises(ConfigError, match="accuracy"):
        fs.theory.corollary(**COROLLARY).rounds_to(0)
    with pytest.raises(ConfigError, match="no step"):
        fs.theory.effective_steps([0.5, 0.5], [[1.0], [0.0]])
    with pytest.raises(ConfigError, match="rounds"):
        fs.theory.example1(3, -1, 0.1, (1.0, 1.0))
    everybody = fs.theory.non_iid_bound(**{**DIFFER, "clients_per_round": None})
    assert everybody.sampling == 0
