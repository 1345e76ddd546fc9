"""Synthetic twins of the public data sets: same shape and skew, a planted truth, nothing to download."""

from fedsub.twins.movielens import movielens_like

__all__ = ["movielens_like"]
