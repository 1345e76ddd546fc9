"""FSVRG: variance-reduced local steps around a point at which everybody's gradient was taken."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from fedsub.checks import check_flag
from fedsub.errors import MethodError
from fedsub.method.part import Message, Part, Total, Work
from fedsub.method.sampling import Everyone
from fedsub.method.servers.add import Add
from fedsub.method.servers.iterates import MeanOfIterates
from fedsub.method.slots import Local, Method
from fedsub.trees import Tree

UPDATE = "update"


@dataclass(frozen=True)
class AnchoredSteps(Part):
    """Two rounds with the same clients: their gradient at X, then local steps that use it.

        odd rounds     client    g_i = ∇f_i(X), over all its data at once, in one step that moves nothing
                       server    g = Σ w_i g_i / Σ w_i
        even rounds    client    x ← x − h_i ( S_i [∇f_b(x) − ∇f_b(X)] + g ),  from X, b the step's batch
                       server    X ← X + the method's own mean of Δ_i

    S_i (``scale``) is diagonal: of a row φ_m / φ_im, where φ_im is the share of client i's samples that name the row
    and φ_m that of all samples; 1 of dense parameters. A row that a client meets oftener than others do is moved with
    more care. h_i = lr / the client's number of steps (``even``), so that all go equally far; else h_i = lr. The
    paper's A = diag(N / n_m), by which the sum of updates is multiplied, is FedSubAvg's heat correction: take
    `OverHolders`. ``holders`` takes the mean of g over the holders of a row, too, which the paper does not.

    At the optimum g = 0 and x = X, so that every step is 0. ``scale`` sends φ_im up and φ_m down beside the model.
    J. Konečný et al., "Federated Optimization: Distributed Machine Learning for On-Device Intelligence", 2016,
    algorithm 4.
    """

    scale: bool = True
    even: bool = True
    holders: bool = False
    rowwise: ClassVar[bool] = True
    turns: ClassVar[int] = 2
    steers: ClassVar[bool] = True

    @property
    def key(self) -> str:
        return "fsvrg"

    @property
    def payloads(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ("frequency",) if self.scale else ()

    @property
    def server_slots(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ("gradient", *self.payloads)

    @property
    def sent_slots(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.server_slots

    def check(self, method: Method) -> None:
        for name in ("scale", "even", "holders"):
            check_flag(f"{name} of AnchoredSteps", getattr(self, name))
        if method.pooled:
            raise MethodError("AnchoredSteps takes clients' gradients in a round of its own; pooled data has none.")
        if not isinstance(method.sampler, Everyone) and getattr(method.sampler, "rounds", None) != self.turns:
            raise MethodError(
                f"AnchoredSteps needs the same clients for {self.turns} rounds, and {method.sampler!r} draws new ones; "
                f"write InTurns({type(method.sampler).__name__}(…), {self.turns}), or take Everyone()."
            )
        server = method.server.server if isinstance(method.server, MeanOfIterates) else method.server
        if type(server) is not Add or server.momentum:
            raise MethodError(
                f"AnchoredSteps needs a model that stands still while gradients are taken, and {method.server!r} moves "
                "it without an update; use Add() without momentum."
            )
        for part in method.parts:
            if part.codec or part.silent:
                raise MethodError(
                    f"{type(part).__name__} is for updates, and in every other round AnchoredSteps sends a gradient in "
                    "their place; leave out one of the two."
                )

    @staticmethod
    def anchors(round: int) -> bool:
        """Whether a round takes gradients."""
        return round % 2 == 1

    def drawn(self, local: Local, round: int) -> Local:
        if not self.anchors(round):
            return local
        return replace(local, local_steps=1, local_epochs=None, batch_size=None, batches="ordered")  # type: ignore[type-var]

    def plain(self, round: int) -> tuple[str, ...]:
        return self.payloads if self.holders or not self.anchors(round) else (UPDATE, *self.payloads)

    def begin(self, params: Tree, work: Work) -> None:
        if self.anchors(work.round) or not self.scale:
            return
        assert work.frequency is not None
        shared, own = work.server[self.key]["frequency"], work.frequency()
        work.memory[self.key] = {k: torch.where(v > 0, shared[k] / v, 1.0) for k, v in own.items()}

    def grad(self, grads: Tree, params: Tree, work: Work) -> Tree:
        if self.anchors(work.round):
            work.memory.setdefault(self.key, grads)
            return {name: torch.zeros_like(g) for name, g in grads.items()}
        assert work.same_batch is not None
        anchor, shared, pace = work.same_batch(work.sent), work.server[self.key]["gradient"], self._pace(work)
        scales, out = work.memory.get(self.key, {}), {}
        for name, g in grads.items():
            step = g - anchor[name]
            step = (step * scales[name] if name in scales else step) + shared[name]
            out[name] = step if pace is None else step * work.group.spread(pace.to(step.dtype), name, step)
        return out

    def _pace(self, work: Work) -> torch.Tensor | None:
        if not self.even:
            return None
        assert work.steps is not None
        return 1.0 / work.steps.double()

    def finish(self, message: Message, params: Tree, work: Work) -> None:
        update = message.trees["update"]
        if self.anchors(work.round):
            message.trees["update"] = dict(work.memory[self.key])
        if not self.scale:
            return
        own: Tree = {}
        if self.anchors(work.round):
            assert work.frequency is not None
            own = work.frequency()
        message.trees[f"{self.key}.frequency"] = {
            name: own[name].expand_as(value).clone() if name in own else torch.zeros_like(value)
            for name, value in update.items()
        }

    def combine(self, mean: dict[str, Tree], total: Total, state: dict[str, Tree], round: int) -> None:
        told = mean.pop(f"{self.key}.frequency", {})
        for name, update in mean["update"].items():
            gradient = state["gradient"][name]
            if self.anchors(round):
                gradient.copy_(update)
                update.zero_()
            else:
                gradient.zero_()  # it was taken at a model that is gone
        if self.anchors(round):
            for name, value in told.items():
                state["frequency"][name].copy_(value)
