"""`fedsub data import` of tables of the user's own: from files larger than memory to a directory for training."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsub.cli.what import tables_of
from fedsub.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fedsub.cli.show import View

STEPS = {
    "copy": "Copying", "read": "Reading and sorting", "number": "Numbering ids", "write": "Writing clients",
    "finish": "Finishing",
}  # fmt: skip


@dataclass(frozen=True)
class Own:
    """The flags that say which column of a table is what, and what reading it may take."""

    client: str | None = None
    label: str | None = None
    table: list[str] | None = None
    value: list[str] | None = None
    nulls: str | None = None
    binary_label: bool | None = None
    max_len: int | None = None
    separator: str | None = None
    encoding: str | None = None
    memory: str | None = None
    workers: int | None = None
    rows: list[str] | None = None

    @property
    def given(self) -> list[str]:
        return [f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value not in (None, [])]


def is_own(path: str, own: Own) -> bool:
    """Whether a table of the user's own is meant, and not a data set that is known."""
    from fedsub.data.leaf import is_leaf

    return own.client is not None or ("://" not in path and is_leaf(Path(path).expanduser()))


def import_own(path: str, own: Own, to: Path | None, force: bool, view: View) -> None:
    from fedsub.data import Clients
    from fedsub.data.store import provenance

    if to is None:
        raise ConfigError("Say where to save the data: --to DIR, such as --to clicks.fedsub.")
    target = to.expanduser()
    if not force and provenance(target) is not None:
        raise DataError(f"{target} holds saved data already; --force replaces it, --to DIR saves somewhere else.")
    options: dict[str, Any] = {
        "ids": tables_of(own.table or []), "label": own.label, "values": own.value, "nulls": own.nulls,
        "max_len": own.max_len, "binary_label": own.binary_label, "memory": own.memory, "workers": own.workers,
        "sizes": sizes_of(own.rows),
    }  # fmt: skip
    options = {name: value for name, value in options.items() if value is not None}
    with _shown(view) as progress:
        if own.client is None:
            if own.separator or own.encoding:
                raise ConfigError("--separator and --encoding are of text files, and LEAF's are JSON; leave them out.")
            clients = Clients.from_leaf(Path(path).expanduser(), to=target, progress=progress, **options)
        else:
            place = path if "://" in path else Path(path).expanduser()
            text: dict[str, Any] = {"separator": own.separator, "encoding": own.encoding}
            clients = Clients.from_file(place, own.client, to=target, progress=progress, **text, **options)
    view.line(f"{len(clients):,} clients, {clients.samples:,} samples saved in {target}")
    for space in clients.spaces.values():
        view.line(f"Table {space.name}: {space.size:,} rows; columns {', '.join(space.columns)}")
    view.line(f"To train on it: fedsub run {target}")


def sizes_of(texts: list[str] | None) -> dict[str, int] | None:
    """["item=1000"] as {"item": 1000}."""
    out = {}
    for text in texts or []:
        name, _, count = text.partition("=")
        if not name.strip() or not count.strip().isdigit():
            raise ConfigError(f"Cannot read --rows {text!r}; write it like --rows item=1000: a table and its rows.")
        out[name.strip()] = int(count)
    return out or None


@contextmanager
def _shown(view: View) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for every step, on a terminal."""
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TextColumn("{task.percentage:>3.0f} %"))
    columns = (*columns, TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=view.console, transient=True, disable=not view.console.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(STEPS.get(what, what))
            bar.update(tasks[what], completed=done, total=total or None)

        yield tell
