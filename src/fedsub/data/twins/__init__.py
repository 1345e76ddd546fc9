"""Synthetic twins of the public data sets: same shape and skew, a planted truth, nothing to download."""

from fedsub.data.twins.alibaba import ALIBABA
from fedsub.data.twins.amazon import AMAZON
from fedsub.data.twins.movielens import MOVIELENS, movielens_like
from fedsub.data.twins.sentiment import SENTIMENT
from fedsub.data.twins.twin import Table1, Twin
from fedsub.data.twins.zipf import Zipf

TWINS: dict[str, Twin] = {twin.name: twin for twin in (MOVIELENS, SENTIMENT, AMAZON, ALIBABA)}

__all__ = ["TWINS", "Table1", "Twin", "Zipf", "movielens_like"]
