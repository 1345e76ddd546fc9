"""A configuration as plain JSON values."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor


def describe(value: Any) -> Any:
    """A value as plain JSON: the fields of a dataclass, a digest of an array, the name of a function."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"type": type(value).__name__} | {
            f.name: describe(getattr(value, f.name)) for f in fields(value) if f.repr
        }
    if isinstance(value, partial):
        return {"type": "partial"} | {key: describe(getattr(value, key)) for key in ("func", "args", "keywords")}
    if isinstance(value, Tensor | np.ndarray):
        raw = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        return f"array {raw.shape} {hashlib.blake2b(raw.tobytes(), digest_size=8).hexdigest()}"
    if isinstance(value, dict):
        return {str(k): describe(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [describe(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__qualname__", type(value).__qualname__)
