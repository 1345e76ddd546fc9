"""Tables of parties: what they refuse, who shares which samples, and MovieLens-1M divided."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedsub.data.clients import Clients
from fedsub.errors import DataError
from fedsub.vertical import Sides, held_out, movielens_sides

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


def columns(clients: Clients) -> dict[str, list]:
    """All columns by sample, ids as rows of the whole table."""
    return {k: v.tolist() for k, v in clients.gather(np.arange(clients.samples), local=False).items()}


def test_profile_and_ratings_lie_at_different_parties(release: Path) -> None:
    sides = movielens_sides(release, recent=2)
    ratings, profile = sides.parties["ratings"], sides.parties["profile"]
    assert sides.label_party == "ratings"
    assert sides.others == ("profile",)
    assert profile.label is None
    # Ids are 10,000 · user + movie. Films 30 of user 1 and 40 were rated one after the other, 40 and 50 at once.
    assert ratings.client_ids.tolist() == [10010, 10020, 10030, 10040, 10050, 20010, 20030]
    assert columns(ratings) == {
        "movie": [1, 2, 3, 4, 5, 1, 3],
        "history": [[0, 0], [1, 0], [1, 2], [1, 2], [2, 4], [3, 0], [0, 0]],
        "label": [1, 1, 0, 1, 0, 0, 1],
    }
    assert profile.client_ids.tolist() == ratings.client_ids.tolist()
    assert columns(profile) == {
        "gender": [0] * 5 + [1] * 2,
        "age": [0] * 5 + [6] * 2,
        "occupation": [10] * 5 + [16] * 2,
        "genre": [[1, 0], [2, 3], [3, 0], [1, 2], [2, 0], [1, 0], [3, 0]],
    }
    assert ratings.size("history") == ratings.size("movie") == 6
    assert (profile.size("occupation"), profile.size("genre")) == (21, 4)


def test_histories_are_the_likes_before_by_brute_force(release: Path) -> None:
    sides = movielens_sides(release, recent=3, division="history")
    assert set(sides.parties) == {"candidate", "sequence"}
    assert sides.label_party == "candidate"
    sequence = sides.parties["sequence"]
    got = dict(zip(sequence.client_ids.tolist(), columns(sequence)["history"], strict=True))
    number = {10: 1, 20: 2, 30: 3, 40: 4, 50: 5}
    seen: dict[int, list[int]] = {1: [], 2: []}
    for user, movie, stars, _ in sorted(RATINGS, key=lambda r: (r[0], r[3], r[1])):
        last = seen[user][-3:]
        assert got[10_000 * user + movie] == last + [0] * (3 - len(last))
        if stars >= 4:
            seen[user].append(number[movie])


def test_fewer_users_and_refusals(release: Path) -> None:
    assert len(movielens_sides(release, users=1).labelled) == 5
    with pytest.raises(DataError, match=r"division='din' is unknown.*history, profile"):
        movielens_sides(release, division="din")
    with pytest.raises(DataError, match="recent must be a whole number of at least 1"):
        movielens_sides(release, recent=0)
    (release / "users.dat").write_text("1::F::1::10::48067\n")
    with pytest.raises(DataError, match="ratings and users do not fit together"):
        movielens_sides(release)


def table(ids: list[str], label: bool = False) -> Clients:
    values = {"x": np.array([float(ord(i)) for i in ids])} | ({"y": np.array([i == "d" for i in ids])} if label else {})
    return Clients.from_arrays(values, np.array(ids), ids=[], values=["x"], label="y" if label else None)


def made() -> Sides:
    """Two parties in orders of their own; b and d are shared."""
    return Sides({"own": table(["d", "a", "b"], label=True), "other": table(["b", "c", "d"])}, "own")


def test_alignment_in_a_simulation() -> None:
    both = made().aligned()
    for data in both.parties.values():
        assert data.client_ids.tolist() == ["b", "d"]
        assert columns(data)["x"] == [ord("b"), ord("d")]
    rest = made().unaligned()
    assert rest.client_ids.tolist() == ["a"]
    assert columns(rest) == {"x": [ord("a")], "y": [0]}
    with pytest.raises(DataError, match="share no id"):
        Sides({"own": made().labelled, "other": table(["z"])}, "own").aligned()
    with pytest.raises(DataError, match="none is unaligned"):
        both.unaligned()


def test_all_parties_hold_out_the_same_samples(release: Path) -> None:
    sides = movielens_sides(release)
    for ids in (np.arange(2000), np.array([f"id {k}" for k in range(2000)])):
        order = np.random.default_rng(0).permutation(2000)
        assert (held_out(ids, 0.3)[order] == held_out(ids[order], 0.3)).all()
        assert 0.26 < held_out(ids, 0.3).mean() < 0.34  # four standard deviations
        assert (held_out(ids, 0.3, seed=1) != held_out(ids, 0.3)).any()
    train, test = sides.split(0.5)
    assert sorted([*train.labelled.client_ids, *test.labelled.client_ids]) == sides.labelled.client_ids.tolist()
    assert test.labelled.client_ids.tolist() == test.parties["profile"].client_ids.tolist()
    with pytest.raises(DataError, match="the share of the samples that are held out"):
        sides.split(1.0)


def test_sides_that_make_no_sense_are_refused() -> None:
    with pytest.raises(DataError, match="no party 'ow'; did you mean 'own'"):
        Sides(made().parties, "ow")
    with pytest.raises(DataError, match="The data of 'other' has no label"):
        Sides(made().parties, "other")
    with pytest.raises(DataError, match="has 3 samples and 2 ids"):
        Sides({"own": table(["a", "b"], label=True), "other": table(["a", "b", "a"])}, "own")
