"""Built-in models of given sizes are those of data with these sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedsub as fs
from fedsub.errors import ConfigError
from fedsub.objective import recipe


def test_the_same_model_as_that_of_the_data():
    clients = fs.movielens_like(scale=0.02)
    sizes = {name: space.size for name, space in clients.spaces.items()}
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (("lr", {}), ("embedding", {"dim": 4}))
    for kind, options in kinds:
        of_data = fs.models.make_objective(clients, kind, seed=3, **options)
        of_sizes = fs.models.objective_of_sizes(sizes, kind, seed=3, **options)
        assert of_data.tables == of_sizes.tables
        for (name, one), (other, two) in zip(
            of_data.module.named_parameters(), of_sizes.module.named_parameters(), strict=True
        ):
            assert name == other
            assert torch.equal(one, two)
        assert of_sizes.recipe is not None
        made = recipe.make(of_sizes.recipe)
        assert made.state_dict().keys() == of_sizes.module.state_dict().keys()


def test_lists_and_columns_that_share_a_space():
    rows = {"user": [0, 0, 1], "item": [1, 2, 3], "history": [[1], [1, 2], []], "y": [0, 1, 1]}
    clients = fs.Clients.from_arrays(rows, "user", ids={"item": ["item", "history"]}, label="y", sizes={"item": 4})
    made = fs.models.objective_of_sizes(
        {"item": 4}, "lr", columns={"item": "item", "history": "item"}, lists={"history": 2}, label="y"
    )
    method = fs.methods.fedsubavg(lr=0.5, clients_per_round=2, batch_size=2)
    usual = fs.run(method, fs.models.make_objective(clients), clients, rounds=3, engine="serial")
    sized = fs.run(method, made, clients, rounds=3, engine="serial")
    assert usual.params is not None
    assert sized.params is not None
    for name, value in usual.params.items():
        np.testing.assert_array_equal(value, sized.params[name])


def test_what_does_not_fit_together_is_named():
    with pytest.raises(ConfigError, match="at film, item"):
        fs.models.objective_of_sizes({"item": 3}, columns={"movie": "film"})
    with pytest.raises(ConfigError, match="at history"):
        fs.models.objective_of_sizes({"item": 3}, lists={"history": 4})
