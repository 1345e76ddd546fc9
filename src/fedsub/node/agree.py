"""Do server and client mean the same? Digests that the handshake compares."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b

from fedsub.method.described import describe
from fedsub.method.slots import Method
from fedsub.trees import Tree


def method_digest(method: Method) -> int:
    """A number that equal settings share; a secret is nobody else's, and not compared."""
    described = method.describe()
    for part in described["parts"]:
        if isinstance(part, dict):  # one that is no dataclass is described by its name
            part.pop("secret", None)
    return digest(described)


def model_digest(params: Tree, tables: Mapping[str, str]) -> int:
    """Of names, types and shapes, with a table's rows left open."""
    shapes = {
        name: [str(value.dtype), list(value.shape[name in tables :]), tables.get(name)]
        for name, value in params.items()
    }
    return digest({"parameters": shapes})


def digest(value: object) -> int:
    """A number that values of equal settings share; seven bytes."""
    text = json.dumps(describe(value), sort_keys=True, default=str)
    return int.from_bytes(blake2b(text.encode(), digest_size=7).digest(), "little")
