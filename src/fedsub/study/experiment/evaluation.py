"""From [evaluate] of a configuration to an `Evaluate`; metrics of the user's own are functions in files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsub.disk.functions import find, function_of

if TYPE_CHECKING:
    from fedsub.round.evaluate import Evaluate
    from fedsub.study.experiment.config import Evaluation, Rank

EXAMPLE = "my_metrics.py:brier"


def plan_of(given: Evaluation, base: Path) -> Evaluate:
    """As `fedsub.run` takes it; files with metrics lie next to the configuration, in ``base``."""
    from fedsub.round.evaluate import Evaluate, Seen
    from fedsub.round.norms import Norms
    from fedsub.study.experiment.config import Slopes

    slices = {name: Seen(s.split, tuple(s.columns), s.unseen) for name, s in given.slices.items()}
    samples = given.samples
    count = {k: _count(n) for k, n in samples.items()} if isinstance(samples, dict) else _count(samples)
    metrics: Any
    if isinstance(given.metrics, dict):
        metrics = {
            name: function_of(spec, base, f"evaluate.metrics.{name}", EXAMPLE) for name, spec in given.metrics.items()
        }
    else:
        metrics = [function_of(spec, base, "evaluate.metrics", EXAMPLE) for spec in given.metrics or ()]
    norms = Norms(**given.norms.model_dump()) if isinstance(given.norms, Slopes) else given.norms
    return Evaluate(
        given.every,
        count,
        _count(given.final_samples),
        slices,
        metrics,
        _ranking(given.ranking) if given.ranking else None,
        norms,
    )


def metric_files(given: Evaluation, base: Path) -> list[Path]:
    """The files that metrics of the user's own are in."""
    specs = given.metrics.values() if isinstance(given.metrics, dict) else given.metrics or ()
    found = (find(spec, base) for spec in specs)
    return sorted({file for file in found if file is not None})


def _ranking(given: Rank) -> Any:
    from fedsub.round.ranking import Ranking

    said = given.model_dump(exclude_none=True)
    for name in ("clients", "final_clients"):
        if name in said:
            said[name] = _count(said[name])
    return Ranking(**said)


def _count(given: int | str) -> int | None:
    return None if given == "all" else int(given)
