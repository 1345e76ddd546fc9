"""Checkpoints of state whose big tables change in only a few rows per round.

A full checkpoint holds everything; the ones after it hold the rows that moved since the one before, so
that saving costs in proportion to what moved. A full one and the row files after it are a chain:

    round-00000100.full.safetensors   table/<name>                     tensor/<name>
    round-00000101.rows.safetensors   rows/<name>, values/<name>       tensor/<name>
    round-00000101.json               what the file must be, what it builds on, and the caller's `meta`

A checkpoint exists once its JSON does. The JSON carries a seal over itself and the seal of its parent, so
one seal vouches for a whole chain: nothing from another history can be mixed into it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from fedsub.disk.files import digest, dump, plain, remove_temporaries, write_atomic
from fedsub.disk.reading import read_json
from fedsub.disk.seal import seal_of
from fedsub.disk.tensorfile import (
    Rows,
    Source,
    TensorFile,
    check_savable,
    check_targets,
    filled,
    names,
    refill_rows,
    row_ids,
)
from fedsub.errors import CheckpointError

FORMAT, VERSION = "fedsub-checkpoint", 1
FULL, ROWS = "full", "rows"
_RECORD = re.compile(r"round-(\d{8,})\.json")
_DATA = re.compile(r"round-(\d{8,})\.(full|rows)\.safetensors")
_SPECIAL = "$float"  # how `meta` keeps NaN and infinities, which JSON has no word for


@dataclass
class Snapshot:
    """What a caller saves and gets back."""

    round: int
    tensors: dict[str, Tensor] = field(default_factory=dict)  # small: saved whole each time
    tables: dict[str, Tensor] = field(default_factory=dict)  # big, [rows, ...]: saved by the rows that moved
    meta: dict[str, Any] = field(default_factory=dict)  # JSON: counters, file offsets, ...; tuples become lists
    seal: str = ""  # of the checkpoint, once it has been saved or read


@dataclass(frozen=True)
class _Record:
    """The JSON beside a data file."""

    round: int
    kind: str
    file: str
    bytes: int
    digest: str
    parent: int | None
    parent_digest: str | None  # the parent's seal
    meta: dict[str, Any]
    seal: str = ""


class _Damaged(Exception):
    """A checkpoint that cannot be used: `culprit` is the round at fault, here or further back."""

    def __init__(self, culprit: int, reason: str) -> None:
        super().__init__(reason)
        self.culprit, self.reason = culprit, reason


class Checkpoints:
    """The checkpoints of one run in one folder.

    `keep` is how many chains stay on disk. A new full checkpoint is written once the row files of the
    chain would exceed `full_every_bytes` times the full one, which bounds both the disk space and the work
    of restoring; on average a row file then costs about twice its own bytes.

        saved = Checkpoints("out/checkpoints")
        saved.save(Snapshot(1, tables={"items": weight}), moved={"items": ids})
        snapshot, notes = saved.load(into={"items": weight})
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: int = 2, full_every_bytes: float = 1.0) -> None:
        if keep < 1 or not full_every_bytes >= 0:
            raise CheckpointError(
                f"keep={keep}, full_every_bytes={full_every_bytes}: must be at least 1, and at least 0."
            )
        self.folder = Path(folder)
        self.keep, self.full_every_bytes = keep, full_every_bytes
        self._tip: _Record | None = None  # the checkpoint that the tables differ from by `moved`
        self._layout: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        self._root = 0  # the round of its full checkpoint
        self._full_bytes = self._row_bytes = 0
        self._untidy = True  # there may be leftovers, or checkpoints that the next save replaces

    def latest_round(self) -> int | None:
        """The newest round with a record. Cheap: whether it is intact is seen by `load`."""
        return max(self._listing()[0], default=None)

    # Saving

    def save(self, snapshot: Snapshot, moved: Mapping[str, Rows] | None) -> Path:
        """Write a checkpoint; returns its data file.

        `moved[table]` holds the ids of the rows that changed since the last save (or load). None, or a
        table that is not named, means that this is not known: everything is saved.
        """
        self._check_order(snapshot.round)
        tables = {name: table.detach() for name, table in snapshot.tables.items()}
        whole = {f"tensor/{name}": tensor.detach() for name, tensor in snapshot.tensors.items()}
        check_savable(whole, tables)
        layout = {name: (table.dtype, tuple(table.shape)) for name, table in tables.items()}
        base = self._tip
        small = {name: Source(tensor) for name, tensor in whole.items()}
        ids = None if moved is None else row_ids(moved, tables)
        content = None
        if base is not None and ids is not None and layout == self._layout:
            content = self._affordable(TensorFile(small | _moved_rows(ids, tables)))
        if content is not None:
            path = self._write(snapshot, ROWS, content, base)
        else:
            full = {f"table/{name}": Source(table) for name, table in tables.items()}
            path = self._write(snapshot, FULL, TensorFile(small | full), None)
        self._layout = layout
        if content is None or self._untidy:
            self._tidy(base)
        return path

    def _check_order(self, number: int) -> None:
        if number < 0:
            raise CheckpointError(f"Round {number} cannot be saved: rounds are counted from 0.")
        newest = self._tip.round if self._tip else self.latest_round()
        if newest is not None and number <= newest:
            hint = "save later rounds only" if self._tip else "load() it first, or choose another directory"
            raise CheckpointError(
                f"Round {number} cannot be saved: {self.folder} already holds round {newest}; {hint}."
            )

    def _affordable(self, rows: TensorFile) -> TensorFile | None:
        """The row file, if the chain stays within its allowance with it."""
        return rows if self._row_bytes + rows.size <= self.full_every_bytes * self._full_bytes else None

    def _write(self, snapshot: Snapshot, kind: str, content: TensorFile, base: _Record | None) -> Path:
        # A fault in the caller's meta must show before gigabytes are written.
        meta = _packed(snapshot.meta)
        _make(self.folder)
        path = self.folder / f"round-{snapshot.round:08d}.{kind}.safetensors"
        # If anything below fails, the data file may stay without its record: the next save clears it away.
        untidy, self._untidy = self._untidy, True
        # Its name is synced with the record's: if a power failure keeps the record alone, that one is told incomplete.
        size, content_digest = write_atomic(path, content.write, sync_name=False)
        parent = (base.round, base.seal) if base else (None, None)
        record = _Record(snapshot.round, kind, path.name, size, content_digest, *parent, meta)
        data = {"format": FORMAT, "version": VERSION} | asdict(record)
        record = replace(record, seal=seal_of(data))
        write_atomic(self.folder / _record_name(record.round), dump(data | {"seal": record.seal}))
        self._untidy = untidy
        self._tip, snapshot.seal = record, record.seal
        if kind == FULL:
            self._root, self._full_bytes, self._row_bytes = record.round, size, 0
        else:
            self._row_bytes += size
        return path

    def _tidy(self, base: _Record | None) -> None:
        """Delete what the newest checkpoint replaces: old chains, damaged successors of `base`, leftovers."""
        assert self._tip is not None
        newest = self._tip.round
        remove_temporaries(self.folder)
        records, files = self._listing()
        replaced = {r for r in records | set(files) if r != newest and base is not None and r > base.round}
        earlier = (r for r in records if r < self._root and FULL in files.get(r, {}))
        roots = [self._root, *sorted(earlier, reverse=True)]
        oldest = roots[self.keep - 1] if len(roots) >= self.keep else 0
        for number in sorted(records | set(files)):
            gone = number in replaced or number < oldest
            if gone:
                # The record first: without it the data file is no checkpoint, at any moment of a crash.
                _remove(self.folder / _record_name(number))
            for kind, path in files.get(number, {}).items():
                if gone or number not in records or (number == newest and kind != self._tip.kind):
                    _remove(path)
        self._untidy = False

    # Loading

    def load(self, into: Mapping[str, Tensor] | None = None, *, round: int | None = None) -> tuple[Snapshot, list[str]]:
        """The newest intact checkpoint, and a sentence about each newer one that was not.

        With ``round`` it is that one or none; the next save replaces those after it.
        Tables named in `into` are filled in place and returned, without a second copy in memory; nothing
        is touched before every file of the chain has been verified.
        """
        records, files = self._listing()
        candidates = sorted(records | set(files), reverse=True)
        if not candidates:
            raise CheckpointError(f"There is no checkpoint in {self.folder}; start the run from the beginning.")
        if round is not None:
            there = ", ".join(map(str, sorted(candidates)))
            candidates = [number for number in candidates if number == round]
            if not candidates:
                raise CheckpointError(f"{self.folder} has checkpoints of the rounds {there}, and none of {round}.")
        chain, failures = self._newest_intact(candidates)
        used = chain[-1].round if chain else None
        notes = _sentences(failures, used)
        if not chain:
            raise CheckpointError(
                f"No checkpoint in {self.folder} is intact. {' '.join(notes)} "
                "Restore the folder from a copy, or start again in another directory."
            )
        snapshot = self._restore(chain, into or {})
        self._tip, self._untidy = chain[-1], True
        self._layout = {name: (table.dtype, tuple(table.shape)) for name, table in snapshot.tables.items()}
        self._root, self._full_bytes = chain[0].round, chain[0].bytes
        self._row_bytes = sum(record.bytes for record in chain[1:])
        return snapshot, notes

    def _newest_intact(self, candidates: list[int]) -> tuple[list[_Record], list[tuple[int, _Damaged]]]:
        """The chain of the first usable candidate, full one first, and what was wrong with those before."""
        broken: dict[int, _Damaged] = {}
        for number in candidates:
            walked: dict[int, _Record] = {}
            try:
                chain = self._chain(number, walked, broken)
            except _Damaged as damage:
                # Whatever led back to the culprit is lost with it, and is not read a second time.
                for reached in (number, damage.culprit, *walked):
                    broken.setdefault(reached, damage)
            else:
                return chain, [(newer, broken[newer]) for newer in candidates if newer > number]
        return [], [(number, broken[number]) for number in candidates]

    def _chain(self, number: int, walked: dict[int, _Record], broken: dict[int, _Damaged]) -> list[_Record]:
        child: _Record | None = None
        while True:
            if number in broken:
                raise broken[number]
            record = self._verified(number)
            if child is not None and child.parent_digest != record.seal:
                raise _Damaged(child.round, f"does not continue the round {number} that is on disk")
            walked[number] = record
            if record.parent is None:
                return list(reversed(walked.values()))
            child, number = record, record.parent

    def _verified(self, number: int) -> _Record:
        """The record of a round, its data file proven to be what was written."""
        try:
            record = self._read_record(number)
            path = self.folder / record.file
            size = path.stat().st_size
            if size != record.bytes:
                raise _Damaged(number, f"is damaged ({size:,} bytes, expected {record.bytes:,})")
            if digest(path) != record.digest:
                raise _Damaged(number, f"is damaged (the content of {record.file} does not match its digest)")
        except FileNotFoundError as error:
            missing = Path(error.filename).name
            raise _Damaged(number, f"is incomplete ({missing} is missing)") from error
        except OSError as error:
            raise _Damaged(number, f"cannot be read ({error.strerror})") from error
        return record

    def _read_record(self, number: int) -> _Record:
        name = _record_name(number)
        try:
            data = read_json(self.folder / name)
            if data["seal"] != seal_of(data):
                raise ValueError
            header = data.pop("format"), data.pop("version")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _Damaged(number, f"is damaged ({name} is not what was written)") from error
        # Only a seal that holds tells a newer version from a damaged number.
        _check_header(self.folder / name, *header)
        record = _Record(**data)
        if record.round != number or record.file != f"round-{number:08d}.{record.kind}.safetensors":
            raise _Damaged(number, f"is damaged ({name} describes round {record.round})")
        return record

    def _restore(self, chain: list[_Record], into: Mapping[str, Tensor]) -> Snapshot:
        tables: dict[str, Tensor] = {}
        with torch.no_grad():
            with safe_open(self.folder / chain[0].file, framework="pt") as file:
                slices = {name: file.get_slice(f"table/{name}") for name in names(file, "table/")}
                check_targets(slices, into, self.folder)
                for name, source in slices.items():
                    tables[name] = filled(source, into.get(name))
            for record in chain[1:]:
                with safe_open(self.folder / record.file, framework="pt") as file:
                    for name, table in tables.items():
                        refill_rows(table, file.get_tensor(f"rows/{name}"), file.get_slice(f"values/{name}"))
            with safe_open(self.folder / chain[-1].file, framework="pt") as file:
                # clone: what is read may be a view of the file, which a later save deletes.
                tensors = {n: file.get_tensor(f"tensor/{n}").clone() for n in names(file, "tensor/")}
        return Snapshot(chain[-1].round, tensors, tables, _unpacked(chain[-1].meta), chain[-1].seal)

    def _listing(self) -> tuple[set[int], dict[int, dict[str, Path]]]:
        """The rounds with a record, and the data files by round and kind."""
        records: set[int] = set()
        files: dict[int, dict[str, Path]] = {}
        other = ""
        if self.folder.exists() and not self.folder.is_dir():
            raise CheckpointError(f"{self.folder} is a file; choose a directory for the checkpoints.")
        for path in self.folder.iterdir() if self.folder.exists() else ():
            if match := _RECORD.fullmatch(path.name):
                records.add(int(match[1]))
            elif match := _DATA.fullmatch(path.name):
                files.setdefault(int(match[1]), {})[match[2]] = path
            elif not path.name.startswith("."):
                other = path.name
        if other and not records and not files:
            raise CheckpointError(
                f"{self.folder} holds other files ({other}) and no checkpoint; choose another directory."
            )
        return records, files


def _sentences(failures: list[tuple[int, _Damaged]], used: int | None) -> list[str]:
    """One sentence per culprit, however many rounds were lost with it."""
    groups = [(damage, [n for n, _ in group]) for damage, group in groupby(failures, key=lambda pair: pair[1])]
    notes = []
    for position, (damage, numbers) in enumerate(groups):
        text = f"Checkpoint of round {damage.culprit} {damage.reason}"
        lost = sorted(number for number in numbers if number != damage.culprit)
        if len(lost) == 1:
            text += f", and round {lost[0]} builds on it"
        elif lost:
            text += f", and rounds {lost[0]} to {lost[-1]} build on it"
        following = groups[position + 1][1][0] if position + 1 < len(groups) else used
        notes.append(f"{text}." if following is None else f"{text}; going back to round {following}.")
    return notes


# Records


def _record_name(number: int) -> str:
    return f"round-{number:08d}.json"


def _check_header(path: Path, form: object, version: object) -> None:
    if form != FORMAT:
        raise CheckpointError(f"{path} is of the format {form!r}, not {FORMAT!r}; choose another directory.")
    if not isinstance(version, int) or version > VERSION:
        raise CheckpointError(
            f"{path} has version {version}, this fedsub reads up to {VERSION}; install a newer fedsub."
        )


def _packed(meta: Mapping[str, Any]) -> dict[str, Any]:
    if _holds(meta, _SPECIAL):
        raise CheckpointError(f"meta uses the key {_SPECIAL!r}, which is reserved; rename it.")
    return plain(meta, lambda value: {_SPECIAL: str(value)})


def _holds(value: Any, key: str) -> bool:
    if isinstance(value, Mapping):
        return key in value or any(_holds(item, key) for item in value.values())
    return isinstance(value, (list, tuple)) and any(_holds(item, key) for item in value)


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        return float(value[_SPECIAL]) if _SPECIAL in value else {k: _unpacked(v) for k, v in value.items()}
    return [_unpacked(item) for item in value] if isinstance(value, list) else value


# Data files and their folder


def _moved_rows(ids: Mapping[str, Tensor], tables: Mapping[str, Tensor]) -> dict[str, Source]:
    sources = {f"rows/{name}": Source(rows) for name, rows in ids.items()}
    return sources | {f"values/{name}": Source(tables[name], rows) for name, rows in ids.items()}


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be created ({error.strerror}); choose another.") from error


def _remove(path: Path) -> None:
    # A file that will not go is no reason to stop training.
    with suppress(OSError):
        path.unlink()
