"""`fedsub privacy leaks`: what a curious server learns of clients from what they send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsub.cli.commands import What, examples
from fedsub.cli.options import Flags, takes
from fedsub.errors import ConfigError, FedsubError

if TYPE_CHECKING:
    from fedsub.method.slots import Method
    from fedsub.study.experiment.experiment import Experiment

EPILOG = examples(
    "fedsub privacy leaks movielens-like --scale 0.1 --seeds 3 --out runs/leaks",
    "fedsub privacy leaks movielens-1m --data ~/data/movielens-1m -m fedsubavg --protect none --protect secure:1",
    "fedsub privacy leaks study.toml --protect none --protect sign+steps:1",
)
# Flags of a training whose end nobody looks at.
LEFT_OUT = (
    "rounds", "target", "stop_at_target", "start", "start_state", "grow", "reference", "lost", "validation",
    "split_per_seed", "every", "metric", "rank", "norms", "engine", "chunk", "workers", "address", "deadline",
    "shards", "compile", "device", "devices", "out", "resume", "force_code", "checkpoint_every", "tensorboard",
)  # fmt: skip


def leaks(
    what: What,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "-m",
            help="A method or a label of [methods]. Repeatable. Default: fedavg.",
        ),
    ] = None,
    protect: Annotated[
        list[str] | None,
        typer.Option(
            help="none, steps:N, batch:N, sign, ef-sign, topk:SHARE, int8, local:clip=C,noise=Z, secure:CLIP, any "
            "setting as mu=0.1, or several with +. Repeatable. Default: one of each kind.",
            metavar="WORD",
        ),
    ] = None,
    after: Annotated[int, typer.Option(min=0, help="Rounds of training before the attacked one.")] = 10,
    attacked: Annotated[int, typer.Option(min=1, help="Clients of that round that are attacked, at most.")] = 20,
    rebuilds: Annotated[
        int, typer.Option(min=0, help="Of these, clients whose samples are rebuilt, if the model reads numbers.")
    ] = 3,
    space: Annotated[str | None, typer.Option(help="Rows to count: of this table's ids only.", metavar="NAME")] = None,
    out: Annotated[Path | None, typer.Option(help="For leaks.png, leaks.csv and leaks.json.", metavar="DIR")] = None,
    *,
    flags: Flags,
) -> None:
    """Attack a plain round and protected ones: whose rows, which labels, which features an update gives away.

    Training is simulated in this process, as ``fedsub run`` does it; then one more round is looked at.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from fedsub.cli import trust
    from fedsub.cli.show import View
    from fedsub.cli.what import experiment
    from fedsub.disk.files import output_folder
    from fedsub.study.leaks import attack
    from fedsub.study.leaks.shown import TABLE, columns, save
    from fedsub.study.leaks.words import USUAL

    made = experiment(what, flags, method or ["fedavg"])
    numbers = made.config.train.seed_list
    methods, odd = protected(made, protect or USUAL, 1)  # mistakes come before minutes of reading
    if odd and (protect or not methods):
        raise odd[0][1]
    if out is not None:
        output_folder(out)
    view = View(quiet=flags.quiet, as_json=flags.json)
    trust.check(made, view, trust=flags.trust, folder=made.base)
    for word, why in odd:
        view.note(f"Left out {word}: {why}")
    with view.busy("Reading") as status:
        cuts = made.cuts()
        train = cuts(numbers[0])["train"]
        methods, _ = protected(made, protect or USUAL, len(train))

        def progress(protection: str, seed: int) -> None:
            if status is not None:
                status.update(f"Attacking {protection}, seed {seed} …")

        found = attack(
            methods, made.objective(train), lambda seed: cuts(seed)["train"], after=after, most=attacked,
            rebuilds=rebuilds, seeds=numbers, space=space, progress=progress,
        )  # fmt: skip
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), collapse_padding=True)
    held = columns(found)
    table.add_column("protection", no_wrap=True, vertical="bottom")
    for name in held:
        table.add_column(TABLE[name], justify="right", vertical="bottom")
    for row in found.table(held, spread=False):
        table.add_row(*row)
    view.line(f"{made.name}: {len(train):,} clients, {train.samples:,} samples; round {after + 1} is attacked")
    view.console.print(table)
    view.line(
        "Rows named: those that the server is asked for, against those that a client holds. Rows used: those whose"
    )
    view.line("update is not 0, against those that it trained on. Labels: of the samples that it trained on.")
    if "rebuilt.error" in held:
        view.line("Rebuilt: 0, all numbers of the samples are rebuilt; 1, as good as the data's mean.")
    if out is not None:
        save(found, out)
        view.line(f"Saved: {out / 'leaks.png'}, leaks.csv, leaks.json")
    view.finish({"command": "privacy leaks", "what": what, **found.plain(), "out": out})


def protected(
    made: Experiment, words: Sequence[str], population: int
) -> tuple[dict[str, Method], list[tuple[str, FedsubError]]]:
    """Every method with every protection, by label; and the pairs that do not go together, with the reason."""
    from fedsub.study.experiment.config import parse
    from fedsub.study.leaks.words import settings_of

    out: dict[str, Any] = {}
    odd: list[tuple[str, FedsubError]] = []
    for key, own in made.config.methods.items():
        for word in words:
            name = word if len(made.config.methods) == 1 else f"{key}, {word}"
            if name in out:
                raise ConfigError(f"--protect {word} stands there twice; leave one out.")
            given = settings_of(word)
            kept = {k: v for k, v in own.items() if not (k == "local_epochs" and "local_steps" in given)}
            raw = {**made.config.plain(), "methods": {key: {**kept, **given}}}
            try:
                (out[name],) = replace(made, config=parse(raw, "The settings")).methods(population).values()
            except FedsubError as error:
                odd.append((name, error))
    return out, odd


def register(app: typer.Typer) -> None:
    app.command(epilog=EPILOG)(takes(Flags, without=LEFT_OUT)(leaks))
