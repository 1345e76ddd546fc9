"""Public data sets, read as `Clients` with the preprocessing that papers use."""

from fedsub.datasets.movielens import movielens

__all__ = ["movielens"]
