"""The mixture's algorithms as training: iterations are rounds, personal models are what is evaluated and saved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from torch import Tensor

from fedsub.data.clients import Clients
from fedsub.errors import NoUsableClient
from fedsub.families.mixture.constants import Constants
from fedsub.families.mixture.functions import minus
from fedsub.families.mixture.modules import ModuleFunctions
from fedsub.families.mixture.solver import Solver
from fedsub.families.mixture.solver import State as SolverState
from fedsub.round.memory import ClientState
from fedsub.round.predict import PersonalModel
from fedsub.round.rounds import RoundReport
from fedsub.round.state import put_back
from fedsub.trees import Tree

NOBODY = np.zeros(0, np.int64)


class MixtureTrainer:
    """Runs a solver on all clients. What clients keep lies in the one store of client state (`ClientState`)."""

    def __init__(
        self,
        functions: ModuleFunctions,
        solver: Solver,
        constants: Constants,
        params: Tree,
        seed: int,
        scratch: Path | None,
    ):
        self.functions, self.solver, self.constants, self.seed = functions, solver, constants, seed
        self.problem, self.params = functions.problem, params
        self.engine = SimpleNamespace(name="batched" if functions.batched else "serial")
        self.solved = solver.begin(functions, constants)
        self.kept = ClientState(self.problem, params, list(self.solved.trees), folder=scratch)
        for slot, tree in self.solved.trees.items():
            for name, leaf in tree.items():
                self.kept.tensors[f"{slot}/{name}"].copy_(leaf)
            self.solved.trees[slot] = {name: self.kept.tensors[f"{slot}/{name}"] for name in tree}
        self.state = Remembered(self.kept, self.solved)
        everyone = np.arange(len(self.problem.clients))
        self._down, up = self.problem.sizes_in_bytes(everyone)
        self._ids = up - self._down

    def round(self, number: int) -> RoundReport:
        step = self.solver.step(self.solved, self.functions, number, self.seed)
        first = next(iter(self.solved.x.values()))
        if not np.isfinite(float(first.sum())):
            raise NoUsableClient(
                f"Iteration {number}: the personal models hold NaN or infinity. The step size is too large: "
                f"L = {self.constants.L:.4g} was assumed; give a larger L, or a smaller alpha."
            )
        if not step.communicated:
            return RoundReport(NOBODY, step.loss, NOBODY, NOBODY)
        # Row ids cross once in a run: a client always asks for the same rows.
        ids = self._ids if int(self.solved.numbers["communications"]) == step.communications else 0
        times = step.communications * step.vectors
        return RoundReport(np.arange(len(self._down)), step.loss, self._down * times, self._down * times + ids)

    def model(self, number: int) -> PersonalModel:
        self.functions.shared(self.solved.x, self.params)
        return PersonalModel(self.params, self.kept, "x", self.problem.names)

    def settle(self, number: int) -> None:
        self.functions.shared(self.solved.x, self.params)

    def measures(self, splits: dict[str, Clients]) -> dict[str, float]:
        """What it cost so far, as the theory counts, and ψ: how far the personal models lie apart."""
        numbers = self.solved.numbers
        apart = minus(self.solved.x, self.functions.mean(self.solved.x))
        return {
            "mixture.communications": int(numbers["communications"]),
            "mixture.gradients": int(numbers["gradients"]),
            "mixture.proxes": int(numbers["proxes"]),
            "mixture.psi": float(self.functions.dot(apart, apart).mean() / 2),
        }


class Remembered:
    """A solver's state for checkpoints: every client moves in every iteration, so all of it is saved."""

    def __init__(self, kept: ClientState, solved: SolverState):
        self.kept, self.solved, self.tracking = kept, solved, True

    def small(self) -> Tree:
        return {f"mixture/{name}": value for name, value in self.solved.numbers.items()}

    def tables(self) -> Tree:
        memory = {} if self.solved.memory is None else self.solved.memory.tensors
        return {f"client/{name}": value for name, value in self.kept.tensors.items()} | {
            f"terms/{name}": value for name, value in memory.items()
        }

    def take_moved(self) -> None:
        return None

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        put_back({**self.small(), **self.tables()}, tensors)
