"""Warm start: a run that begins with what another one has learned, of a directory, a module or a state dict.

Of a table the rows of known ids are taken over, bit by bit; those of new ids stay as the module's own initialisation
drew them. With ``state`` the server goes on too: its momentum, its moments and counters, of tables by row, are those of
the newest checkpoint. A new row has what one has that was there from the start and that nobody ever sent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedsub.disk.checkpoint import Checkpoints, Snapshot
from fedsub.disk.inshards import load as load_whole
from fedsub.disk.reading import read_json
from fedsub.errors import CheckpointError, ConfigError, ObjectiveError
from fedsub.method.servers import TailMean
from fedsub.method.slots import Method
from fedsub.objective.numbering import Ids, known_rows, stamp_of
from fedsub.objective.problem import Problem
from fedsub.privacy.spending import Spend, spends_of
from fedsub.round.prepare import Trainer
from fedsub.running import keep
from fedsub.running.load import Trained, load
from fedsub.running.personal import PersonalParams
from fedsub.running.result import Result
from fedsub.trees import Tree, digest_of

PRIVACY = "privacy.json"  # of a run: what was spent up to the newest checkpoint; later rounds are played again alike
CARRIED = ("server/", "part/")  # what a checkpoint names the server's own


@dataclass(frozen=True)
class WarmStart:
    """What is taken over: values by parameter, the ids that rows stand for where they are known, the server's state."""

    source: str  # in a sentence
    values: Tree = field(repr=False)
    ids: Mapping[str, Ids] = field(default_factory=dict, repr=False)
    state: Snapshot | None = field(default=None, repr=False)
    personal: PersonalParams | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    spends: tuple[Spend, ...] = ()  # what was spent of its clients' privacy, where that was counted

    @classmethod
    def of(cls, start: Any, *, state: bool = False) -> WarmStart:
        """From a run's directory, `Trained`, `Result`, a module or a state dict."""
        if isinstance(start, cls):
            return start
        if isinstance(start, Result):
            if start.params and start.problem is not None and not state:
                values = keep.values_of(start.problem.objective.module, start.params)
                ids = {name: space.vocabulary for name, space in start.problem.tables.items()}
                return cls(f"the run of {start.method}", values, ids, spends=spends_of(start.privacy))
            if start.path is None:
                raise ConfigError(
                    f"The run of {start.method} was not kept in a directory (out=…), so its "
                    f"{'server state' if state else 'model'} is gone; give it one."
                )
            start = start.path
        if isinstance(start, str | os.PathLike):
            start = load(start)
        if isinstance(start, Trained):
            snapshot = _snapshot(start.path) if state else None
            values = start.values if snapshot is None else {**snapshot.tensors, **snapshot.tables}
            notes = start.notes if snapshot is None else ()
            spends = spends_of(read_json(start.path / PRIVACY)) if (start.path / PRIVACY).is_file() else ()
            return cls(str(start.path), values, start.ids, snapshot, start.personal, notes, spends)
        if state:
            raise ConfigError(
                "start_state=True takes over what a server remembers, which only a run's directory holds; got a "
                f"{type(start).__name__}. Name the directory, or leave start_state out."
            )
        if isinstance(start, nn.Module):
            return cls(f"the {type(start).__name__} given as start", keep.values_of(start, {}), stamp_of(start))
        if isinstance(start, Mapping) and start and all(isinstance(v, Tensor) for v in start.values()):
            return cls("the state dict given as start", {str(k): v.detach() for k, v in start.items()})
        raise ConfigError(
            f"start is a {type(start).__name__}, expected a run's directory, what load() or run() returned, a module, "
            "or a state dict."
        )

    def describe(self) -> dict[str, Any]:
        """For the run's configuration."""
        return {"values": self.digest, "state": self.state is not None}

    @cached_property
    def digest(self) -> str:
        """Of all that is taken over."""
        carried = {} if self.state is None else {**self.state.tensors, **self.state.tables}
        return digest_of({**self.values, **carried}, 16).hex()

    def fill(self, params: Tree, problem: Problem) -> dict[str, int]:
        """Put the values into ``params`` in place; returns the rows of each table that were taken over."""
        if lacking := [name for name in problem.names if name not in self.values]:
            raise ObjectiveError(
                f"{self.source} has no {', '.join(lacking[:5])}, which the module has; start from a model of the same "
                "module, or load what fits into the module yourself."
            )
        taken = {name: self._known(name, problem, params[name]) for name in problem.names}  # all or nothing
        for name, rows in taken.items():
            value = self.values[name].to(params[name].device)
            if rows is None:
                params[name].copy_(value)
            else:
                params[name][:rows].copy_(value[:rows])
        return {name: rows for name, rows in taken.items() if rows is not None}

    def _known(self, name: str, problem: Problem, param: Tensor) -> int | None:
        """How many rows of a table are taken over; None for a dense parameter, which is taken whole."""
        value, space = self.values[name], problem.tables.get(name)
        same_but_rows = value.ndim == param.ndim and value.shape[1:] == param.shape[1:]
        if value.dtype != param.dtype or not (same_but_rows if space is not None else value.shape == param.shape):
            raise ObjectiveError(
                f"{name} is {list(value.shape)} {value.dtype} in {self.source} and {list(param.shape)} {param.dtype} "
                "in the module; make the module with the same sizes and type."
            )
        if space is None:
            return None
        if name in self.ids:
            rows = known_rows(name, self.ids[name], len(value), space, self.source)
            if rows <= len(param):
                return rows
        elif len(value) == len(param):
            return len(value)
        raise ObjectiveError(
            f"{name} has {len(value):,} rows in {self.source} and {len(param):,} in the module, and it is not known "
            "which ids they stand for. Start from the run's directory, or from a module of fedsub.load(…).module()."
            if name not in self.ids
            else f"{name} has {len(param):,} rows in the module and {len(value):,} in {self.source}; give it as many."
        )

    def count(self, trainer: Any) -> list[str]:
        """Put what was spent before on the trainer's account; what to tell of it."""
        private = trainer.server.private if isinstance(trainer, Trainer) else None
        if private is None:
            return []
        private.after(self.spends)
        trainer.went_before(int(self.digest[:14], 16))
        if self.spends:
            return [f"{self.source} has spent epsilon={private.budget.spent(self.spends):.4g}, which counts here too"]
        return [f"what {self.source} tells of clients is not in epsilon: its training was not private"]

    def carry(self, trainer: Any, method: Any, rows: Mapping[str, int]) -> list[str]:
        """Give a trainer that has not begun the server's state and the clients' own parameters; what to tell of it."""
        said = [f"started from {self.source}: {_counted(trainer.params, rows)}", *self.notes]
        if self.state is not None:
            _check_carried(trainer, method, self.state, self.source)
            own = {**trainer.state.small(), **trainer.state.tables()}
            saved = {**self.state.tensors, **self.state.tables}
            for name in (n for n in own if n.startswith(CARRIED)):
                table = next((t for t in rows if name.endswith(f"/{t}")), None)
                if table is not None and own[name].ndim and len(own[name]) == len(trainer.params[table]):
                    own[name][: rows[table]].copy_(saved[name][: rows[table]])
                else:
                    own[name].copy_(saved[name])
            # The server counts on from the rounds that its state has seen: rows that it owes something stay owed it.
            trainer.server.skipped.copy_(saved["rounds/skipped"] - self.state.round)
            trainer.server.bring_up_to_date()
            said.append("the server goes on with the state of that run")
        if self.personal is not None:
            anew = f"clients of {method.name} begin anew from the shared model"
            said.append(self._carry_personal(trainer) if isinstance(trainer, Trainer) else anew)
        return said

    def _carry_personal(self, trainer: Trainer) -> str:
        """Clients that are known have the own parameters they had; of a table the rows that they had."""
        assert self.personal is not None
        names = [n for n in trainer.server.schema.private if n in self.personal.names]
        known = set(self.personal.client_ids.tolist())
        found = [(k, c) for k, c in enumerate(trainer.problem.clients.client_ids.tolist()) if c in known]
        slot = "" if trainer.method.keeper is None else trainer.method.keeper.own_slot
        for place, client in found if names else ():
            values, held = self.personal.params(client), self.personal.rows(client)
            for name in names:
                stored, space = trainer.memory.tensors[f"{slot}/{name}"], trainer.problem.tables.get(name)
                if space is None:
                    stored[place].copy_(values[name])
                    continue
                begin, old = int(space.row_offsets[place]), {row: k for k, row in enumerate(held[name].tolist())}
                for k, row in enumerate(space.rows_of(place).tolist()):
                    if row in old:
                        stored[begin + k].copy_(values[name][old[row]])
        return f"{len(found) if names else 0} clients have the own parameters that they had"


class Starts:
    """The starts of several runs: one for all, or the directory of a comparison with a run for each."""

    def __init__(self, start: Any, state: bool):
        self.start, self.state = start, state
        self._known: tuple[Any, WarmStart] | None = None  # the last one: it may be large

    def of(self, slug: str, seed: int) -> WarmStart | None:
        """That of a method, by its name in a path, and a seed."""
        if self.start is None:
            return None
        where = self._place(slug, seed) if isinstance(self.start, str | os.PathLike) else self.start
        key = str(where) if isinstance(where, Path) else id(where)
        if self._known is None or self._known[0] != key:
            self._known = key, WarmStart.of(where, state=self.state)
        return self._known[1]

    def _place(self, slug: str, seed: int) -> Path:
        folder = Path(self.start)
        if (folder / "config.json").exists() or not folder.is_dir():
            return folder
        runs = sorted(path.parent for path in folder.glob("*/config.json"))
        if (own := folder / f"{slug}-seed{seed}") in runs:
            return own
        same = [path for path in runs if path.name.rpartition("-seed")[0] == slug] or runs
        if len(same) == 1:
            return same[0]
        named = ", ".join(path.name for path in runs[:5]) or "none"
        raise ConfigError(f"{folder} has no run {own.name} to start from; name one of its runs (it has {named}).")


def first_run(folder: Path) -> Path:
    """A run's directory: this one, or the first of a comparison, whose runs have the same vocabularies."""
    runs = [] if (folder / "config.json").exists() else sorted(p.parent for p in folder.glob("*/config.json"))
    return runs[0] if runs else folder


def _snapshot(path: Path) -> Snapshot:
    try:
        return load_whole(Checkpoints(path / "checkpoints"), path)[0]
    except CheckpointError as error:
        raise CheckpointError(
            f"The server's state of {path} is in its checkpoints, which are gone or damaged; start without start_state "
            f"(--start-state). {error}"
        ) from error


def _check_carried(trainer: Any, method: Any, state: Snapshot, source: str) -> None:
    if not isinstance(method, Method) or not isinstance(trainer, Trainer):
        raise ConfigError(f"{method.name} has no server whose state could be taken over; leave start_state out.")
    keeping = [f"{p.key}.{slot}" for p in method.parts for slot in p.client_slots if slot != p.own]
    if keeping:
        raise ConfigError(
            f"Clients of {method.name} remember {', '.join(keeping)} between rounds, which the server's state belongs "
            "to and which stays with the clients; start without start_state (--start-state)."
        )
    if isinstance(method.server, TailMean):
        raise ConfigError(
            "TailMean counts its rounds from the end of its own run, so its state does not go on in another one; start "
            "without start_state (--start-state)."
        )
    own = {n for n in (*trainer.state.small(), *trainer.state.tables()) if n.startswith(CARRIED)}
    saved = {n for n in (*state.tensors, *state.tables) if n.startswith(CARRIED)}
    if own != saved or "rounds/skipped" not in state.tensors:
        raise ConfigError(
            f"The server of {source} remembers {_kinds(saved)}, and that of {method.name} {_kinds(own)}; start with "
            "the same kind of server, or without start_state (--start-state)."
        )


def _kinds(names: set[str]) -> str:
    return ", ".join(sorted({n.split("/")[1] for n in names})) or "nothing"


def _counted(params: Tree, rows: Mapping[str, int]) -> str:
    new = {name: len(params[name]) - known for name, known in rows.items()}
    told = [f"{name} has {known:,} known rows and {new[name]:,} new ones" for name, known in rows.items()]
    return "; ".join(told) or "all parameters"
