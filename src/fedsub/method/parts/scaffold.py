"""Scaffold: control variates that take client drift out of the local steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsub.checks import check_share
from fedsub.errors import MethodError
from fedsub.method.part import Message, Part, Total, Work
from fedsub.method.slots import Method
from fedsub.trees import Tree


@dataclass(frozen=True)
class ControlVariates(Part):
    """Each local step uses g − c_i + c; c_i estimates the client's gradient, c the average client's.

    After I local steps of rate η from x to y the client's variate becomes

        option "II" (default)   c_i⁺ = c_i − c + (x − y) / (I η)
        option "I"              c_i⁺ = g_i(x), the mean gradient at x over the first batches of the round: ``share``
                                of them, rounded up (how many is open in the paper); 1 is a whole extra pass

    and the server adds (K/N) · mean(c_i⁺ − c_i) to c, where the mean is the method's own average: with
    FedSubAvg's, c of a row is the mean variate of the clients that hold it. On submodels c_i lives on S(i). A client
    that is drawn twice changes its c_i, and so c, once. Twice the traffic of FedAvg both ways. Karimireddy et al.,
    "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020.
    """

    option: str = "II"
    share: float = 0.5
    client_slots: ClassVar[tuple[str, ...]] = ("variate",)
    server_slots: ClassVar[tuple[str, ...]] = ("variate",)
    sent_slots: ClassVar[tuple[str, ...]] = ("variate",)
    payloads: ClassVar[tuple[str, ...]] = ("variate",)
    rowwise: ClassVar[bool] = True
    steers: ClassVar[bool] = True

    @property
    def key(self) -> str:
        return "scaffold"

    def check(self, method: Method) -> None:
        if self.option not in ("I", "II"):
            raise MethodError(f'option of ControlVariates must be "I" or "II", got {self.option!r}.')
        check_share("share of ControlVariates", self.share, hint="it is the share of the round's batches")
        if method.average.needs_held:
            raise MethodError(
                "Scaffold's c follows the mean of all clients' variates by what the cohort adds to it; a mean over the "
                f"sampled holders alone, {type(method.average).__name__}, is no share of that. Use OverHolders() or "
                "OverClients()."
            )
        if self.option == "II" and not method.local.linear:
            raise MethodError(
                "Scaffold's option \"II\" reads a client's mean gradient off its path, (x − y)/(I·lr), which holds for "
                'plain SGD alone; use option="I", or SGD without momentum, clipping, weight decay and groups.'
            )

    def begin(self, params: Tree, work: Work) -> None:
        own, shared = work.client[self.key]["variate"], work.server[self.key]["variate"]
        correction = {name: shared[name] - own[name] for name in own}
        start = None
        if self.option == "I":
            assert work.gradient is not None
            start = work.gradient(params, self.share)
        work.memory[self.key] = correction, start

    def grad(self, grads: Tree, params: Tree, work: Work) -> Tree:
        correction, _ = work.memory[self.key]
        return {name: g + correction[name] for name, g in grads.items()}

    def finish(self, message: Message, params: Tree, work: Work) -> None:
        correction, new = work.memory[self.key]
        own = work.client[self.key]["variate"]
        if new is None:
            assert work.steps is not None
            new = {}
            for name, update in message.trees["update"].items():
                pace = -1.0 / (work.steps.to(update.dtype) * work.rate(name))
                new[name] = update * work.group.spread(pace, name, update) - correction[name]
        message.trees[f"{self.key}.variate"] = {name: value - own[name] for name, value in new.items()}
        work.client[self.key]["variate"] = new

    def combine(self, mean: dict[str, Tree], total: Total, state: dict[str, Tree], round: int) -> None:
        for name, change in mean.pop(f"{self.key}.variate").items():
            state["variate"][name].add_(change.mul_(total.share))
