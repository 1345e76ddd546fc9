"""What personal models say: many at once, one by one, and by a plain loop over the clients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from worlds import click_data, trainer_for

import fedsub as fs
from fedsub.data.clients import Clients
from fedsub.data.split import select
from fedsub.round.engines.base import Filled, columns_to
from fedsub.round.memory import ClientState
from fedsub.round.predict import PersonalModel, Predictor
from fedsub.trees import whole as at_hand

ALL = click_data((3, 9, 1, 12, 5, 7, 2, 8, 4, 6), items=25)


def named(clients: Clients) -> Clients:
    """Ids that are no positions, in no order."""
    ids = np.array([f"user {k * 7 % 10}" for k in range(len(clients))])
    return replace(clients, client_ids=ids)


def splits() -> tuple[Clients, Clients]:
    """Training lacks clients 2 and 7; the others keep some samples for the test, of client 8 none."""
    whole = named(ALL)
    train, test = whole.split(0.6, seed=1)
    held_out = select(test, [k for k, name in enumerate(test.client_ids) if name != whole.client_ids[8]])
    kept = select(train, [k for k, name in enumerate(train.client_ids) if name not in whole.client_ids[[2, 7]]])
    return kept, held_out


class Mixed(nn.Module):
    """Histories of several lengths and a masked mean, two tables over one space, a dense layer."""

    def __init__(self, items: int, places: int, slots: int, dtype=torch.float64):
        super().__init__()
        self.item, self.seen = (nn.Embedding(items, 3, padding_idx=0, dtype=dtype) for _ in range(2))
        self.place = nn.Embedding(places, 3, dtype=dtype)
        self.slot = nn.EmbeddingBag(slots, 2, mode="sum", dtype=dtype)
        self.out = nn.Linear(8, 1, dtype=dtype)

    def forward(self, batch):
        history = batch["history"]
        weight = (history != 0).to(self.out.weight.dtype)
        past = (self.seen(history) * weight.unsqueeze(-1)).sum(-2) / weight.sum(-1, keepdim=True).clamp_min(1)
        joined = torch.cat([self.item(batch["item"]) * past, self.place(batch["place"]).sum(-2),
                            self.slot(batch["slot"].unsqueeze(-1))], -1)  # fmt: skip
        return self.out(torch.tanh(joined)).squeeze(-1)


def goal_of(clients: Clients) -> fs.Objective:
    torch.manual_seed(4)
    module = Mixed(clients.size("item"), clients.size("place"), clients.size("slot"))
    tables = {
        "item.weight": "item", "seen.weight": "history", "place.weight": "place", "slot.weight": "slot",
    }  # fmt: skip
    return fs.Objective(module, fs.losses.binary("label"), tables)


def trained(names: list[str]) -> tuple[PersonalModel, fs.Objective, Clients, Clients, tuple[str, ...]]:
    train, test = splits()
    goal = goal_of(train)
    method = fs.methods.fedsubavg(
        personal=names, lr=0.5, local_steps=4, batch_size=4, clients_per_round=len(train), weighting="clients"
    )
    trainer = trainer_for(method, goal, train, "serial")
    for number in (1, 2):
        trainer.round(number)
    model = trainer.model(2)
    assert isinstance(model, PersonalModel)
    return model, goal, train, test, tuple(c for c in train.columns if c != "value")


def whole(model: PersonalModel) -> ClientState:
    assert isinstance(model.kept, ClientState)
    return model.kept


def by_hand(model: PersonalModel, goal: fs.Objective, train: Clients, split: Clients, columns) -> tuple:
    """For every client a whole model of its own, put together row by row."""
    losses, outputs = [], []
    kept, shared = whole(model), at_hand(model.shared, "The test")
    for k, name in enumerate(split.client_ids):
        own = {n: v.clone() for n, v in shared.items()}
        found = np.flatnonzero(train.client_ids == name)
        for parameter in model.names if len(found) else ():
            values = kept.read(model.slot, found)[parameter]
            space = kept.problem.tables.get(parameter)
            if space is None:
                own[parameter] = values[0]
            else:
                for row, value in zip(space.rows_of(int(found[0])).tolist(), values, strict=True):
                    own[parameter][row] = value
        samples = np.arange(split.offsets[k], split.offsets[k + 1])
        batch = columns_to(split.gather(samples, columns, local=False), torch.device("cpu"))
        with torch.no_grad():
            said = functional_call(goal.module, own, (batch,))
            losses.append(goal.loss(said, batch))
            outputs.append(said)
    return torch.cat(losses), torch.cat(outputs)


CASES = {
    "head": ["out.*"],
    "histories": ["seen.weight"],
    "tables and head": ["item.weight", "place.weight", "slot.weight", "out.bias"],
    "everything": ["*"],
}


@pytest.mark.parametrize("names", CASES.values(), ids=CASES)
def test_many_at_once_one_by_one_and_by_hand(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    model, goal, train, test, columns = trained(names)
    assert set(test.client_ids) - set(train.client_ids)  # newcomers
    assert set(train.client_ids) - set(test.client_ids)  # absent ones
    for split in (train, test):
        expected_loss, expected = by_hand(model, goal, train, split, columns)
        everything = np.arange(split.samples)
        mapped = Predictor(whole(model).problem, columns, torch.device("cpu"))
        losses, said = mapped(model, split, everything)
        assert mapped._filled is None, "the module was not mapped"
        torch.testing.assert_close(said, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(torch.from_numpy(losses), expected_loss, rtol=1e-12, atol=1e-12)
        # One after the other, as for modules that cannot be mapped.
        alone = Predictor(whole(model).problem, columns, torch.device("cpu"))
        alone._filled = Filled(alone._module)
        losses, said = alone(model, split, everything)
        torch.testing.assert_close(said, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(torch.from_numpy(losses), expected_loss, rtol=1e-12, atol=1e-12)
        # Some samples, not in the order of the clients, and few at a time.
        some = np.random.default_rng(0).permutation(split.samples)[: split.samples // 2]
        with monkeypatch.context() as patch:
            patch.setattr("fedsub.round.predict.TOGETHER", 7)
            losses, said = mapped(model, split, some)
        torch.testing.assert_close(said, expected[some], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(torch.from_numpy(losses), expected_loss[some], rtol=1e-12, atol=1e-12)


def test_rows_that_a_client_never_held_are_the_shared_ones() -> None:
    model, _, train, test, columns = trained(["item.weight", "seen.weight"])
    held = whole(model).problem.tables["item.weight"]
    foreign = 0
    for name in test.client_ids:
        if name in train.client_ids:
            mine = held.rows_of(int(np.flatnonzero(train.client_ids == name)[0]))
            k = int(np.flatnonzero(test.client_ids == name)[0])
            ids = test.gather(np.arange(test.offsets[k], test.offsets[k + 1]), ("item",), local=False)["item"]
            foreign += int((~np.isin(ids, mine)).sum())
    assert foreign > 3  # else nothing is tested
    # What is shared matters exactly for those rows and for newcomers.
    shared = at_hand(model.shared, "The test")
    predict = Predictor(whole(model).problem, columns, torch.device("cpu"))
    _, before = predict(model, test, np.arange(test.samples))
    other = replace(model, shared=shared | {"item.weight": shared["item.weight"] + 1.0})
    _, after = predict(other, test, np.arange(test.samples))
    owners = test.client_ids[test.clients_of(np.arange(test.samples))]
    read = test.gather(np.arange(test.samples), ("item", "history"), local=False)
    looked_up = read["history"].any(1)  # the item is multiplied by the mean of the history
    for sample in np.flatnonzero(looked_up):
        at = np.flatnonzero(train.client_ids == owners[sample])
        is_own = len(at) and read["item"][sample] in held.rows_of(int(at[0]))
        assert bool(before[sample] == after[sample]) == bool(is_own), sample


def test_a_module_that_cannot_be_mapped_is_asked_client_by_client() -> None:
    class Looks(Mixed):
        def forward(self, batch):
            found = super().forward(batch)
            return found if float(found.detach().sum()) > -1e9 else -found  # vmap allows no such question

    train, test = splits()
    goal = goal_of(train)
    other = Looks(train.size("item"), train.size("place"), train.size("slot"))
    other.load_state_dict(goal.module.state_dict())
    method = fs.methods.fedavg(personal="out.*", lr=0.5, local_steps=2, batch_size=4, clients_per_round=4)
    plain = fs.run(method, goal, train, rounds=2, test=test, engine="serial")
    looks = fs.run(method, replace(goal, module=other), train, rounds=2, test=test, engine="serial")
    for group in ("by_client", "gain"):
        ours, theirs = (found.final["test"][group] for found in (looks, plain))
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            if name == "better_off":  # one client's gain is 0, which rounds either way
                assert value == pytest.approx(theirs[name], abs=1 / 7 + 1e-9)
                continue
            assert value == pytest.approx(theirs[name], rel=1e-9, abs=1e-12), name


def test_nothing_to_predict() -> None:
    model, _, _, test, columns = trained(["out.*"])
    losses, said = Predictor(whole(model).problem, columns, torch.device("cpu"))(model, test, np.zeros(0, np.int64))
    assert len(losses) == len(said) == 0
