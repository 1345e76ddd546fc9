"""Files of object stores and other places with addresses ("s3://bucket/log/", "gs://…", "https://…"), by fsspec.

They are copied to this computer before they are read. A copy is called after the file, its size and its version, so
that an interrupted copying goes on with what is missing, and a file that has changed is copied again.
"""

from __future__ import annotations

import glob
import os
from hashlib import blake2b
from pathlib import Path
from typing import Any

from fedsub.data.reading import TABLES, kind_of
from fedsub.errors import DataError, lacking

VERSIONS = ("etag", "ETag", "md5Hash", "generation", "mtime", "LastModified", "last_modified", "created", "updated")


def is_remote(path: Any) -> bool:
    return isinstance(path, str) and "://" in path and not os.path.exists(path)


def copied(path: str, place: Path) -> list[Path]:
    """The files that an address, of a file, a folder or a pattern, stands for, as copies in ``place``, by name."""
    try:
        import fsspec
    except ImportError as error:
        raise lacking("fsspec, which reads object stores,", "remote") from error
    try:
        store, inside = fsspec.core.url_to_fs(path)
        if glob.has_magic(inside):
            found = store.glob(inside)
        elif store.isdir(inside):
            found = store.find(inside)
        else:
            found = [inside]
        names = sorted(name for name in found if kind_of(name) and not Path(name).name.startswith((".", "_")))
        if not names:
            raise DataError(f"{path} holds no file of {', '.join(TABLES)}; check the address.")
        return [_copy(store, name, place) for name in names]
    except FileNotFoundError as error:
        raise DataError(f"There is no file {path}; check the address.") from error
    except DataError:
        raise
    except OSError as error:
        if error.errno is not None and error.filename is not None and str(error.filename).startswith(str(place)):
            raise  # of this computer: a full disk
        raise DataError(f"{path} cannot be read: {error}. Check address, network and credentials.") from error
    except (ImportError, ValueError) as error:  # a store whose library is not installed, or that is not known
        raise DataError(f"{path} cannot be read: {error}") from error


def _copy(store: Any, name: str, place: Path) -> Path:
    about = store.info(name)
    said = [name, about.get("size"), *(str(about[key]) for key in VERSIONS if key in about)]
    folder = place / blake2b(repr(said).encode(), digest_size=12).hexdigest()
    to = folder / Path(name).name
    if not to.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = to.with_name(to.name + ".part")
        store.get_file(name, str(part))
        part.rename(to)
    return to
