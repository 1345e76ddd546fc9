"""Clients that learn a price for leaving what they were sent, until all agree on one point: FedDyn, FedADMM, FedSplit.

In all three a client approximately minimises f_i(x) + ⟨y_i, x − X⟩ + (ρ/2) ‖x − X‖² over its submodel, beginning at X.
Where X is the optimum and y_i = −∇f_i(X), every local gradient is 0 from the first step on, however few steps there
are: nobody moves. They differ in how y_i is learned, and in what the server adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedsub.checks import check_mix, check_positive
from fedsub.errors import MethodError
from fedsub.method.average import OverHolders
from fedsub.method.part import Message, Part, Total, Work
from fedsub.method.parts.nova import NormalisedSteps
from fedsub.method.parts.secure_sum import SecureSum
from fedsub.method.servers.add import Add
from fedsub.method.servers.iterates import MeanOfIterates
from fedsub.method.slots import Method
from fedsub.trees import Tree


@dataclass(frozen=True)
class Agreeing(Part):
    """What they share: the local step x ← x − η (g_i(x) + y_i + ρ (x − X))."""

    rho: float = 0.1
    steers: ClassVar[bool] = True

    def check(self, method: Method) -> None:
        name, lr = type(self).__name__, method.local.largest_lr
        check_positive(f"rho of {name}", self.rho)
        if self.rho * lr > 1:
            raise MethodError(
                f"{name}(rho={self.rho:g}) with lr={lr:g} overshoots what was sent (lr·rho = {self.rho * lr:g} > 1); "
                "lower one of them."
            )
        if method.average.needs_held:
            raise MethodError(
                f"What clients of {name} keep must add up to what the server knows; a mean over the sampled holders "
                f"alone, {type(method.average).__name__}, adds up to nothing. Use OverHolders() or OverClients()."
            )
        if method.sampler.may_repeat:
            raise MethodError(
                f"A client of {name} that is drawn twice in a round would send its move twice and keep it once; draw "
                "without replacement."
            )
        for part in method.parts:
            lossy = part.codec and not part.client_slots  # and does not send later what it left out
            if lossy or part.silent or isinstance(part, NormalisedSteps | SecureSum):
                raise MethodError(
                    f"A client of {name} keeps account of what it sends, and {type(part).__name__} changes that behind "
                    "its back; leave out one of the two."
                )

    def price(self, work: Work) -> Tree:
        """y_i, laid out like the submodel."""
        raise NotImplementedError

    def begin(self, params: Tree, work: Work) -> None:
        work.memory[self.key] = self.price(work)

    def grad(self, grads: Tree, params: Tree, work: Work) -> Tree:
        price = work.memory[self.key]
        return {k: torch.add(g + price[k], params[k] - work.sent[k], alpha=self.rho) for k, g in grads.items()}


@dataclass(frozen=True)
class Dynamic(Agreeing):
    """FedDyn: y_i ← y_i + ρ Δ_i at the client, and the server adds the mean price to the mean move.

        client    Δ_i = x − X,   y_i ← y_i + ρ Δ_i
        server    y ← y + s ρ mean(Δ),   X ← X + mean(Δ) + y / ρ

    with s the share of the population's weight that took part, so that y is the mean of all y_i. In the paper's
    letters ρ = α, y_i = −∇L_i and y/ρ = −h/α. On submodels y_i lives on S(i); a client that does not hold a row has
    the price 0 for it, as one that holds it and has no use for it would. With FedSubAvg's average y of a row is the
    mean over its holders. Bytes as FedAvg; one submodel at each client, one model at the server. D. A. E. Acar et
    al., "Federated Learning Based on Dynamic Regularization", ICLR 2021.
    """

    client_slots: ClassVar[tuple[str, ...]] = ("price",)
    server_slots: ClassVar[tuple[str, ...]] = ("price",)
    rowwise: ClassVar[bool] = True

    @property
    def key(self) -> str:
        return "feddyn"

    def price(self, work: Work) -> Tree:
        return work.client[self.key]["price"]

    def finish(self, message: Message, params: Tree, work: Work) -> None:
        price = work.memory[self.key]
        moved = message.trees["update"].items()
        work.client[self.key]["price"] = {k: torch.add(price[k], delta, alpha=self.rho) for k, delta in moved}

    def combine(self, mean: dict[str, Tree], total: Total, state: dict[str, Tree], round: int) -> None:
        for name, update in mean["update"].items():
            price = state["price"][name]
            price.add_(update, alpha=self.rho * total.share)
            update.add_(price, alpha=1 / self.rho)


@dataclass(frozen=True)
class MeanOfAll(Agreeing):
    """Those whose server keeps X at the mean of one vector of each client, also of those who did not come.

    A client sends how its vector moved, and the server adds s · mean. Vectors begin at the first model X⁰, which a
    client that comes late never saw: clients keep theirs as the distance from X⁰, and are sent ``way`` = X − X⁰. A
    row's vectors are those of its holders, for nobody else has one, so that only their mean will do: the heat
    correction is part of the method.
    """

    server_slots: ClassVar[tuple[str, ...]] = ("way",)
    rowwise: ClassVar[bool] = True
    sent_slots: ClassVar[tuple[str, ...]] = ("way",)

    def check(self, method: Method) -> None:
        super().check(method)
        name, average = type(self).__name__, method.average
        server = method.server.server if isinstance(method.server, MeanOfIterates) else method.server
        if not isinstance(average, OverHolders) or average.temper != 1 or average.max_coef or average.groups:
            raise MethodError(
                f"{name} keeps a row at the mean of what its holders keep of it, which only the whole heat correction "
                f"gives; got {average!r}. Use OverHolders(), without temper, max_coef and groups."
            )
        if type(server) is not Add or server.lr != 1 or server.momentum or server.groups:
            raise MethodError(
                f"{name} keeps X at the mean of what clients keep, which another step of the server would leave; got "
                f"{method.server!r}. Use Add(), with server_lr=1 and no momentum."
            )
        for part in method.parts:
            if type(part).limit is not Part.limit:
                raise MethodError(
                    f"{name} keeps X at the mean of what clients keep, which {type(part).__name__} would leave; leave "
                    "out one of the two."
                )

    def combine(self, mean: dict[str, Tree], total: Total, state: dict[str, Tree], round: int) -> None:
        for name, update in mean["update"].items():
            state["way"][name].add_(update.mul_(total.share))


@dataclass(frozen=True)
class Multipliers(MeanOfAll):
    """FedADMM: the alternating direction method of multipliers, with clients that come and go.

        client    x_i = where its steps lead from X,   y_i ← y_i + ρ (x_i − X),   u_i ← x_i + y_i / ρ
        server    X ← X + s mean(u_i⁺ − u_i)                                      = the mean of all u_i

    y_i = 0 and u_i = X⁰ at first. s is the share of the population that took part: the paper's η = K/N, with which X
    stays the mean of all u_i. With everyone in every round it is FedPD (Zhang et al., 2021), and FedDyn. Down a
    submodel more than FedAvg; two submodels at each client. Y. Gong, Y. Li and N. M. Freris, "FedADMM: A Robust
    Federated Deep Learning Framework with Adaptivity to System Heterogeneity", ICDE 2022.
    """

    client_slots: ClassVar[tuple[str, ...]] = ("price", "vector")

    @property
    def key(self) -> str:
        return "fedadmm"

    def price(self, work: Work) -> Tree:
        return work.client[self.key]["price"]

    def finish(self, message: Message, params: Tree, work: Work) -> None:
        way, kept, update = work.server[self.key]["way"], work.client[self.key], message.trees["update"]
        price = {k: torch.add(kept["price"][k], delta, alpha=self.rho) for k, delta in update.items()}
        vector = {k: torch.add(way[k] + delta, price[k], alpha=1 / self.rho) for k, delta in update.items()}
        message.trees["update"] = {k: v - kept["vector"][k] for k, v in vector.items()}
        work.client[self.key] = {"price": price, "vector": vector}


@dataclass(frozen=True)
class Splitting(MeanOfAll):
    """FedSplit: Peaceman–Rachford splitting, a proximal point method that stays where it should.

        client    x_i ≈ prox(2 X − z_i),   z_i ← z_i + 2 θ (x_i − X)
        server    X ← X + s mean(z_i⁺ − z_i)                           = the mean of all z_i

    prox(v) minimises f_i(x) + (ρ/2) ‖x − v‖², so that y_i = ρ (z_i − X); the paper's step size is 1/ρ. z_i = X⁰ at
    first. θ is ``relax``: 1 is the paper's, ½ Douglas and Rachford's. FedProx takes the proximal points of X itself,
    and stays beside the optimum. Down a submodel more than FedAvg; one submodel at each client. R. Pathak and M. J.
    Wainwright, "FedSplit: an algorithmic framework for fast federated optimization", NeurIPS 2020.
    """

    relax: float = 1.0
    client_slots: ClassVar[tuple[str, ...]] = ("vector",)

    @property
    def key(self) -> str:
        return "fedsplit"

    def check(self, method: Method) -> None:
        check_positive("relax of Splitting", self.relax)
        check_mix("relax of Splitting", self.relax)
        super().check(method)

    def price(self, work: Work) -> Tree:
        way, vector = work.server[self.key]["way"], work.client[self.key]["vector"]
        return {k: (v - way[k]) * self.rho for k, v in vector.items()}

    def finish(self, message: Message, params: Tree, work: Work) -> None:
        vector = work.client[self.key]["vector"]
        update = {k: delta * (2 * self.relax) for k, delta in message.trees["update"].items()}
        work.client[self.key]["vector"] = {k: vector[k] + moved for k, moved in update.items()}
        message.trees["update"] = update
