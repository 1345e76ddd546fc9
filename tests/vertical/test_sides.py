"""Tables of parties: what they refuse, who shares which samples, and MovieLens-1M divided."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedsub.errors import ColumnError, DataError
from fedsub.vertical import PartyTable, Sides, movielens_sides

RATINGS = [  # user, movie, stars, time
    (2, 30, 5, 40), (1, 10, 5, 10), (1, 20, 4, 20), (1, 30, 1, 30), (1, 40, 5, 40), (2, 10, 3, 50), (1, 50, 2, 40),
]  # fmt: skip


@pytest.fixture
def release(tmp_path: Path) -> Path:
    def write(name: str, rows: list[tuple]) -> None:
        (tmp_path / f"{name}.dat").write_text("".join("::".join(map(str, r)) + "\n" for r in rows), "latin-1")

    write("ratings", RATINGS)
    write("users", [(1, "F", 1, 10, "48067"), (2, "M", 56, 16, "70072")])
    genres = {10: "Comedy", 20: "Drama|War", 30: "War", 40: "Comedy|Drama", 50: "Drama"}
    write("movies", [(movie, f"Film {movie} (1990)", genre) for movie, genre in genres.items()])
    return tmp_path


def test_profile_and_ratings_lie_at_different_parties(release: Path) -> None:
    sides = movielens_sides(release, recent=2)
    ratings, profile = sides.parties["ratings"], sides.parties["profile"]
    assert sides.label_party == "ratings"
    assert sides.others == ("profile",)
    assert profile.label is None
    assert set(ratings.columns) == {"movie", "history", "label"}
    assert set(profile.columns) == {"gender", "age", "occupation", "genre"}
    # By user and time; ids are 10,000 · user + movie. Films 40 and 50 were rated in the same second.
    assert ratings.ids.tolist() == [10010, 10020, 10030, 10040, 10050, 20030, 20010]
    assert ratings.labels.tolist() == [1, 1, 0, 1, 0, 1, 0]
    assert ratings.columns["movie"].tolist() == [1, 2, 3, 4, 5, 3, 1]
    assert profile.columns["gender"].tolist() == [0] * 5 + [1] * 2
    assert profile.columns["age"].tolist() == [0] * 5 + [6] * 2
    assert profile.columns["occupation"].tolist() == [10] * 5 + [16] * 2
    assert profile.columns["genre"].tolist() == [[1, 0], [2, 3], [3, 0], [1, 2], [2, 0], [3, 0], [1, 0]]
    assert ratings.columns["history"].tolist() == [[0, 0], [1, 0], [1, 2], [1, 2], [2, 4], [0, 0], [3, 0]]


def test_histories_are_the_likes_before_by_brute_force(release: Path) -> None:
    sides = movielens_sides(release, recent=3, division="history")
    assert set(sides.parties) == {"candidate", "sequence"}
    assert sides.label_party == "candidate"
    number = {10: 1, 20: 2, 30: 3, 40: 4, 50: 5}
    seen: dict[int, list[int]] = {1: [], 2: []}
    for (user, movie, stars, _), got in zip(
        sorted(RATINGS, key=lambda r: (r[0], r[3], r[1])), sides.parties["sequence"].columns["history"], strict=True
    ):
        last = seen[user][-3:]
        assert got.tolist() == last + [0] * (3 - len(last))
        if stars >= 4:
            seen[user].append(number[movie])


def test_a_batch_is_what_modules_take(release: Path) -> None:
    batch = movielens_sides(release).parties["ratings"].batch(np.array([3, 0]))
    assert batch["movie"].dtype == torch.int64
    assert batch["movie"].tolist() == [4, 1]
    assert batch["label"].dtype == torch.float32
    assert batch["history"].shape == (2, 20)


def test_fewer_users_and_refusals(release: Path) -> None:
    assert len(movielens_sides(release, users=1).labelled) == 5
    with pytest.raises(DataError, match=r"division='din' is unknown.*history, profile"):
        movielens_sides(release, division="din")
    with pytest.raises(DataError, match="recent must be a whole number of at least 1"):
        movielens_sides(release, recent=0)
    (release / "users.dat").write_text("1::F::1::10::48067\n")
    with pytest.raises(DataError, match="ratings and users do not fit together"):
        movielens_sides(release)


def made() -> Sides:
    """Two parties in orders of their own; b and d are shared."""
    own = PartyTable(np.array(["d", "a", "b"]), {"x": np.array([3.0, 0, 1]), "y": np.array([1.0, 0, 0])}, label="y")
    other = PartyTable(np.array(["b", "c", "d"]), {"z": np.array([1, 2, 3])}, {"z": 4})
    return Sides({"own": own, "other": other}, "own")


def test_alignment_in_a_simulation() -> None:
    both = made().aligned()
    assert both.labelled.ids.tolist() == both.parties["other"].ids.tolist() == ["d", "b"]
    assert both.labelled.columns["x"].tolist() == both.parties["other"].columns["z"].tolist() == [3, 1]
    rest = made().unaligned()
    assert rest.ids.tolist() == ["a"]
    assert rest.labels.tolist() == [0]
    with pytest.raises(DataError, match="share no id"):
        Sides({"own": made().labelled, "other": made().parties["other"].take(np.array([1]))}, "own").aligned()


def test_all_parties_hold_out_the_same_samples(release: Path) -> None:
    sides = movielens_sides(release)
    for ids in (np.arange(2000), np.array([f"id {k}" for k in range(2000)])):
        a = PartyTable(ids, {"x": np.arange(2000)})
        shuffled = a.take(np.random.default_rng(0).permutation(2000))
        assert set(a.ids[a.held_out(0.3)]) == set(shuffled.ids[shuffled.held_out(0.3)])
        assert 0.26 < a.held_out(0.3).mean() < 0.34  # four standard deviations
        assert (a.held_out(0.3, seed=1) != a.held_out(0.3)).any()
    train, test = sides.split(0.5)
    assert sorted([*train.labelled.ids, *test.labelled.ids]) == sorted(sides.labelled.ids)
    assert set(test.labelled.ids) == set(test.parties["profile"].ids)
    with pytest.raises(DataError, match="the share of the samples that are held out"):
        sides.split(1.0)


def test_tables_that_make_no_sense_are_refused() -> None:
    with pytest.raises(DataError, match="The id 7 stands in more than one row"):
        PartyTable(np.array([7, 8, 7]), {})
    with pytest.raises(ColumnError, match="has 2 values for 3 ids"):
        PartyTable(np.arange(3), {"x": np.zeros(2)})
    with pytest.raises(ColumnError, match="from 0 to 4; expected whole numbers from 0 to 3"):
        PartyTable(np.arange(5), {"x": np.arange(5)}, {"x": 4})
    with pytest.raises(ColumnError, match="no column 'lable'"):
        PartyTable(np.arange(2), {"label": np.zeros(2)}, label="lable")
    with pytest.raises(ColumnError, match="expected whole numbers or text"):
        PartyTable(np.zeros(2), {})
    with pytest.raises(ColumnError, match="This party has no label"):
        _ = made().parties["other"].labels
