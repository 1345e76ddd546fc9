"""Logistic regression with a taste: the model of movielens_taste.toml.

    logit = Σ weights of gender, age, movie, gender × movie, age × movie, genres + vector[movie] · user

``user`` is meant to be personal: with one for all, vector[movie] · user is but another weight of the movie.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import fedsub as fs
from fedsub.objective.models import LogisticRegression
from fedsub.objective.models.columns import space_tables

DIM = 12


class Taste(nn.Module):
    def __init__(self, clients: fs.Clients, dim: int = DIM):
        super().__init__()
        self.features = LogisticRegression(clients)
        self.movies = nn.Embedding(clients.size("movie"), dim)
        self.user = nn.Parameter(torch.zeros(dim))
        nn.init.normal_(self.movies.weight, std=0.1)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.features(batch) + self.movies(batch["movie"]) @ self.user


def make_objective(clients: fs.Clients) -> fs.Objective:
    tables = {**space_tables(clients, "features.weights"), "movies.weight": "movie"}
    return fs.Objective(Taste(clients), fs.losses.binary("label"), tables)
