"""`tune`: search settings, the same for every method, on validation data; then look at the test data, once.

space.py     axes, grids and draws                 choose.py   the best setting of each method, on validation
trials.py    one trial and its record              table.py    all trials and the winners, as text and CSV
workers.py   trials in several processes           suggest.py  optuna
search.py    `tune`, which ties them together
"""

from fedsub.study.tuning.search import Tuning, tune

__all__ = ["Tuning", "tune"]
