"""Samples whose columns lie at different parties: made, or MovieLens-1M divided."""

from fedsub.vertical.data.ads import AdsWorld, expected_auc
from fedsub.vertical.data.movielens import movielens_sides
from fedsub.vertical.data.sides import Sides, held_out

__all__ = ["AdsWorld", "Sides", "expected_auc", "held_out", "movielens_sides"]
