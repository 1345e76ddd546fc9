"""`fedsub mixture`: the mixture of global and local models. `path` chooses λ."""

from __future__ import annotations

import math
import shlex
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsub.cli.commands import What, examples
from fedsub.cli.options import DATA, TRAIN, Flags, takes
from fedsub.errors import ConfigError

if TYPE_CHECKING:
    from fedsub.cli.show import View
    from fedsub.families.mixture.method import Mixture
    from fedsub.study.experiment.experiment import Experiment
    from fedsub.study.lambdas.choose import LambdaPath

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="The mixture of global and local models: how personal they should be.",
)
# Of a run, not of a path.
NOT_HERE = (
    "clients_per_round", "clients_fraction", "rounds", "local_steps", "local_epochs", "lr", "seeds", "target",
    "stop_at_target", "lost", "every", "chunk", "workers", "address", "deadline", "compile", "device",
    "checkpoint_every", "tensorboard", "shards", "devices", "validation", "split_per_seed", "reference", "metric",
    "rank",
)  # fmt: skip


@app.callback()
def mixture() -> None:
    """The mixture of global and local models: how personal they should be."""


def _lams(text: str) -> int | list[float]:
    """13, "0.01,0.1,1" or "0.001..10/9"; 0 and inf are always added."""
    from fedsub.study.tuning.space import make_axis

    if text.strip().isdigit():
        return int(text)
    named = [part for part in text.split(",") if part.strip().lower() not in ("0", "inf", "")]
    points = make_axis("lams", ",".join(named)).points if named else ()
    if named and not points:
        raise ConfigError(f"--lams {text} is a range without a number of points; write --lams {text}/9.")
    return [float(point) for point in points]


@app.command(epilog=examples(
    "fedsub mixture path breast-cancer",
    "fedsub mixture path digits --lams 0.001..10/9 --l2 0.01 --out runs/digits-path",
    "fedsub mixture path ratings.csv --client user --label liked --table item --l2 0.01 --select auc",
    "fedsub mixture path sentiment-like --scale 0.1 --model embedding --method l2sgd+ --rounds 2000",
    "fedsub mixture path breast-cancer --out runs/path --resume --lams 25",
))  # fmt: skip
@takes(Flags, without=NOT_HERE)
def path(
    what: What,
    lams: Annotated[
        str,
        typer.Option(
            help="How many λ between L/1000 and 10 L, or which: 0.01,0.1,1 or 0.001..10/9 (nine points). Besides "
            "these always 0 and infinity.",
            metavar="N|VALUES",
            rich_help_panel=TRAIN,
        ),
    ] = "13",
    l2: Annotated[
        float | None,
        typer.Option(help="Strength of the term (l2/2)‖x‖², which makes a convex loss strongly convex.",
                     rich_help_panel=DATA),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="A point is done when its optimality residual, over its size at the start, is at most this. Default "
            "1e-4 (1e-6 in double precision).",
            rich_help_panel=TRAIN,
        ),
    ] = None,
    most: Annotated[
        int, typer.Option(min=1, help="Iterations for one λ at most.", metavar="N", rich_help_panel=TRAIN)
    ] = 10_000,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            help="With --rounds: so many iterations of this method for every λ, not a tolerance. For losses that are "
            "not convex: l2sgd+, l2gd+, …",
            rich_help_panel=TRAIN,
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Iterations for every λ, with --method.", metavar="N", rich_help_panel=TRAIN),
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(help="Metric of the validation samples to choose λ by: ce, accuracy, auc, loss, rmse. Default: "
                     "the loss.", rich_help_panel=TRAIN),
    ] = None,
    validation: Annotated[
        float | None,
        typer.Option(help="Share of the training samples to choose λ by, default 0.1; training does not see them.",
                     rich_help_panel=DATA),
    ] = None,
    smoothness: Annotated[
        float | None,
        typer.Option("--smoothness", "-L", help="L, the largest curvature of a client's loss. Default: known for "
                     "linear models, else estimated.", rich_help_panel=TRAIN),
    ] = None,
    mu: Annotated[
        float | None,
        typer.Option("--mu", help="Strong convexity of the clients' losses. Default: l2, or estimated.",
                     rich_help_panel=TRAIN),
    ] = None,
    *,
    flags: Flags,
) -> None:  # fmt: skip
    """Trace personal models x(λ) from purely local (λ = 0) to one model for all (λ = ∞), and choose λ.

    For every λ: the training objective f, how far the models lie apart (ψ), the distance to both ends, communications,
    and metrics of validation samples, which are cut from the training samples. The best λ is chosen on these; test
    samples are looked at once, when the choice is made.

    Without --method the models are exact up to --tolerance, each started from the one before; this needs a convex loss
    and l2 > 0 (or --mu). With --method and --rounds every λ is trained so long from the beginning, whatever the model.
    Every point is kept in --out; --resume computes only those that are missing, and the grid may be wider.
    """
    from fedsub.cli.show import View
    from fedsub.cli.what import experiment

    if (method is None) != (rounds is None):
        raise ConfigError("--method and --rounds belong together: so many iterations of that method for every λ.")
    given = list(flags.set or []) + ([] if l2 is None else [f"model.l2={l2}"])
    made = experiment(what, replace(flags, set=given), None if method is None else [method])
    values = _lams(lams)
    _trace(
        made,
        View(quiet=flags.quiet, as_json=flags.json),
        what=what,
        method=None if method is None else _method(made),
        validation=made.config.tune.validation if validation is None else validation,
        resume=flags.resume,
        lams=values,
        rounds=rounds,
        tolerance=tolerance,
        most=most,
        metric=select,
        L=smoothness,
        mu=mu,
    )


def _method(made: Experiment) -> Mixture:
    from fedsub.families.mixture.method import Mixture

    (label, found), *_ = made.methods(2).items()
    if not isinstance(found, Mixture) or not found.solver.has_lam:
        raise ConfigError(
            f"--method {label} has no lam; use l2gd, l2gd+, l2sgd, l2sgd2, l2sgd+, apgd1, apgd2, iapgd or al2sgd+."
        )
    return found


def _trace(
    made: Experiment, view: View, *, what: str, method: Mixture | None, validation: float, resume: bool, **options: Any
) -> None:
    from fedsub.cli import folder
    from fedsub.cli.train import _counts
    from fedsub.study.experiment.experiment import expand

    config = made.config
    if not 0 < validation < 1:
        raise ConfigError(f"--validation is {validation:g}, expected a share of the training samples, such as 0.1.")
    out = expand(config.run.out) if config.run.out else folder.default_out(f"{made.name}-path")
    seed = config.train.seed_list[0]
    with view.busy("Loading"):
        from fedsub.study.lambdas.choose import choose_lambda

        train, held_out, _, test = made.split_with_validation(made.clients(), validation)
        objective = made.objective(train)(seed)
    view.note(
        f"{made.name}: {_counts(train)}; validation: {held_out.samples:,} samples"
        + (f"; test: {test.samples:,} samples" if test else "; no test split")
    )
    view.note(f"Writing to {out}")
    given = config.evaluate.final_samples
    watch = _watch(view)
    try:
        with watch.shown():
            found = choose_lambda(
                objective,
                train,
                held_out,
                test=test,
                method=method,
                engine=config.run.engine,
                seed=seed,
                samples=None if given == "all" else int(given),
                out=out,
                resume=resume,
                watch=watch,
                **options,
            )
    except KeyboardInterrupt:
        view.stopped(
            f"Stopped; finished points are kept. Go on with the same command and --resume --out {shlex.quote(str(out))}"
        )
        raise typer.Exit(130) from None
    _report(found, view, f"fedsub run {what}" + _next(found.chosen, method, options["rounds"]))


def _next(lam: float, method: Mixture | None, rounds: int | None) -> str:
    """How to train with the chosen λ."""
    name = "apgd1" if method is None else method.name
    return f" -m {name} --set methods.{name}.lam={lam:.4g}" + ("" if rounds is None else f" --rounds {rounds}")


def _watch(view: View) -> Any:
    from fedsub.study.lambdas.choose import Watcher
    from fedsub.study.lambdas.plot import name

    class Lines(Watcher):
        """``λ = 0.1, 3 of 15: f 0.1234, 57 communications, validation ce 0.2345``; a bar on a terminal."""

        def __init__(self) -> None:
            from fedsub.cli.progress import bars

            self.bars = bars(view) if view.console.is_terminal and not view.quiet else None
            self.task: Any = None
            self.done = self.total = 0

        def shown(self) -> AbstractContextManager[Any]:
            return self.bars if self.bars is not None else nullcontext()

        def on_start(self, lams: Any, known: Any, sentence: str) -> None:
            view.note(f"  {sentence}", "dim")
            self.total = len({*lams, *known})
            self.done = len(known)
            if known:
                view.note(f"{len(known)} of {self.total} points were computed before and are read.")
            if self.bars is not None:
                self.task = self.bars.add_task("λ", total=self.total, completed=self.done, value="")

        def on_iteration(self, lam: float, iteration: int, residual: float) -> None:
            if self.bars is not None:
                rest = "" if math.isnan(residual) else f", residual {residual:.1e}"
                self.bars.update(self.task, value=f"λ = {name(lam)}, iteration {iteration}{rest}")

        def on_point(self, point: dict[str, Any]) -> None:
            from fedsub.cli.show import number

            self.done = min(self.done + 1, self.total)
            if self.bars is not None:
                self.bars.update(self.task, completed=self.done)
                return
            metric = next(k for k in point if "." in k)
            view.note(
                f"λ = {name(point['lam'])}, {self.done} of {self.total}: f {number(point['f'])}, "
                f"{point['communications']:,} communications, {metric.replace('.', ' ')} {number(point[metric])}"
            )

    return Lines()


def _report(found: LambdaPath, view: View, then: str) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from fedsub.cli.show import number
    from fedsub.study.lambdas.plot import name
    from fedsub.study.report.words import words

    metrics = [key for key in found.points[0] if "." in key and not key.endswith("half_ce")]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), collapse_padding=True)
    headings = ["λ", "f", "ψ", "to x(0)", "to x(∞)", "residual", "iter-\nations", "communi-\ncations"]
    for heading in [*headings, *(key.replace(".", "\n") for key in metrics), ""]:
        table.add_column(heading, justify="right")
    for p in found.points:
        shown = [name(p["lam"]), *(number(p[k]) for k in ("f", "psi", "to_local", "to_global")), f"{p['residual']:.1e}"]
        counts = [f"{p['iterations']:,}", f"{p['communications']:,}"]
        mark = "chosen" if p["lam"] == found.chosen else ""
        table.add_row(*shown, *counts, *(number(p[k]) for k in metrics), mark, style="bold" if mark else "")
    if not view.quiet:
        view.console.print(table)
    if found.unfinished:
        listed = ", ".join(name(lam) for lam in found.unfinished)
        view.line(
            f"Not within the tolerance {found.tolerance:g}: λ = {listed}. Use a larger --tolerance, --l2 or --most.",
            "yellow",
        )
    key = f"validation.{found.metric}"
    view.line(f"Chosen: λ = {name(found.chosen)}, by {words(key)}: {number(found.best[key])}.")
    if found.chosen in (0.0, math.inf):
        kind = "purely local models" if found.chosen == 0 else "one model for all"
        view.line(f"That is an end of the path: {kind} did best; no mixture helps here.")
    for who, measured in found.test.items():
        told = ", ".join(f"{k} {number(v)}" for k, v in measured.items() if k not in ("lam", "half_ce"))
        view.line(f"Test, {who} (λ = {name(measured['lam'])}): {told}")
    if 0 < found.chosen < math.inf:
        view.note(f"Train with it: {then}")
    if found.path is not None:
        view.line(f"Table and picture: {found.path}/path.csv, path.json, path.png")
    view.finish({"command": "mixture path", "out": None if found.path is None else str(found.path), **found.summary()})
