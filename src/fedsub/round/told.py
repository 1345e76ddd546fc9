"""Numbers that parts keep at the server and send to every client that trains: few, the same for all, changed by rounds.

A clip norm that follows the updates is one. They are tensors, so that a checkpoint puts them back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from fedsub.errors import MethodError
from fedsub.method.part import Part, Total
from fedsub.trees import Tree


class Told:
    """``sent_numbers`` of all parts, by "part.name", in double precision."""

    def __init__(self, parts: Sequence[Part]):
        self._of = [(part, {name: f"{part.key}.{name}" for name in part.sent_numbers}) for part in parts]
        self.tensors: Tree = {
            full: torch.tensor(part.first_number(name), dtype=torch.float64)
            for part, names in self._of
            for name, full in names.items()
        }

    @property
    def values(self) -> dict[str, float]:
        return {name: float(value) for name, value in self.tensors.items()}

    @property
    def measured(self) -> dict[str, float]:
        """For the record of a round: "part_name", without the dot of what is evaluated."""
        return {name.replace(".", "_"): value for name, value in self.values.items()}

    def advance(self, total: Total, round: int) -> None:
        """What they are after a round, as their parts say."""
        for part, names in self._of:
            if not names:
                continue
            now = {name: float(self.tensors[full]) for name, full in names.items()}
            for name, value in part.next_numbers(now, total, round).items():
                if name not in names or not math.isfinite(value):
                    why = "is no finite number" if name in names else "it does not name in sent_numbers"
                    raise MethodError(
                        f"Round {round}: {type(part).__name__} set {name}={value!r} for its clients, which {why}."
                    )
                self.tensors[names[name]].fill_(value)
