"""Local solvers: how a client improves its copy of the submodel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsub.checks import check_decay, check_number, check_positive, check_share
from fedsub.errors import MethodError
from fedsub.method.batches import check_local
from fedsub.method.clipping import clip
from fedsub.method.part import Work
from fedsub.method.patterns import Groups, check_groups, matching, setting
from fedsub.method.schedules import Schedule
from fedsub.torch_private import foreach_add_, foreach_copy_, foreach_mul_, foreach_zero_, fused_adam_
from fedsub.trees import Tree

# Adam's tensors are as long as a multiple of this: torch rounds values that do not fill a vector register unlike the
# rest, and a client's result must not depend on where in a tensor it stands.
_WIDTH = 16


@dataclass(frozen=True)
class Solver:
    """What all solvers share: how much work, on which batches, at which rate, and what parts may ask of them.

    Either ``local_steps`` steps, or ``local_epochs`` passes over the client's data (then the number of
    steps differs by client). ``batch_size=None`` takes all local data as one batch. ``batches``:
    "shuffled" (a fresh permutation each pass), "ordered" (file order, from the start each round) or
    "replacement".

    ``clip_norm`` scales a client's gradient down to that Euclidean norm; ``weight_decay`` then adds
    weight_decay · x. ``schedule`` changes the rate over rounds; ``groups`` sets lr, weight_decay and
    clip_norm by parameter pattern (a pattern's gradient is clipped by its own norm).
    """

    lr: float = 0.1
    local_steps: int | None = 10
    local_epochs: int | None = None
    batch_size: int | None = 5
    batches: str = "shuffled"
    weight_decay: float = 0.0
    clip_norm: float | None = None
    schedule: Schedule | None = None
    groups: Groups | None = None

    def __post_init__(self) -> None:
        check_local(self)
        check_groups(self.groups, ("lr", "weight_decay", "clip_norm"), type(self).__name__)
        check_number("weight_decay", self.weight_decay, least=0)
        if self.clip_norm is not None:
            check_positive("clip_norm", self.clip_norm)
        if self.schedule is not None and not isinstance(self.schedule, Schedule):
            raise MethodError(f"schedule must have factor(round), like Cosine(400); got {self.schedule!r}.")
        for pattern, values in (self.groups or {}).items():
            check_number(f"groups[{pattern!r}]['weight_decay']", values.get("weight_decay", 0), least=0)
            for key in ("lr", "clip_norm"):
                check_positive(f"groups[{pattern!r}][{key!r}]", values.get(key, 1))

    @property
    def pure_step(self) -> bool:
        """Whether a step is a function of tensors alone: then it can be compiled."""
        return False

    @property
    def linear(self) -> bool:
        """Whether a step adds −rate · gradient and nothing else."""
        return False

    def path_norm(self, steps: Tensor, pull: float) -> Tensor:
        """‖a‖₁ of a client's update Δ = −η Σ_k a_k g_k after so many ``steps`` [c], a_k known beforehand.

        ``pull`` is η μ of a proximal term, 0 without one. A solver that has no such a refuses, with the reason.
        """
        if not self.linear:
            raise MethodError(
                f"{type(self).__name__} is not linear in the gradients; use SGD, with or without momentum or a "
                "proximal term, or a solver that says so of itself"
            )
        return _plain_norm(steps, pull)

    def smooth(self) -> Solver:
        """As much work on the same batches by steps that do not make a rounding error large.

        Engines are compared by it before one is chosen.
        """
        return self

    def init(self, params: Tree) -> Any:
        """What it remembers from step to step, at the beginning of a round."""
        return None

    def step(self, params: Tree, grads: Tree, state: Any, work: Work) -> None:
        """Change params (and the state) in place."""
        raise NotImplementedError

    @property
    def largest_lr(self) -> float:
        """The largest rate of any parameter, whatever the schedule makes of it."""
        return max(self.lr, *(v.get("lr", 0.0) for v in (self.groups or {}).values()), 0.0)

    def rate(self, round: int) -> float:
        return self.lr if self.schedule is None else self.lr * self.schedule.factor(round)

    def scale(self, name: str) -> float:
        return setting(self.groups, name, "lr", self.lr) / self.lr

    def _clipped_and_decayed(self, params: Tree, grads: Tree, work: Work) -> Tree:
        if self.clip_norm is not None or self.groups:
            grads = self._clipped(grads, work)
        if self.weight_decay or self.groups:
            decay = {n: setting(self.groups, n, "weight_decay", self.weight_decay) for n in grads}
            grads = {n: g.add(params[n], alpha=decay[n]) if decay[n] else g for n, g in grads.items()}
        return grads

    def _clipped(self, grads: Tree, work: Work) -> Tree:
        grads = dict(grads)
        if not self.groups:
            assert self.clip_norm is not None
            clip(grads, list(grads), self.clip_norm, work.group)
            return grads
        together: dict[tuple[str | None, float], list[str]] = {}
        for name in grads:
            pattern = matching(self.groups, name, "clip_norm")
            if (norm := setting(self.groups, name, "clip_norm", self.clip_norm)) is not None:
                together.setdefault((pattern, norm), []).append(name)
        for (_, norm), names in together.items():
            clip(grads, names, norm, work.group)
        return grads

    def _move(self, params: Tree, directions: Tree, work: Work, factor: float = 1.0) -> None:
        """x ← x − rate · factor · direction, for clients that still have steps to do."""
        if work.active is not None:
            directions = {k: d * work.group.spread(work.active.to(d.dtype), k, d) for k, d in directions.items()}
        if not work.scales:
            foreach_add_(list(params.values()), list(directions.values()), alpha=-work.lr * factor)
            return
        for name, direction in directions.items():
            params[name].add_(direction, alpha=-work.rate(name) * factor)


@dataclass(frozen=True)
class SGD(Solver):
    """Stochastic gradient descent: x ← x − lr · d, with d the gradient g or, with momentum, d ← ρ d + g.

    The momentum buffer starts at zero in every round. With ``step_decay`` c the rate falls within a round: step k,
    counted from 0, has lr · c^k.
    """

    __doc__ = f"{__doc__}\n\n    {Solver.__doc__}"
    momentum: float = 0.0
    step_decay: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay("momentum", self.momentum)
        check_share("step_decay", self.step_decay, hint="every step's rate is that times the one before")

    @property
    def pure_step(self) -> bool:
        return self.momentum == 0 and self.schedule is None and self.step_decay == 1

    @property
    def linear(self) -> bool:
        plain = not (self.momentum or self.weight_decay or self.clip_norm is not None or self.groups)
        return plain and self.step_decay == 1

    def path_norm(self, steps: Tensor, pull: float) -> Tensor:
        grouped = {key for values in (self.groups or {}).values() for key in values}
        if self.clip_norm is not None or self.weight_decay or grouped & {"clip_norm", "weight_decay"}:
            raise MethodError("‖a‖₁ does not cover clipping and weight decay; leave them out, of groups too")
        if not self.momentum:
            return _plain_norm(steps, pull, self.step_decay)
        if pull:
            raise MethodError("‖a‖₁ is known for momentum or for a proximal term, not for both; leave one out")
        rho, c = self.momentum, self.step_decay
        return (_geometric(c, steps) - rho * _geometric(rho * c, steps)) / (1 - rho)

    def init(self, params: Tree) -> Any:
        return {n: torch.zeros_like(p) for n, p in params.items()} if self.momentum else None

    def step(self, params: Tree, grads: Tree, state: Any, work: Work) -> None:
        if self.weight_decay or self.clip_norm is not None or self.groups:
            grads = self._clipped_and_decayed(params, grads, work)
        if self.momentum:
            buffers = list(state.values())
            foreach_mul_(buffers, self.momentum)
            foreach_add_(buffers, list(grads.values()))
            grads = state
        self._move(params, grads, work, self.step_decay**work.step)


@dataclass(frozen=True)
class Adam(Solver):
    """Adam within a round (Kingma and Ba, ICLR 2015), with bias correction; moments start at zero every round."""

    __doc__ = f"{__doc__}\n\n    {Solver.__doc__}"
    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay("beta1 of Adam", self.beta1)
        check_decay("beta2 of Adam", self.beta2)
        check_positive("eps of Adam", self.eps)

    def smooth(self) -> SGD:
        """Plain steps: Adam's first ones turn a rounding error into another sign."""
        return SGD(0.1, self.local_steps, self.local_epochs, self.batch_size, self.batches)

    def init(self, params: Tree) -> Any:
        def zeros() -> list[Tensor]:
            return [p.new_zeros(-(-p.numel() // _WIDTH) * _WIDTH) for p in params.values()]

        gradients, directions = zeros(), zeros()
        within = [[_within(a, p) for a, p in zip(b, params.values(), strict=True)] for b in (gradients, directions)]
        count = next(iter(params.values())).new_zeros((), dtype=torch.float32)
        return gradients, directions, zeros(), zeros(), *within, count

    def step(self, params: Tree, grads: Tree, state: Any, work: Work) -> None:
        grads = self._clipped_and_decayed(params, grads, work)
        gradients, directions, means, squares, given, taken, count = state
        foreach_copy_(given, list(grads.values()))
        foreach_zero_(directions)
        count.fill_(work.step + 1)
        # From zero and at rate 1, what torch's one pass leaves is minus Adam's direction.
        fused_adam_(
            directions, gradients, means, squares, [], [count] * len(means),
            lr=1.0, beta1=self.beta1, beta2=self.beta2, eps=self.eps, weight_decay=0.0, amsgrad=False, maximize=False,
        )  # fmt: skip
        self._move(params, dict(zip(grads, taken, strict=True)), work, -1.0)


def _plain_norm(steps: Tensor, pull: float, decay: float = 1.0) -> Tensor:
    """‖a‖₁ where step k adds −η c^k · gradient, and pulls by c^k · ``pull``, ``pull`` = η μ; c is ``decay``."""
    if pull == 0:
        return _geometric(decay, steps)
    if decay == 1:
        return (1 - (1 - pull) ** steps) / pull
    # a_k = c^k Π_{j>k} (1 − c^j η μ): their sum is where gradients of −1 lead, by η.
    ways = [0.0]
    for k in range(int(steps.max())):
        ways.append(ways[-1] * (1 - pull * decay**k) + decay**k)
    return torch.tensor(ways, dtype=steps.dtype, device=steps.device)[steps.long()]


def _geometric(ratio: float, steps: Tensor) -> Tensor:
    """1 + ratio + … + ratio^(steps − 1)."""
    return steps if ratio == 1 else (1 - ratio**steps) / (1 - ratio)


def _within(longer: Tensor, like: Tensor) -> Tensor:
    """The first values of a flat tensor, in the shape of another."""
    return longer[: like.numel()].view(like.shape)
