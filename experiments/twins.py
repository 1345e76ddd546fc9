"""The table of the twins (docs/twins.md): four generated data sets, four methods, under a minute, no download.

python experiments/twins.py            trains, prints the table, compares it with docs/results/twins.parquet
python experiments/twins.py --keep     writes that file anew

Logistic regression on the words or features, or on user and item; the same untuned settings on every twin, 100 rounds
of 50 clients, seed 0. "planted" is the truth that the labels were drawn from: no learner can expect more.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import polars as pl

import fedsub as fs

KEPT = Path(__file__).parent.parent / "docs/results/twins.parquet"
SCALES = {"movielens-like": 0.1, "sentiment-like": 0.3, "amazon-like": 0.3, "alibaba-like": 0.01}
MODELS = {"movielens-like": "lr", "sentiment-like": "lr", "amazon-like": "user-item", "alibaba-like": "user-item"}
CLOSE = 0.002  # another processor rounds differently, which grows a little over the rounds
SHARED: dict[str, Any] = {"clients_per_round": 50, "local_steps": 10, "batch_size": 10}
METHODS = {
    "FedAvg": fs.methods.fedavg(lr=0.3, **SHARED),
    "FedSubAvg": fs.methods.fedsubavg(lr=0.3, **SHARED),
    "FedSubAvg tempered": fs.methods.fedsubavg(lr=0.3, temper=0.5, **SHARED),
    "FedAdagrad": fs.methods.fedadagrad(lr=0.3, server_lr=0.1, tau=1e-5, **SHARED),
}


def measure(name: str, rounds: int = 100, scale: float | None = None) -> list[dict[str, object]]:
    """A line for the planted truth and one for every method, on the twin's test samples."""
    with tempfile.TemporaryDirectory() as folder:
        about = fs.twins.TWINS[name].write(Path(folder) / name, scale=scale or SCALES[name])
        train, test = (fs.Clients.open(Path(folder) / name / part) for part in ("train", "test"))
        found = fs.compare(
            METHODS, lambda seed: fs.models.make_objective(train, MODELS[name], seed=seed), train, test=test,
            rounds=rounds, engine="batched", evaluate=fs.Evaluate(every=rounds, final_samples=None),
        )  # fmt: skip
        lines: list[dict[str, object]] = [{"twin": name, "method": "planted", **about["test"]["best"]}]
        for label, (result,) in found.results.items():
            measured = result.final["test"]
            lines.append({"twin": name, "method": label, "ce": measured["ce"], "auc": measured["auc"]})
    return lines


def table(lines: pl.DataFrame) -> str:
    """Markdown: a row per twin, test AUC of every method."""
    methods = lines["method"].unique(maintain_order=True).to_list()
    out = ["| test AUC (ce) | " + " | ".join(methods) + " |", "| --- " * (len(methods) + 1) + "|"]
    for (name,), of_twin in lines.group_by(["twin"], maintain_order=True):
        cells = [f"{auc:.3f} ({ce:.3f})" for auc, ce in of_twin.select("auc", "ce").iter_rows()]
        out.append(f"| `{name}`, scale {SCALES[str(name)]:g} | " + " | ".join(cells) + " |")
    return "\n".join(out)


def differences(found: pl.DataFrame, kept: pl.DataFrame) -> pl.DataFrame:
    """The lines that are further than `CLOSE` from the kept ones."""
    both = found.join(kept, on=["twin", "method"], suffix=" kept")
    far = pl.max_horizontal((pl.col(c) - pl.col(f"{c} kept")).abs() for c in ("ce", "auc"))
    return both.filter(far > CLOSE)


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--keep"]):
        sys.exit(__doc__)
    found = pl.DataFrame([line for name in SCALES for line in measure(name)])
    print(table(found))
    if arguments:
        KEPT.parent.mkdir(exist_ok=True)
        found.write_parquet(KEPT, compression="zstd")
        print(f"\nKept in {KEPT}.")
        return 0
    far = differences(found, pl.read_parquet(KEPT))
    said = f"other numbers in\n{far}" if len(far) else f"the same, to {CLOSE}."
    print(f"\n{len(found)} lines compared with {KEPT.name}: {said}")
    return len(far) > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
