"""The LSTM classifier reads the state at the last token, whatever the padding."""

from __future__ import annotations

import pytest
import torch
from test_kinds import shop

import fedsub as fs
from fedsub.errors import ConfigError
from fedsub.objective.models import LSTMClassifier, make_objective


def test_padding_behind_the_tokens_has_no_effect():
    torch.manual_seed(0)
    module = LSTMClassifier(20, dim=4, hidden=6)
    lists = [[3, 5, 7], [9], [2, 4, 6, 8, 10], []]
    padded = torch.tensor([row + [0] * (8 - len(row)) for row in lists])
    for mode in (module.train(), module.eval()):
        for row, logit in zip(lists, mode({"tokens": padded}), strict=True):
            state = torch.zeros(6)
            if row:
                state = module.lstm(module.words(torch.tensor([row])))[1][0][-1, 0]
            torch.testing.assert_close(logit, module.out(state)[0])


def test_every_place_counts_where_nothing_is_padding():
    torch.manual_seed(0)
    module = LSTMClassifier(20, dim=4, hidden=6, padded=False)
    tokens = torch.tensor([[3, 5, 0], [0, 0, 0]])
    want = module.out(module.lstm(module.words(tokens))[0][:, -1]).squeeze(-1)
    torch.testing.assert_close(module({"tokens": tokens}), want)


def test_sizes_are_the_papers():
    module = LSTMClassifier(1_000)
    assert module.words.weight.shape == (1_000, 25)
    assert module.words.weight.std().item() == pytest.approx(1.0, rel=0.05)
    assert LSTMClassifier(1_000, word_std=2.0).words.weight.std().item() == pytest.approx(2.0, rel=0.05)
    assert sum(p.numel() for p in module.lstm.parameters()) == 4 * 100 * (25 + 100 + 2) + 4 * 100 * (100 + 100 + 2)


def test_the_column_of_lists_is_found_or_asked_for():
    assert make_objective(shop(), "lstm").tables == {"words.weight": "history"}
    two = shop(categories=True)
    with pytest.raises(ConfigError, match=r"has 2 of them \(history, category_history\); name it"):
        make_objective(two, "lstm")
    assert make_objective(two, "lstm", columns={"tokens": "history"}).tables == {"words.weight": "history"}
    with pytest.raises(ConfigError, match="word_std, the spread of the first word vectors, must be positive, got 0"):
        make_objective(shop(), "lstm", word_std=0)
    none = fs.Clients.from_arrays({"item": [0, 1], "label": [0, 1]}, offsets=[0, 1, 2], ids=["item"], label="label")
    with pytest.raises(ConfigError, match="the data has only item, label"):
        make_objective(none, "lstm")
