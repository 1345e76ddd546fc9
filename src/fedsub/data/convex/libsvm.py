"""Files in the format of LibSVM and SVMlight, read by scikit-learn.

# a comment
+1 1:0.5 3:2        label, then index:value with rising indices; what is not named is 0
-1 qid:7 2:1        query ids are ignored
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from fedsub.data.clients import Array, Clients
from fedsub.data.convex.divide import Alpha, Count, How, Scaling, Seed, check_size, divide
from fedsub.data.datasets.options import Says
from fedsub.errors import DataError, lacking


def libsvm(
    path: str | os.PathLike[str],
    *,
    clients: Count = 20,
    split: How = "sorted",
    scaling: Annotated[Scaling, Says("of the features")] = "raw",
    labels: Annotated[
        Literal["binary", "keep"], Says("binary: the lower of two values is 0, the upper one 1; keep: as they are")
    ] = "binary",
    features: Annotated[int | None, Says("number of features, if the file does not name the last ones")] = None,
    alpha: Alpha = 0.5,
    seed: Seed = 0,
) -> Clients:
    """A LibSVM file (also .gz, .bz2) cut into clients: columns ``features`` and ``label``. See `divide`.

    Indices start at 1, or at 0 if there is an index 0. Labels −1 and 1, or 1 and 2, become 0 and 1; for regression and
    class numbers give ``labels="keep"``. Needs scikit-learn: pip install -e '.[sklearn]'.
    """
    file = Path(path)
    x, y = _read(file, features)
    return divide(
        x,
        two_valued(y, str(file)) if labels == "binary" else y,
        clients=clients,
        split=split,
        scaling=scaling,
        alpha=alpha,
        seed=seed,
        source=str(file),
    )


def two_valued(labels: Array, what: str) -> Array:
    """Labels as 0 and 1, the lower value first."""
    values = np.unique(labels)
    if not np.isfinite(values).all():
        raise DataError(f"{what} has labels that are no finite numbers; correct or drop these lines.")
    if len(values) != 2:
        seen = ", ".join(f"{v:g}" for v in values[:6]) + (", …" if len(values) > 6 else "")
        raise DataError(
            f'{what} has {len(values):,} different labels ({seen}), expected two; labels="keep" leaves them so, '
            "for a model with the squared loss (values) or cross-entropy (class numbers 0, 1, 2, …)."
        )
    return (labels == values[1]).astype(np.float64)


def sklearn_datasets():
    """scikit-learn's module of data sets, or how to get it."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise lacking("scikit-learn, which this data needs,", "sklearn") from error
    return datasets


def _read(file: Path, features: int | None) -> tuple[Array, Array]:
    reader = sklearn_datasets().load_svmlight_file
    if not file.is_file():
        raise DataError(f"There is no file {file}; check the path.")
    try:
        matrix, labels, *_ = reader(str(file), n_features=features)
    except (ValueError, OverflowError, OSError, EOFError, zlib.error) as error:
        said = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
        raise DataError(
            f"{file} cannot be read as LibSVM: {said}. Expected lines like '+1 1:0.5 3:2', with rising indices."
        ) from error
    if not len(labels):
        raise DataError(f"{file} has no samples; expected lines like '+1 1:0.5 3:2'.")
    check_size(len(labels), matrix.shape[1], str(file))
    return matrix.toarray(), labels
