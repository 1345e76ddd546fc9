"""`fedsub privacy`: plan what a run will spend, see what one has spent, attack updates and models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsub.cli import leaks
from fedsub.cli.commands import Json, examples
from fedsub.errors import ConfigError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Differential privacy: plan a run, see what one has spent, attack updates and models.",
)


@app.callback()
def privacy() -> None:
    """Differential privacy: plan a run, see what one has spent, attack updates and models."""


@app.command(epilog=examples(
    "fedsub privacy plan --epsilon 8 --rounds 400 -k 50 --clients 6040",
    "fedsub privacy plan --noise 0.8 --rounds 1000 --rate 0.01 --delta 1e-6",
    "fedsub privacy plan --epsilon 4 --rounds 400 --rate 0.01 --heat 1 --out plan.png",
    "fedsub privacy plan --noise 40 --rounds 20 --rate 1 --row-sets 54",
))  # fmt: skip
def plan(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to be played.")],
    noise: Annotated[float | None, typer.Option(help="Noise of CentralDP, a multiple of clip.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Instead: the ε to stay within; the noise follows.")] = None,
    delta: Annotated[float, typer.Option(help="δ; far below one over the number of clients.")] = 1e-5,
    rate: Annotated[float | None, typer.Option(help="Chance that a client takes part in a round.")] = None,
    clients_per_round: Annotated[int | None, typer.Option("-k", min=1, help="Or: expected clients in a round")] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="… of so many.")] = None,
    heat: Annotated[float, typer.Option(help="ε that was spent on heat before.")] = 0.0,
    row_sets: Annotated[float, typer.Option(help="ε that perturbed row sets cost, all rows of a client.")] = 0.0,
    accountant: Annotated[str, typer.Option(help="By which noise is found: rdp, or pld, tighter and slower.")] = "rdp",
    out: Annotated[Path | None, typer.Option(help="A picture of ε over rounds.", metavar="FILE")] = None,
    json: Json = False,
) -> None:
    """ε for a noise, rate and number of rounds; or the noise for an ε."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from fedsub.cli.show import View
    from fedsub.privacy.accounting import check_accountant
    from fedsub.privacy.plan import Plan
    from fedsub.privacy.spending import Spend

    if (noise is None) == (epsilon is None):
        raise ConfigError("Give --noise or --epsilon, one of them; the other follows from it.")
    if rate is None:
        if clients_per_round is None or clients is None:
            raise ConfigError("Give --rate, or -k (clients per round) and --clients.")
        rate = clients_per_round / clients
    elif clients_per_round is not None or clients is not None:
        raise ConfigError("--rate says how many clients take part already; leave -k and --clients out.")
    if not 0 < rate <= 1:
        raise ConfigError(f"A client takes part with a chance between 0 and 1; got {rate:g}.")
    check_accountant(accountant)
    before = tuple(Spend.pure(what, e) for what, e in (("heat", heat), ("row sets", row_sets)) if e)
    view = View(as_json=json)
    with view.busy("Counting"):
        if noise is not None:
            made = Plan(noise, rate, rounds, delta, before)
        else:
            assert epsilon is not None
            made = Plan.to(epsilon, rate, rounds, delta, before, accountant)
        rows = made.table()
        if out is not None:
            try:
                made.draw(out, rows, epsilon)
            except (OSError, ValueError) as err:
                raise ConfigError(f"Cannot write the picture {out}: {err}; choose another --out.") from err
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("rounds", "ε (rdp)", "ε (pld)"):
        table.add_column(heading, justify="right")
    for row in rows:
        bold = "bold" if row["rounds"] == rounds else None
        table.add_row(f"{row['rounds']:,.0f}", f"{row['rdp']:.4g}", f"{row['pld']:.4g}", style=bold)
    first = "".join(f", {spend.what} ε {spend.epsilon:g}" for spend in before)
    view.line(f"noise {made.noise:.4g} × clip, rate {rate:.4g}, δ {delta:g}{first}")
    view.console.print(table)
    if out is not None:
        view.line(f"Picture: {out}")
    view.finish({
        "noise": made.noise, "rate": rate, "rounds": rounds, "delta": delta, "heat": heat, "row_sets": row_sets,
        "table": rows,
    })  # fmt: skip


@app.command(epilog=examples(
    "fedsub privacy audit --noise 1 --rate 0.5 --rounds 50",
    "fedsub privacy audit --noise 0 --canaries 2000",
))  # fmt: skip
def audit(
    noise: Annotated[float, typer.Option(help="Noise of CentralDP, a multiple of clip; 0 for none.")],
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to be played.")] = 50,
    rate: Annotated[float, typer.Option(help="Chance that a client takes part in a round.")] = 0.5,
    canaries: Annotated[int, typer.Option(min=20, help="Clients made to be seen, half of which are there.")] = 1000,
    guesses: Annotated[float, typer.Option(help="Share of the canaries on which the attacker guesses.")] = 0.2,
    delta: Annotated[float, typer.Option(help="δ of both bounds.")] = 1e-5,
    eager: Annotated[bool, typer.Option("--eager", help="Noise for all rows in every round.")] = False,
    quantile: Annotated[float | None, typer.Option(help="A clip norm that follows this quantile.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of coins, cohorts and noise.")] = 0,
    json: Json = False,
) -> None:
    """Attack a run: a lower bound on ε from guesses who was there, beside the accountant's upper bound."""
    from dataclasses import asdict

    from fedsub.cli.show import View
    from fedsub.study.audit import audit as attack

    view = View(as_json=json)
    with view.busy("Training on canaries"):
        found = attack(
            noise, rounds=rounds, rate=rate, canaries=canaries, guesses=guesses, delta=delta, eager=eager,
            quantile=quantile, seed=seed,
        )  # fmt: skip
    view.line(f"{found.correct} of {found.guesses} guesses on {found.canaries:,} canaries are right")
    upper = f"{found.upper:.4g}" if found.upper < float("inf") else "none (without noise)"
    view.line(f"ε at δ = {delta:g}: above {found.lower:.4g} ({found.confidence:.0%}), below {upper} (accountant)")
    if found.lower > found.upper:
        view.line("The guesses refute the accountant: something is less private than it is said to be.")
    view.finish({**asdict(found), "upper": found.upper if found.upper < float("inf") else None})


leaks.register(app)


@app.command(epilog=examples("fedsub privacy spent runs/private", "fedsub privacy spent runs/private --json"))
def spent(
    directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run, or a folder of runs.")],
    json: Json = False,
) -> None:
    """What runs have spent up to their newest checkpoint, on what, and what is left."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from fedsub.cli.show import View
    from fedsub.privacy.spending import spends_of

    found = {path: _spent(path) for path in _runs(directory)}
    view = View(as_json=json)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("run", "on", "ε so far", "δ", "budget", "accountant"):
        table.add_column(heading, justify="left" if heading in ("run", "on") else "right", overflow="fold")
    for path, one in found.items():
        on = "; ".join(
            f"{s.what} ({s.times:,} × noise {s.noise:.4g} at rate {s.rate:.4g})"
            if s.kind == "gaussian"
            else f"{s.what} (ε {s.epsilon * s.times:.4g})"
            for s in spends_of(one)
        )
        budget = f"{one['budget']:g}" if "budget" in one else "none"
        table.add_row(path.name, on, f"{one['epsilon']:.4g}", f"{one['delta']:g}", budget, one["accountant"])
    view.console.print(table)
    for path, one in found.items():
        if covers := one.get("covers"):
            view.line(f"{path.name}: ε is of {covers}")
        if clipping := one.get("clipping"):
            view.line(
                f"{path.name}: clip norm {clipping['clip']:.4g} at quantile {clipping['quantile']:g}; noise "
                f"{clipping['noise']:.4g} × clip for updates, {clipping['bit_noise']:.4g} for the count of those below "
                "it, both within ε"
            )
    view.finish({str(path): one for path, one in found.items()})


def _runs(directory: Path) -> list[Path]:
    from fedsub.running.start import PRIVACY

    runs = [path.parent for path in (directory / PRIVACY, *sorted(directory.glob(f"*/{PRIVACY}"))) if path.is_file()]
    if not runs:
        raise ConfigError(
            f"{directory} holds no {PRIVACY}: no run with differential privacy has saved a checkpoint there. Name the "
            "directory of a run with CentralDP, LocalDP or perturbed rows."
        )
    return runs


def _spent(path: Path) -> dict[str, Any]:
    from fedsub.privacy.accounting import epsilon
    from fedsub.privacy.spending import spends_of
    from fedsub.running.start import PRIVACY

    file = path / PRIVACY
    try:
        one = json.loads(file.read_bytes())
        return {**one, "epsilon": epsilon(spends_of(one), one["delta"], one["accountant"])}
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise ConfigError(
            f"{file} is damaged ({err}); the next checkpoint of the run (fedsub resume) writes it again."
        ) from err
