"""Messages that help: what a module or loss was given, why clients are not computed together, wrong names and paths."""

# Wrong calls are what is tested here.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedsub as fs
from fedsub.errors import ConfigError, DataNotice, FedsubError, MissingExtra, ObjectiveError
from fedsub.objective.problem import Problem

DRAWN = np.random.default_rng(0)
CLIENTS = fs.Clients.from_arrays(
    {"user": np.arange(40) % 4, "item": np.arange(40), "y": np.arange(40) // 4 % 2, "x": DRAWN.random((40, 3))},
    "user",
    ids=["item"],
    label="y",
    values=["x"],
)
FEDAVG = fs.methods.fedavg(lr=0.1, clients_per_round=2, batch_size=4)


class Scorer(nn.Module):
    def __init__(self, forward=None):
        super().__init__()
        self.items, self.out = nn.Embedding(40, 4), nn.Linear(4, 1)
        self.given = forward

    def forward(self, batch):
        if self.given is not None:
            return self.given(self, batch)
        return self.out(self.items(batch["item"])).squeeze(-1)


def train(module=None, loss=None, **options):
    objective = fs.Objective(module or Scorer(), loss or fs.losses.binary("y"), tables={"items.weight": "item"})
    return fs.run(FEDAVG, objective, CLIENTS, rounds=1, **options)


def logit(m, batch):
    return m.out(m.items(batch["item"])).squeeze(-1)


class TwoArguments(Scorer):
    def forward(self, users, items):  # type: ignore[override]
        return items


@pytest.mark.parametrize(
    ("module", "loss", "said"),
    [
        (
            Scorer(lambda m, b: m.out(torch.cat([m.items(b["item"]), b["x"]], -1))),
            None,
            (
                "The module failed",
                "test_sentences.py, line",
                "linear(float32 [3, 7], float32 [1, 4], float32 [1])",
                "takes 4 numbers a sample and is given 7: nn.Linear(7, …)",
                "The batch holds item int64 [3], y float32 [3], x float32 [3, 3]",
            ),
        ),
        (
            Scorer(lambda m, b: m.out(m.items(b["item"]).double())),
            None,
            ("float64 [3, 4]", "cast one of them (.float()"),
        ),
        (Scorer(lambda m, b: m.items(b["x"])), None, ("looked up by whole numbers: read the column as ids",)),
        (Scorer(lambda m, b: m.items(b)), None, ("forward is called with the batch, a dict", "inputs=('item',)")),
        (TwoArguments(), None, ("called with 1 argument; write it as forward(self, batch)",)),
        (None, fs.losses.cross_entropy("y"), ("Labels 'y' go to 1, so the module must give 2 numbers", "gives one")),
        (
            Scorer(lambda m, b: m.out(m.items(b["item"]))),
            lambda z, b: F.cross_entropy(z, b["y"].long(), reduction="none"),
            ("The loss failed", "Labels 'y' go to 1", "it gives 1", "The module gave float32 [3, 1]"),
        ),
        (None, nn.BCEWithLogitsLoss(reduction="none"), ("A loss is called as loss(output, batch)", "fs.losses")),
        (None, lambda z: z, ("write it as loss(output, batch)",)),
        (
            Scorer(lambda m, b: logit(m, b) if m.training else m.out(m.items(b["item"])[:, :2])),
            None,
            ("The module failed in eval mode", "float32 [3, 2]"),
        ),
        (
            Scorer(lambda m, b: m.out(m.items(b["item"]))),
            lambda z, b: (z - b["y"]) ** 2,
            ("forward end with .squeeze(-1)",),
        ),
    ],
)
def test_what_failed_and_what_it_was_given(module, loss, said):
    with pytest.raises(ObjectiveError) as refused:
        train(module, loss)
    for words in said:
        assert words in str(refused.value)
    assert "without adding to them" not in str(refused.value)  # the hint about ids is for ids


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (lambda m, b: logit(m, b) * (2 if logit(m, b).sum() > 0 else 1), "decides by the values"),
        (lambda m, b: logit(m, b) * logit(m, b).detach().mean().item(), "makes a Python number of a tensor"),
        (
            lambda m, b: logit(m, b) + 0 * (logit(m, b) > 0).nonzero().sum(),
            "nonzero gives a result whose shape",
        ),
        (lambda m, b: logit(m, b) + torch.from_numpy(logit(m, b).detach().numpy()), "leaves torch"),
    ],
)
def test_why_clients_are_not_computed_together(forward, said):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert train(Scorer(forward), engine="batched").engine == "serial"
    (reason,) = [str(w.message) for w in seen if "cannot be batched" in str(w.message)]
    assert said in reason
    assert "vmap" not in reason
    assert "github" not in reason


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda o: fs.compare({"a": FEDAVG}, o, CLIENTS, round=3),
            r"compare\(\) has no argument 'round'; did you mean 'rounds'",
        ),
        (lambda o: fs.compare({"a": FEDAVG}, o, CLIENTS, rounds=1, seed=3), "no argument 'seed'; did you mean 'seeds'"),
        (
            lambda o: fs.compare({"a": FEDAVG}, o),
            r"it is called as compare\(methods, objective, clients, rounds=…",
        ),
        (lambda o: fs.run(FEDAVG, o, CLIENTS, round=3), r"run\(\) has no argument 'round'"),
        (lambda o: fs.tune(["fedavg"], o, CLIENTS, grid={}, rounds=1, worker=2), "did you mean 'workers'"),
        (lambda o: fs.run(FEDAVG, o, CLIENTS, rounds=1, out=5), "out is 5, expected the path of a directory"),
        (lambda o: fs.run(FEDAVG, o, CLIENTS, rounds=1, out=""), "it is empty"),
        (lambda o: fs.run(FEDAVG, o, CLIENTS, rounds=1, out="a\0b"), "NUL character"),
        (lambda o: fs.run(FEDAVG, o, CLIENTS, rounds=1, out="x" * 300), "File name too long"),
        (
            lambda o: fs.compare({"a": FEDAVG}, o, CLIENTS, rounds=1, out="/dev/full"),
            "/dev/full is a file",
        ),
        (lambda o: fs.compare({"a": FEDAVG}, o, CLIENTS, rounds=1, out="/proc/x"), "/proc/x.* cannot be made"),
        (lambda o: CLIENTS.split(by="time", column="time"), r"If the table has it, read it too: values=\['time'\]"),
    ],
)
def test_wrong_names_and_paths(call, said):
    with pytest.raises(FedsubError, match=said):
        call(fs.Objective(Scorer(), fs.losses.binary("y"), tables={"items.weight": "item"}))


def test_a_path_without_permission(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(ConfigError, match=r"cannot be written to \(no permission\); choose another out"):
        train(out=tmp_path / "deep/er")
    assert not (tmp_path / "deep").exists()


def test_weights_that_begin_with_nan():
    module = Scorer()
    with torch.no_grad():
        module.out.weight[0, 1:3] = torch.nan
    with pytest.raises(ObjectiveError, match=r"'out\.weight' begins with NaN or infinity in 2 of its 4 values"):
        train(module)


def test_a_table_far_larger_than_its_vocabulary():
    module = Scorer()
    module.items = nn.Embedding(5_000, 4)
    objective = fs.Objective(module, fs.losses.binary("y"), tables={"items.weight": "item"})
    with pytest.warns(DataNotice, match=r"'items\.weight' has 5,000 rows, and the data know 40 of them"):
        Problem.bind(objective, CLIENTS)


def test_what_is_not_installed_names_a_command_that_works(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    from fedsub.study.tuning.suggest import Studies

    with pytest.raises(MissingExtra, match=r"pip install -e '\.\[tune\]'"):
        Studies([], {}, 0)


def test_a_class_that_only_other_clients_hold():
    data = {"user": [0, 0, 1, 1], "item": [0, 1, 2, 3], "y": [0, 1, 2, 4]}
    clients = fs.Clients.from_arrays(data, "user", ids=["item"], label="y", binary_label=False)
    module = Scorer(lambda m, b: m.out(m.items(b["item"])))
    module.out = nn.Linear(4, 3)
    objective = fs.Objective(module, fs.losses.cross_entropy("y"), tables={"items.weight": "item"})
    with pytest.raises(ObjectiveError, match="must give 5 numbers a sample; it gives 3"):
        fs.run(fs.methods.fedavg(lr=0.1, clients_per_round=2), objective, clients, rounds=1)
