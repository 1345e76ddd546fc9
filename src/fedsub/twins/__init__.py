"""Synthetic twins of the public data sets: same shape and skew, a planted truth, nothing to download."""

from fedsub.twins.alibaba import ALIBABA
from fedsub.twins.amazon import AMAZON
from fedsub.twins.movielens import MOVIELENS, movielens_like
from fedsub.twins.sentiment import SENTIMENT
from fedsub.twins.twin import Table1, Twin

TWINS: dict[str, Twin] = {twin.name: twin for twin in (MOVIELENS, SENTIMENT, AMAZON, ALIBABA)}

__all__ = ["TWINS", "Table1", "Twin", "movielens_like"]
