"""A model comes back from its run directory: the same outputs, bit for bit, and clear words where it cannot."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

import fedsub as fs
from fedsub.disk.seal import sealed
from fedsub.errors import CheckpointError, DataError, ObjectiveError, RunError
from fedsub.objective.problem import Problem
from fedsub.round.memory import ClientState
from fedsub.round.predict import PersonalModel, Predictor
from fedsub.running.callbacks import Callback
from fedsub.running.run import finished_result
from fedsub.study import comparing

ROUNDS = 4


def data(seed: int = 0) -> fs.Clients:
    """Nine clients and thirty items with names, a value and a label; ids are text."""
    draw = np.random.default_rng(seed)
    n = 120
    frame = pl.DataFrame(
        {
            "user": [f"user {k % 9}" for k in range(n)],
            "item": [f"item {k}" for k in draw.integers(0, 30, n)],
            "shop": draw.integers(100, 105, n),
            "value": draw.normal(size=n).astype(np.float32),
            "label": draw.integers(0, 2, n),
        }
    )
    return fs.Clients.from_frame(frame, "user", ids=["item", "shop"], label="label", values=["value"])


CLIENTS = data()


class Scorer(nn.Module):
    """A table of items and one of shops, a frozen scale and a buffer."""

    def __init__(self, items: int, shops: int, dtype=torch.float32, shift: float = 0.5):
        super().__init__()
        self.items = nn.Embedding(items, 3, dtype=dtype)
        self.shops = nn.Embedding(shops, 3, dtype=dtype)
        self.out = nn.Linear(3, 1, dtype=dtype)
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=dtype), requires_grad=False)
        self.register_buffer("shift", torch.tensor(shift, dtype=dtype))

    def forward(self, batch):
        hidden = (self.items(batch["item"]) + self.shops(batch["shop"])).tanh()
        return (self.out(hidden).squeeze(-1) + self.shift) * self.scale


def scorer(seed: int = 0, **options) -> fs.Objective:
    torch.manual_seed(seed)
    module = Scorer(CLIENTS.size("item"), CLIENTS.size("shop"), **options)
    return fs.Objective(module, fs.losses.binary("label"), {"items.weight": "item", "shops.weight": "shop"})


def batch(clients: fs.Clients = CLIENTS, samples: np.ndarray | None = None) -> dict[str, torch.Tensor]:
    some = np.arange(clients.samples) if samples is None else samples
    return {name: torch.from_numpy(a) for name, a in clients.gather(some, local=False).items()}


def says(module: nn.Module, samples: np.ndarray | None = None) -> torch.Tensor:
    assert not module.training
    with torch.no_grad():
        return module(batch(samples=samples))


def train(out: Path, method=None, objective=None, **options) -> fs.Result:
    method = method or fs.methods.fedsubavg(lr=0.5, clients_per_round=4)
    return fs.run(method, objective or scorer(), CLIENTS, rounds=ROUNDS, out=out, checkpoint_every=2, **options)


METHODS = {
    "fedsubavg": fs.methods.fedsubavg(lr=0.5, clients_per_round=4),
    "fedsubadam": fs.methods.fedsubadam(lr=0.5, clients_per_round=2),
    "centralsgd": fs.methods.centralsgd(lr=0.5),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_module_of_ones_own(tmp_path: Path, name: str, dtype: torch.dtype):
    result = train(tmp_path / "run", METHODS[name], scorer(dtype=dtype))
    expected = says(result.module())
    fresh = scorer(seed=5, dtype=dtype, shift=0.0)
    before = {n: v.clone() for n, v in fresh.module.state_dict().items()}
    trained = fs.load(tmp_path / "run")
    for given in (fresh, fresh.module):
        made = trained.module(given)
        assert torch.equal(says(made), expected)
        assert says(made).dtype == dtype
    assert all(torch.equal(v, before[n]) for n, v in fresh.module.state_dict().items())  # it was copied
    assert not torch.equal(says(fresh.module.eval()), expected)
    assert (trained.finished, trained.round, trained.notes, trained.personal) == (True, ROUNDS, (), None)
    assert set(trained.params) == {"items.weight", "shops.weight", "out.weight", "out.bias"}
    assert all(torch.equal(trained.params[n], p) for n, p in result.params.items())
    assert trained.config == json.loads((tmp_path / "run" / "config.json").read_bytes())


def test_vocabularies(tmp_path: Path):
    train(tmp_path / "run")
    found = fs.load(tmp_path / "run").vocabulary
    assert set(found) == {"item", "shop"}
    for name, ids in found.items():
        expected = CLIENTS.spaces[name].vocabulary
        assert ids is not None
        assert expected is not None
        assert ids.tolist() == expected.tolist()
        assert ids.dtype.kind == expected.dtype.kind


def test_ids_that_are_rows_have_no_vocabulary(tmp_path: Path):
    arrays = {"item": np.array([3, 1, 2, 0]), "label": np.array([0, 1, 1, 0])}
    clients = fs.Clients.from_arrays(arrays, offsets=[0, 2, 4], ids=["item"], label="label", sizes={"item": 5})
    method = fs.methods.fedsubavg(clients_per_round=2)
    fs.run(method, fs.models.make_objective(clients), clients, rounds=1, out=tmp_path / "run")
    assert fs.load(tmp_path / "run").vocabulary == {"item": None}


def test_the_file_is_a_plain_state_dict(tmp_path: Path):
    from safetensors.torch import load_file

    result = train(tmp_path / "run")
    module = scorer(seed=7, shift=0.0).module
    module.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    assert torch.equal(says(module.eval()), says(result.module()))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Embedding(CLIENTS.size("item"), 2)
        self.second = nn.Embedding(CLIENTS.size("item"), 2)
        self.second.weight = self.first.weight

    def forward(self, batch):
        return (self.first(batch["item"]) * self.second(batch["item"])).sum(-1)


def test_tied_parameters_stay_tied(tmp_path: Path):
    objective = fs.Objective(Tied(), fs.losses.binary("label"), {"first.weight": "item"}, unused=("shop",))
    result = train(tmp_path / "run", objective=objective)
    made = fs.load(tmp_path / "run").module(Tied())
    assert made.get_parameter("second.weight") is made.get_parameter("first.weight")
    assert torch.equal(says(made), says(result.module()))


@pytest.mark.parametrize("kind", ["lr", "embedding", "user-item", "linear", "factorisation"])
def test_a_built_in_model_is_made_again(tmp_path: Path, kind: str):
    options = {"user-item": {"columns": {"item": "shop"}}, "linear": {"bias": True, "loss": "squared"}}.get(kind, {})
    if kind == "factorisation":
        options = {"rank": 3, "offset": "mean"}  # a buffer that is computed from the ratings
    objective = fs.models.make_objective(CLIENTS, kind, seed=3, **options)
    result = train(tmp_path / "run", objective=objective)
    made = fs.load(tmp_path / "run").module()
    assert type(made) is type(objective.module)
    assert torch.equal(says(made), says(result.module()))
    assert torch.equal(says(finished_result(tmp_path / "run").module()), says(result.module()))


@pytest.mark.parametrize("kind", ["lstm", "din"])
def test_models_of_lists_are_made_again(tmp_path: Path, kind: str):
    from worlds import click_data

    clients = click_data()
    options = {"columns": {"tokens": "history"}, "dim": 3, "hidden": 4} if kind == "lstm" else {"dim": 3}
    objective = fs.models.make_objective(clients, kind, **options)
    method = fs.methods.fedsubavg(lr=0.5, clients_per_round=3)
    result = fs.run(method, objective, clients, rounds=2, out=tmp_path / "run")
    inputs = batch(clients)
    with torch.no_grad():
        assert torch.equal(fs.load(tmp_path / "run").module()(inputs), result.module()(inputs))


def test_classes_are_as_many_as_before(tmp_path: Path):
    draw = np.random.default_rng(0)
    arrays = {"x": draw.normal(size=(12, 2)).astype(np.float32), "y": np.arange(12) % 4}
    clients = fs.Clients.from_arrays(
        arrays, offsets=[0, 6, 12], ids=[], label="y", values=["x"], binary_label=False
    )  # fmt: skip
    objective = fs.models.make_objective(clients, "linear", loss="cross_entropy", bias=True)
    result = fs.run(fs.methods.fedavg(clients_per_round=2), objective, clients, rounds=2, out=tmp_path / "run")
    with torch.no_grad():
        assert torch.equal(fs.load(tmp_path / "run").module()(batch(clients)), result.module()(batch(clients)))


def test_another_module_in_a_made_objective_is_not_taken_for_the_built_in_one(tmp_path: Path):
    class Louder(fs.models.LogisticRegression):
        def forward(self, batch):
            return 2 * super().forward(batch)

    objective = replace(fs.models.make_objective(CLIENTS), module=Louder(CLIENTS, values=("value",)))
    result = train(tmp_path / "run", objective=objective)
    with pytest.raises(ObjectiveError, match="pass it"):
        fs.load(tmp_path / "run").module()
    assert torch.equal(says(fs.load(tmp_path / "run").module(objective)), says(result.module()))


def personal_outputs(problem: Problem, model: PersonalModel) -> torch.Tensor:
    predictor = Predictor(problem, tuple(problem.clients.columns), torch.device("cpu"))
    return predictor(model, problem.clients, np.arange(problem.clients.samples))[1]


def check_clients(trained: fs.Trained, objective: fs.Objective, model: PersonalModel) -> None:
    """Every client's module has its own values exactly and says what its personal model says."""
    expected = personal_outputs(Problem.bind(objective, CLIENTS), model)
    assert trained.personal is not None
    assert trained.personal.client_ids.tolist() == CLIENTS.client_ids.tolist()
    shared = says(trained.module(objective))
    different = 0
    for k, client in enumerate(CLIENTS.client_ids):
        samples = np.arange(CLIENTS.offsets[k], CLIENTS.offsets[k + 1])
        module = trained.module(objective, client=client)
        found = says(module, samples)
        torch.testing.assert_close(found, expected[samples], rtol=1e-5, atol=1e-6)
        different += not torch.equal(found, shared[samples])
        assert isinstance(model.kept, ClientState)
        own = model.kept.read(model.slot, np.array([k]))
        params = dict(module.named_parameters())
        for name, value in trained.personal.params(client).items():
            rows = trained.personal.rows(client).get(name)
            assert torch.equal(value, own[name][0] if rows is None else own[name])
            assert torch.equal(params[name] if rows is None else params[name][rows], value)
    assert different == len(CLIENTS)


def kept_model(monkeypatch) -> list[PersonalModel]:
    """What the run hands over to be kept, to compare with what comes back."""
    from fedsub.running import keep

    seen: list[PersonalModel] = []
    end = keep.end

    def watched(folder, problem, params, model):
        seen.append(model)
        return end(folder, problem, params, model)

    monkeypatch.setattr(keep, "end", watched)
    return seen


@pytest.mark.parametrize("names", [("last",), ("items.weight", "out.*")], ids=["layer", "table"])
def test_personal_parameters(tmp_path: Path, monkeypatch, names):
    seen, objective = kept_model(monkeypatch), scorer()
    train(tmp_path / "run", fs.methods.fedper(lr=0.5, clients_per_round=4, personal=list(names)), objective)
    check_clients(fs.load(tmp_path / "run"), objective, seen[-1])


def test_mixture(tmp_path: Path, monkeypatch):
    seen = kept_model(monkeypatch)
    objective = fs.models.make_objective(CLIENTS, "lr", bias=True, l2=0.1)
    result = train(tmp_path / "run", fs.methods.l2gd(lam=0.5), objective)
    trained = fs.load(tmp_path / "run")
    assert torch.equal(says(trained.module()), says(result.module()))
    check_clients(trained, objective, seen[-1])


def test_factorisation(tmp_path: Path, monkeypatch):
    seen = kept_model(monkeypatch)
    objective = fs.models.make_objective(CLIENTS, "factorisation", rank=2)
    result = train(tmp_path / "run", fs.methods.fedmavg(), objective)
    trained = fs.load(tmp_path / "run")
    assert torch.equal(says(trained.module()), says(result.module()))
    check_clients(trained, objective, seen[-1])


class Stop(Callback):
    """Ends a run as a crash would, after a round."""

    def __init__(self, after: int):
        self.after = after

    def on_round(self, record):
        if record["round"] == self.after:
            raise KeyboardInterrupt


def test_an_interrupted_run_is_read_from_its_checkpoint(tmp_path: Path):
    objective = fs.models.make_objective(CLIENTS, "embedding", seed=1)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", objective=objective, callbacks=[Stop(3)])
    trained = fs.load(tmp_path / "run")
    assert (trained.finished, trained.round) == (False, 2)
    assert "round 2" in trained.notes[0]
    method = fs.methods.fedsubavg(lr=0.5, clients_per_round=4)
    shorter = fs.run(method, objective, CLIENTS, rounds=2)
    assert torch.equal(says(trained.module()), says(shorter.module()))
    assert trained.vocabulary["item"] is not None


def test_personal_parameters_of_an_interrupted_run(tmp_path: Path):
    objective, method = scorer(), fs.methods.fedper(lr=0.5, clients_per_round=4)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", method, objective, callbacks=[Stop(3)])
    fs.run(method, objective, CLIENTS, rounds=2, out=tmp_path / "shorter")
    half, shorter = fs.load(tmp_path / "run"), fs.load(tmp_path / "shorter")
    for client in CLIENTS.client_ids:
        assert torch.equal(
            says(half.module(objective, client=client)), says(shorter.module(objective, client=client))
        )  # fmt: skip


def test_constants_that_a_checkpoint_lacks_must_be_the_same(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", callbacks=[Stop(3)])
    trained = fs.load(tmp_path / "run")
    trained.module(scorer(seed=9))
    with pytest.raises(ObjectiveError, match="shift of the module, which training keeps"):
        trained.module(scorer(shift=0.25))


def test_a_lazy_server_that_was_interrupted_owes_rounds(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", METHODS["fedsubadam"], callbacks=[Stop(3)])
    assert any("owes" in note for note in fs.load(tmp_path / "run").notes)


def test_a_comparison(tmp_path: Path):
    methods = {"FedSubAvg": METHODS["fedsubavg"], "Adam": METHODS["fedsubadam"]}
    single = {
        (label, seed): says(fs.run(method, scorer(seed), CLIENTS, rounds=3, seed=seed).module())
        for label, method in methods.items()
        for seed in (0, 1)
    }
    out = tmp_path / "compared"
    for resume in (False, True):  # trained, then read back from disk
        made = fs.compare(methods, scorer, CLIENTS, rounds=3, seeds=2, out=out, resume=resume)
        for label, results in made.results.items():
            for result in results:
                assert torch.equal(says(result.module()), single[label, result.seed])
    with pytest.raises(CheckpointError, match="adam-seed0"):
        fs.load(out)
    with pytest.raises(ObjectiveError, match="pass it"):
        finished_result(out / "adam-seed0").module()
    assert torch.equal(says(finished_result(out / "adam-seed0").module(scorer())), single["Adam", 0])


def test_a_comparison_without_a_directory_keeps_models_in_memory(monkeypatch: pytest.MonkeyPatch):
    methods = {"FedSubAvg": METHODS["fedsubavg"]}
    made = fs.compare(methods, scorer, CLIENTS, rounds=2, seeds=2)
    found = made.results["FedSubAvg"]
    for seed, result in enumerate(found):
        alone = fs.run(methods["FedSubAvg"], scorer(seed), CLIENTS, rounds=2, seed=seed)
        assert torch.equal(says(result.module()), says(alone.module()))
    size = sum(4 * value.numel() for value in found[0].params.values())
    monkeypatch.setattr(comparing, "MODELS", size)  # room for one
    first, second = fs.compare(methods, scorer, CLIENTS, rounds=2, seeds=2).results["FedSubAvg"]
    assert torch.equal(says(first.module()), says(made.results["FedSubAvg"][0].module()))
    with pytest.raises(RunError, match=r"too large for memory.*out=…"):
        second.module()


def test_a_damaged_model_file(tmp_path: Path):
    result = train(tmp_path / "run")
    path = tmp_path / "run" / "model.safetensors"
    content = path.read_bytes()
    for broken in (content[:-1], content[:4], content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]):
        path.write_bytes(broken)
        with pytest.raises(CheckpointError, match="is damaged"):
            fs.load(tmp_path / "run")
    path.unlink()  # as the message says
    again = fs.load(tmp_path / "run")
    assert "checkpoint of round 4" in again.notes[0]
    assert torch.equal(says(again.module(scorer())), says(result.module()))


def test_a_damaged_personal_file(tmp_path: Path):
    train(tmp_path / "run", fs.methods.fedper(lr=0.5, clients_per_round=4))
    path = tmp_path / "run" / "personal.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    trained = fs.load(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"personal\.safetensors is missing or damaged"):
        trained.module(scorer(), client="user 0")


def test_bad_input(tmp_path: Path):
    with pytest.raises(CheckpointError, match="There is no directory"):
        fs.load(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="holds no run"):
        fs.load(tmp_path)
    run = tmp_path / "run"
    train(run, fs.methods.fedper(lr=0.5, clients_per_round=4))
    trained = fs.load(run)
    with pytest.raises(DataError, match="There is no client 'nobody' among the 9"):
        trained.module(scorer(), client="nobody")
    with pytest.raises(ObjectiveError, match="pass it"):
        trained.module()
    with pytest.raises(ObjectiveError, match=r"the module has no items\.weight"):
        trained.module(nn.Embedding(CLIENTS.size("item"), 3))
    wide = Scorer(CLIENTS.size("item") + 1, CLIENTS.size("shop"))
    with pytest.raises(ObjectiveError, match=r"items.weight is \[31, 3\] in the module and \[30, 3\]"):
        trained.module(wide)
    with pytest.raises(ObjectiveError, match=r"must be a torch\.nn\.Module"):
        trained.module("scorer")  # type: ignore[arg-type]
    for name, words in (("model.json", "newer fedsub"), ("versions.json", "newer fedsub")):
        path = run / name
        content = path.read_bytes()
        path.write_bytes(json.dumps(sealed(json.loads(content) | {"version": 99})).encode())
        with pytest.raises(CheckpointError, match=words):
            fs.load(run)
        path.write_bytes(content)


def test_no_personal_parameters(tmp_path: Path):
    train(tmp_path / "run")
    with pytest.raises(CheckpointError, match="no parameters of their own"):
        fs.load(tmp_path / "run").module(scorer(), client="user 0")


def test_a_run_of_an_older_version(tmp_path: Path):
    """Before there were models in run directories: the checkpoint serves, and a resume adds what is lacking."""
    result = train(tmp_path / "run")
    run = tmp_path / "run"
    for name in ("model.json", "model.safetensors"):
        (run / name).unlink()
    kept = json.loads((run / "result.json").read_bytes())
    for name in ("files", "kept", "logs", "seal"):
        del kept[name]
    (run / "result.json").write_text(json.dumps(kept))
    trained = fs.load(run)
    assert "older fedsub" in trained.notes[0]
    assert trained.vocabulary == {}
    assert torch.equal(says(trained.module(scorer())), says(result.module()))
    train(run, resume=True)
    assert fs.load(run).notes == ()
