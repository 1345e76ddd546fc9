"""The two messages of a round, as both halves hold them in memory.

A message may be of a group of clients whose work is done together, or of one client, as on a device. Rows of tables
lie one client's behind the other's; `fedsub.round.wire` writes the message of one client to bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from fedsub.method.groups import Cohort
from fedsub.trees import Tree

MODEL, UPDATE = "model", "update"


@dataclass(frozen=True)
class Downlink:
    """What the server sends to some clients of a round.

    ``trees`` are the shared parameters (`MODEL`) and what parts send along ("part.slot"): of tables the clients' rows,
    [Σ|S(i)|, d], of dense parameters the one value that all get.
    """

    round: int
    who: Cohort  # numbers for randomness, never places in data
    counts: dict[str, np.ndarray]  # space -> |S(i)|, int64 [c]
    trees: dict[str, Tree]
    numbers: dict[str, float] = field(default_factory=dict)  # "part.name" -> what parts keep at the server, for all
    probe: str = ""  # "": train; "all" or "batch": only the loss of all data or of one batch is asked for


@dataclass(frozen=True)
class Uplink:
    """What some clients return. All but ``seen`` is meant to be added: it is already times the client's weight a_i.

    A client that finds NaN or infinity in anything it would send refuses itself: its values are 0.
    """

    who: Cohort
    refused: np.ndarray  # bool [c]
    trees: dict[str, Tree]  # a_i Δ_i, and a_i times what parts send; dense parameters [c, …]
    sums: dict[str, np.ndarray]  # float64 [c]: "weight" a_i, "count", "loss", and a_i times the numbers of parts
    seen: dict[str, np.ndarray] = field(default_factory=dict)  # float64 [c], in the clear: what the method declares
    lengths: np.ndarray | None = None  # bytes of the update as the codec writes it, int64 [c]
    written: Callable[[], bytes] | None = None  # that writing, of a lone client

    def __len__(self) -> int:
        return len(self.who)


Kept = dict[str, dict[str, dict[str, Tensor]]]  # part -> slot -> what clients keep from now on, laid out like an Uplink
