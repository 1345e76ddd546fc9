"""The small data sets that come with scikit-learn, cut into clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedsub.data.clients import Clients
from fedsub.data.convex.divide import Alpha, Count, How, Scaling, Seed, divide
from fedsub.data.convex.libsvm import sklearn_datasets
from fedsub.data.datasets.options import Says
from fedsub.errors import DataError, nearest


@dataclass(frozen=True)
class Bundled:
    """One of them: its size, and what its label is ("binary", "classes" or "value")."""

    title: str
    samples: int
    features: int
    label: Literal["binary", "classes", "value"]
    about: str
    citation: str


BUNDLED: dict[str, Bundled] = {
    "breast-cancer": Bundled(
        "Breast cancer Wisconsin (diagnostic)", 569, 30, "binary", "measures of cell nuclei; label: benign",
        "W. N. Street, W. H. Wolberg, O. L. Mangasarian, SPIE 1905, 1993.",
    ),
    "digits": Bundled(
        "Optical recognition of handwritten digits", 1_797, 64, "classes", "8 × 8 pixels; label: the digit",
        "E. Alpaydin, C. Kaynak, Kybernetika 34(4), 1998.",
    ),
    "wine": Bundled(
        "Wine recognition", 178, 13, "classes", "chemical analysis; label: one of three growers",
        "M. Forina et al., PARVUS, 1988.",
    ),
    "iris": Bundled(
        "Iris plants", 150, 4, "classes", "lengths and widths; label: one of three species",
        "R. A. Fisher, Annals of Eugenics 7(2), 1936.",
    ),
    "diabetes": Bundled(
        "Diabetes", 442, 10, "value", "ten measures of patients; label: progression after a year",
        "B. Efron, T. Hastie, I. Johnstone, R. Tibshirani, Annals of Statistics 32(2), 2004.",
    ),
}  # fmt: skip


def bundled(
    name: str,
    *,
    clients: Count = 20,
    split: How = "sorted",
    scaling: Annotated[Scaling, Says("of the features")] = "standard",
    positive: Annotated[int | None, Says("the class whose label is 1, all others 0; none: class numbers", least=0)] = (
        None
    ),
    alpha: Alpha = 0.5,
    seed: Seed = 0,
) -> Clients:
    """One of `BUNDLED` ("breast-cancer", "digits", "wine", "iris", "diabetes"): columns ``features`` and ``label``.

    See `divide` for the options. A label that is a value (diabetes) is standardised too, unless ``scaling="raw"``.
    With ``positive=3`` the label of digits says whether it is a 3. Needs scikit-learn: pip install -e '.[sklearn]'.
    """
    known = str(name).replace("_", "-")
    if known not in BUNDLED:
        raise DataError(f"There is no bundled data set {name!r}; {nearest(known, BUNDLED)}")
    loader = getattr(sklearn_datasets(), f"load_{known.replace('-', '_')}")
    x, y = loader(return_X_y=True)
    y = y.astype(np.float64)
    if positive is not None:
        if BUNDLED[known].label == "value" or positive not in y:
            seen = "a value" if BUNDLED[known].label == "value" else f"a class from 0 to {y.max():g}"
            raise DataError(f"positive={positive!r}: the label of {known} is {seen}; choose a class, or leave it out.")
        y = (y == positive).astype(np.float64)
    elif BUNDLED[known].label == "value" and scaling != "raw":
        y = (y - y.mean()) / y.std()
    return divide(x, y, clients=clients, split=split, scaling=scaling, alpha=alpha, seed=seed, source=known)
