"""The mixture of global and local models on MovieLens-1M: λ chosen on validation samples, then three seeds.

python experiments/movielens_mixture.py DIR [ITERATIONS] [SEEDS]

DIR holds the data set. The model is the logistic regression of movielens_personal.toml. Everybody starts from
FedAdagrad's model of that file; then come iterations of L2SGD+ over all clients, five samples of each at a time. λ = 0
trains every client by itself; λ = ∞ are as many steps of one model for all. λ is chosen by the loss on a tenth of the
training samples, with seed 0; then all training samples are used, for every seed. The test samples are looked at once,
by the chosen λ and both ends.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import torch

import fedsub as fs
from fedsub.cli.options import Flags
from fedsub.cli.what import experiment
from fedsub.families.mixture.method import Mixture
from fedsub.families.mixture.reach import Together
from fedsub.round.evaluate import Evaluate
from fedsub.study.lambdas.choose import choose_lambda

LAMS = (0.01, 0.03, 0.1, 0.3)
MEASURES = ("auc", "worst_decile_auc", "loss", "worst_decile_loss")
FILE = Path(__file__).with_name("movielens_personal.toml")
START = "FedAdagrad"


def solver(lam: float) -> Mixture:
    if math.isinf(lam):
        return Mixture(solver=Together(stochastic=True), batch_size=5, name="together")
    return fs.methods.l2sgd_plus(lam=lam)


def main(
    folder: str, iterations: int = 400, seeds: int = 3, given: tuple[str, ...] = ()
) -> dict[str, dict[str, float]]:
    """Prints both tables; returns the means over seeds by line. ``given`` are settings as of --set."""
    made = experiment(str(FILE), Flags(data=folder, set=list(given)))
    part, validation, train, test = made.split_with_validation(made.clients(), made.config.tune.validation)
    assert test is not None

    def trained(clients: fs.Clients, seed: int) -> fs.Objective:
        """The objective, its module with the parameters that FedAdagrad found."""
        objective = made.objective(clients)(seed)
        many = made.config.train.rounds
        plan = Evaluate(every=many, samples=1000, final_samples=1000)
        method = made.methods(len(clients))[START]
        found = fs.run(method, objective, clients, rounds=many, seed=seed, evaluate=plan)
        with torch.no_grad():
            for name, value in objective.module.named_parameters():
                value.copy_(found.params[name])
        return objective

    path = choose_lambda(
        trained(part, 0), part, validation, lams=LAMS, method=solver(0.0), rounds=iterations, samples=None
    )
    print("lambda  validation loss     AUC  (all samples together)")
    for point in path.points:
        mark = "  chosen" if point["lam"] == path.chosen else ""
        print(f"{point['lam']:6g}  {point['validation.ce']:15.4f}  {point['validation.auc']:.4f}{mark}", flush=True)

    lams = {f"lambda = {lam:g}": lam for lam in (0.0, path.chosen, math.inf)}
    measured: dict[str, list[list[float]]] = {name: [] for name in lams}
    plan = Evaluate(every=iterations, samples=1000, final_samples=None)
    for seed in range(seeds):
        objective = trained(train, seed)
        for name, lam in lams.items():
            found = fs.run(
                solver(lam), objective, train, splits={"test": test}, rounds=iterations, seed=seed, evaluate=plan
            )
            measured[name].append([found.final["test"]["by_client"][key] for key in MEASURES])
    print(f"\ntest, averaged over clients; {seeds} seeds\n{'':16}" + "".join(f"{key:>20}" for key in MEASURES))
    for name, values in measured.items():
        spread = np.std(values, 0, ddof=1) if seeds > 1 else np.zeros(len(MEASURES))
        told = zip(np.mean(values, 0), spread, strict=True)
        print(f"{name:16}" + "".join(f"{f'{mean:.4f} ± {sd:.4f}':>20}" for mean, sd in told))
    return {name: dict(zip(MEASURES, np.mean(v, 0).tolist(), strict=True)) for name, v in measured.items()}


if __name__ == "__main__":
    main(
        sys.argv[1],
        iterations=int(sys.argv[2]) if len(sys.argv) > 2 else 400,
        seeds=int(sys.argv[3]) if len(sys.argv) > 3 else 3,
    )
