"""The mixture's algorithms as training: iterations are rounds, personal models are what is evaluated and saved."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from fedsub.data.clients import Clients
from fedsub.errors import NoUsableClient
from fedsub.families.mixture.constants import Constants
from fedsub.families.mixture.functions import minus
from fedsub.families.mixture.modules import ModuleFunctions
from fedsub.families.mixture.solver import Solver
from fedsub.method.groups import Cohort
from fedsub.method.training import Trains
from fedsub.round.layout import asked_of
from fedsub.round.ledger import Ledger, RoundReport, nobody
from fedsub.round.memory import ClientState
from fedsub.round.predict import PersonalModel
from fedsub.round.remembered import Remembered
from fedsub.round.schema import Schema, lengths
from fedsub.trees import Tree


class MixtureTrainer(Trains):
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
        # Every client moves in every iteration, so all of it is saved.
        memory = {} if self.solved.memory is None else self.solved.memory.tensors
        tables = {f"client/{name}": value for name, value in self.kept.tensors.items()}
        tables |= {f"terms/{name}": value for name, value in memory.items()}
        small = {f"mixture/{name}": value for name, value in self.solved.numbers.items()}
        self.state = Remembered(small, tables, {}, all_rows=True)
        spaces = self.problem.spaces
        self.schema = Schema((), params, {name: space.name for name, space in self.problem.tables.items()})
        self.ledger = Ledger(self.schema, len(self.problem.clients), {n: space.size for n, space in spaces.items()})

    def round(self, number: int) -> RoundReport:
        step = self.solver.step(self.solved, self.functions, number, self.seed)
        first = next(iter(self.solved.x.values()))
        if not np.isfinite(float(first.sum())):
            raise NoUsableClient(
                f"Iteration {number}: the personal models hold NaN or infinity. The step size is too large: "
                f"L = {self.constants.L:.4g} was assumed; give a larger L, or a smaller alpha."
            )
        if not step.communicated:
            return RoundReport(nobody(), step.loss, nobody(), nobody())
        everyone = Cohort.of(np.arange(len(self.problem.clients)))
        one_way = step.communications * self._message(step.vectors)
        up = one_way.copy()
        if int(self.solved.numbers["communications"]) == step.communications:
            # Row ids cross once in a run: a client always asks for the same rows.
            up += self.ledger.asked(everyone, asked_of(self.problem.spaces, everyone.clients))
        return RoundReport(everyone.clients, step.loss, one_way, up)

    def _message(self, vectors: int) -> np.ndarray:
        """Bytes of a message with so many vectors like x_i, by client; the same in both directions."""
        fields = [field for k in range(vectors) for field in self.schema.tree(f"vector{k}", self.problem.names)]
        counts = {name: space.counts for name, space in self.problem.spaces.items()}
        return lengths(fields, counts, len(self.problem.clients))

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
