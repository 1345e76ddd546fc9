"""How long is the step of a round with perturbed rows, beside that of a plain round?

    python experiments/perturbed_rows.py [SEEDS]

One step on all of a client's samples, everybody takes part. Said is ⟨mean step, plain step⟩ / ‖plain step‖² over the
rows of a table, the mean over seeds: 1 is the plain step. "÷ p5" is the same with coefficients N/(n_m p5).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch

import fedsub as fs
from fedsub.privacy import PermanentResponse

CLIENTS, SAMPLES, ITEMS, PAST = 60, 30, 80, 30


class Clicks(torch.nn.Module):
    """An item, and a list of others whose values are added up, or averaged."""

    def __init__(self, data: fs.Clients, mean: bool):
        super().__init__()
        torch.manual_seed(0)
        self.item, self.past = torch.nn.Embedding(data.size("item"), 2), torch.nn.Embedding(data.size("past"), 2)
        self.out, self.mean = torch.nn.Linear(2, 1), mean

    def forward(self, batch):
        there = (batch["past"] > 0).unsqueeze(-1).float()
        past = (self.past(batch["past"]) * there).sum(1)
        if self.mean:
            past = past / there.sum(1).clamp_min(1)
        return self.out(self.item(batch["item"]) + past).squeeze(-1)


def world() -> fs.Clients:
    draw = np.random.default_rng(0)
    count = CLIENTS * SAMPLES
    return fs.Clients.from_arrays(
        {
            "user": np.repeat(np.arange(CLIENTS), SAMPLES), "item": draw.integers(0, ITEMS, count),
            "past": [draw.integers(1, PAST, draw.integers(2, 6)).tolist() for _ in range(count)],
            "liked": (draw.random(count) < 0.6).astype(int),
        },
        client="user", ids=["item", "past"], label="liked", sizes={"item": ITEMS, "past": PAST},
    )  # fmt: skip


def step(data: fs.Clients, mean: bool, weighting: str, seed: int, *parts: fs.Part) -> dict[str, torch.Tensor]:
    module = Clicks(data, mean)
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    objective = fs.Objective(module, fs.losses.binary("liked"), {"item.weight": "item", "past.weight": "past"})
    method = fs.Method(
        local=fs.SGD(lr=0.1, local_steps=1, batch_size=None), parts=parts, average=fs.OverHolders(weighting),
        server=fs.Add(), sampler=fs.Everyone(),
    )  # fmt: skip
    after = fs.run(method, objective, data, rounds=1, seed=seed, engine="batched").params
    return {name: after[name] - before[name] for name in before}


def ratios(data: fs.Clients, mean: bool, weighting: str, rows: str, seeds: int) -> dict[str, tuple[float, float]]:
    """(mean, standard error) of the share, by parameter."""
    plain, found = step(data, mean, weighting, 0), {"item.weight": [], "past.weight": [], "out.weight": []}
    for seed in range(seeds):
        made = step(data, mean, weighting, seed, fs.SecureSum(4.0, levels=2**31 + 1, bits=64, rows=rows))
        for name, said in found.items():
            said.append(float((made[name] * plain[name]).sum() / plain[name].square().sum()))
    return {name: (float(np.mean(v)), float(np.std(v) / np.sqrt(seeds))) for name, v in found.items()}


def main(seeds: int = 20, say: Callable[[str], None] = print) -> None:
    say("| preset | weighting | item | item, ÷ p5 | list, added up | list, averaged | dense |")
    say("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    data = world()
    for preset in (2, 3, 4):
        p5 = PermanentResponse(preset=preset).once.p
        for weighting in ("samples", "clients"):
            added, averaged = (ratios(data, m, weighting, f"perturbed:{preset}", seeds) for m in (False, True))
            found = [added["item.weight"], added["past.weight"], averaged["past.weight"], added["out.weight"]]
            item, *rest = [f"{value:.3f} ± {2 * error:.3f}" for value, error in found]
            say(" | ".join([f"| {preset}", weighting, item, f"{found[0][0] / p5:.3f}", *rest]) + " |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
