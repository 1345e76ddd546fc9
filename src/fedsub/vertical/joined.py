"""Modules of a label party: a bottom and a top, and what to say where other parties have nothing.

    Joined      logit = top(z₀, z₁, z₂, …)                  all activations are there
    OwnHead     logit = head(z₀)                            without them: a second head on the shared bottom
    Students    logit = top(z₀, s₁(z₀), s₂(z₀), …)          without them: guessed by students; a student learns
                                                            ‖s_p(z₀) − z_p‖² where z_p is there (`Distilled`)

Guessed embeddings for unaligned samples are an idea of FedAds (P. Wei et al., SIGIR 2023), with a conditional diffusion
model in the student's place; a student that regresses is the knowledge transfer of Z. Ren, L. Yang, K. Chen, "Improving
availability of vertical federated learning", ACM TIST 2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsub.objective.losses import Batch, Binary

ERROR = "student_error"  # what students leave in a batch, one number a sample


class Joined(nn.Module):
    """A label party's module of a bottom and a top: top(bottom(batch), z of every party in ``parties``).

    Without a bottom the top gets the parties' activations alone.
    """

    def __init__(self, bottom: nn.Module | None, top: nn.Module, parties: tuple[str, ...]):
        super().__init__()
        self.bottom, self.top, self.parties = bottom, top, tuple(parties)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        own = [] if self.bottom is None else [self.bottom(batch)]
        return self.top(*own, *[batch[name] for name in self.parties])


class OwnHead(Joined):
    """A label party with a second head, for samples of which nobody else knows anything."""

    def __init__(self, bottom: nn.Module, top: nn.Module, parties: tuple[str, ...], head: nn.Module):
        super().__init__(bottom, top, parties)
        self.head = head

    def forward(self, batch: Batch) -> Tensor:
        if any(name in batch for name in self.parties):
            return super().forward(batch)
        assert self.bottom is not None
        return self.head(self.bottom(batch))


class Students(Joined):
    """A label party with a student for every feature party, which guesses the activations that are missing."""

    def __init__(self, bottom: nn.Module, top: nn.Module, parties: tuple[str, ...], students: Mapping[str, nn.Module]):
        super().__init__(bottom, top, parties)
        self.students = nn.ModuleDict(students)

    def forward(self, batch: Batch) -> Tensor:
        assert self.bottom is not None
        own, z = self.bottom(batch), []
        error = torch.zeros(len(own), dtype=own.dtype, device=own.device)
        for name in self.parties:
            if name not in batch:
                z.append(self.students[name](own))
                continue
            z.append(batch[name])
            if self.training:  # the student learns from the party, and neither the party nor the bottom from it
                error = error + (self.students[name](own.detach()) - batch[name].detach()).square().flatten(1).sum(1)
        if self.training:
            batch[ERROR] = error
        return self.top(own, *z)


@dataclass(frozen=True)
class Distilled(Binary):
    """`Binary` plus ``weight`` times the students' squared errors, in training."""

    weight: float = 1.0

    def __call__(self, output: Tensor, batch: Batch) -> Tensor:
        values = super().__call__(output, batch)
        return values + self.weight * batch[ERROR] if ERROR in batch else values
