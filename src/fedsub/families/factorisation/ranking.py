"""Ranking: does a user's list of unrated items begin with those it liked?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedsub.data.heat import deciles

if TYPE_CHECKING:
    from fedsub.data.clients import Clients
    from fedsub.families.factorisation.trainer import FactorisationTrainer

LIKED, TOP = 4.0, 10
SCORES = 1 << 22  # of users times items at a time


def rank_metrics(
    trainer: FactorisationTrainer, held_out: Clients, *, liked: float = LIKED, top: int = TOP
) -> dict[str, Any]:
    """`ranking` of a trained factorisation on held-out ratings; clients that did not train are left out."""
    from fedsub.families.factorisation.trainer import TABLE, ratings_of

    problem = trainer.problem
    label = problem.objective.loss.label  # type: ignore[attr-defined]
    user, item, value = ratings_of(held_out, trainer.item, label)
    places = {client: p for p, client in enumerate(problem.clients.client_ids.tolist())}
    trained = np.array([places.get(client, -1) for client in held_out.client_ids.tolist()], np.int64)[user]
    keep = (trained >= 0) & (value >= liked)
    w, h = trainer.params[TABLE].cpu().numpy(), trainer.h[:, :, 0].cpu().numpy()
    heat = np.bincount(problem.tables[TABLE].rows, minlength=len(w))
    return ranking(w, h, trainer._seen, (trained[keep], item[keep]), heat=heat, top=top)


def ranking(
    w: np.ndarray,
    h: np.ndarray,
    seen: tuple[np.ndarray, np.ndarray],
    relevant: tuple[np.ndarray, np.ndarray],
    *,
    heat: np.ndarray | None = None,
    top: int = TOP,
) -> dict[str, Any]:
    """Rank, for every user with relevant items, all items that it has not seen by w_i · h_p.

    ``seen`` and ``relevant`` are pairs (users, items). With R relevant items of a user, of which hits stand among the
    first ``top`` at places j = 1, 2, …:

        precision = hits / top      recall = hits / R      ndcg = Σ_hits 1/log₂(j+1) / Σ_{j ≤ min(R, top)} 1/log₂(j+1)

    Means over users. ``deciles`` (given the items' ``heat``) holds the recall of relevant items by the tenth of the
    items, by heat, that they belong to; 0 is the coldest, −1 never rated in training. Of equal scores the item with
    the lower number stands first.
    """
    users = np.unique(relevant[0])
    top = min(top, len(w))
    hits_of, place_of = np.zeros(len(relevant[0]), bool), np.zeros(len(relevant[0]), np.int64)
    order = np.argsort(relevant[0], kind="stable")
    step = max(1, SCORES // len(w))
    for low in range(0, len(users), step):
        some = users[low : low + step]
        scores = h[some] @ w.T
        where = np.searchsorted(some, seen[0])
        mine = np.flatnonzero((where < len(some)) & (some[np.minimum(where, len(some) - 1)] == seen[0]))
        scores[where[mine], seen[1][mine]] = -np.inf
        best = np.argsort(-scores, axis=1, kind="stable")[:, :top]
        place = np.full(scores.shape, -1, np.int32)
        np.put_along_axis(place, best, np.arange(top, dtype=np.int32)[None], 1)
        begin, end = np.searchsorted(relevant[0][order], [some[0], some[-1] + 1])
        part = order[begin:end]
        found = place[np.searchsorted(some, relevant[0][part]), relevant[1][part]]
        hits_of[part], place_of[part] = found >= 0, found
    _, inverse, counts = np.unique(relevant[0], return_inverse=True, return_counts=True)
    hits = np.bincount(inverse, hits_of, len(users))
    gains = np.bincount(inverse, hits_of / np.log2(np.maximum(place_of, 0) + 2), len(users))
    ideal = np.cumsum(1 / np.log2(np.arange(top) + 2))[np.minimum(counts, top) - 1] if len(users) else np.zeros(0)
    out: dict[str, Any] = {"top": top, "users": len(users)}
    if len(users):
        out |= {
            "precision": float((hits / top).mean()),
            "recall": float((hits / counts).mean()),
            "ndcg": float((gains / ideal).mean()),
        }
    if heat is not None:
        tenth = deciles(heat)[relevant[1]]
        out["deciles"] = [
            {"group": g, "relevant": int((tenth == g).sum()), "recall": float(hits_of[tenth == g].mean())}
            for g in range(-1, 10)
            if (tenth == g).any()
        ]
    return out
