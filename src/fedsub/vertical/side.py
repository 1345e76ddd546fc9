"""`Side`: one party's module, trained on the rows of a batch, and what its optimiser remembers.

Of the party's tables only the rows that a batch names are read and moved. An optimiser that moves other rows too, such
as momentum, makes that up when a row is next needed (`fedsub.method.servers`), so that training is that of the whole
tables at the cost of a few rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedsub import rng
from fedsub.data.clients import Clients
from fedsub.errors import MethodError, ObjectiveError
from fedsub.method.servers import Add, ServerRule, TorchOptimiser
from fedsub.method.servers.base import check_groups_of
from fedsub.objective.problem import Problem
from fedsub.round.engines.base import Filled, columns_to, template
from fedsub.round.engines.inspecting import Columns
from fedsub.round.engines.probe import probe
from fedsub.round.engines.rewrite import Rewrite
from fedsub.round.remembered import Moved
from fedsub.trees import Tree, take_rows


def optimiser_of(given: object) -> ServerRule:
    """A rule as it is, a number as the rate of SGD, a factory of torch.optim stepping the rows of a batch."""
    if isinstance(given, ServerRule):
        return given
    if isinstance(given, int | float) and not isinstance(given, bool):
        return Add(lr=given)
    if callable(given):
        return TorchOptimiser(given, sparse_server=True)  # type: ignore[arg-type]
    raise MethodError(
        f"An optimiser is a rate for SGD (0.1), one of fedsub.servers such as Adam(lr=0.01), or a function like "
        f"lambda tensors: torch.optim.Adam(tensors, lr=0.01); got {given!r}."
    )


@dataclass
class Opened:
    """A step whose forward was computed."""

    output: Tensor
    leaves: dict[str, nn.Parameter]
    rows: dict[str, Tensor]  # table -> the rows that the batch names
    batch: Columns


class Side:
    """``params`` are the party's own and are changed in place; ``place`` is its number, from which dropout follows."""

    def __init__(self, problem: Problem, params: Tree, rule: ServerRule, *, seed: int, place: int):
        _check(problem)
        self.problem, self.params, self.rule = problem, params, rule
        self.seed, self.place = seed, place
        self.device = next(iter(params.values())).device
        check_groups_of(rule, params)
        self.state = rule.init(params, tuple(problem.tables))
        self.moved = {name: Moved(len(params[name])) for name in problem.tables}
        self.columns = tuple(problem.clients.columns)
        self._training, self._asked = Filled(template(problem, self.device)), Filled(template(problem, self.device))
        self._asked.module.eval()
        self._whole: tuple[int, Tree] | None = None  # (a step, all parameters after it)
        self._random = False

    def inspect(self, samples: np.ndarray, others: Mapping[str, Tensor]) -> None:
        """Run the module once and look at what it reads and how; refuse what would run and be wrong."""
        batch = self._fill(samples, others, 0)[0]
        with torch.random.fork_rng():
            usage = probe(self.problem, self._training.module, batch)
        if usage.whole:
            table, how = next(iter(usage.whole.items()))
            raise ObjectiveError(f"The table {table!r} is used whole (by {how}); a batch has its own rows only.")
        self._random = usage.dropout or usage.random is not None
        self.columns = tuple(name for name in self.problem.clients.columns if name in batch.read)

    def open(self, samples: np.ndarray, others: Mapping[str, Tensor], step: int) -> Opened:
        """The forward of a step, on the rows that its samples name; ``others`` are columns that came from elsewhere."""
        batch, rows, leaves = self._fill(samples, others, step)
        with self._randomness(step):
            output = self.problem.objective.output(self._training.module, batch)
        return Opened(output, leaves, rows, batch)

    def _fill(
        self, samples: np.ndarray, others: Mapping[str, Tensor], step: int
    ) -> tuple[Columns, dict[str, Tensor], dict[str, nn.Parameter]]:
        arrays = self.problem.clients.gather(samples, self.columns, local=False)
        rows: dict[str, Tensor] = {}
        for space in self.problem.spaces.values():
            named = [arrays[c].reshape(-1) for c in space.columns if c in arrays]
            first = [np.zeros(1, np.int64)] if space.padding else []  # row 0 stays row 0
            found = np.unique(np.concatenate([*first, *named])) if named or first else np.zeros(0, np.int64)
            for column in space.columns:
                if column in arrays:
                    arrays[column] = np.searchsorted(found, arrays[column])
            rows |= {n: torch.from_numpy(found).to(self.device) for n, s in self.problem.tables.items() if s is space}
        if self.rule.lazy:
            self.rule.catch_up(self.params, rows, self.state, step - 1)
            self._note(rows)
        values = {n: take_rows(self.params[n], rows[n]) if n in rows else self.params[n] for n in self.problem.names}
        leaves = self._training.fill(values)
        mask = torch.ones(len(samples), device=self.device)
        return Columns({**columns_to(arrays, self.device), "sample_mask": mask, **others}), rows, leaves

    def advance(self, opened: Opened, gradients: Sequence[Tensor | None], step: int) -> None:
        """The optimiser's step, by the gradients of the leaves."""
        mean = {
            name: torch.zeros_like(leaf) if g is None else -g
            for (name, leaf), g in zip(opened.leaves.items(), gradients, strict=True)
        }
        with torch.no_grad():
            self.rule.advance(self.params, mean, opened.rows, self.state, step)
        self._note(opened.rows)
        self._whole = None

    def _note(self, rows: Mapping[str, Tensor]) -> None:
        for name, some in rows.items():
            self.moved[name].add(some)

    @contextmanager
    def _randomness(self, step: int) -> Iterator[None]:
        if not self._random:
            yield
            return
        word = int(rng.key(self.seed, rng.DROPOUT_LAYER, step, self.place)) >> 1
        with torch.random.fork_rng(devices=[]), Rewrite([], word, batched=False):
            torch.manual_seed(word)
            yield

    def whole(self, step: int) -> Tree:
        """All parameters after a step; a copy where rows must be brought up to date first."""
        if self._whole is None or self._whole[0] != step:
            params, state = self.params, self.state
            if self.rule.lazy:
                params = {n: p.clone() if n in self.problem.tables else p for n, p in params.items()}
                state = {n: v.clone() for n, v in state.items()}
                self.rule.catch_up(params, None, state, step)
            self._whole = step, self.rule.outcome(params, state, step)
        return self._whole[1]

    def settle(self, step: int) -> None:
        """At the end: all rows up to date, in place."""
        for name, value in self.whole(step).items():
            if value is not self.params[name]:
                self.params[name].copy_(value)
        self.settled(step)

    def settled(self, step: int) -> None:
        """The parameters are those after a step, whatever the optimiser remembers."""
        self._whole = step, self.params

    def forget(self) -> None:
        """Parameters and state were changed from outside."""
        self._whole = None

    def say(
        self, clients: Clients, samples: np.ndarray, others: Mapping[str, Tensor], step: int
    ) -> tuple[Tensor, dict]:
        """(output, batch) for samples of any part of the data, in eval mode with all that was learned."""
        there = [name for name in self.columns if name in clients.columns]  # of new samples the label is not known
        batch = columns_to(clients.gather(samples, there, local=False), self.device)
        batch |= {"sample_mask": torch.ones(len(samples), device=self.device), **others}
        self._asked.fill(self.whole(step))
        with torch.no_grad():
            return self.problem.objective.output(self._asked.module, batch), batch

    def kept(self, prefix: str = "") -> tuple[Tree, Tree, dict[str, Moved]]:
        """(small tensors, tables, which rows of them moved) of what the optimiser remembers, by prefixed name."""
        small: Tree = {}
        tables: Tree = {}
        moved: dict[str, Moved] = {}
        for name, value in self.state.items():
            table = name.partition("/")[2]
            if table in self.problem.tables and value.ndim > 0 and len(value) >= len(self.params[table]):
                tables[f"{prefix}optimiser/{name}"] = value
                moved[f"{prefix}optimiser/{name}"] = self.moved[table]
            else:
                small[f"{prefix}optimiser/{name}"] = value
        return small, tables, moved


def _check(problem: Problem) -> None:
    objective = problem.objective
    if objective.l2:
        raise ObjectiveError("l2 is for clients' objectives; give the party's optimiser weight decay instead.")
    if objective.whole:
        raise ObjectiveError(f"whole={objective.whole!r} cannot be used here: a batch has its own rows only.")
