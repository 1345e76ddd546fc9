"""Data of many clients: reading, splitting, saving, and MovieLens, real and synthetic."""

from fedsub.data.clients import Clients, Column, Space
from fedsub.data.generate import movielens_like
from fedsub.data.movielens import movielens

__all__ = ["Clients", "Column", "Space", "movielens", "movielens_like"]
