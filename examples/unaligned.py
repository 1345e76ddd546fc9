"""Samples that the label party has alone: what learning from them adds, beside the best that can be known.

    python examples/unaligned.py --seeds 3 --aligned 0.03 0.1 0.3

Of made ads (`fedsub.vertical.AdsWorld`) the ads platform knows all clicks and which of them led to a purchase, the
publisher knows some of these clicks. On the shared clicks both train a split model. Beside it, with as many shared
batches each:

    alone          the ads platform without the publisher, on the shared clicks
    alone, all     the same on all of its clicks, as many batches as the two below take together
    shared only    the split model
    own head       the split model, and a second head on the platform's own bottom for its other clicks
    students       the split model, and a student that guesses the publisher's activations for the other clicks

"shared" is the AUC on shared clicks that were held out, where the publisher is asked (but not by "alone"); "others" is
that on held-out clicks which the publisher does not know. Labels are drawn from a known probability, so the highest AUC
that can be expected of either is known too.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from fedsub import vertical
from fedsub.data.clients import Clients
from fedsub.data.split import select
from fedsub.objective.metrics import auc
from fedsub.vertical.config import read
from fedsub.vertical.data.sides import Sides
from fedsub.vertical.joined import Joined
from fedsub.vertical.models import Head

BATCH = 256
PLATFORM, PUBLISHER = "ads", "publisher"


class Lone(nn.Module):
    """A label party of its own bottom and a head."""

    def __init__(self, bottom: nn.Module, head: nn.Module):
        super().__init__()
        self.bottom, self.head = bottom, head

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.head(self.bottom(batch))


def variants(
    label: vertical.LabelParty, party: vertical.Party, own: Clients, everything: Clients, width: int, own_steps: int
) -> Iterator[tuple[str, vertical.LabelParty, list[vertical.Party], int]]:
    """(name, label party, feature parties, how many times the steps)."""
    joined = label.module
    assert isinstance(joined, Joined)
    assert joined.bottom is not None
    torch.manual_seed(0)
    lone = replace(label, module=Lone(joined.bottom, Head(width)))
    yield "alone", lone, [], 1
    yield "alone, all", replace(lone, data=everything), [], 1 + own_steps
    yield "shared only", label, [party], 1
    more = {"own": own, "own_steps": own_steps}
    headed = vertical.OwnHead(joined.bottom, joined.top, (PUBLISHER,), Head(width))
    yield "own head", replace(label, module=headed, **more), [party], 1
    student = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, width))
    guessing = vertical.Students(joined.bottom, joined.top, (PUBLISHER,), {PUBLISHER: student})
    yield "students", replace(label, module=guessing, loss=vertical.Distilled("label"), **more), [party], 1


def without(module: nn.Module, clients: Clients) -> float:
    """AUC where nobody else knows anything; NaN of a module that cannot do without."""
    if type(module) is Joined:
        return float("nan")
    arrays = clients.gather(np.arange(clients.samples), local=False)
    batch = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in arrays.items()}
    with torch.no_grad():
        return auc(module.eval()(batch).double().numpy(), np.asarray(clients.column("label").values))


def most(world: vertical.AdsWorld, sides: Sides) -> tuple[float, float]:
    """The highest AUC that can be expected: of both parties on shared clicks, of the platform alone on any."""
    truth, alone = world.conversion(sides), world.conversion_alone(sides.labelled)
    return vertical.expected_auc(truth, truth), vertical.expected_auc(alone, truth)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--impressions", type=int, default=1_000_000)
    asked.add_argument("--aligned", type=float, nargs="+", default=[0.3], help="shares of clicks that are shared")
    asked.add_argument("--steps", type=int, default=400)
    asked.add_argument("--own-steps", type=int, default=2, help="batches of other clicks after each shared one")
    asked.add_argument("--seeds", type=int, default=1)
    given = asked.parse_args()
    torch.set_num_threads(1)
    for share in given.aligned:
        world = vertical.AdsWorld(impressions=given.impressions, aligned=share)
        sides = world.sides()
        shared, others = sides.aligned(), sides.unaligned()
        best, lone = most(world, shared)
        print(f"{share:.0%} of {sides.labelled.samples:,} clicks are shared: {shared.labelled.samples:,}")
        print(f"{'at best':14} shared {best:.3f}            others {lone:.3f}")
        found: dict[str, list[tuple[float, float]]] = {}
        for seed in range(given.seeds):
            study = read("ads-like", {"train": {"seed": seed}})
            label = study.label_party(shared.labelled)
            party = study.party(PUBLISHER, shared.parties[PUBLISHER])
            own, held = study.parts(others)
            out = vertical.held_out(sides.labelled.client_ids, study.config.train.test, seed)
            everything = select(sides.labelled, np.flatnonzero(~out))
            width = study.parties()[PLATFORM].width
            for name, one, parties, times in variants(label, party, own, everything, width, given.own_steps):
                run = vertical.run(
                    one, parties, rounds=1, steps=given.steps * times, batch_size=BATCH, seed=seed
                ).result  # fmt: skip
                found.setdefault(name, []).append((run.last("test.auc"), without(run.module(), held)))
        for name, values in found.items():
            print(f"{name:14} shared {shown([v[0] for v in values])}   others {shown([v[1] for v in values])}")


def shown(values: list[float]) -> str:
    if np.isnan(values).any():
        return "–"
    spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}"


if __name__ == "__main__":
    main()
