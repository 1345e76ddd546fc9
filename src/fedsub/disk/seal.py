"""JSON objects that carry a digest of themselves, so that one that was changed since it was written is noticed.

The digest is of the content, not of its spelling. An object without a seal was written by an older fedsub, and is
believed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from fedsub.disk.files import dump, plain, write_atomic
from fedsub.disk.reading import read_json

SEAL = "seal"


def seal_of(content: Mapping[str, Any]) -> str:
    """The digest of an object without its seal. Stays the same in every version: it is checked first."""
    text = json.dumps({key: value for key, value in content.items() if key != SEAL}, sort_keys=True)
    return blake2b(text.encode(), digest_size=32).hexdigest()


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    whole = plain(content)
    return whole | {SEAL: seal_of(whole)}


def write_sealed(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    write_atomic(path, dump(sealed(content), indent=2))


def check_seal(content: Mapping[str, Any]) -> None:
    if SEAL in content and content[SEAL] != seal_of(content):
        raise ValueError("it was changed since it was written: its content does not match its seal")


def read_sealed(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The object in a file, without its seal."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    check_seal(found)
    return {key: value for key, value in found.items() if key != SEAL}
