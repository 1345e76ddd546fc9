"""DIN with the candidate at one party and the history at another, beside the same network in one place.

    python examples/din_two_parties.py                                             generated data
    python examples/din_two_parties.py ~/data/movielens-1m --users 2000 --seeds 3  MovieLens-1M

"candidate" has the film, its genres and the label; "sequence" has the last 20 films that a person liked. The history
crosses as embeddings, [b, 20, 17]; the candidate stays where the labels are. Beside it stand the same network, with the
same first values and batches, trained by plain PyTorch on the joined columns, and the candidate's party alone.
"""

from __future__ import annotations

import argparse
import copy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from fedsub import vertical
from fedsub.data.clients import Clients
from fedsub.objective.metrics import auc
from fedsub.vertical.agreed import batch_of
from fedsub.vertical.config import Study, read

BATCH = 256
LR = 0.05


def adagrad(tensors: list[Tensor]) -> torch.optim.Optimizer:
    """Of rows with gradient 0 nothing changes, so that the rows of a batch are all that has to be stepped."""
    return torch.optim.Adagrad(tensors, lr=LR)


class Alone(nn.Module):
    """The candidate's party without the other: a history that is always empty."""

    def __init__(self, joined: nn.Module, like: tuple[int, ...]):
        super().__init__()
        self.joined, self.like = joined, like

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        empty = torch.zeros(len(batch["sample_mask"]), *self.like, dtype=torch.float64)
        return self.joined({**batch, "sequence": empty})


def parties(study: Study) -> tuple[vertical.LabelParty, vertical.Party]:
    sides = study.sides()
    label, party = study.label_party(sides.labelled), study.party("sequence", sides.parties["sequence"])
    for module in (label.module, party.bottom):
        # Adagrad divides by the size of past gradients, so that rounding of the smallest ones grows: in single
        # precision two runs of the same training that differ in rounding alone end a few thousandths of AUC apart.
        module.double()
    return replace(label, optimiser=adagrad), replace(party, optimiser=adagrad)


def central(label: vertical.LabelParty, party: vertical.Party, steps: int, seed: int) -> float:
    """Plain PyTorch on the joined columns: whole tables, one autograd graph."""
    bottom, module = copy.deepcopy(party.bottom), copy.deepcopy(label.module)
    optimiser = adagrad([*bottom.parameters(), *module.parameters()])
    for step in range(1, steps + 1):
        samples = batch_of(seed, label.data.samples, BATCH, step)
        batch = joined(label.data, party.data, samples)
        output = module({**batch, party.name: bottom(batch)})
        loss = nn.functional.binary_cross_entropy_with_logits(output, batch["label"].to(output.dtype))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    own, other = label.parts["test"], party.parts["test"]
    scores = []
    with torch.no_grad():
        for begin in range(0, own.samples, 4096):
            batch = joined(own, other, np.arange(begin, min(begin + 4096, own.samples)))
            scores.append(module({**batch, party.name: bottom(batch)}).numpy())
    return auc(np.concatenate(scores), np.asarray(own.column("label").values))


def joined(own: Clients, other: Clients, samples: np.ndarray) -> dict[str, Tensor]:
    arrays = own.gather(samples, local=False) | other.gather(samples, local=False)
    return {name: torch.from_numpy(values) for name, values in arrays.items()}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("data", nargs="?", help="folder of MovieLens-1M; without it data are generated")
    asked.add_argument("--users", type=int, default=2000, help="of MovieLens, the first so many")
    asked.add_argument("--scale", type=float, default=0.05, help="of generated data")
    asked.add_argument("--passes", type=int, default=2)
    asked.add_argument("--seeds", type=int, default=1)
    given = asked.parse_args()
    torch.set_num_threads(1)
    task = "movielens-din" if given.data else "history-like"
    about = {"data": given.data, "scale": given.users / 6040} if given.data else {"scale": given.scale}
    found: dict[str, list[float]] = {"two parties": [], "in one place": [], "candidate alone": []}
    crossed = 0.0
    for seed in range(given.seeds):
        study = read(task, {**about, "train": {"seed": seed}})
        label, party = parties(study)
        steps = -(-label.data.samples // BATCH) * given.passes
        options = {"rounds": 1, "steps": steps, "batch_size": BATCH, "seed": seed}
        split = vertical.run(label, [party], **options).result
        found["two parties"].append(split.final["test"]["auc"])
        crossed = (split.history[-1]["down"] + split.history[-1]["up"]) / steps
        found["in one place"].append(central(label, party, steps, seed))
        lone = replace(label, module=Alone(label.module, (20, 17)), tables={
            f"joined.{name}": columns for name, columns in label.tables.items()
        })  # fmt: skip
        found["candidate alone"].append(vertical.run(lone, [], **options).result.final["test"]["auc"])
        if seed == 0:
            print(f"{task}: {label.data.samples:,} samples to train on, {steps:,} steps of {BATCH}")
    print(f"{crossed:,.0f} bytes cross in a step")
    for name, values in found.items():
        spread = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
        print(f"{name:16} test AUC {np.mean(values):.4f}{spread}   {' '.join(f'{v:.6f}' for v in values)}")


if __name__ == "__main__":
    main()
