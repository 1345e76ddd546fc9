"""`Population`: all that a server knows of clients whose data it cannot see."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedsub.data.heat import row_heat, weighted_heat
from fedsub.data.held import Held, held_heat, held_weight
from fedsub.disk.files import write_atomic
from fedsub.disk.reading import parse_json
from fedsub.errors import DataError
from fedsub.objective.lazy import Drawn
from fedsub.objective.problem import Problem
from fedsub.privacy.heat import Estimate, Holdings, PrivateHeat

Heat = Callable[[str, bool], np.ndarray]
Ask = Callable[[PrivateHeat, str, bool], Estimate]


@dataclass(frozen=True)
class Population:
    """How many clients there are, what they declare to weigh, and the heat of every row; nothing else.

    Averages and samplers are fitted to it (`bind`). In a simulation it is counted from the data, and only what
    somebody asks for; a server on its own reads it from a file (`save`, `open`). ``tables`` and ``dense`` say
    which of the model's parameters has rows of which space, so that both sides name things alike.
    """

    sizes: np.ndarray  # w_i, the declared number of samples of each client, int64 [N]
    tables: Mapping[str, str]  # parameter -> the space that numbers its rows
    dense: tuple[str, ...]
    rows: Mapping[str, int]  # space -> how many rows it has
    counted: Heat  # (space, weighted) -> n_m or W_m of every row
    padding: frozenset[str] = frozenset()  # tables whose row 0 means nothing
    double: frozenset[str] = frozenset()  # parameters in double precision
    lazy: Mapping[str, Drawn] = field(default_factory=dict)  # tables never in memory as a whole, before training
    held: Callable[[str, bool], Held] | None = None  # `counted`, of the rows that somebody holds
    asked: Ask | None = None  # (mechanism, space, weighted) -> what clients' private answers come to
    absent: frozenset[int] = frozenset()  # clients that have not come yet: of size 0, and not counted

    @classmethod
    def of(cls, problem: Problem, seed: int = 0) -> Population:
        """Of clients in this process; ``seed`` is that of private answers."""
        sizes, spaces = problem.clients.sizes, problem.spaces

        def counted(space: str, weighted: bool) -> np.ndarray:
            return weighted_heat(spaces[space], sizes) if weighted else row_heat(spaces[space]).astype(np.float64)

        def asked(mechanism: PrivateHeat, space: str, weighted: bool) -> Estimate:
            return mechanism.estimate(Holdings.of(spaces[space], sizes if weighted else None), seed)

        def held(space: str, weighted: bool) -> Held:
            return held_weight(spaces[space], sizes) if weighted else held_heat(spaces[space])

        tables = {name: space.name for name, space in problem.tables.items()}
        rows = {name: space.size for name, space in spaces.items()}
        return cls(
            sizes, tables, problem.dense, rows, counted, problem.padding, problem.double, problem.lazy, held, asked
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def present(self) -> int:
        """N: how many clients there are, without those that have not come yet."""
        return len(self.sizes) - len(self.absent)

    def joined(self, client: int, samples: int, rows: Mapping[str, np.ndarray]) -> Population:
        """The population with a client that was absent, of so many samples and these rows."""
        if client not in self.absent:
            raise DataError(f"Client {client} is counted already; only one that was absent can join a population.")
        sizes = self.sizes.copy()
        sizes[client] = samples
        counts = {space: (self.heat(space).copy(), self.weighted_heat(space).copy()) for space in self.rows}
        padded = {self.tables[table] for table in self.padding}
        for space, (heat, weighted) in counts.items():
            held = np.union1d(rows[space], [0]) if space in padded else rows[space]  # everybody holds "nothing here"
            heat[held] += 1
            weighted[held] += samples
        return replace(
            self,
            sizes=sizes,
            counted=lambda space, by_size: counts[space][by_size],
            held=None,
            absent=self.absent - {client},
        )

    @property
    def scattered(self) -> frozenset[str]:
        """The spaces of lazy tables, whose heat is that of the held rows."""
        return frozenset(self.tables[name] for name in self.lazy)

    @property
    def names(self) -> tuple[str, ...]:
        """All trained parameters: tables first, then dense ones."""
        return (*self.tables, *self.dense)

    def heat(self, space: str) -> np.ndarray:
        """n_m: how many clients hold each row, float64 [rows]."""
        return self.counted(space, False)

    def weighted_heat(self, space: str) -> np.ndarray:
        """W_m: what the clients that hold a row weigh together, float64 [rows]."""
        return self.counted(space, True)

    def private_heat(self, mechanism: PrivateHeat, space: str, weighted: bool) -> Estimate:
        """n_m or W_m of each row, estimated from what clients say in private."""
        if self.asked is None:
            raise DataError(
                f"Heat by {mechanism.title} needs clients that answer, and this population was read from a file; "
                "fedsub.node.serve asks them before the first round."
            )
        return self.asked(mechanism, space, weighted)

    def save(
        self, path: str | os.PathLike[str], *, heat: bool = True, asked: tuple[PrivateHeat, bool] | None = None
    ) -> None:
        """Write it to a safetensors file, for a server that has no data; without ``heat`` if it will ask for that.

        ``asked``: the mechanism by which it has asked, and whether by weight; what came of it is written too.
        """
        arrays = {"sizes": self.sizes}
        about = {"fedsub": "population 1"}
        for space in dict.fromkeys(self.tables.values()) if asked is not None else ():
            assert asked is not None
            found = self.private_heat(asked[0], space, asked[1])
            arrays |= {f"asked/{space}": found.heat, f"deviation/{space}": found.deviation}
            about[f"asked/{space}"] = json.dumps({"whole": found.whole, "laplace": found.laplace})
        for space in self.rows if heat else ():
            arrays |= {f"heat/{space}": self.heat(space), f"weighted/{space}": self.weighted_heat(space)}
        names: dict[str, object] = {
            "tables": dict(self.tables),
            "dense": list(self.dense),
            "padding": sorted(self.padding),
        }
        names |= {"double": sorted(self.double), "rows": dict(self.rows), "absent": sorted(self.absent)}
        write_atomic(Path(path), save(arrays, metadata={**about, "names": json.dumps(names)}))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Population:
        """Read what `save` wrote."""
        try:
            with safe_open(Path(path), framework="numpy") as file:
                about = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if about.get("fedsub") != "population 1":
                raise ValueError(f"it is marked {about.get('fedsub')!r}, not 'population 1'")
            names = parse_json(about["names"])
            counts = {key.removeprefix("heat/"): len(values) for key, values in arrays.items() if key[:5] == "heat/"}
            spaces = names.get("rows", counts)

            def counted(space: str, weighted: bool) -> np.ndarray:
                if f"heat/{space}" not in arrays:
                    raise DataError(
                        f"{path} says nothing of the heat of {space}: it was saved without. Save it with heat=True, "
                        "or have the average estimate heat (OverHolders(heat=…))."
                    )
                return arrays[f"weighted/{space}" if weighted else f"heat/{space}"]

            told = {space: parse_json(about[f"asked/{space}"]) for space in spaces if f"asked/{space}" in about}

            def asked(mechanism: PrivateHeat, space: str, weighted: bool) -> Estimate:
                one = told[space]
                return Estimate(arrays[f"asked/{space}"], arrays[f"deviation/{space}"], one["whole"], one["laplace"])

            padding, double = frozenset(names["padding"]), frozenset(names["double"])
            return cls(
                arrays["sizes"], names["tables"], tuple(names["dense"]), spaces, counted, padding, double,
                asked=asked if told else None, absent=frozenset(names.get("absent", ())),
            )  # fmt: skip
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as err:
            raise DataError(f"{path} is no population as Population.save writes it ({err}); write it again.") from err
