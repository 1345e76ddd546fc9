"""Samples whose columns lie at different parties: made, or MovieLens-1M divided."""

from fedsub.vertical.data.movielens import movielens_sides
from fedsub.vertical.data.table import PartyTable, Sides

__all__ = ["PartyTable", "Sides", "movielens_sides"]
