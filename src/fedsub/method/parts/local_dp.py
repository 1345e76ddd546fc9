"""Differential privacy without trust: clients add noise before anything leaves them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedsub import rng
from fedsub.checks import check_whole
from fedsub.errors import MethodError
from fedsub.method.part import Message, Part, Work
from fedsub.method.parts.bounded import BoundedUpdate
from fedsub.method.parts.personal import Personal
from fedsub.privacy.accounting import calibrate
from fedsub.privacy.noise import normal
from fedsub.privacy.spending import Spend
from fedsub.trees import Tree, digest_of


@dataclass(frozen=True)
class LocalDP(BoundedUpdate):
    """A client sends Δ min(1, C/‖Δ‖₂) + N(0, (noise · C)²) on every entry of the submodel it declares; C = ``clip``.

    No server needs to be trusted with updates. Nobody else's noise and no sampling help: any two updates are at most
    2 C apart, so that one participation costs what a Gaussian mechanism of noise/2 costs, and a client pays for each of
    its own. ``epsilon`` at ``delta`` is the budget of the client that took part most often; without ``noise`` it is
    the least with which everybody may take part in every round. J. C. Duchi, M. I. Jordan and M. J. Wainwright, "Local
    Privacy and Statistical Minimax Rates", FOCS 2013.

    The rows a client asks for are not hidden by this: the server sees them, and they tell what it holds.

    Noise comes from the seed of the run, or from one ``secret``, which is for simulation. A `Node` draws it from a
    secret of its own, whatever is said here, and keeps its budget itself.
    """

    @property
    def key(self) -> str:
        return "local"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise is None:
            raise MethodError(
                "Clients of LocalDP draw noise by themselves and must know how much; give noise, or "
                "LocalDP.calibrated(clip=…, epsilon=…, participations=…)."
            )

    @classmethod
    def calibrated(
        cls, *, clip: float, epsilon: float, participations: int, delta: float = 1e-5, accountant: str = "rdp",
        secret: Any = None,
    ) -> LocalDP:  # fmt: skip
        """With the least noise with which a client may take part so many times."""
        check_whole("participations", participations, 1)
        noise = 2 * calibrate(epsilon, delta, participations, 1.0, accountant=accountant)
        return cls(clip, noise, epsilon, delta, accountant, secret=secret)

    def _check_after(self, other: Part) -> None:
        if isinstance(other, Personal):
            raise MethodError("Personal takes parameters out of what is sent; put it before LocalDP.")

    def spend(self, participations: int) -> Spend:
        """What a client has spent that took part so many times."""
        assert self.noise is not None
        return Spend.gaussian("training, noised by clients", self.noise / 2, times=participations)

    def finish(self, message: Message, params: Tree, work: Work) -> None:
        super().finish(message, params, work)
        update = message.trees["update"]
        assert self.noise is not None
        told = digest_of(update) if self.secret is not None and self.secret.own else b""
        for place, (name, value) in enumerate(update.items() if self.noise else ()):
            drawn = torch.from_numpy(self._draw(place, name, value, work, told)).reshape(value.shape)
            update[name] = value + drawn.to(value).mul_(self.noise * self.clip)

    def rest(self, message: Message, work: Work) -> None:
        """Noise all the same: that a client sends nothing else must not show."""
        self.finish(message, {}, work)

    def _draw(self, place: int, name: str, value: torch.Tensor, work: Work, told: bytes) -> np.ndarray:
        """Standard normal numbers for every entry, row by row; 0 for rows of padding, which never train."""
        group, words = work.group, work.words
        assert words is not None
        if name in group.counts:
            counts = group.counts[name].cpu().numpy()
        else:  # of a lone client's table its rows, of a dense parameter one row a client
            table = not group.stacked and name in work.tables
            counts = np.array([len(value)]) if table else np.ones(group.count, np.int64)
        starts = np.cumsum(counts) - counts
        rows, width = int(counts.sum()), value.numel() // max(1, int(counts.sum()))
        within = np.arange(rows) - np.repeat(starts, counts)
        if self.secret is None:
            each = rng.key(np.repeat(words, counts).view(np.int64), rng.LOCAL_NOISE, place, within)
            drawn = normal(rng.mix(each[:, None] + np.arange(width + width % 2, dtype=np.uint64)), width)
        else:
            drawn = np.empty((rows, width))
            for word, begin, count in zip(words.tolist(), starts.tolist(), counts.tolist(), strict=True):
                source = self.secret.words(word, told)
                own = source.draw(source.of(place, np.arange(count)), 0, width + width % 2)
                drawn[begin : begin + count] = normal(own, width)
        if name in work.padding:
            drawn[starts[counts > 0]] = 0.0
        return drawn
