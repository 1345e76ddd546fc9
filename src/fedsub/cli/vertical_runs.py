"""What `fedsub vertical` does: the alignment of two files, and the parties of a split model."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import typer

from fedsub.cli import folder
from fedsub.cli.progress import follow
from fedsub.cli.show import View
from fedsub.data.reading import TableFile
from fedsub.disk.files import make_folder, output_folder
from fedsub.errors import ConfigError, DataError, WireError
from fedsub.round.channels import Listener, Tcp, client_tls, connect, server_tls
from fedsub.round.evaluate import Evaluate
from fedsub.running.result import Target
from fedsub.study.comparing import Comparison, slug
from fedsub.study.reading import write_names
from fedsub.vertical.align import intersect
from fedsub.vertical.config import Study
from fedsub.vertical.link import Remote
from fedsub.vertical.party import FeatureHalf, Party
from fedsub.vertical.run import run
from fedsub.vertical.serve import serve

if TYPE_CHECKING:
    from fedsub.vertical.run import Outcome

NAME = "Split"


@dataclass(frozen=True)
class Line:
    """Where the other side is, or waits for; and by which certificates both know each other."""

    listens: str | None
    connects: str | None
    certificate: Path | None
    key: Path | None
    authority: Path | None
    without_tls: bool
    only: str | None = None  # the common name that the certificate of who connects must have

    def __post_init__(self) -> None:
        if (self.listens is None) == (self.connects is None):
            raise ConfigError("One side says --listen HOST:PORT and the other --connect HOST:PORT.")
        given = [self.certificate, self.key, self.authority]
        if self.without_tls and any(given):
            raise ConfigError("--without-tls goes without --certificate, --key and --authority.")
        if not self.without_tls and None in given:
            raise ConfigError(
                "A line needs --certificate, --key and --authority (docs/vertical.md), or --without-tls where nobody "
                "else can reach it."
            )
        if self.only is not None and (self.without_tls or self.listens is None):
            raise ConfigError("--only names who may connect by a certificate; it goes with --listen and with TLS.")
        _ = self.address

    @property
    def address(self) -> tuple[str, int]:
        text = self.listens or self.connects or ""
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal() or int(port) > 65535:
            raise ConfigError(f"{text!r} is no address; write HOST:PORT, such as 127.0.0.1:7070.")
        return host, int(port)

    @property
    def tls(self) -> ssl.SSLContext | None:
        if self.without_tls:
            return None
        assert self.certificate is not None
        assert self.key is not None
        assert self.authority is not None
        if self.listens:
            return server_tls(self.certificate, self.key, clients=self.authority)
        return client_tls(self.authority, certificate=self.certificate, key=self.key)

    def listener(self, view: View) -> Listener:
        host, port = self.address
        made = Listener(host, port, tls=self.tls)
        view.note(f"Waiting at {host}:{made.port}")
        return made

    @contextmanager
    def channel(self, view: View) -> Iterator[Tcp]:
        """A line to one other side."""
        if self.connects:
            with connect(*self.address, tls=self.tls) as channel:
                yield channel
            return
        with self.listener(view) as listener:
            while True:
                channel = listener.accept()
                assert channel is not None
                with channel:
                    if why := self._stranger(channel):
                        view.note(f"Still waiting: {why}")
                        continue
                    yield channel
                    return

    def _stranger(self, channel: Tcp) -> str:
        """Why who connected is not the other side; empty if it is."""
        try:
            channel.greet()
        except WireError as error:
            return f"somebody connected, but {error}"
        if channel.closed:
            return f"somebody connected and {channel.closed}"
        if self.only is not None and channel.name != self.only:
            return f"{channel.name!r} connected, and only {self.only!r} may; nothing was sent to it."
        return ""


def align(file: Path, id: str, line: Line, *, count_only: bool, out: Path | None, view: View) -> None:
    out = out or file.with_name(f"{file.stem}-shared{'.parquet' if file.suffix == '.parquet' else '.csv'}")
    if not count_only:
        if out.suffix not in (".csv", ".parquet"):
            raise ConfigError(f"{out} must end with .csv or .parquet; choose another --out.")
        make_folder(output_folder(out.parent))
    with view.busy("Reading"):
        table = TableFile.of(file).scan().collect()
        if id not in table.columns:
            raise ConfigError(f"{file} has no column {id!r}; it has {', '.join(table.columns)}. Name it by --id.")
        ids = _usable(table[id], file)
    view.note(f"{len(ids):,} ids")
    with line.channel(view) as channel, view.busy("Aligning"):
        found = intersect(ids, channel, first=line.listens is not None, count_only=count_only)
    view.line(f"{found.shared:,} of {found.own:,} ids here are shared; the other side has {found.others:,}")
    told: dict[str, int | str] = {"shared": found.shared, "own": found.own, "others": found.others}
    if found.rows is not None:
        some = table[found.rows.tolist()]
        try:
            some.write_csv(out) if out.suffix == ".csv" else some.write_parquet(out)
        except OSError as error:
            raise ConfigError(f"Cannot write {out}: {error.strerror or error}; choose another --out.") from error
        view.line(f"Shared samples: {out}")
        told["out"] = str(out)
    view.finish({"command": "align", **told})


def _usable(ids: pl.Series, file: Path) -> list[Any]:
    """Refuse, before anybody waits for anybody, ids that an alignment would refuse."""
    if not (ids.dtype.is_integer() or ids.dtype == pl.String):
        raise DataError(f"{file}: the ids in {ids.name!r} are {ids.dtype}; they must be text or whole numbers.")
    for what, which in (("missing", ids.is_null()), ("there more than once", ids.is_duplicated())):
        if rows := which.arg_true().to_list():
            shown = ", ".join(f"{row} ({ids[row]!r})" for row in rows[:2])
            raise DataError(
                f"{file}: {len(rows):,} ids in {ids.name!r} are {what}, such as those of the rows {shown}; give every "
                "sample one id."
            )
    return ids.to_list()


def simulated(study: Study, view: View, out: Path | None, resume: bool) -> None:
    with view.busy("Loading"):
        sides = study.sides()
        parties = [study.party(name, sides.parties[name]) for name in study.others]
        label = study.label_party(sides.labelled)
    view.note(f"{study.name}: {sides.labelled.samples:,} samples are at all {len(study.names)} parties")
    _train(study, label, parties, view, out, resume)


def labelled(study: Study, lines: Mapping[str, Line], view: View, out: Path | None, resume: bool) -> None:
    with view.busy("Loading"):
        label = study.label_party(_own(study, study.label))
    parties = []
    for name in study.others:
        host, port = lines[name].address
        parties.append(Remote(name, host, port, lines[name].tls, patience=study.config.train.patience))
    _train(study, label, parties, view, out, resume)


def _own(study: Study, name: str):
    """A party's samples: of its file, which was aligned before; of a task, which is at hand whole, aligned now."""
    return study.data(name) if study.config.task is None else study.sides().parties[name]


def _train(
    study: Study, label, parties: list[Party] | list[Remote], view: View, out: Path | None, resume: bool
) -> None:
    settings = study.config.train
    out = out or folder.default_out(study.name)
    place = out / f"{slug(NAME)}-seed{settings.seed}"
    target = None if settings.target is None else Target.parse(settings.target)
    view.note(f"Writing to {out}")
    watch = follow(view, [NAME], [settings.seed], settings.rounds, target.metric if target else "test.auc")
    with _stopping(view, out), watch:
        found: Outcome = run(
            label, parties, rounds=settings.rounds, steps=settings.steps, batch_size=settings.batch_size,
            seed=settings.seed, target=target, out=place, resume=resume and place.exists(),
            checkpoint_every=settings.checkpoint_every, callbacks=[watch], evaluate=Evaluate(every=settings.every),
        )  # fmt: skip
    result = replace(found.result, method=NAME)
    comparison = Comparison({NAME: [result]}, target, "test.auc", out, list(_refused(found)), devices=None)
    write_names(comparison)
    with view.busy("Drawing"):
        page = comparison.save(out)
    view.table(comparison)
    view.line(f"Report: {page}")
    view.finish({"command": "vertical run", "out": str(out), "report": str(page), "refused": len(found.refused),
                 "final": result.final, "down": sum(r["down"] for r in result.history),
                 "up": sum(r["up"] for r in result.history)})  # fmt: skip


def _refused(found: Outcome) -> Iterator[str]:
    if found.refused:
        yield f"{len(found.refused)} messages could not be used and were refused; the first: {found.refused[0]}"


def feature(study: Study, name: str, line: Line, view: View, out: Path | None, resume: bool) -> None:
    with view.busy("Loading"):
        party = study.party(name, _own(study, name))
    out = out or folder.default_out(f"{study.name}-{name}")
    view.note(f"Writing to {out}")
    half = FeatureHalf(party, out, resume=resume and out.exists())
    assert half.store is not None
    with _stopping(view, out), closing(half.store), line.listener(view) as listener:
        serve(half, listener, view.note, line.only)
    view.line(f"Trained: {out}")
    view.finish({"command": "vertical run", "party": name, "out": str(out), "refused": half.refused})


@contextmanager
def _stopping(view: View, out: Path) -> Iterator[None]:
    """Ctrl-C: say what is kept and how to go on; exit code 130."""
    from fedsub.running.run import Interrupted

    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        view.stopped(f"Stopped. Go on with the same command and --out {out} --resume.")
        raise typer.Exit(130) from None
