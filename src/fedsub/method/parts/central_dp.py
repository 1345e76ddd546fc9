"""Differential privacy with a server that is trusted: the sum of a round is noised before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedsub.checks import check_flag, check_number, check_positive, check_share, check_whole
from fedsub.errors import MethodError
from fedsub.method.average import OverClients, OverHolders
from fedsub.method.part import Message, Part, Total, Work
from fedsub.method.parts.bounded import BoundedUpdate, changes_what_is_sent, clipped, looks_at_rows_sent, norms
from fedsub.method.sampling import Everyone, Fraction, Poisson
from fedsub.method.servers.add import Add
from fedsub.method.slots import Method
from fedsub.privacy.accounting import calibrate
from fedsub.privacy.adaptive import next_clip, noise_of_values, usual_bit_noise
from fedsub.privacy.heat import PrivateHeat
from fedsub.privacy.spending import Spend
from fedsub.trees import Tree

BELOW = "central.below"  # the number that clients tell: ½ where their update was not longer than the clip norm, else −½


@dataclass(frozen=True)
class CentralDP(BoundedUpdate):
    """X ← X + lr · coefficient · (Σ_i Δ_i min(1, C/‖Δ_i‖₂) + N(0, (noise · C)²)) / (q N), C = ``clip``.

    User-level: neighbours differ in one client with all its data. Every client clips its whole update; the sum over
    the *whole* table is noised, also where nobody sent anything, before the average corrects for heat, and divided by
    the expected number of clients, whoever came. Clients take part by Poisson sampling at the rate q (or all do,
    q = 1) and weigh 1 each. H. B. McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR
    2018.

    ``noise`` is a multiple of ``clip``. With ``epsilon`` it is a budget at ``delta``: training stops before the round
    that would go past it. Without ``noise`` it is the least with which the run's rounds fit. ``accountant``: "rdp",
    or "pld", tighter and slower.

    Rows that nobody sent get their noise when they are next read, in the exact amount (`fedsub.privacy.noise`). Only
    a server that adds can do that; others need ``eager``, which draws noise for every row in every round.
    N/n_m from exact heat tells who holds what; it is refused unless ``public_heat`` says that heat is no secret.

    ``quantile``: the clip norm begins at ``clip`` and follows that quantile of the norms of clients' updates, at the
    rate ``clip_rate``; 0.5 clips half of them. Clients tell whether they were clipped, and that count has noise of its
    own, ``bit_noise``, which is within the same budget: updates get a little more (`fedsub.privacy.adaptive`). It is
    eager by itself: of what a row is owed, every round would have another size.

    ``secret``: a key of at least 16 random bytes, from which noise and cohorts are drawn by ChaCha20. Without one they
    come from the seed, which is for simulation: whoever knows it can subtract the noise.
    """

    eager: bool = False
    public_heat: bool = False
    quantile: float | None = None
    clip_rate: float = 0.2
    bit_noise: float | None = None
    noises: ClassVar[bool] = True

    @property
    def key(self) -> str:
        return "central"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag("eager of CentralDP", self.eager)
        check_flag("public_heat of CentralDP", self.public_heat)
        check_positive("clip_rate of CentralDP", self.clip_rate)
        if self.quantile is not None and not 0 < check_number("quantile of CentralDP", self.quantile) < 1:
            raise MethodError(
                f"quantile of CentralDP is the share of updates that are not clipped, between 0 and 1; got "
                f"{self.quantile!r}. Give 0.5 to clip half of them."
            )
        if self.bit_noise is not None:
            check_positive("bit_noise of CentralDP", self.bit_noise)
            if self.quantile is None:
                raise MethodError("bit_noise of CentralDP is for a clip norm that moves; give quantile, too.")
            if self.noise is not None:
                noise_of_values(self.noise, self.bit_noise)

    @property
    def whole(self) -> bool:
        """Whether noise is drawn for every row in every round."""
        return self.eager or self.quantile is not None

    @property
    def numbers(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ("below",) if self.quantile is not None else ()

    @property
    def sent_numbers(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ("clip",) if self.quantile is not None else ()

    def first_number(self, name: str) -> float:
        return self.clip

    def finish(self, message: Message, params: Tree, work: Work) -> None:
        if self.quantile is None:
            super().finish(message, params, work)
            return
        update, clip = message.trees["update"], work.numbers[self.key]["clip"]
        lengths = norms(update, work.group)
        message.trees["update"] = clipped(update, lengths, clip, work.group)
        message.numbers[BELOW] = (lengths <= clip).double() - 0.5

    def next_numbers(self, numbers: Mapping[str, float], total: Total, round: int) -> dict[str, float]:
        assert self.quantile is not None
        return {"clip": next_clip(numbers["clip"], total.numbers[BELOW] + 0.5, self.quantile, self.clip_rate)}

    def noises_of(self, noise: float, expected: float) -> tuple[float, float]:
        """(noise of the sum as a multiple of the clip norm, noise of the count) where all is to cost ``noise``."""
        if self.quantile is None or not noise:
            return noise, 0.0
        bit_noise = usual_bit_noise(expected, noise) if self.bit_noise is None else self.bit_noise
        return noise_of_values(noise, bit_noise), bit_noise

    @classmethod
    def calibrated(
        cls, *, clip: float, epsilon: float, rounds: int, rate: float, delta: float = 1e-5, accountant: str = "rdp",
        eager: bool = False, public_heat: bool = False,
    ) -> CentralDP:  # fmt: skip
        """With the least noise with which so many rounds at that rate fit the budget."""
        check_whole("rounds", rounds, 1)
        check_share("rate", rate)
        noise = calibrate(epsilon, delta, rounds, rate, accountant=accountant)
        return cls(clip, noise, epsilon, delta, accountant, eager=eager, public_heat=public_heat)

    def resolved(self, rounds: int | None, rate: float, before: tuple[Spend, ...] = ()) -> CentralDP:
        """With noise that is a number."""
        if self.noise is not None:
            return self
        if rounds is None:
            raise MethodError("CentralDP without noise needs to know how many rounds there will be; give rounds.")
        assert self.epsilon is not None
        return replace(self, noise=calibrate(self.epsilon, self.delta, rounds, rate, before, self.accountant))

    def check(self, method: Method) -> None:
        sampler = method.sampler.sampler if isinstance(method.sampler, Fraction) else method.sampler
        if not isinstance(sampler, Poisson | Everyone):
            raise MethodError(
                f"CentralDP counts on each client taking part by a coin of its own; {type(sampler).__name__} "
                "draws otherwise, and its privacy is not what is computed. Use Poisson(clients_per_round) "
                '(sampler="poisson"), or everyone (clients_per_round=None).'
            )
        super().check(method)
        self._check_average(method)
        if not self.whole:
            if type(method.server) is not Add or method.server.momentum:
                raise MethodError(
                    f"Noise for rows that nobody sent can be made up later only where the server adds; "
                    f"{type(method.server).__name__}"
                    f"{' with momentum' if isinstance(method.server, Add) else ''} makes something else of it. Use "
                    "Add(), or CentralDP(eager=True), which draws noise for the whole table in every round."
                )
            for part in method.parts:
                if looks_at_rows_sent(part):
                    raise MethodError(
                        f"{type(part).__name__} acts on the rows that were sent alone, so that noise would tell which "
                        "these are; use CentralDP(eager=True), with which every row is one of them."
                    )

    def _check_average(self, method: Method) -> None:
        average = method.average
        if not isinstance(average, OverClients | OverHolders):
            raise MethodError(
                f"{type(average).__name__} divides by who came, which one client changes; CentralDP divides by the "
                "number that is expected. Use OverClients('clients') or OverHolders('clients')."
            )
        if average.weighting != "clients" or (average.weight(np.array([1, 7])) != 1).any():
            raise MethodError(
                f"With weighting={average.weighting!r} a client counts as many times as it has samples, far beyond "
                "clip; CentralDP needs weighting='clients'."
            )
        if self.public_heat or not isinstance(average, OverHolders) or isinstance(average.heat, PrivateHeat):
            return
        if average.heat is not None:
            raise MethodError(
                "Heat given as numbers says nothing of where it is from, costs no budget here, and is counted exactly "
                "in spaces that it does not name. Give OverHolders a private estimate (heat=…), or say "
                "public_heat=True if it is no secret, or was paid for elsewhere."
            )
        raise MethodError(
            "The coefficients N/n_m from exact heat tell how many clients hold each row, which no noise covers. "
            "Give OverHolders a private estimate (heat=…), or say public_heat=True if heat is no secret."
        )

    def _check_after(self, other: Part) -> None:
        if changes_what_is_sent(other):
            raise MethodError(
                f"{type(other).__name__} changes what CentralDP has clipped, so that it may be longer than clip; put "
                "it before CentralDP"
                + (
                    ", which a codec cannot be: use TopK(feedback=False) or RandomK(feedback=False, scale=False)."
                    if other.codec
                    else "."
                )
            )
