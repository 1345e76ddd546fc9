"""`fedsub vertical attack`: what a curious party learns of labels, with and without protections."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsub.cli.commands import Json, examples
from fedsub.cli.options import seed_list
from fedsub.errors import ConfigError

if TYPE_CHECKING:
    from fedsub.vertical import Sides

PROTECTIONS = ("none", "norm", "maxnorm", "iso:4", "marvell:4", "marvell:16", "mixup", "project", "mixup+project")
EPILOG = examples(
    "fedsub vertical attack ads --protect none --protect marvell:4 --out runs/attack",
    "fedsub vertical attack ml-1m.zip --users 1000 --seeds 3",
)


def attack(
    what: Annotated[
        str,
        typer.Argument(metavar="DATA", help="ads: a made world of clicks and conversions. Or MovieLens-1M: its path."),
    ] = "ads",
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
    batch_size: Annotated[int, typer.Option("--batch-size", min=2, help="Samples of a batch.")] = 256,
    known: Annotated[int, typer.Option(min=1, help="Samples of either class whose labels the attacker knows.")] = 20,
    impressions: Annotated[int, typer.Option(min=100, help="Of ads: impressions; a tenth is clicked.")] = 400_000,
    aligned: Annotated[float, typer.Option(help="Of ads: share of clicks that both parties know.")] = 0.5,
    users: Annotated[int, typer.Option(min=1, help="Of MovieLens-1M: so many users.")] = 500,
    out: Annotated[Path | None, typer.Option(help="attack.json, attack.csv and attack.png.", metavar="DIR")] = None,
    json: Json = False,
) -> None:
    """Train a split model with each protection, attack its labels, and show attack AUC beside task AUC.

    The label party is the ads platform, or who has ratings and histories; the attacker the publisher, or who has
    profiles and genres. Everything is simulated in this process.
    """  # fmt: skip
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from fedsub.cli.show import View
    from fedsub.disk.files import output_folder
    from fedsub.vertical.attacks import attack as run_attacks
    from fedsub.vertical.attacks.shown import HEADINGS, save, table
    from fedsub.vertical.built import built
    from fedsub.vertical.protections import read_protections

    chosen = seed_list(seeds)
    numbers = list(range(chosen)) if isinstance(chosen, int) else chosen
    if not numbers:
        raise ConfigError(f"--seeds {seeds} is no seed at all; give how many (3) or which (0,7,8).")
    protections = {word: read_protections(word) for word in protect or PROTECTIONS}
    if out is not None:
        output_folder(out)
    view = View(as_json=json)
    sides, marks = _sides(what, impressions, aligned, users)
    train, test = sides
    view.line(
        f"{what}: {train.labelled.samples:,} samples to train on at {train.label_party} and {train.others[0]}, "
        f"{test.labelled.samples:,} to test"
    )
    with view.busy("Training") as status:

        def progress(protection: str, seed: int) -> None:
            if status is not None:
                status.update(f"Training with {protection}, seed {seed} …")

        found = run_attacks(
            lambda seed: built(train, test, seed=seed), protections,
            alone=lambda seed: built(train, test, seed=seed, alone=True), seeds=numbers, passes=passes,
            batch_size=batch_size, known=known, progress=progress,
        )  # fmt: skip
    shown = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), collapse_padding=True)
    for heading in HEADINGS:
        shown.add_column(heading, justify="left" if heading == "protection" else "right")
    for row in table(found):
        shown.add_row(*row)
    view.console.print(shown)
    view.line(f"task: {found.metric}; the rest: AUC of attacks on the labels of the training data, 0.5 is a guess.")
    for name, value in marks.items():
        view.line(f"{name}: the highest expected task AUC there can be, {value:.3f}")
    if out is not None:
        save(found, out, marks=marks)
        view.line(f"Saved: {out / 'attack.png'}, attack.csv, attack.json")
    view.finish({**found.plain(), "known_task_auc": marks, "out": out})


def _sides(what: str, impressions: int, aligned: float, users: int) -> tuple[tuple[Sides, Sides], dict[str, float]]:
    """((train, test), the best task AUC that is known) of the data that was asked for."""
    from fedsub.vertical import AdsWorld, expected_auc, movielens_sides

    if what == "ads":
        world = AdsWorld(impressions=impressions, users=500, ads=200, aligned=aligned)
        train, test = world.sides().aligned().split(0.2)
        truth = world.conversion(test)
        alone = world.conversion_alone(test.labelled)
        marks = {"both parties": expected_auc(truth, truth), "ads alone": expected_auc(alone, truth)}
        return (train, test), marks
    if not Path(what).exists():
        raise ConfigError(f"There is no {what}: give ads, or the path of MovieLens-1M.")
    return movielens_sides(what, users=users, recent=10).split(0.2), {}
