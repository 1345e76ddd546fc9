"""Full ranking of MovieLens-1M: what it costs, and whether HR@10 and NDCG@10 are those of a loop over clients.

python experiments/movielens_ranking.py DIR     (DIR holds ratings and users, as .dat or .parquet)
"""

import sys
import time

import numpy as np
import torch
from torch import nn

import fedsub as fs
from fedsub.objective.problem import Problem
from fedsub.round.evaluate import Evaluator


class Factors(nn.Module):
    """Matrix factorisation with a bias of the movie."""

    def __init__(self, users: int, movies: int, dim: int = 16):
        super().__init__()
        self.user, self.movie, self.bias = nn.Embedding(users, dim), nn.Embedding(movies, dim), nn.Embedding(movies, 1)

    def forward(self, batch):
        product = self.user(batch["user"]) * self.movie(batch["movie"])
        return product.sum(-1) + self.bias(batch["movie"]).squeeze(-1)


def by_hand(module: nn.Module, train: fs.Clients, test: fs.Clients) -> tuple[float, float]:
    """(HR@10, NDCG@10), client by client. Of equal scores half of the negatives stand before a positive."""
    seen_rows, rows = (part.gather(np.arange(part.samples), local=False) for part in (train, test))
    known = set(seen_rows["movie"].tolist()) | set(rows["movie"].tolist())
    movies, sizes = torch.arange(train.size("movie")), train.size("movie")
    place = {client: i for i, client in enumerate(train.client_ids.tolist())}
    hits, gains = [], []
    for c, client in enumerate(test.client_ids.tolist()):
        low, high = test.offsets[c : c + 2]
        i = place.get(client)
        seen = set() if i is None else set(seen_rows["movie"][train.offsets[i] : train.offsets[i + 1]].tolist())
        liked = set(rows["movie"][low:high][rows["label"][low:high] == 1].tolist()) - seen
        if not liked:
            continue
        batch = {name: torch.full((sizes,), int(rows[name][low])) for name in ("user", "gender", "age") if name in rows}
        crosses = {f"{name}_movie": batch[name] * sizes + movies for name in ("gender", "age") if name in batch}
        with torch.no_grad():
            score = module({**batch, **crosses, "movie": movies}).double().numpy().reshape(-1)
        others = score[sorted(known - seen - liked)]
        best_first = sorted(liked, key=lambda movie: (-score[movie], movie))
        places = [
            1 + before + (others > score[movie]).sum() + (others == score[movie]).sum() / 2
            for before, movie in enumerate(best_first)
        ]
        ideal = sum(1 / np.log2(j + 1) for j in range(1, min(10, len(liked)) + 1))
        hits.append(float(any(p <= 10 for p in places)))
        gains.append(sum(1 / np.log2(p + 1) for p in places if p <= 10) / ideal)
    return float(np.mean(hits)), float(np.mean(gains))


def main(folder: str) -> None:
    ratings = fs.movielens(folder).drop("timestamp")
    own = ratings.gather(np.arange(ratings.samples), ("movie", "label"), local=False)
    user = ratings.clients_of(np.arange(ratings.samples))
    both = fs.Clients.from_arrays(
        {"client": user, "user": user, **own}, "client", ids=["user", "movie"], label="label",
        sizes={"user": len(ratings), "movie": ratings.size("movie")},
    )  # fmt: skip
    torch.manual_seed(0)
    factors = fs.Objective(
        Factors(len(ratings), ratings.size("movie")), fs.losses.binary("label"),
        {"user.weight": "user", "movie.weight": "movie", "bias.weight": "movie"},
    )  # fmt: skip
    adagrad = fs.methods.fedadagrad(lr=0.1, server_lr=0.1, tau=1e-4, clients_per_round=50)
    cases = {
        "logistic regression": (ratings, None, fs.methods.fedsubavg(lr=0.1, clients_per_round=50)),
        "matrix factorisation": (both, factors, adagrad),
    }
    for name, (clients, made, method) in cases.items():
        train, test = clients.split(0.8, seed=0)
        objective = made or fs.models.make_objective(train, "lr")
        result = fs.run(method, objective, train, rounds=60, evaluate=fs.Evaluate(every=60))
        columns = [*dict.fromkeys(c for table in objective.tables for c in objective.columns_of(table)), "label"]
        plan = fs.Evaluate(samples=1, ranking=fs.Ranking("movie", k=10, metrics=("hr", "ndcg"), clients=None))
        begin = time.process_time()
        found = Evaluator(Problem.bind(objective, train), {"test": test}, plan, tuple(columns), train)(result.params)
        seconds = time.process_time() - begin
        print(
            f"{name}: HR@10 {found['test.hr@10']:.6f}, NDCG@10 {found['test.ndcg@10']:.6f}, {seconds:.1f} CPU seconds"
        )
        print("  by a loop over clients: HR@10 {:.6f}, NDCG@10 {:.6f}".format(*by_hand(result.module(), train, test)))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    main(sys.argv[1])
