"""A sum that nobody looks into: the setting of rounds whose uplinks are added without being seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedsub.checks import check_decay, check_flag, check_positive, check_whole
from fedsub.errors import MethodError
from fedsub.method.part import Part
from fedsub.method.slots import Method
from fedsub.privacy.heat import PermanentResponse
from fedsub.privacy.spending import Spend

ROWS = ("union", "clear", "perturbed")


@dataclass(frozen=True)
class SecureSum(Part):
    """What clients send is clipped, made whole numbers, and added by the protocol of `fedsub.secure`.

    A client sends a_i Δ_i, every entry clipped to ±a_i · ``clip``, as one of ``levels`` levels on ±a · clip, where a is
    the largest weight of any client. The rounding is unbiased and a function of (seed, round, client, parameter). The
    number of levels is odd, so that 0 is one: a client that does not hold a row adds exactly nothing to it. The server
    learns sums in a ring of ``bits`` bits, and nothing else; clip · levels · clients is proved to fit before training.

    ``rows``: "union", clients' rows are not told; who holds what is counted in a secure sum of its own, and everybody
    receives the rows that somebody holds. "clear": rows are named as they are without this part, values hidden.
    "perturbed:2", or a `PermanentResponse`: a client names rows of the union that it does not hold, and leaves out some
    that it holds, by the permanent and the instantaneous response; it receives those that it named, and trains on the
    samples whose rows came. Weighted by samples, it then weighs as many as are left.
    ``rows_threshold``: rows of fewer contributors are left out, and stay as they are. So many clients as ``spare`` may
    drop out within the sum of values before it must be played again; a row then needs as many more contributors.

    ``payload_clip`` is the clip of what parts send beside the update (Scaffold's variates), ``loss_clip`` and
    ``number_clip`` bound a client's loss and the numbers of parts. ``adversarial`` and ``dropping``, rates of clients,
    choose a sparse graph of neighbours; ``threshold`` is how many shares open a secret (see `Setting.plan`).
    ``simulate``: add the same whole numbers without ciphers; the model is the same, bit for bit.

    Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017; Niu et al.,
    "Billion-Scale Federated Learning on Mobile Clients", MobiCom 2020.
    """

    clip: float
    levels: int = 2**15 + 1
    bits: int = 32
    rows: str | PermanentResponse = "union"
    rows_threshold: int = 2
    spare: int = 0
    payload_clip: float | None = None
    loss_clip: float = 16.0
    number_clip: float = 1024.0
    adversarial: float = 0.0
    dropping: float = 0.0
    threshold: int | None = None
    attempts: int = 3
    simulate: bool = True

    @property
    def key(self) -> str:
        return "secure"

    def __post_init__(self) -> None:
        for name in ("clip", "loss_clip", "number_clip"):
            check_positive(f"{name} of SecureSum", getattr(self, name))
        if self.payload_clip is not None:
            check_positive("payload_clip of SecureSum", self.payload_clip)
        for name, least in (("levels", 3), ("rows_threshold", 2), ("spare", 0), ("attempts", 1)):
            check_whole(f"{name} of SecureSum", getattr(self, name), least)
        if self.threshold is not None:
            check_whole("threshold of SecureSum", self.threshold, 2)
        for name in ("adversarial", "dropping"):
            check_decay(f"{name} of SecureSum", getattr(self, name), hint="it is a share of the clients")
        check_flag("simulate of SecureSum", self.simulate)
        if not self.levels % 2 or self.levels > 2**32:
            raise MethodError(
                f"levels of SecureSum must be odd and at most 2^32, got {self.levels}: 0 must be a level, for clients "
                f"that hold a row nothing of; take {self.levels + 1}."
            )
        if self.bits not in (8, 16, 32, 64):
            raise MethodError(f"bits of SecureSum must be 8, 16, 32 or 64, got {self.bits!r}.")
        if isinstance(self.rows, str) and self.rows.startswith("perturbed"):
            object.__setattr__(self, "rows", _preset(self.rows))
        if isinstance(self.rows, PermanentResponse):
            _check_names_something(self.rows)
        elif self.rows not in ROWS:
            raise MethodError(
                f"rows of SecureSum must be union, clear, perturbed:1 to perturbed:5, or a PermanentResponse; got "
                f"{self.rows!r}."
            )

    @property
    def perturbs(self) -> PermanentResponse | None:
        """How clients perturb the rows that they name, if they do."""
        return self.rows if isinstance(self.rows, PermanentResponse) else None

    @property
    def named(self) -> bool:
        """Whether clients name rows to the server, perturbed or not."""
        return self.rows != "union"

    def spends(self, spaces: int) -> tuple[Spend, ...]:
        """What it costs a client once that it names rows of so many spaces in all rounds."""
        return self.perturbs.spends(spaces, "row sets") if self.perturbs is not None else ()

    def check(self, method: Method) -> None:
        def refuse(what: str, why: str) -> None:
            raise MethodError(f"{what} does not go with SecureSum: {why}")

        codec = next((part for part in method.parts if part.codec), None)
        if method.pooled:
            refuse("Pooled data", "it is in one place, and nobody is there to hide it from.")
        if codec is not None:
            refuse(
                f"The codec {type(codec).__name__}",
                "it writes down each client's update by itself, and what is masked cannot be written shorter. Take "
                "fewer bits and levels instead.",
            )
        if (part := next((part for part in method.parts if part.noises), None)) is not None:
            refuse(
                type(part).__name__,
                "the counts by which rows are withheld have no noise, so that neither they nor the rows that stay as "
                "they are would be covered by its budget. LocalDP adds its noise before anything is summed.",
            )
        if method.sampler.probes:
            refuse(
                f"The sampler {type(method.sampler).__name__}",
                "clients tell it their losses one by one, in the clear. Take uniform, by-size or poisson.",
            )
        if method.sampler.may_repeat:
            refuse(
                "Sampling with replacement",
                "a client that is drawn twice would mask two vectors in one sum, and has one pair of secrets. Draw "
                "without replacement.",
            )
        self._check_perturbed(method, refuse)
        if method.average.needs_held and self.rows == "union":
            refuse(
                f"The average {type(method.average).__name__}",
                "it divides by the weight of those who hold a row and came; beside the counts of all who were asked, "
                'that would show which rows the missing ones hold. Take OverHolders(), or rows="clear".',
            )
        payload = next((f"{part.key}.{name}" for part in method.parts for name in part.payloads), None)
        if payload is not None and self.payload_clip is None:
            raise MethodError(
                f"Clients also send {payload}, whose entries are not those of an update; give SecureSum a range for "
                "them: payload_clip=…."
            )

    def _check_perturbed(self, method: Method, refuse: Callable[[str, str], None]) -> None:
        if self.perturbs is None:
            return
        for part in method.parts:
            if part.client_slots and not part.own:
                refuse(
                    f"{type(part).__name__} with perturbed rows",
                    "clients keep account of every row they hold, and only some of them come in a round. Take "
                    'rows="union".',
                )
            if part.turns > 1:
                refuse(
                    f"{type(part).__name__} with perturbed rows",
                    'a client names other rows in each of the rounds that belong together. Take rows="union".',
                )
        weights = method.average.weight(np.arange(1, 3))
        if weights[0] != weights[1] and any(part.silent for part in method.parts):
            refuse(
                "Weighting by samples, with LocalDP and perturbed rows",
                "how many samples are left of a client says which rows it holds, and LocalDP adds noise to its values "
                'alone. Take weighting="clients".',
            )
        if getattr(method.average, "unbiased", False):  # one of the user's own need not say
            refuse(
                'weighting="unbiased" with perturbed rows',
                "it divides by how many clients came, whatever is left of their samples, so that every step would be "
                'too short by what was lost. Take weighting="samples": it divides by what is left.',
            )

    def check_reports(self, reports: tuple[str, ...]) -> None:
        """Refuse a fitted sampler that wants to hear of each client."""
        if reports:
            raise MethodError(
                f"The sampler hears each client's {' and '.join(reports)} in the clear, which a secure sum is there to "
                "hide; take uniform, by-size or poisson."
            )


def _preset(text: str) -> PermanentResponse:
    """From "perturbed:2"."""
    number = text.removeprefix("perturbed").removeprefix(":")
    if not number.isdecimal():
        raise MethodError(
            f"rows={text!r} of SecureSum lacks its preset; write perturbed:1 (rows are named as they are) to "
            "perturbed:5 (everybody names the whole union), or give a PermanentResponse(p1=…, p2=…, p3=…, p4=…)."
        )
    return PermanentResponse(preset=int(number))


def _check_names_something(response: PermanentResponse) -> None:
    named, others = response.once.p, response.once.q
    if not named > 0 or named < others:
        raise MethodError(
            f"By these chances a client names a row that it holds with {named:g} and another with {others:g}; the "
            "first must be above 0 and not below the second, or there would be nothing to train on."
        )
