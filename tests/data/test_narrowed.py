"""What is left of clients' samples where only some of their rows came: against loops over the samples."""

from __future__ import annotations

from itertools import chain, product

import numpy as np
import pytest
from worlds import click_data, there

import fedsub as fs
from fedsub.data.narrowed import Came, Narrowed, narrowed

COLUMNS = ("item", "history", "place", "slot", "value", "label")


def given(data: fs.Clients, at: np.ndarray, share: float, extra: float, seed: int) -> dict[str, Came]:
    """Some rows of each client, and some that it does not hold; of a space with padding row 0 always."""
    draw, out = np.random.default_rng(seed), {}
    for name, space in data.spaces.items():
        each = []
        for client in at:
            named = draw.random(space.size) < np.where(
                np.isin(np.arange(space.size), space.rows_of(client)), share, extra
            )
            named[0] |= space.padding
            each.append(named.nonzero()[0])
        out[name] = Came(np.concatenate(each), np.array([len(one) for one in each]))
    return out


def rows_of(came: Came, k: int) -> list[int]:
    begin = int(came.counts[:k].sum())
    return came.rows[begin : begin + int(came.counts[k])].tolist()


def by_hand(data: fs.Clients, at: np.ndarray, came: dict[str, Came]) -> list[list[dict]]:
    """The samples that are left, with global rows."""
    out = []
    for k, client in enumerate(at.tolist()):
        left = []
        for sample in range(int(data.offsets[client]), int(data.offsets[client + 1])):
            one = {n: v[0] for n, v in data.gather(np.array([sample]), local=False).items()}
            column = data.columns["history"]
            length = int(there(column.starts)[sample + 1] - there(column.starts)[sample])
            there_is = {space: set(rows_of(rows, k)) for space, rows in came.items()}
            history = [row for row in one["history"][:length].tolist() if row in there_is["item"]]
            fine = int(one["item"]) in there_is["item"] and int(one["slot"]) in there_is["slot"]
            fine &= all(row in there_is["place"] for row in one["place"].tolist())
            if fine and (history or not length):
                left.append({**one, "history": history + [0] * (column.width - len(history))})
        out.append(left)
    return out


def found(data: fs.Clients, got: Narrowed, came: dict[str, Came], count: int) -> list[list[dict]]:
    out = []
    for k in range(count):
        own = np.arange(int(got.clients.offsets[k]), int(got.clients.offsets[k + 1]))
        local = got.clients.gather(own, local=True)
        for name, values in local.items():
            if (space := data.columns[name].space) is not None:
                local[name] = np.array(rows_of(came[space], k), np.int64)[values] if len(own) else values
        out.append([{name: values[i] for name, values in local.items()} for i in range(len(own))])
    return out


@pytest.mark.parametrize("share", [0.4, 0.8, 1.0])
def test_samples_are_left_out_and_lists_cut_as_by_hand(share: float) -> None:
    data, at = click_data(), np.array([5, 1, 3, 7, 2, 0])
    came = given(data, at, share, 0.3, seed=int(10 * share))
    got = narrowed(data, at, came, COLUMNS)
    expected, seen = by_hand(data, at, came), found(data, got, came, len(at))
    assert [len(one) for one in expected] == got.clients.sizes.tolist() == [len(one) for one in seen]
    for a, b in zip(chain(*expected), chain(*seen), strict=True):
        for name in COLUMNS:
            assert np.array_equal(a[name], b[name]), name
    assert (sum(map(len, expected)) == int(data.sizes[at].sum())) == (share == 1.0)
    for name, space in data.spaces.items():
        masks = np.concatenate([np.isin(rows_of(came[name], k), space.rows_of(c)) for k, c in enumerate(at.tolist())])
        assert np.array_equal(got.held[name], masks)
    left = np.flatnonzero(got.clients.sizes)
    assert (len(left) < len(at)) == (share < 1)
    some = got.take(left)
    assert some.clients.sizes.tolist() == got.clients.sizes[left].tolist()
    for k, place in enumerate(left.tolist()):
        for name, mask in some.held_by(slice(k, k + 1)).items():
            assert np.array_equal(mask, got.held_by(slice(place, place + 1))[name])


def test_ids_at_places_of_a_padded_space_become_padding() -> None:
    """A list of fixed width: what did not come is padding where it stood; what held nothing before is no loss."""
    data = fs.Clients.from_arrays(
        {"ids": np.array([[3, 1, 2], [1, 0, 0], [0, 0, 0], [2, 2, 0]]), "label": np.array([0, 1, 0, 1])},
        offsets=np.array([0, 4]), ids=["ids"], label="label", sizes={"ids": 5}, padding=("ids",),
    )  # fmt: skip
    rows = np.array([0, 2, 3, 4])
    got = narrowed(data, np.array([0]), {"ids": Came(rows, np.array([4]))}, ("ids", "label"))
    left = rows[got.clients.gather(np.arange(got.clients.samples), ["ids"], local=True)["ids"]]
    assert left.tolist() == [[3, 0, 2], [0, 0, 0], [2, 2, 0]]
    assert got.held["ids"].tolist() == [True, True, True, False]


def test_columns_that_nothing_reads_cost_no_samples() -> None:
    data = click_data()
    at, none = np.arange(len(data)), np.zeros(0, np.int64)
    came = {"place": Came(none, np.zeros(len(data), np.int64))}
    assert narrowed(data, at, came, ("item", "slot", "label")).clients.samples == data.samples
    assert narrowed(data, at, came, ("place", "label")).clients.samples == 0


def test_what_is_left_is_an_even_share_of_every_rows_samples() -> None:
    """Each of r rows comes with the chance p: E Σ over what is left is p^r Σ over all, row by row, by enumeration; and
    so is the number of samples. The quotient needs no factor: 1/p would be one too many."""
    samples = np.array([[0, 0], [0, 1], [1, 1], [2, 0], [2, 1], [2, 1]])
    data = fs.Clients.from_arrays(
        {"item": samples[:, 0], "user": samples[:, 1], "label": np.zeros(6, int)}, offsets=np.array([0, 6]),
        ids={"item": ["item"], "user": ["user"]}, label="label", sizes={"item": 3, "user": 2},
    )  # fmt: skip
    steps, p = np.random.default_rng(0).normal(size=6), 0.8828125  # what each sample adds to the rows that it names
    total, count = np.zeros(3), 0.0
    for there_is in product((False, True), repeat=5):
        chance = float(np.prod(np.where(there_is, p, 1 - p)))
        items, users = np.flatnonzero(there_is[:3]), np.flatnonzero(there_is[3:])
        came = {"item": Came(items, np.array([len(items)])), "user": Came(users, np.array([len(users)]))}
        left = narrowed(data, np.array([0]), came, ("item", "user", "label")).clients
        fine = [k for k, (item, user) in enumerate(samples) if item in items and user in users]
        assert left.samples == len(fine)
        own = items[left.gather(np.arange(left.samples), ["item"], local=True)["item"]] if len(fine) else items[:0]
        assert own.tolist() == samples[fine, 0].tolist()
        total += chance * np.bincount(own, steps[fine], minlength=3)
        count += chance * left.samples
    whole = np.bincount(samples[:, 0], steps, minlength=3)
    assert count == pytest.approx(p**2 * 6, rel=1e-12)
    assert total / count == pytest.approx(whole / 6, rel=1e-12)
