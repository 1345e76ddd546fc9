"""Problems for the mixture's algorithms, and a reference for submodels in plain loops."""

from __future__ import annotations

import numpy as np
import torch

from fedsub.families.mixture import Constants, Functions, Quadratics, Solver, State
from fedsub.families.mixture.functions import Change, Rows, minus
from fedsub.trees import Tree

LAM = 2.0


def five_clients(seed: int = 1) -> Quadratics:
    """n = 5, d = 3, m = 8, L̃ = 10, terms of curvature at least 1."""
    return Quadratics.random(L=10, mu=1, seed=seed)


WORST = Constants(L=10, mu=1, L_terms=10)  # all that is known of it without looking at the means of its terms


def run(solver: Solver, functions: Functions, constants: Constants, iterations: int, seed: int = 0) -> State:
    state = solver.begin(functions, constants)
    for number in range(1, iterations + 1):
        solver.step(state, functions, number, seed)
    return state


def squared(functions: Functions, x: Tree, y: Tree) -> float:
    """Σ ‖x_i − y_i‖²."""
    difference = minus(x, y)
    return float(functions.dot(difference, difference).sum())


class Submodels:
    """Quadratic terms over a table of which client i holds only the rows ``held[i]``, and a dense vector.

    With u_i = (rows of client i one after the other, its dense vector) every term is ½ (u − e)ᵀ H (u − e).
    Everything is done client by client, term by term.
    """

    def __init__(self, held: list[list[int]], terms: list[int], width: int = 2, dense: int = 3, seed: int = 0):
        draw = np.random.default_rng(seed)
        self.held, self.width, self.dense = held, width, dense
        self.rows_only = False  # whether changes of the table are told row by row
        self.clients, self.terms = len(held), np.array(terms, np.int64)
        self.sizes = [len(rows) * width + dense for rows in held]
        self.H, self.e = [], []
        for size, count in zip(self.sizes, terms, strict=True):
            turns, _ = np.linalg.qr(draw.standard_normal((count, size, size)))
            values = draw.uniform(1, 6, (count, size))
            self.H.append(np.einsum("tij,tj,tkj->tik", turns, values, turns))
            self.e.append(draw.standard_normal((count, size)))

    def vectors(self, x: Tree) -> list[np.ndarray]:
        out, begin = [], 0
        for i, rows in enumerate(self.held):
            table = x["table"][begin : begin + len(rows)].numpy().reshape(-1)
            out.append(np.concatenate([table, x["dense"][i].numpy()]))
            begin += len(rows)
        return out

    def tree(self, vectors: list[np.ndarray]) -> Tree:
        tables = [v[: -self.dense].reshape(-1, self.width) for v in vectors]
        return {
            "table": torch.from_numpy(np.concatenate(tables)),
            "dense": torch.from_numpy(np.stack([v[-self.dense :] for v in vectors])),
        }

    def start(self) -> Tree:
        return self.tree([np.zeros(size) for size in self.sizes])

    def gradient(self, x: Tree, which: np.ndarray | None = None) -> tuple[np.ndarray, Tree]:
        losses, gradients = [], []
        for i, v in enumerate(self.vectors(x)):
            terms = range(self.terms[i]) if which is None else [which[i]]
            steps = [v - self.e[i][j] for j in terms]
            pulls = [self.H[i][j] @ s for j, s in zip(terms, steps, strict=True)]
            losses.append(np.mean([0.5 * s @ g for s, g in zip(steps, pulls, strict=True)]))
            gradients.append(np.mean(pulls, axis=0))
        return np.array(losses), self.tree(gradients)

    def mean(self, x: Tree) -> Tree:
        rows = np.concatenate([np.array(r, int) for r in self.held])
        table = x["table"].numpy()
        means = np.stack([table[rows == row].mean(0) for row in rows])
        return {"table": torch.from_numpy(means), "dense": x["dense"].mean(0).expand_as(x["dense"]).clone()}

    def memory(self) -> SubmodelMemory:
        return SubmodelMemory(self, self.rows_only)

    def dot(self, x: Tree, y: Tree) -> np.ndarray:
        return np.array([a @ b for a, b in zip(self.vectors(x), self.vectors(y), strict=True)])

    def spread(self, values: np.ndarray) -> Tree:
        values = np.asarray(values, np.float64)
        counts = [len(rows) for rows in self.held]
        return {
            "table": torch.from_numpy(np.repeat(values, counts)).view(-1, 1),
            "dense": torch.from_numpy(values.copy()).view(-1, 1),
        }

    def constants(self) -> Constants:
        means = [np.linalg.eigvalsh(H.mean(0)) for H in self.H]
        return Constants(
            L=float(max(v.max() for v in means)),
            mu=float(min(v.min() for v in means)),
            L_terms=float(max(np.linalg.eigvalsh(H).max() for H in self.H)),
        )

    def solution(self, lam: float) -> Tree:
        """∇f_i(x_i) + λ(x_i − x̄) = 0 for all clients at once, as one linear system."""
        ends = np.cumsum(self.sizes)
        total = int(ends[-1])
        matrix, right = np.zeros((total, total)), np.zeros(total)
        residual = np.zeros((total, total))  # x − x̄, column by column
        for column in range(total):
            unit = np.zeros(total)
            unit[column] = 1.0
            x = self.tree(np.split(unit, ends[:-1]))
            residual[:, column] = np.concatenate(self.vectors(minus(x, self.mean(x))))
        for i, (end, size) in enumerate(zip(ends, self.sizes, strict=True)):
            block = slice(end - size, end)
            matrix[block, block] = self.H[i].mean(0)
            right[block] = np.mean([H @ e for H, e in zip(self.H[i], self.e[i], strict=True)], axis=0)
        return self.tree(np.split(np.linalg.solve(matrix + lam * residual, right), ends[:-1]))


class SubmodelMemory:
    """J_i[:, l], a list of trees by term and client."""

    def __init__(self, functions: Submodels, rows_only: bool):
        self.functions, self.rows_only = functions, rows_only
        self.stored = [torch.zeros(m, size) for m, size in zip(functions.terms, functions.sizes, strict=True)]
        self.stored = [s.to(torch.float64) for s in self.stored]

    @property
    def mean(self) -> Tree:
        return self.functions.tree([s.mean(0).numpy() for s in self.stored])

    @property
    def tensors(self) -> Tree:
        return {str(i): s for i, s in enumerate(self.stored)}

    def swap(self, which: np.ndarray, gradient: Tree) -> Change:
        new = self.functions.vectors(gradient)
        changes = [g - self.stored[i][which[i]].numpy() for i, g in enumerate(new)]
        for i, g in enumerate(new):
            self.stored[i][which[i]] = torch.from_numpy(g)
        change = self.functions.tree(changes)
        if not self.rows_only:
            return change
        half = change["table"] / 2  # every row twice
        places = torch.arange(len(half)).repeat(2)
        return {"table": Rows(places, torch.cat([half, half])), "dense": change["dense"]}


def some_submodels() -> Submodels:
    """Rows held by one, some and all clients, and unequal numbers of terms."""
    return Submodels([[0, 1, 2], [1, 3], [1, 2, 3, 4], [1]], terms=[2, 5, 1, 3])
