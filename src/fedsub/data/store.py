"""Clients on disk: a directory of plain ``.npy`` files and a ``manifest.json`` that describes them.

    ratings.fedsub/
      manifest.json          format, version, fingerprint, names; dtype, shape and bytes of every file
      client_ids.npy  offsets.npy
      column0.npy  column0.starts.npy  column1.npy ...
      space0.rows.npy  space0.row_offsets.npy  space0.vocabulary.npy ...

Nothing is pickled. A save appears whole or not at all; opening maps the files and reads almost nothing.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from fedsub.data.clients import Array, Clients, Column, Space
from fedsub.errors import StoreError

FORMAT, VERSION, MANIFEST = "fedsub-clients", 1, "manifest.json"
BLOCK = 1 << 20  # entries hashed or written at a time


def fingerprint(clients: Clients) -> str:
    """Identity of the content: equal for equal data, wherever and however it is stored."""
    digest = blake2b(digest_size=16)
    digest.update(json.dumps(_describe(clients), sort_keys=True).encode())
    for name, array in _arrays(clients):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        for block in _blocks(array):
            digest.update(block)
    return digest.hexdigest()


def save_clients(clients: Clients, path: str | os.PathLike[str]) -> None:
    """Write ``clients`` to the directory ``path``; an older save there is replaced, anything else is not."""
    target = Path(path)
    if (target.exists() or target.is_symlink()) and not _replaceable(target):
        raise StoreError(f"{target} exists and was not written by fedsub; choose another path or remove it first.")
    token = secrets.token_hex(4)
    fresh, old = (target.with_name(f".{target.name}.{kind}-{token}") for kind in ("new", "old"))
    try:
        fresh.mkdir(parents=True)
        _write(clients, fresh)
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


def open_clients(path: str | os.PathLike[str], *, verify: bool = False) -> Clients:
    """Open what `save_clients` wrote, memory-mapped. ``verify`` reads everything and checks the content."""
    folder = Path(path)
    manifest = _read_manifest(folder)
    try:
        loaded = {name: _load(folder, name, entry) for name, entry in manifest["files"].items()}
        columns = {
            c["name"]: Column(c["name"], loaded[f"column{i}"], c["space"], loaded.get(f"column{i}.starts"), c["width"])
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
        clients = Clients(
            loaded["client_ids"],
            loaded["offsets"],
            columns,
            spaces,
            manifest["label"],
            manifest["fingerprint"],
            str(folder),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{folder / MANIFEST} is damaged: {error!r}. Build and save the data again.") from error
    if verify and (seen := fingerprint(clients)) != clients.fingerprint:
        raise StoreError(
            f"{folder} has changed since it was saved: fingerprint {seen}, expected {clients.fingerprint}. "
            "Build and save the data again."
        )
    return clients


def _describe(clients: Clients) -> dict[str, Any]:
    """Everything but the arrays; part of the fingerprint and of the manifest."""
    return {
        "label": clients.label,
        "columns": [{"name": c.name, "space": c.space, "width": int(c.width)} for c in clients.columns.values()],
        "spaces": [
            {"name": s.name, "size": int(s.size), "columns": list(s.columns), "padding": bool(s.padding)}
            for s in clients.spaces.values()
        ],
    }


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


def _write(clients: Clients, folder: Path) -> None:
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
        size = where.stat().st_size
        files[name] = {"dtype": array.dtype.str, "shape": list(array.shape), "bytes": size}
    head = {"format": FORMAT, "version": VERSION, "fingerprint": clients.fingerprint or fingerprint(clients)}
    counts = {"clients": len(clients), "samples": clients.samples}
    with open(folder / MANIFEST, "w", encoding="utf-8") as file:
        json.dump(head | counts | _describe(clients) | {"files": files}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    _sync(folder)


def _sync(folder: Path) -> None:
    """Make new names in a directory survive a power cut (Windows cannot open a directory)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _replaceable(target: Path) -> bool:
    """A directory that fedsub wrote, or an empty one."""
    if not target.is_dir() or target.is_symlink():
        return False
    try:
        return not any(target.iterdir()) or _manifest(target).get("format") == FORMAT
    except (OSError, ValueError):
        return False


def _manifest(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


def _read_manifest(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise StoreError(f"There is no directory {folder}; give the path that Clients.save() wrote to.")
    try:
        manifest = _manifest(folder)
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
    except (ValueError, OSError, EOFError) as error:
        raise StoreError(f"{where} is damaged: {error}. Save the data again.") from error
    if array.dtype.str != entry["dtype"] or array.shape != shape:
        raise StoreError(
            f"{where} holds {array.dtype.str} {array.shape}, expected {entry['dtype']} {shape}; save the data again."
        )
    return array
