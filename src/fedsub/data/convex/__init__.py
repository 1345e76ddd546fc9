"""Data for convex problems: one column ``features`` of numbers, cut into clients that are alike or not.

libsvm("a1a", clients=20, split="sorted")           files in LibSVM's format
bundled("breast-cancer", split="uniform")           what comes with scikit-learn
generate_logistic(clients=20, heterogeneity=1.0)    a planted truth
divide(features, labels, clients=20)                arrays of your own
"""

from fedsub.data.convex.bundled import BUNDLED, bundled
from fedsub.data.convex.divide import divide
from fedsub.data.convex.generate import Planted, generate_least_squares, generate_logistic
from fedsub.data.convex.libsvm import libsvm

__all__ = ["BUNDLED", "Planted", "bundled", "divide", "generate_least_squares", "generate_logistic", "libsvm"]
