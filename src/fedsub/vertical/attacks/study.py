"""`attack`: train with each protection, and see what a curious feature party makes of what it was sent.

    attack        looks at
    norm          the gradient of a sample: its length
    direction     the same: its angle to those of known positives
    spectral      the same: its place along the direction in which gradients differ most
    activations   what the party's own trained bottom says: its place along the direction in which that differs most
    completion    the same: a head fitted to the known labels
    untrained     the same head on the bottom before training: what the party's features tell without any training

Gradients are looked at twice: those of the last pass over the data, and the mean of a sample's gradients over all
passes, which is what a patient attacker has. Noise that is drawn anew in every pass averages out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsub.checks import check_whole
from fedsub.errors import ConfigError, nearest
from fedsub.round.evaluate import Evaluate
from fedsub.round.quiet import one_thread
from fedsub.study.attacked import Attacked, Row
from fedsub.vertical.attacks import scores
from fedsub.vertical.attacks.notes import Notes, Watching
from fedsub.vertical.config import Study
from fedsub.vertical.data.sides import Sides, labels
from fedsub.vertical.party import Party
from fedsub.vertical.protection import Protection
from fedsub.vertical.run import LabelParty, run

Made = tuple[LabelParty, Sequence[Party]]
OF_GRADIENTS = {"norm": scores.norm, "direction": scores.direction, "spectral": scores.spectral}
ONE, ALL = "one", "all"  # passes looked at
ATTACKS = (
    *[f"{name}.{look}" for look in (ONE, ALL) for name in OF_GRADIENTS], "activations", "completion", "untrained",
)  # fmt: skip


def attack(
    make: Callable[[int], Made],
    protections: Mapping[str, Sequence[Protection]],
    *,
    curious: str | None = None,
    alone: Callable[[int], Made] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    passes: int = 3,
    batch_size: int = 256,
    known: int = 20,
    progress: Callable[[str, int], None] = lambda protection, seed: None,
) -> Attacked:
    """A table of attacks by protection, over seeds: a row has "task" and an AUC for every attack of `ATTACKS`.

    ``make(seed)`` gives the label party, whose own protections are replaced by each of ``protections`` in turn, and the
    feature parties; ``curious`` names the one that attacks (the first). ``alone(seed)`` is the label party by itself,
    for comparison. An attacker knows the labels of ``known`` samples of either class. The task is judged on the part
    "test", or where there is none on the training data.
    """
    check_whole("passes", passes, 1, error=ConfigError)
    check_whole("batch_size", batch_size, 2, error=ConfigError)
    if not protections:
        raise ConfigError("No protections were given; compare at least none, {'none': ()}.")
    rows, metric, samples = [], "", 0
    for seed in seeds:
        if alone is not None:
            progress("alone", seed)
            label, _ = alone(seed)
            metric, task, _ = _train(label, [], passes, batch_size, seed)
            rows.append({"protection": "alone", "seed": seed, "task": task})
        for name, some in protections.items():
            progress(name, seed)
            label, parties = make(seed)
            chosen = _curious(curious, parties)
            with one_thread():
                metric, row = _attacked(
                    replace(label, protections=some), parties, chosen, passes, batch_size, seed, known
                )
            rows.append({"protection": name, "seed": seed, **row})
            samples = label.data.samples
    settings = {
        "samples": samples,
        "passes": passes, "batch_size": batch_size, "known": known, "seeds": list(seeds),
        "protections": {name: [repr(one) for one in some] for name, some in protections.items()},
    }  # fmt: skip
    return Attacked(tuple(rows), metric, settings)


def attack_study(study: Study, protections: Mapping[str, Sequence[Protection]], **options: Any) -> Attacked:
    """`attack` of a configuration, with the label party alone beside it; ``options`` are those of `attack`."""

    @lru_cache(maxsize=1)
    def of(seed: int) -> tuple[Study, Sides]:
        return study.of_seed(seed), study.sides()

    def make(seed: int) -> Made:
        one, sides = of(seed)
        return one.label_party(sides.labelled), [one.party(name, sides.parties[name]) for name in one.others]

    def alone(seed: int) -> Made:
        one, sides = of(seed)
        return one.label_party(sides.labelled, alone=True), []

    return attack(make, protections, alone=alone, batch_size=study.config.train.batch_size, **options)


def _attacked(
    label: LabelParty, parties: Sequence[Party], place: int, passes: int, batch_size: int, seed: int, known: int
) -> tuple[str, Row]:
    notes, spy = Notes(), parties[place]
    untrained = _say(spy.bottom, spy)
    watched = replace(
        spy, bottom=Watching(spy.bottom, notes), tables={f"bottom.{name}": of for name, of in spy.tables.items()}
    )
    everybody = [*parties[:place], watched, *parties[place + 1 :]]
    metric, task, bottoms = _train(label, everybody, passes, batch_size, seed)
    secret = labels(label.data)
    told = scores.Known.draw(secret, known, seed)
    seen = notes.passes(seed, label.data.samples, batch_size)
    looks = {ONE: seen[-1], ALL: seen.mean(0)}
    made = {f"{name}.{k}": score(look, told) for k, look in looks.items() for name, score in OF_GRADIENTS.items()}
    z = _say(bottoms[spy.name].bottom, spy)
    made["activations"] = scores.spectral(z, told)
    made["completion"], made["untrained"] = scores.completion(z, told), scores.completion(untrained, told)
    return metric, {"task": task, **{name: scores.leak(made[name], secret, told) for name in ATTACKS}}


def _train(
    label: LabelParty, parties: Sequence[Party], passes: int, batch_size: int, seed: int
) -> tuple[str, float, Mapping[str, Any]]:
    """(the metric, its last value, the trained bottoms)."""
    outcome = run(
        label, parties, rounds=passes, steps=-(-label.data.samples // batch_size), batch_size=batch_size, seed=seed,
        evaluate=Evaluate(every=passes),
    )  # fmt: skip
    last = outcome.result.history[-1]
    metric = "test.auc" if "test.auc" in last else "train.auc"
    if metric not in last:
        raise ConfigError("Attacks are on binary labels, whose AUC is measured; this loss has none.")
    return metric, float(last[metric]), outcome.bottoms


def _curious(name: str | None, parties: Sequence[Party]) -> int:
    names = [party.name for party in parties]
    if not names:
        raise ConfigError("There is no feature party that could attack; give at least one.")
    if name is not None and name not in names:
        raise ConfigError(f"There is no feature party {name!r}; {nearest(name, names)}")
    return 0 if name is None else names.index(name)


def _say(bottom: nn.Module, party: Party) -> Tensor:
    """The activations of all samples of a party, [n, d]."""
    return torch.cat([z.flatten(1) for z in _batches(bottom.eval(), party)])


def _batches(bottom: nn.Module, party: Party, size: int = 4096) -> Iterator[Tensor]:
    for begin in range(0, party.data.samples, size):
        samples = np.arange(begin, min(begin + size, party.data.samples))
        arrays = party.data.gather(samples, local=False)
        batch = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in arrays.items()}
        with torch.no_grad():
            yield party.objective.output(bottom, batch)
