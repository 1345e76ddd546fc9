"""`fedsub vertical attack`: what a curious party learns of labels, with and without protections."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsub.cli.commands import Json, Trust, examples
from fedsub.cli.options import seed_list
from fedsub.errors import ConfigError

if TYPE_CHECKING:
    from fedsub.vertical.config import Study

PROTECTIONS = ("none", "norm", "maxnorm", "iso:4", "marvell:4", "marvell:16", "mixup", "project", "mixup+project")
EPILOG = examples(
    "fedsub vertical attack ads-like --protect none --protect marvell:4 --out runs/attack",
    "fedsub vertical attack movielens-1m --data ~/data/movielens-1m --scale 0.1 --seeds 3",
    "fedsub vertical attack study.toml --party shop",
)


def attack(
    what: Annotated[
        str,
        typer.Argument(metavar="WHAT", help="As of `fedsub vertical run`: a .toml file or a task.", show_default=False),
    ],
    party: Annotated[
        str | None, typer.Option(help="The feature party that attacks. Default: the first.", metavar="NAME")
    ] = None,
    protect: Annotated[
        list[str] | None,
        typer.Option(
            help="none, norm, maxnorm, iso:POWER, marvell:POWER, mixup:ALPHA, project:COSINE, or several "
            "with +. Repeatable. Default: one of each.",
            metavar="WORD",
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="How many seeds (3), or which (0,7,8).")] = "3",
    passes: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 4,
    known: Annotated[int, typer.Option(min=1, help="Samples of either class whose labels the attacker knows.")] = 20,
    data: Annotated[str | None, typer.Option(help="Folder with a task's data.", metavar="DIR")] = None,
    scale: Annotated[float | None, typer.Option(help="Size of a task's data; 1 is full size.")] = None,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting by its path: parties.shop.dim=8. Repeatable.", metavar="KEY=VALUE"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="For attack.png, attack.csv and attack.json.", metavar="DIR")] = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Train a split model with each protection, attack its labels, and show attack AUC beside task AUC.

    All parties are simulated in this process. Rounds and steps of the configuration are not used: training is
    ``--passes`` over the data.
    """  # fmt: skip
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from fedsub.cli import trust as code
    from fedsub.cli.show import View
    from fedsub.disk.files import output_folder
    from fedsub.study.experiment.config import merge, parse_set
    from fedsub.vertical.attacks import attack_study
    from fedsub.vertical.attacks.shown import HEADINGS, save, table
    from fedsub.vertical.config import read
    from fedsub.vertical.protections import read_protections

    chosen = seed_list(seeds)
    numbers = list(range(chosen)) if isinstance(chosen, int) else chosen
    if not numbers:
        raise ConfigError(f"--seeds {seeds} is no seed at all; give how many (3) or which (0,7,8).")
    protections = {word: read_protections(word) for word in protect or PROTECTIONS}
    if out is not None:
        output_folder(out)
    above: dict[str, Any] = {name: value for name, value in (("data", data), ("scale", scale)) if value is not None}
    for text in set or []:
        above = merge(above, parse_set(text))
    study = read(what, above)
    view = View(as_json=json)
    code.check_code(study.code(), study.base, view, trust=trust, folder=study.base)
    with view.busy("Training") as status:

        def progress(protection: str, seed: int) -> None:
            if status is not None:
                status.update(f"Training with {protection}, seed {seed} …")

        found = attack_study(
            study, protections, curious=party, seeds=numbers, passes=passes, known=known, progress=progress
        )
        marks = _known(study, numbers)
    shown = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), collapse_padding=True)
    for heading in HEADINGS:
        first = heading == "protection"
        shown.add_column(heading, justify="left" if first else "right", no_wrap=first)
    for row in table(found):
        shown.add_row(*row)
    view.line(f"{study.name}: {found.settings['samples']:,} samples to train on, {passes} passes")
    view.console.print(shown)
    view.line(f"task: {found.metric}. The rest: AUC of attacks on the labels of the training data; 0.5 is a guess.")
    for name, value in marks.items():
        view.line(f"The highest task AUC that can be expected of {name}: {value:.3f}")
    if out is not None:
        save(found, out, marks=marks)
        view.line(f"Saved: {out / 'attack.png'}, attack.csv, attack.json")
    view.finish({"command": "vertical attack", **found.plain(), "most": marks, "out": out})


def _known(study: Study, seeds: list[int]) -> dict[str, float]:
    """The best task AUC there is, by whose columns it takes, where the truth is known: the mean over seeds."""
    from fedsub.vertical.config import ads_world
    from fedsub.vertical.data import expected_auc

    if study.config.task != "ads-like":
        return {}
    world, sides, found = ads_world(study.config), study.sides(), []
    for seed in seeds:
        _, test = sides.split(study.config.train.test, seed)
        truth, alone = world.conversion(test), world.conversion_alone(test.labelled)
        found.append((expected_auc(truth, truth), expected_auc(alone, truth)))
    both, alone = (sum(values) / len(found) for values in zip(*found, strict=True))
    return {"both parties": both, "ads alone": alone}
