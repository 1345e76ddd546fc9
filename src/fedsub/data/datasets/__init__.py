"""Public data sets, read as `Clients` with the preprocessing that papers use.

clients = fedsub.datasets.load("movielens-1m", Path("data"))             # from data/movielens-1m, or the cache
clients = fedsub.datasets.DATASETS["amazon-electronics"].read("reviews_Electronics_5.json.gz", history="released")
"""

from fedsub.data.datasets.cache import cache_dir, find, load
from fedsub.data.datasets.catalogue import DATASETS
from fedsub.data.datasets.movielens import movielens
from fedsub.data.datasets.registry import DataSet, File, recognise
from fedsub.data.datasets.seen import seen_in_training

__all__ = ["DATASETS", "DataSet", "File", "cache_dir", "find", "load", "movielens", "recognise", "seen_in_training"]
