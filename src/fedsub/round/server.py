"""The server's half of a round: it decides, and has a `Keeper` hold the model and what is remembered of it.

It sees neither data nor what clients keep. Of the clients it knows their `Population`, and in a round which rows they
ask for and what comes back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from fedsub.errors import MethodError, NoUsableClient
from fedsub.method.groups import Cohort
from fedsub.method.patterns import check_patterns
from fedsub.method.servers.base import check_groups_of
from fedsub.method.slots import BoundAverage, Method, Probe
from fedsub.objective.population import Population
from fedsub.round.keeper import Keeper, Rows, Shown
from fedsub.round.layout import Asked, Layout, Layouts
from fedsub.round.messages import MODEL, UPDATE, Downlink
from fedsub.round.private import NoisedSums, spending
from fedsub.round.schema import Schema
from fedsub.round.sums import Sums
from fedsub.round.told import Told
from fedsub.trees import Model, Tree, take_rows


@dataclass(frozen=True)
class Opened:
    """A round whose clients have named their rows, which are up to date and ready to be sent."""

    server: ServerHalf
    number: int
    cohort: Cohort
    asked: dict[str, Asked]
    layout: Layout
    probe: str = ""

    @cached_property
    def shown(self) -> Shown:
        """What its clients may be sent: asked for once, and only if it is sent."""
        return self.server.keeper.show(self.layout)

    def downlink(self, where: slice) -> Downlink:
        """What some clients of the cohort are sent."""
        return self.server.downlink(self, where)


class ServerHalf:
    """``params`` is the shared model, which rounds change in place."""

    def __init__(
        self, method: Method, population: Population, params: Tree, *, seed: int = 0, rounds: int | None = None,
        keeper: Callable[..., Keeper] = Keeper,
    ):  # fmt: skip
        """``keeper`` makes what holds the model, of parts, rule, average, parameters and tables."""
        self.method, self.population, self.params, self.seed = method, population, params, seed
        self._device = device = next(iter(params.values())).device
        check_patterns(method.local.groups, population.names, type(method.local).__name__)
        self.sampler = method.sampler.bind(population.sizes)
        self.rule = method.server.fitted(method.sampler.share(len(population)), rounds)
        self.schema = Schema(method.parts, params, population.tables, self.sampler.reports)
        self.told = Told(method.parts)
        self.private = spending(
            method, population, params, self.schema.shared, lambda: self.average, self.sampler.reports,
            self.told, seed=seed, rounds=rounds,
        )  # fmt: skip
        self.noised = self.private if isinstance(self.private, NoisedSums) else None
        if self.noised is not None:
            self.rule = self.noised.rule(self.rule)
        check_groups_of(self.rule, params)
        self.keeper = keeper(method.parts, self.rule, lambda: self.average, params, population.tables, population.lazy)
        self.skipped = torch.zeros((), dtype=torch.int64)  # rounds in which nobody took part
        self.lay_out = Layouts({s: population.rows[s] for s in dict.fromkeys(population.tables.values())}, device)
        self._settled = 0  # the last round after which every row was up to date

    @cached_property
    def average(self) -> BoundAverage:
        """Fitted when it is first needed: by then a server on its own has asked for private heat."""
        return self.method.average.bind(self.population, self._device)

    def meet(self, population: Population) -> None:
        """Clients have come that were absent: they may be drawn, and means are taken over them too."""
        self.population = population
        self.sampler.meet(population.sizes)
        self.__dict__.pop("average", None)

    def choose(self, number: int, ask: Probe) -> Cohort:
        """Who takes part; the sampler may ask clients for their loss."""
        if self.private is not None and (spent := self.private.stops(number)):
            raise MethodError(spent)
        seed, nth = (self.seed, number) if self.noised is None else (self.noised.cohorts, number + self.noised.offset)
        cohort = self.sampler.select(nth, seed, ask)
        if self.private is not None:
            self.private.played(cohort)
        if not len(cohort):
            if not self.sampler.may_be_empty:
                raise NoUsableClient(f"Round {number}: the sampler {self.method.sampler} chose nobody.")
            if self.noised is None:
                self.skip()
            else:  # that nobody came must not show either: noise goes on
                nobody = Asked(np.zeros(0, np.int64), np.zeros(0, np.int64))
                self.close(number, 0, self.sums(self.lay_out(dict.fromkeys(self.lay_out.rows, nobody))))
        return cohort

    def open(self, number: int, cohort: Cohort, asked: dict[str, Asked], probe: str = "") -> Opened:
        """Lay out the rows that are asked for and bring them to the end of the round before this one."""
        opened = self._opened(number, cohort, asked, probe)
        self.keeper.open(self._union(opened.layout), self._time(number) - 1)
        return opened

    def narrow(self, opened: Opened, which: np.ndarray) -> Opened:
        """The same round with some of its clients only."""
        asked = {space: one.take(which) for space, one in opened.asked.items()}
        return self._opened(opened.number, opened.cohort.take(which), asked, opened.probe)

    def cut(self, opened: Opened, asked: dict[str, Asked]) -> Opened:
        """The same round where clients cut these rows, each its own, out of those that all were sent."""
        return self._opened(opened.number, opened.cohort, asked, opened.probe)

    def skip(self) -> None:
        """A round that leaves everything as it was."""
        self.skipped.add_(1)

    def _opened(self, number: int, cohort: Cohort, asked: dict[str, Asked], probe: str) -> Opened:
        return Opened(self, number, cohort, asked, self.lay_out(asked), probe)

    def downlink(self, opened: Opened, where: slice) -> Downlink:
        """What some clients of an opened round are sent."""
        layout, shown = opened.layout, opened.shown
        trees = {
            name: self._rows(tree, shown.at, layout, where)
            for name, tree in shown.trees.items()
            if name == MODEL or not opened.probe
        }
        numbers = self.told.values if not opened.probe else {}
        counts = {space: rows.counts[where] for space, rows in layout.items()}
        who = opened.cohort.take(where)
        return Downlink(opened.number, who, counts, trees, numbers, opened.probe)

    def _rows(self, tree: Tree, at: dict[str, torch.Tensor], layout: Layout, where: slice) -> Tree:
        """What some clients hold of a tree; dense parameters are the same for all."""
        out: Tree = {}
        for name in self.schema.shared:
            space = self.population.tables.get(name)
            if space is None:
                out[name] = tree[name]
            else:
                out[name] = take_rows(tree[name], at[space][layout[space].places(where)])
        return out

    def _union(self, layout: Layout) -> Rows:
        return {table: layout[space].union for table, space in self.population.tables.items()}

    def sums(self, layout: Layout) -> Sums:
        """Where uplinks of the clients of a layout are added."""
        held = self.method.average.needs_held
        return Sums(self.params, self.population.tables, layout, self.schema.trees, held=held)

    def close(self, number: int, invited: int, sums: Sums) -> None:
        """Means, parts (last one first), and the server's step."""
        if not sums.count and self.noised is None:
            raise NoUsableClient(
                f"Round {number}: of {invited} clients none delivered; {invited - sums.refused} were lost, "
                f"{sums.refused} found NaN or infinity in what they would send. Sample more clients per round, lower "
                "lr, or look at these clients' data."
            )
        total = sums.total() if self.noised is None else self.noised.noised(sums, self._time(number))
        total = replace(total, share=self.average.share(total))
        plain = {
            name if name == UPDATE else f"{part.key}.{name}"
            for part in self.method.parts
            for name in part.plain(number)
        }
        totals = {tree: sums.total(tree) if tree != UPDATE else total for tree in sums.trees}
        self.keeper.close(totals, plain, number, self._time(number))
        self.told.advance(total, number)

    def observe(self, number: int, clients: np.ndarray, seen: dict[str, np.ndarray]) -> None:
        """Tell the sampler what it asked to hear of the clients that delivered."""
        if self.sampler.reports:
            nothing = np.full(len(clients), np.nan)
            self.sampler.observe(number, clients, seen.get("loss", nothing), seen.get("deviation", nothing))

    def model(self, number: int) -> Model:
        """What is evaluated after round ``number``: a copy if rows must be brought up to date first, or of a mean."""
        if number == self._settled:
            return self.keeper.seen(self.params)
        return self.keeper.model(self._time(number))

    def settle(self, number: int) -> None:
        """Make the parameters in place what is kept, at the end of training: every row up to date, or its mean."""
        self.keeper.settle(self._time(number))
        self._settled = number

    def bring_up_to_date(self) -> None:
        """Before the first round, with the state of an earlier training: what is owed to rows since is given them."""
        self.keeper.catch_up(self._time(0))
        self._settled = -1  # what is evaluated may be a mean

    def _time(self, number: int) -> int:
        """The server's own count of rounds: those in which nobody took part leave everything as it is."""
        return number - int(self.skipped)

    # Checkpoints

    def small(self) -> Tree:
        """What is saved whole."""
        sampler = {f"sampler/{name}": torch.from_numpy(value) for name, value in self.sampler.state.items()}
        small = {name: value for name, (value, table) in self.keeper.kept().items() if table is None}
        spent = self.private.small() if self.private is not None else {}
        told = {f"number/{name}": value for name, value in self.told.tensors.items()}
        return small | sampler | spent | told | {"rounds/skipped": self.skipped}

    def tables(self) -> dict[str, tuple[torch.Tensor, str]]:
        """What is saved by moved rows, and the table whose rows each shares."""
        return {name: (value, table) for name, (value, table) in self.keeper.kept().items() if table is not None}
