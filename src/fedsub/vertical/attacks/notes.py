"""`Watching`: a bottom that takes notes of the gradients it is sent. Nothing else of the party's program changes.

An attacker of this kind is honest but curious: it sends what it should and keeps what it is sent. Which samples a batch
holds it knows in any case, they are its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedsub.errors import RunError
from fedsub.vertical.agreed import batch_of


class Notes:
    """Gradients in the order in which they came. A copy of a module writes into the same notes."""

    def __init__(self) -> None:
        self.came: list[Tensor] = []

    def __deepcopy__(self, memo: Any) -> Notes:
        return self

    def write(self, gradient: Tensor) -> None:
        self.came.append(gradient.detach().flatten(1).clone() if gradient.ndim > 1 else gradient.detach()[:, None])

    def passes(self, seed: int, samples: int, batch_size: int) -> Tensor:
        """[passes, samples, d]: what every sample was sent in each whole pass over the data.

        A batch is divided by the root mean square of its rows' lengths, so that late and early ones weigh the same.
        """
        batches = -(-samples // batch_size)
        count = len(self.came) // batches
        if not count:
            raise RunError(
                f"{len(self.came)} batches of {batch_size} are no pass over {samples:,} samples; train longer, or with "
                f"larger batches: {batches} make one."
            )
        out = torch.zeros(count, samples, self.came[0].shape[1], dtype=self.came[0].dtype)
        for step, gradient in enumerate(self.came[: count * batches]):
            scale = gradient.square().sum(1).mean().sqrt().clamp_min(torch.finfo(gradient.dtype).tiny)
            rows = torch.from_numpy(batch_of(seed, samples, batch_size, step + 1).copy())
            out[step // batches, rows] = gradient / scale
        return out


class Watching(nn.Module):
    """The bottom as it is, under a note-taker."""

    def __init__(self, bottom: nn.Module, notes: Notes):
        super().__init__()
        self.bottom, self.notes = bottom, notes

    def forward(self, *inputs: Any) -> Tensor:
        z = self.bottom(*inputs)
        if z.requires_grad:
            z.register_hook(self.notes.write)
        return z
