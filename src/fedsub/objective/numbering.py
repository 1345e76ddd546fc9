"""Which id every row of a table stands for: kept with trained modules, so that other data cannot use them by mistake.

Ids are numbered anew whenever data are read. A module trained under one numbering gives every id the row of another one
under the next, without any sign of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import numpy as np
from torch import nn

from fedsub.data.clients import Space
from fedsub.errors import ObjectiveError

Ids = np.ndarray | None  # the original id of every row; None where ids were rows already
ATTRIBUTE = "fedsub_numbering"


class Numbering:
    """The ids of a module's tables, by parameter. Copies of the module share it; a pickle leaves it out."""

    def __init__(self, ids: Mapping[str, Ids]):
        self.ids = dict(ids)

    def __deepcopy__(self, memo: dict) -> Numbering:
        return self

    def __reduce__(self):
        return dict, ()  # no pickle of a module needs fedsub to be read


def stamped(module: nn.Module, ids: Mapping[str, Ids]) -> nn.Module:
    """The module, which from now on tells what its rows stand for."""
    setattr(module, ATTRIBUTE, Numbering(ids))
    return module


def stamp_of(module: nn.Module) -> dict[str, Ids]:
    """The ids of the module's tables as far as they are known, by parameter; those of modules inside it too."""
    out: dict[str, Ids] = {}
    for prefix, part in module.named_modules():
        found = getattr(part, ATTRIBUTE, None)
        if isinstance(found, Numbering):
            out |= {f"{prefix}.{name}" if prefix else name: ids for name, ids in found.ids.items()}
    return out


def digest_of(space: Space) -> str | None:
    """A digest of a numbering; None where ids were rows already."""
    if space.vocabulary is None:
        return None
    digest = blake2b(digest_size=16)
    words = space.vocabulary.astype(np.str_).tolist() if space.vocabulary.dtype.kind == "U" else None
    digest.update(space.vocabulary.astype("<i8").tobytes() if words is None else "\0".join(words).encode())
    return digest.hexdigest()


def known_rows(table: str, ids: Ids, rows: int, space: Space, source: str) -> int:
    """How many rows of a table with ``rows`` of them stand for the same ids in the data: all of ``ids``, else refused.

    ``source`` says where the table comes from.
    """
    now = space.vocabulary
    if ids is None or now is None:
        if ids is not None or now is not None:
            raise ObjectiveError(
                f"{source}: the rows of {table!r} were {_kind(ids)}, and the ids {space.name!r} of the data are "
                f"{_kind(now)}; read the data as they were read then."
            )
        return rows
    common = min(len(ids), len(now))
    same = ids[:common] == now[:common] if ids.dtype.kind == now.dtype.kind else np.zeros(common, bool)
    if len(now) >= len(ids) and same.all():
        return len(ids)
    at = int(np.argmin(same)) if not same.all() else common
    seen = f"row {at} is {_shown(ids, at)} there and {_shown(now, at)} in the data"
    raise ObjectiveError(
        f"{source}: the rows of {table!r} stand for other ids than those of {space.name!r} in the data ({seen}). Read "
        "the data under the old numbering: Clients.from_file(…, vocabulary=fedsub.load('runs/a'), grow=True), or "
        "clients.numbered_by(…)."
    )


def check_stamp(module: nn.Module, tables: Mapping[str, Space]) -> None:
    """Refuse a trained module on data that are numbered in another way."""
    for name, ids in stamp_of(module).items():
        if name in tables:
            known_rows(name, ids, len(module.get_parameter(name)), tables[name], "The module was trained before")


def _kind(ids: Ids) -> str:
    return "row numbers" if ids is None else "ids of a vocabulary"


def _shown(ids: np.ndarray, at: int) -> str:
    return repr(ids[at].item()) if at < len(ids) else "nothing"
