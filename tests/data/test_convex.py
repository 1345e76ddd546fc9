"""Dense features for convex problems: LibSVM files, scikit-learn's sets, generators, and how they are cut."""

from __future__ import annotations

import builtins
import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsub as fs
from fedsub import data
from fedsub.data.convex.bundled import BUNDLED
from fedsub.data.convex.divide import owners, scaled
from fedsub.errors import ColumnError, DataError, MissingExtra


def labels_of(clients: fs.Clients) -> list[np.ndarray]:
    values = clients.columns["label"].values
    return [values[a:b] for a, b in zip(clients.offsets[:-1], clients.offsets[1:], strict=True)]


# How samples are given to clients ------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.integers(1, 12),
    st.sampled_from(["sorted", "uniform", "hom", "dirichlet"]),
    st.floats(1e-3, 1e3),
    st.integers(0, 5),
)
def test_every_sample_has_one_owner_and_sizes_are_even(labels, clients, split, alpha, seed):
    labels = np.array(labels, float)
    clients = min(clients, len(labels))
    parts = owners(labels, clients, split, alpha=alpha, seed=seed)
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))
    sizes = [len(p) for p in parts]
    assert len(parts) == clients
    assert max(sizes) - min(sizes) <= 1


def test_sorted_clients_hold_one_label_but_the_ones_at_the_border():
    clients = data.bundled("breast-cancer", clients=20, split="sorted")
    found = labels_of(clients)
    assert (np.diff(np.concatenate(found)) >= 0).all()
    assert sum(len(set(own)) > 1 for own in found) <= 1
    assert set(clients.sizes) == {28, 29}
    values = data.bundled("diabetes", clients=7)
    assert (np.diff(values.columns["label"].values) >= 0).all()


@pytest.mark.parametrize("split", ["uniform", "hom"])
def test_uniform_clients_are_like_the_whole(split):
    clients = data.bundled("breast-cancer", clients=10, split=split)
    share = clients.columns["label"].values.mean()
    sizes, means = clients.sizes, np.array([own.mean() for own in labels_of(clients)])
    z = (means - share) / np.sqrt(share * (1 - share) / sizes)
    # Sums of squares of 10 nearly normal numbers: between the 0.1 % points of chi-square with 9 degrees of freedom.
    assert 1.15 < (z**2).sum() < 27.9
    assert np.array_equal(np.concatenate(labels_of(data.bundled("breast-cancer", clients=10, split="uniform"))),
                          np.concatenate(labels_of(clients)))  # fmt: skip


def test_dirichlet_goes_from_one_label_each_to_the_mix_of_all():
    labels = np.repeat(np.arange(4.0), 250)

    def purity(alpha):
        parts = owners(labels, 10, "dirichlet", alpha=alpha, seed=1)
        return np.mean([np.bincount(labels[p].astype(int)).max() / len(p) for p in parts])

    assert purity(0.01) > 0.8 > purity(1.0) > purity(1000.0)
    assert purity(1000.0) < 0.35
    many = np.random.default_rng(0).normal(size=600)  # values are mixed by their tenths
    spread = [np.std([many[p].mean() for p in owners(many, 6, "dirichlet", alpha=a)]) for a in (0.05, 100.0)]
    assert spread[0] > 4 * spread[1]


def test_the_seed_decides():
    made = [data.bundled("wine", clients=5, split="uniform", seed=s).fingerprint for s in (0, 0, 1)]
    assert made[0] == made[1] != made[2]


def test_scaling():
    x = np.random.default_rng(0).normal(3, [1.0, 50.0, 0.0, 2.0], (40, 4))
    x[7] = 0
    standard = scaled(x, "standard")
    np.testing.assert_allclose(standard[:, [0, 1, 3]].mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(standard[:, [0, 1, 3]].std(0), 1)
    assert (scaled(np.full((5, 1), 0.1), "standard") == 0).all()
    norms = np.linalg.norm(scaled(x, "unit"), axis=1)
    assert norms[7] == 0
    np.testing.assert_allclose(np.delete(norms, 7), 1)
    np.testing.assert_allclose(np.linalg.norm(scaled(x, "standard-unit"), axis=1), 1)
    assert np.array_equal(scaled(x, "raw"), x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": 7}, "6 samples cannot be given to 7 clients"),
        ({"clients": 0}, "clients=0 must be a whole number"),
        ({"clients": 2.0}, "clients=2.0 must be a whole number"),
        ({"split": "sort"}, "split='sort' is unknown: did you mean 'sorted'"),
        ({"scaling": "norm"}, "scaling='norm' is unknown"),
        ({"split": "dirichlet", "alpha": 0.0}, "alpha=0.0 must be a number above 0"),
        ({"seed": -1}, "seed=-1 must be a whole number"),
        ({"labels": np.array([0, 1, np.nan, 1, 0, 1])}, "label of sample 2 is nan"),
        ({"labels": np.zeros(5)}, "one for each of the 6 samples"),
        ({"features": np.full((6, 2), np.inf)}, "Feature 0 of sample 0 is inf"),
        ({"features": np.zeros((6, 0))}, "expected numbers"),
        ({"features": np.zeros(6)}, r"shape \(6,\)"),
        ({"features": np.array([["a", "b"]] * 6)}, "expected numbers"),
        ({"features": np.zeros((0, 2)), "labels": np.zeros(0)}, "no samples"),
    ],
)
def test_divide_says_what_is_wrong(change, message):
    arguments = {"features": np.ones((6, 2)), "labels": np.array([0, 1, 0, 1, 0, 1.0]), "clients": 2} | change
    with pytest.raises(DataError, match=message):
        data.divide(arguments.pop("features"), arguments.pop("labels"), **arguments)


def test_numbers_beyond_float32_are_refused():
    with pytest.raises(ColumnError, match="finite"):
        data.divide(np.full((4, 2), 1e39), np.zeros(4), clients=2)


# LibSVM files --------------------------------------------------------------------------------------

TEXT = "# written by hand\n+1 1:0.5 3:2 # a comment\n-1 qid:4 2:-1\n\n-1\n+1 3:1e-2\n"
DENSE = np.array([[0.5, 0, 2], [0, -1, 0], [0, 0, 0], [0, 0, 0.01]])


def write(folder, text, name="small.libsvm"):
    file = folder / name
    file.write_text(text)
    return file


def test_a_libsvm_file_keeps_features_and_labels(tmp_path):
    clients = data.libsvm(write(tmp_path, TEXT), clients=2)
    assert list(clients.columns) == ["label", "features"]
    assert [list(own) for own in labels_of(clients)] == [[0, 0], [1, 1]]
    found = {
        tuple(row): y
        for row, y in zip(clients.columns["features"].values, clients.columns["label"].values, strict=True)
    }
    expected = {tuple(row): y for row, y in zip(DENSE.astype(np.float32), (1, 0, 0, 1), strict=True)}
    assert found == expected
    assert clients.source.endswith("small.libsvm")
    packed = tmp_path / "small.svm.gz"
    packed.write_bytes(gzip.compress(TEXT.encode()))
    assert data.libsvm(packed, clients=2).fingerprint == clients.fingerprint
    clients.save(tmp_path / "saved")
    assert fs.Clients.open(tmp_path / "saved", verify=True).fingerprint == clients.fingerprint


def test_indices_from_zero_and_more_features(tmp_path):
    zero = data.libsvm(write(tmp_path, "1 0:1 2:3\n2 1:1\n"), clients=2, split="uniform")
    assert zero.columns["features"].values.shape == (2, 3)
    wide = data.libsvm(write(tmp_path, "1 1:1 2:3\n2 1:1\n"), clients=1, features=6)
    assert wide.columns["features"].values.shape == (2, 6)
    one = data.libsvm(write(tmp_path, "1 1:1\n2 1:2\n"), clients=1)
    assert one.columns["features"].values.shape == (2, 1)


@pytest.mark.parametrize("pair", [(-1, 1), (1, 2), (0, 1), (3, 7.5)])
def test_two_labels_become_zero_and_one(tmp_path, pair):
    low, high = pair
    clients = data.libsvm(write(tmp_path, f"{high} 1:1\n{low} 1:2\n{high} 1:3\n"), clients=1)
    assert list(clients.columns["label"].values) == [0, 1, 1]


def test_other_labels_are_kept_on_demand(tmp_path):
    file = write(tmp_path, "1 1:1\n2 1:2\n5.5 1:3\n")
    with pytest.raises(DataError, match=r"3 different labels \(1, 2, 5.5\), expected two; labels=\"keep\""):
        data.libsvm(file, clients=1)
    clients = data.libsvm(file, clients=1, labels="keep")
    assert sorted(clients.columns["label"].values) == [1, 2, 5.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no samples"),
        ("# only a comment\n", "has no samples"),
        ("a,b\n1,2\n", "cannot be read as LibSVM: .*a,b"),
        ("1 1:x\n", "cannot be read as LibSVM"),
        ("1,2 1:1\n", "cannot be read as LibSVM"),
        ("1 3:1 2:1\n", "should be sorted and unique. Expected lines like"),
        ("1 -3:1\n", "Invalid index -3"),
        ("nan 1:1\n1 1:2\n", "labels that are no finite numbers"),
        ("-1 1:nan\n1 1:2\n", "Feature 0 of sample 0 is nan"),
        ("1 1:1\n1 1:2\n", "1 different labels"),
        ("1 1:1\n2 90000000:2\n" * 10, "GB as a matrix"),
    ],
)
def test_bad_libsvm_files(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        data.libsvm(write(tmp_path, text), clients=1)


def test_a_file_that_is_missing_damaged_or_too_small(tmp_path):
    with pytest.raises(DataError, match="There is no file"):
        data.libsvm(tmp_path / "none.libsvm")
    with pytest.raises(DataError, match="cannot be read as LibSVM"):
        data.libsvm(write(tmp_path, "not packed", "x.libsvm.gz"))
    (tmp_path / "cut.libsvm.gz").write_bytes(gzip.compress(b"1 1:1\n" * 5000)[:-20])
    with pytest.raises(DataError, match="cannot be read as LibSVM"):
        data.libsvm(tmp_path / "cut.libsvm.gz")
    with pytest.raises(DataError, match="4 samples cannot be given to 20 clients"):
        data.libsvm(write(tmp_path, TEXT))


def test_without_scikit_learn_there_is_a_command(monkeypatch, tmp_path):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == "sklearn":
            raise ImportError("No module named 'sklearn'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    for make in (lambda: data.libsvm(write(tmp_path, TEXT)), lambda: data.bundled("iris")):
        with pytest.raises(MissingExtra, match=r"pip install -e '\.\[sklearn\]'"):
            make()
    assert len(data.generate_logistic(clients=3)) == 3  # needs none


# What comes with scikit-learn ----------------------------------------------------------------------


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_sets_have_the_sizes_that_are_promised(name):
    about, clients = BUNDLED[name], data.bundled(name, clients=6, scaling="raw")
    assert clients.columns["features"].values.shape == (about.samples, about.features)
    values = np.unique(clients.columns["label"].values)
    if about.label == "value":
        assert len(values) > 100
        standard = data.bundled(name, clients=6).columns["label"].values
        np.testing.assert_allclose([standard.mean(), standard.std()], [0, 1], atol=1e-6)
    else:
        assert list(values) == list(range(len(values)))
        assert (len(values) == 2) == (about.label == "binary")


def test_one_class_against_the_others():
    clients = data.bundled("digits", positive=3, clients=4)
    assert clients.columns["label"].values.sum() == 183
    for name, positive in (("digits", 10), ("diabetes", 1)):
        with pytest.raises(DataError, match=f"positive={positive}"):
            data.bundled(name, positive=positive)
    with pytest.raises(DataError, match="did you mean 'breast-cancer'"):
        data.bundled("breast_cancr")
    assert data.bundled("breast_cancer").fingerprint == data.bundled("breast-cancer").fingerprint


# Generated -----------------------------------------------------------------------------------------


def by_client(clients, count):
    x, y = clients.columns["features"].values.astype(float), clients.columns["label"].values.astype(float)
    return x.reshape(count, -1, x.shape[1]), y.reshape(count, -1)


def test_least_squares_finds_the_planted_truth():
    problem = data.Planted("least-squares", clients=4, samples=30, dim=5, noise=0.0, shift=1.0)
    for x, y, truth in zip(*by_client(problem.make(), 4), problem.weights, strict=True):
        np.testing.assert_allclose(np.linalg.lstsq(x, y)[0], truth, atol=1e-5)


def test_logistic_labels_follow_the_planted_truth():
    problem = data.Planted("logistic", clients=3, samples=20_000, dim=4, seed=2)
    for x, y, truth in zip(*by_client(problem.make(), 3), problem.weights, strict=True):
        p = 1 / (1 + np.exp(-x @ truth))
        assert abs((y - p).mean()) < 4 * np.sqrt((p * (1 - p)).sum()) / len(y)
        score = x.T @ (y - p) / len(y)  # the log-likelihood is stationary at the truth
        assert np.abs(score).max() < 4.5 * 0.5 / np.sqrt(len(y))


def test_heterogeneity_moves_truths_and_shift_moves_features():
    same = data.Planted("logistic", heterogeneity=0.0)
    assert (same.weights == same.weights[0]).all()
    far = [data.Planted("logistic", heterogeneity=h).weights.std(0).mean() for h in (0.1, 1.0)]
    assert far[1] == pytest.approx(10 * far[0])
    spread = [by_client(data.generate_logistic(shift=s), 20)[0].mean(1).std() for s in (0.0, 10.0)]
    assert spread[1] > 5 * spread[0]
    assert data.generate_logistic(seed=1).fingerprint != data.generate_logistic().fingerprint
    assert data.generate_logistic().fingerprint == data.generate_logistic().fingerprint
    assert data.generate_least_squares(clients=3).sizes.tolist() == [50, 50, 50]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "logit"}, "kind='logit', expected"),
        ({"clients": 0}, "clients=0 must be a whole number, 1 or more"),
        ({"dim": 2.5}, "dim=2.5 must be a whole number"),
        ({"heterogeneity": -1}, "heterogeneity=-1 must be a number, 0 or more"),
        ({"noise": float("nan")}, "noise=nan"),
        ({"samples": 10**9}, "GB as a matrix"),
    ],
)
def test_generators_say_what_is_wrong(change, message):
    with pytest.raises(DataError, match=message):
        data.Planted(**({"kind": "logistic"} | change))
