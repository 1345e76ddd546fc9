"""`Constants`: how long a machine takes for what was counted of a round.

    seconds of a round = start + calls · call + bytes · byte + flops · flop + rows · row

with the calls of torch's operations, the bytes that they write, the multiplications and additions of matrix products
and layers, and Σ|S(i)|, the rows that the cohort holds together. A call of the serial engine goes through autograd and
has a constant of its own. `fedsub.study.planning.calibrate` measures them.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from fedsub.checks import check_number
from fedsub.disk.files import write_atomic
from fedsub.disk.reading import read_json
from fedsub.errors import ConfigError

COMMAND = "fedsub plan --calibrate constants.json"


@dataclass(frozen=True)
class Constants:
    """Seconds by unit; ``base`` in bytes. The defaults were measured with `COMMAND` on one core of an AMD EPYC."""

    start: float = 5.0e-4  # of a round in which hardly anything is done
    call: float = 5.9e-6  # of an operation, batched
    serial_call: float = 1.2e-5  # of an operation, serial
    byte: float = 2.6e-10  # written
    flop: float = 2.0e-11
    row: float = 5.0e-8  # held by a client of the cohort
    base: float = 4.0e8  # bytes of a process that has trained next to nothing
    remote: float = 1.3e-3  # of a call to a worker in another process, with nothing in it
    share: float = 0.85  # of a second that a worker computes while others do, too

    def __post_init__(self) -> None:
        for field in fields(self):
            check_number(field.name, getattr(self, field.name), least=0, error=ConfigError)
        if not 0 < self.share <= 1:
            raise ConfigError(f"share is {self.share!r}, expected above 0 and at most 1; one worker alone has 1.")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write them as JSON."""
        write_atomic(Path(path), (json.dumps({"fedsub": "constants", **asdict(self)}, indent=1) + "\n").encode())

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Constants:
        """Read what `save` wrote."""
        known = {field.name for field in fields(cls)}
        try:
            found = read_json(Path(path))
            if found.pop("fedsub", None) != "constants" or set(found) != known:
                raise ValueError(f"it holds {', '.join(map(str, found)) or 'nothing'}")
            return cls(**found)
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise ConfigError(f"{path} holds no constants ({error}); make it anew: {COMMAND}.") from error
