"""Samples whose columns lie at different parties: made, or MovieLens-1M divided."""

from fedsub.vertical.data.ads import AdsWorld, expected_auc
from fedsub.vertical.data.movielens import movielens_sides
from fedsub.vertical.data.table import PartyTable, Sides

__all__ = ["AdsWorld", "PartyTable", "Sides", "expected_auc", "movielens_sides"]
