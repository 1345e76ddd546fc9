"""Settings suggested by optuna (extra ``tune``), one study per method.

Trial by trial: all methods are asked, all seeds trained, all told. So the suggestions depend on the seed and the
results alone, not on the workers, and a search that goes on is asked the same again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedsub.errors import lacking
from fedsub.study.tuning.space import Axis, Candidate, Values


class Studies:
    def __init__(self, candidates: Sequence[Candidate], axes: dict[str, list[Axis]], seed: int):
        try:
            import optuna
        except ImportError as error:
            raise lacking('optuna (search="random", --search random, does without)', "tune") from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._axes = axes
        self._studies: dict[str, Any] = {
            c.label: optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed)) for c in candidates
        }
        self._asked: dict[str, Any] = {}

    def ask(self, candidate: Candidate) -> Values:
        asked = self._asked[candidate.label] = self._studies[candidate.label].ask()
        shares = {a: asked.suggest_float(a.name, 0.0, 1.0) for a in self._axes[candidate.label]}
        return {a.name: candidate.value(a, a.at(share), exact=False) for a, share in shares.items()}

    def tell(self, label: str, value: float) -> None:
        """The criterion of the trial that was asked last; what diverged is infinitely bad."""
        self._studies[label].tell(self._asked[label], value if math.isfinite(value) else math.inf)
