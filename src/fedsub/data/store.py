"""Clients on disk: a directory of plain ``.npy`` files and a ``manifest.json`` that describes them.

    ratings.fedsub/
      manifest.json          format, version, fingerprint, names; dtype, shape, bytes and checksum of every file
      client_ids.npy  offsets.npy
      column0.npy  column0.starts.npy  column1.npy ...
      space0.rows.npy  space0.row_offsets.npy  space0.vocabulary.npy ...

Nothing is pickled. A save appears whole or not at all; opening maps the files, and looks over them once per process
(`fedsub.data.intact`).
"""

from __future__ import annotations

import errno
import json
import os
import re
import reprlib
import secrets
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from fedsub.data import intact
from fedsub.data.clients import Array, Clients, Column, Space
from fedsub.disk.reading import read_json
from fedsub.disk.seal import SEAL, check_seal, sealed
from fedsub.errors import StoreError

FORMAT, VERSION, MANIFEST = "fedsub-clients", 1, "manifest.json"
BLOCK = 1 << 20  # entries hashed or written at a time


def fingerprint(clients: Clients) -> str:
    """Identity of the content: equal for equal data, wherever and however it is stored."""
    about = describe(clients.label, clients.columns.values(), clients.spaces.values())
    return digest(about, ((name, array.dtype.str, array.shape, _blocks(array)) for name, array in _arrays(clients)))


def digest(about: dict[str, Any], arrays: Iterable[tuple[str, str, tuple[int, ...], Iterable[bytes]]]) -> str:
    """The fingerprint from what `describe` gives and (name, dtype, shape, content in pieces) of every array."""
    total = blake2b(digest_size=16)
    total.update(json.dumps(about, sort_keys=True).encode())
    for name, kind, shape, pieces in arrays:
        total.update(f"{name} {kind} {shape}".encode())
        for piece in pieces:
            total.update(piece)
    return total.hexdigest()


def save_clients(clients: Clients, path: str | os.PathLike[str], *, made: Mapping[str, Any] | None = None) -> None:
    """Write ``clients`` to the directory ``path``; an older save there is replaced, anything else is not.

    ``made`` says in the manifest what the data is and how it was made; `provenance` reads it.
    """
    with whole_directory(path) as fresh:
        _write(clients, fresh, dict(made or {}))


@contextmanager
def whole_directory(path: str | os.PathLike[str], ours: tuple[str, str] | None = None) -> Iterator[Path]:
    """A new directory to fill, which becomes ``path`` when the block ends well and vanishes when it does not.

    Only an empty directory or one that fedsub wrote is replaced: one whose file ``ours[0]`` is JSON with the
    format ``ours[1]`` (default: a saved `Clients`). What a killed process left beside ``path`` is removed.
    """
    target = check_replaceable(path, ours)
    token = secrets.token_hex(4)
    fresh, old = (target.with_name(f".{target.name}.{kind}-{token}") for kind in ("new", "old"))
    for stale in _leftovers(target, "new"):
        shutil.rmtree(stale, ignore_errors=True)
    try:
        fresh.mkdir(parents=True)
        yield fresh
        if target.exists():
            target.rename(old)
        try:
            fresh.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
        _sync(target.parent)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full; free some space or choose another path" if full else str(error)
        raise StoreError(f"Could not save to {target}: {reason}. Nothing was left behind.") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)


def check_replaceable(path: str | os.PathLike[str], ours: tuple[str, str] | None = None) -> Path:
    """The path as one that can be written to, as `whole_directory` says; refused otherwise."""
    target = _path(path)
    if not target.name:
        raise StoreError(f"{str(path)!r} names no directory of its own; give a name, such as 'ratings.fedsub'.")
    if (target.exists() or target.is_symlink()) and not _replaceable(target, *(ours or (MANIFEST, FORMAT))):
        raise StoreError(f"{target} exists and was not written by fedsub; choose another path or remove it first.")
    return target


def open_clients(path: str | os.PathLike[str], *, verify: bool | None = None) -> Clients:
    """Open what `save_clients` wrote, memory-mapped, after a look over the files (`fedsub.data.intact`).

    ``verify`` says what is looked over: None the files' checksums, once per process; True also the fingerprint of the
    content, each time; False only that every id is one that its client holds.
    """
    folder = _path(path)
    manifest = _read_manifest(folder)
    try:
        clients = _rebuild(folder, manifest)
        fault = intact.fault_of_parts(clients, manifest) or _changed(folder, manifest, verify)
        if not (fault or intact.looked_over(folder, manifest["files"])):
            fault = intact.fault_of_ids(clients)
    except StoreError:
        raise
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError, OSError) as error:
        raise StoreError(f"{folder / MANIFEST} is damaged: {error!r}. Build and save the data again.") from error
    if fault:
        raise StoreError(f"{folder} is damaged: {fault}. Build and save the data again, or copy the directory again.")
    whole = all("crc32" in entry for entry in manifest["files"].values())
    known = intact.looked_over(folder, manifest["files"])
    read = verify or (verify is None and not whole and not known)  # an older fedsub wrote no checksums
    if read and (seen := fingerprint(clients)) != clients.fingerprint:
        raise StoreError(
            f"{folder} has changed since it was saved: fingerprint {seen}, expected {clients.fingerprint}. "
            "Build and save the data again."
        )
    if verify is not False:
        intact.remember(folder, manifest["files"])
    return clients


def _changed(folder: Path, manifest: dict[str, Any], verify: bool | None) -> str:
    """What is not as it was written, or ""."""
    try:
        check_seal(manifest)
    except ValueError:
        return f"{MANIFEST} was changed since it was written: its content does not match its seal"
    if verify is False or (verify is None and intact.looked_over(folder, manifest["files"])):
        return ""
    return intact.fault_of_files(folder, manifest["files"])


def provenance(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What was said in ``made`` when the directory was saved, {} if nothing; None if it is no saved directory."""
    try:
        manifest = _json(Path(path) / MANIFEST)
    except (OSError, ValueError):
        return None
    made = manifest.get("made", {})
    return made if manifest.get("format") == FORMAT and isinstance(made, dict) else None


def _rebuild(folder: Path, manifest: dict[str, Any]) -> Clients:
    loaded = {name: _load(folder, name, entry) for name, entry in manifest["files"].items()}
    columns = {
        c["name"]: Column(
            c["name"],
            loaded[f"column{i}"],
            c["space"],
            loaded.get(f"column{i}.starts"),
            c["width"],
            tuple(c.get("classes", ())),
            c.get("feature", True),
        )
        for i, c in enumerate(manifest["columns"])
    }
    spaces = {
        s["name"]: Space(
            s["name"],
            s["size"],
            tuple(s["columns"]),
            loaded[f"space{i}.row_offsets"],
            loaded[f"space{i}.rows"],
            s["padding"],
            loaded.get(f"space{i}.vocabulary"),
        )
        for i, s in enumerate(manifest["spaces"])
    }
    label, mark = manifest["label"], manifest["fingerprint"]
    return Clients(loaded["client_ids"], loaded["offsets"], columns, spaces, label, mark, str(folder))


def describe(label: str | None, columns: Iterable[Column], spaces: Iterable[Space]) -> dict[str, Any]:
    """Everything but the arrays; part of the fingerprint and of the manifest."""
    return {
        "label": label,
        "columns": [_column(c) for c in columns],
        "spaces": [
            {"name": s.name, "size": int(s.size), "columns": list(s.columns), "padding": bool(s.padding)}
            for s in spaces
        ],
    }


def _column(column: Column) -> dict[str, Any]:
    """What is usual is not written, so that it does not change fingerprints."""
    said = {"name": column.name, "space": column.space, "width": int(column.width)}
    named = {"classes": list(column.classes)} if column.classes else {}
    return said | named | ({} if column.feature else {"feature": False})


def _arrays(clients: Clients) -> Iterator[tuple[str, Array]]:
    """Every array with its file name; numbered, because a column may be called anything."""
    named: list[tuple[str, Array | None]] = [("client_ids", clients.client_ids), ("offsets", clients.offsets)]
    for i, c in enumerate(clients.columns.values()):
        named += [(f"column{i}", c.values), (f"column{i}.starts", c.starts)]
    for i, s in enumerate(clients.spaces.values()):
        named += [(f"space{i}.row_offsets", s.row_offsets), (f"space{i}.rows", s.rows)]
        named += [(f"space{i}.vocabulary", s.vocabulary)]
    return ((name, array) for name, array in named if array is not None)


def _blocks(array: Array) -> Iterator[bytes]:
    step = max(BLOCK // max(array[:1].size, 1), 1)
    return (np.ascontiguousarray(array[i : i + step]).tobytes() for i in range(0, len(array), step))


def _write(clients: Clients, folder: Path, made: dict[str, Any]) -> None:
    files: dict[str, Any] = {}
    for name, array in _arrays(clients):
        if array.dtype.hasobject:
            raise StoreError(f"{name} holds Python objects, which are not stored; use numbers or strings.")
        where = folder / f"{name}.npy"
        header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
        # Not np.save: on a full disk it fails without an error number, so the reason would be lost.
        with open(where, "wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for block in _blocks(array):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        files[name] = intact.entry(where, array.dtype, array.shape)
    about = describe(clients.label, clients.columns.values(), clients.spaces.values())
    mark = clients.fingerprint or fingerprint(clients)
    write_manifest(folder, mark, len(clients), clients.samples, about | {"made": made}, files)


def write_manifest(
    folder: Path, mark: str, clients: int, samples: int, about: dict[str, Any], files: dict[str, Any]
) -> None:
    """The last file of a save. ``files`` holds dtype, shape and bytes of every array by name."""
    head = {"format": FORMAT, "version": VERSION, "fingerprint": mark, "clients": clients, "samples": samples}
    write_json(folder / MANIFEST, sealed(head | about | {"files": files}))
    _sync(folder)


def say_made(folder: Path, made: Callable[[Clients], Mapping[str, Any]]) -> None:
    """Add to a save that nobody has seen yet what the data is; ``made`` may look at it."""
    manifest = _read_manifest(folder)
    said = {key: value for key, value in manifest.items() if key != SEAL}
    write_json(folder / MANIFEST, sealed(said | {"made": dict(made(_rebuild(folder, manifest)))}))


def write_json(path: Path, value: dict[str, Any]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Make new names in a directory survive a power cut (Windows cannot open a directory)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _path(path: str | os.PathLike[str]) -> Path:
    """The path, after asking the system whether it can be one at all."""
    try:
        found = Path(path)
        os.lstat(found)
    except (FileNotFoundError, NotADirectoryError):
        return Path(path)
    except (OSError, ValueError, TypeError) as error:  # too long, a NUL in it, forbidden, not a path
        raise StoreError(f"{reprlib.repr(path)} cannot be used as a path: {error}; choose another.") from error
    return found


def _leftovers(target: Path, kind: str) -> list[Path]:
    """What a save to ``target`` that was killed left next to it: "new" half written, "old" moved away."""
    ours = re.compile(re.escape(f".{target.name}.{kind}-") + "[0-9a-f]{8}")
    try:
        return [p for p in target.parent.iterdir() if ours.fullmatch(p.name)]
    except OSError:
        return []


def _replaceable(target: Path, file: str, form: str) -> bool:
    """A directory that fedsub wrote, or an empty one."""
    if not target.is_dir() or target.is_symlink():
        return False
    try:
        return not any(target.iterdir()) or _json(target / file).get("format") == form
    except (OSError, ValueError):
        return False


def _json(file: Path) -> dict[str, Any]:
    found = read_json(file)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


def _read_manifest(folder: Path) -> dict[str, Any]:
    if not folder.exists() and len(old := _leftovers(folder, "old")) == 1:
        restore = shlex.join(["mv", str(old[0]), str(folder)])
        raise StoreError(
            f"There is no directory {folder}: saving over it was cut short, and the save before that is now "
            f"{old[0].name}. To restore it: {restore}"
        )
    if not folder.is_dir():
        raise StoreError(f"There is no directory {folder}; give the path that Clients.save() wrote to.")
    try:
        manifest = _json(folder / MANIFEST)
    except FileNotFoundError as error:
        raise StoreError(f"{folder} has no {MANIFEST}, so it is not a saved Clients directory.") from error
    except (OSError, ValueError) as error:
        raise StoreError(f"{folder / MANIFEST} cannot be read: {error}. Build and save the data again.") from error
    if manifest.get("format") != FORMAT:
        raise StoreError(f"{folder} holds format {manifest.get('format')!r}, expected {FORMAT!r}.")
    version = manifest.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise StoreError(
            f"{folder} was written in version {version!r} of the format, this fedsub reads up to {VERSION}; "
            "upgrade fedsub."
        )
    return manifest


def _load(folder: Path, name: str, entry: dict[str, Any]) -> Array:
    """One array, mapped, after checking that it is what the manifest says."""
    where = folder / f"{name}.npy"
    if Path(name).name != name or not where.is_file():
        raise StoreError(f"{folder} lacks the file {name}.npy; copy the directory again or save the data again.")
    shape, seen = tuple(entry["shape"]), where.stat().st_size
    if seen != entry["bytes"]:
        raise StoreError(
            f"{where} has {seen:,} bytes, expected {entry['bytes']:,}: it is truncated or damaged; "
            "copy the directory again or save the data again."
        )
    try:
        array = np.load(where, mmap_mode="r" if 0 not in shape else None, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it is not a .npy file")
    except Exception as error:  # numpy parses the header as Python, so damage there can raise nearly anything
        raise StoreError(f"{where} is damaged: {error}. Save the data again.") from error
    if array.dtype.str != entry["dtype"] or array.shape != shape:
        raise StoreError(
            f"{where} holds {array.dtype.str} {array.shape}, expected {entry['dtype']} {shape}; save the data again."
        )
    return array
