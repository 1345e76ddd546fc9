"""A limit on how far one row of a table may move in a round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from fedsub.checks import check_positive
from fedsub.method.part import Part, Total
from fedsub.method.slots import Method
from fedsub.trees import Tree


@dataclass(frozen=True)
class ClipRows(Part):
    """The server scales each row of the mean update down to the Euclidean norm ``max_norm``; dense parameters stay.

    The bound holds for what the server's step is given, after all other parts: with `Add`, a row moves by at most
    lr · max_norm.

    Another answer to the noisy steps of cold rows than a cap on the heat coefficient: it acts on the step
    itself, whatever made it large.
    """

    max_norm: float = 1.0
    rowwise: ClassVar[bool] = True

    def check(self, method: Method) -> None:
        check_positive("max_norm of ClipRows", self.max_norm)

    def limit(self, update: Tree, total: Total) -> None:
        for name, value in update.items():
            if name in total.rows:
                norm = value.reshape(len(value), math.prod(value.shape[1:])).norm(dim=1).clamp_min_(1e-30)
                value.mul_((self.max_norm / norm).clamp_max_(1.0).reshape(-1, *[1] * (value.ndim - 1)))
