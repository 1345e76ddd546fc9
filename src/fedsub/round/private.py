"""The server's half of differential privacy: sums that are noised, and what has been spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsub.errors import MethodError
from fedsub.method.groups import Cohort
from fedsub.method.part import Total
from fedsub.method.parts import CentralDP, LocalDP, SecureSum
from fedsub.method.parts.bounded import BoundedUpdate
from fedsub.method.parts.central_dp import BELOW
from fedsub.method.sampling import Fraction, Poisson
from fedsub.method.servers.add import Add
from fedsub.method.servers.noised import LateNoise
from fedsub.method.slots import BoundAverage, Method, Server
from fedsub.objective.population import Population
from fedsub.privacy.budget import LONGEST, Budget
from fedsub.privacy.noise import Counted, Walks
from fedsub.privacy.spending import Spend
from fedsub.round.sums import Sums
from fedsub.round.told import Told
from fedsub.trees import Tree

EPSILON = "privacy.epsilon"  # the metric: what was spent up to a round


class Spending:
    """What a method has spent of its budget: heat and row sets once, and every round that was played."""

    def __init__(self, budget: Budget, before: tuple[Spend, ...]):
        self.before, self.budget = before, budget

    def spends(self) -> tuple[Spend, ...]:
        raise NotImplementedError

    def admits_another(self) -> bool:
        """Whether the budget has enough left for a round."""
        raise NotImplementedError

    def small(self) -> dict[str, Tensor]:
        """What a checkpoint keeps."""
        raise NotImplementedError

    def played(self, cohort: Cohort) -> None:
        """A round is about to begin with these clients."""

    def after(self, earlier: tuple[Spend, ...]) -> None:
        """Training begins with a model for which that was spent already."""
        self.before = (*self.before, *earlier)

    @property
    def told_before(self) -> str:
        """What was spent before the first round, for a sentence."""
        return f" (spent before: {'; '.join(f'{s.what}, {s}' for s in self.before)})" if self.before else ""

    @property
    def epsilon(self) -> float:
        return self.budget.spent(self.spends())

    def stops(self, number: int) -> str:
        """Why round ``number`` is not played, in a sentence; "" if it is."""
        if self.admits_another():
            return ""
        return (
            f"Stopped before round {number}: it would go past epsilon={self.budget.epsilon:g} at "
            f"delta={self.budget.delta:g}, of which {self.epsilon:.4g} is spent. The model is kept."
        )

    def describe(self) -> dict[str, Any]:
        """What was spent on what, as plain JSON; what does not belong to a kind of mechanism is NaN and left out."""
        limit = {"budget": self.budget.epsilon} if self.budget.epsilon != float("inf") else {}
        spends = [{k: v for k, v in vars(spend).items() if v == v} for spend in self.spends()]
        return {"delta": self.budget.delta, "accountant": self.budget.accountant, **limit, "spends": spends}


class Once(Spending):
    """What clients tell once and for all, where the rounds themselves are not private: it is counted, and no more."""

    def spends(self) -> tuple[Spend, ...]:
        return self.before

    def admits_another(self) -> bool:
        return True

    def small(self) -> dict[str, Tensor]:
        return {}

    def describe(self) -> dict[str, Any]:
        covers = "what clients say of their rows; the sums of their updates, and what is made of them, are not private"
        return {**super().describe(), "covers": covers}


class OfClients(Spending):
    """`LocalDP`: every client pays for its own participations; what counts is the one that paid most."""

    def __init__(self, part: LocalDP, before: tuple[Spend, ...], clients: int):
        super().__init__(part.budget, before)
        self.part = part
        self.took = torch.zeros(clients, dtype=torch.int32)
        if not self.budget.admits((*before, part.spend(1))):
            raise MethodError(
                f"epsilon={self.budget.epsilon:g} does not admit a single round{self.told_before}; raise it, or noise."
            )

    @cached_property
    def most(self) -> int:
        """How often a client may take part; asked for when all that was spent before is known."""
        return self.budget.times(self.part.spend(1), self.before)

    def played(self, cohort: Cohort) -> None:
        self.took.index_add_(0, torch.from_numpy(cohort.clients), torch.ones(len(cohort), dtype=torch.int32))

    def spends(self) -> tuple[Spend, ...]:
        return (*self.before, self.part.spend(int(self.took.max())))

    def admits_another(self) -> bool:
        return int(self.took.max()) < self.most

    def small(self) -> dict[str, Tensor]:
        return {"privacy/took": self.took}


class NoisedSums(Spending):
    """`CentralDP`: the noise of every round, in the sum or, for rows that nobody sent, later (`LateNoise`)."""

    def __init__(
        self, method: Method, part: CentralDP, population: Population, params: Tree, names: Sequence[str],
        average: Callable[[], BoundAverage], told: Told, *, seed: int, rounds: int | None,
    ):  # fmt: skip
        super().__init__(part.budget, _before(method, population, names))
        self.part, self.told = part, told
        able = int((population.sizes > 0).sum())
        sampler, drawn = method.sampler, able
        if isinstance(sampler, Fraction):
            drawn = sampler.count(able)
        elif isinstance(sampler, Poisson):
            drawn = min(able, sampler.clients_per_round)
        self.expected = float(drawn)
        self.rate, self.population, self.names, self.average = self.expected / able, population, names, average
        self.numbers = {name: place for place, name in enumerate(params)}
        self.params, self.seed = params, seed
        self.offset = 0  # rounds that were played before this run
        chosen = part.resolved(rounds, self.rate, self.before).noise
        # Kept in checkpoints: a run that is trained further goes on with the noise it began with.
        self.noise, self.rounds = torch.tensor(chosen, dtype=torch.float64), torch.zeros((), dtype=torch.int64)
        self.walks = Walks(part.secret.words(seed) if part.secret is not None else Counted(seed))
        self.planned = LONGEST if rounds is None else rounds
        if not self.budget.admits((*self.before, self.once)):
            raise MethodError(
                f"epsilon={self.budget.epsilon:g} at delta={self.budget.delta:g} does not admit a single round with "
                f"noise={float(self.noise):g} at rate {self.rate:g}{self.told_before}; raise noise or epsilon."
            )
        self.noises()  # refuses a noise of bits that leaves nothing for updates

    def noises(self) -> tuple[float, float]:
        """Of the sum of updates, as a multiple of the clip norm, and of the count of those not longer than it."""
        return self.part.noises_of(float(self.noise), self.expected)

    @property
    def once(self) -> Spend:
        """A round of training."""
        return Spend.gaussian("training", float(self.noise), rate=self.rate)

    @cached_property
    def most(self) -> int:
        """How many of the rounds planned the budget admits; asked for when a checkpoint has been read."""
        return self.budget.times(self.once, self.before, self.planned)

    def spends(self) -> tuple[Spend, ...]:
        return (*self.before, self.once * int(self.rounds))

    def admits_another(self) -> bool:
        done = int(self.rounds)
        return done < self.most or (done >= self.planned and self.budget.admits((*self.before, self.once * (done + 1))))

    def describe(self) -> dict[str, Any]:
        described = super().describe()
        if self.part.quantile is not None:  # how the noise of a round is shared out, and the clip norm of the next one
            noise, bit_noise = self.noises()
            described["clipping"] = {
                "clip": self.clip, "quantile": self.part.quantile, "noise": noise, "bit_noise": bit_noise,
            }  # fmt: skip
        return described

    def small(self) -> dict[str, Tensor]:
        return {"privacy/noise": self.noise, "privacy/rounds": self.rounds}

    def played(self, cohort: Cohort) -> None:
        self.rounds.add_(1)

    def after(self, earlier: tuple[Spend, ...]) -> None:
        super().after(earlier)
        # Neither noise nor cohorts of those rounds may come again, though the seed be the same.
        self.offset += sum(spend.times for spend in earlier if spend.kind == "gaussian")

    @property
    def cohorts(self) -> int:
        """The seed by which clients are drawn."""
        return self.part.secret.cohorts(self.seed) if self.part.secret is not None else self.seed

    def rule(self, server: Server) -> Server:
        """The method's server, with the noise that rows are owed."""
        if self.part.whole or not float(self.noise):
            return server
        assert isinstance(server, Add)
        return LateNoise(server, self._owed, frozenset(n for n in self.names if n in self.population.tables))

    @property
    def clip(self) -> float:
        """That of the round which is played."""
        return self.told.values[f"{self.part.key}.clip"] if self.part.quantile is not None else self.part.clip

    def noised(self, sums: Sums, round: int) -> Total:
        """The sum with the round's noise in it, to be divided by how many clients were expected."""
        total = sums.total()
        values, rows = dict(total.values), dict(total.rows)
        if self.part.whole:
            for name in values.keys() & rows.keys():
                whole = torch.zeros_like(self.params[name])
                whole.index_copy_(0, rows[name].long(), values[name])
                values[name] = whole
            rows = {name: torch.arange(len(self.params[name]), device=at.device) for name, at in rows.items()}
        for name in values if float(self.noise) else ():
            values[name] = values[name] + self._noise(name, rows.get(name), round - 1, round)
        numbers = {BELOW: self._below(sums, round) / self.expected} if self.part.quantile is not None else {}
        count = round_half_up(self.expected)
        return replace(total, values=values, rows=rows, numbers=numbers, weight=self.expected, count=count)

    def _below(self, sums: Sums, round: int) -> float:
        """Σ (b_i − ½) with its noise, drawn as that of a parameter more."""
        bits, (_, noise) = sums.numbers.get(BELOW, 0.0), self.noises()
        drawn = self.walks.dense(len(self.numbers), 1, round - 1 + self.offset, round + self.offset)
        return bits + noise * float(drawn[0])

    def _noise(self, name: str, rows: Tensor | None, since: np.ndarray | int, until: int) -> Tensor:
        """Noise of a sum over some rounds: of rows of a table, or of a whole parameter."""
        like, number = self.params[name], self.numbers[name]
        since, until = since + self.offset, until + self.offset
        if rows is None:
            assert isinstance(since, int)
            drawn = self.walks.dense(number, like.numel(), since, until).reshape(like.shape)
        else:
            at = rows.cpu().numpy()
            drawn = self.walks.rows(number, at, like[0].numel(), since, until).reshape(len(at), *like.shape[1:])
            if name in self.population.padding:  # everybody knows that it means nothing and stays as it is
                drawn[at == 0] = 0.0
        drawn *= self.noises()[0] * self.clip
        return torch.from_numpy(drawn).to(like)

    def _owed(self, name: str, rows: Tensor, since: Tensor, until: int) -> Tensor:
        noise = self._noise(name, rows, since.cpu().numpy(), until)
        total = Total({name: noise}, {name: rows}, {}, self.expected, round_half_up(self.expected))
        return self.average()(total)[name]


def round_half_up(number: float) -> int:
    return int(number + 0.5)


def spending(
    method: Method, population: Population, params: Tree, names: Sequence[str], average: Callable[[], BoundAverage],
    reports: Sequence[str], told: Told, *, seed: int, rounds: int | None,
) -> Spending | None:  # fmt: skip
    """What a method's part for differential privacy is at the server; None if it has none.

    ``average`` gives the fitted one, which a server on its own has only after it asked for private heat.
    """
    part = next((part for part in method.parts if isinstance(part, BoundedUpdate)), None)
    if part is None:
        perturbs = any(isinstance(part, SecureSum) and part.perturbs is not None for part in method.parts)
        return Once(Budget(), _before(method, population, names)) if perturbs else None
    if reports:
        part.refuse_reports(method)
    if isinstance(part, CentralDP):
        return NoisedSums(method, part, population, params, names, average, told, seed=seed, rounds=rounds)
    assert isinstance(part, LocalDP)
    return OfClients(part, _before(method, population, names), len(population))


def _before(method: Method, population: Population, names: Sequence[str]) -> tuple[Spend, ...]:
    """What heat costs once, and the rows that clients name in all rounds together; ``names`` are sent."""
    spends = getattr(method.average, "spends", None)  # an average of the user's own need not say
    heat = spends(population) if spends is not None else ()
    spaces = {population.tables[name] for name in names if name in population.tables}
    rows = [spend for part in method.parts if isinstance(part, SecureSum) for spend in part.spends(len(spaces))]
    return (*heat, *rows)
