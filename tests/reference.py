"""A second opinion: federated training in numpy, formula by formula, sharing no code with the library.

The model is a bag of ids, z = Σ_ids T[id] · u + b with the table T [items, 2] and dense u and b; the loss is the mean
logistic loss. Whole tables everywhere, client after client, batches in file order: slow, and easy to check by eye.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from worlds import bag

import fedsub as fs

TOLERANCE = 1e-12  # where every weight is exact in single precision
ROUNDED = TOLERANCE  # where weights of samples or rows are not: models in double have weights in double

TABLE = "emb.weight"
Tree = dict[str, np.ndarray]


# ---------------------------------------------------------------------- data


@dataclass(frozen=True)
class World:
    """Clients one behind the other: client i has the samples offsets[i] to offsets[i + 1]."""

    ids: np.ndarray  # [samples, width]
    label: np.ndarray  # [samples]
    offsets: np.ndarray
    items: int

    def clients(self) -> fs.Clients:
        return fs.Clients.from_arrays(
            {"ids": self.ids, "label": self.label}, offsets=self.offsets, ids=["ids"], label="label",
            sizes={"ids": self.items},
        )  # fmt: skip

    def objective(self) -> fs.Objective:
        return bag(self.clients(), seed=3, dim=2, dtype=torch.float64)

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)

    @property
    def held(self) -> np.ndarray:
        """Who holds which row, bool [clients, items]."""
        held = np.zeros((len(self.sizes), self.items), bool)
        for i, (a, b) in enumerate(zip(self.offsets, self.offsets[1:], strict=False)):
            held[i, self.ids[a:b].ravel()] = True
        return held


def world_of(sizes: list[int], rows: list[list[int]], items: int, width: int = 4) -> World:
    """Client i names each of its ``rows[i]`` once, then some of them by chance."""
    rng = np.random.default_rng(1)
    ids = [
        np.append(own, rng.choice(own, n * width - len(own))).reshape(n, width)
        for n, own in zip(sizes, rows, strict=True)
    ]
    label = rng.integers(0, 2, sum(sizes))
    return World(np.concatenate(ids), label, np.concatenate([[0], np.cumsum(sizes)]), items)


# N/n_m and W/W_m are powers of two for every row, and so are all batches: nothing is rounded in single precision.
EXACT = world_of(
    [8, 4, 2, 1, 1, 4, 4, 8],
    [[0, 1, 2, 12], [0, 3, 4, 13], [0, 4, 5], [0, 4, 6], [0, 4, 6], [0, 3, 7, 8], [0, 8, 9], [0, 1, 10, 11]],
    items=15,  # 14 is nobody's
)
# The same with nothing even about it.
UNEVEN = world_of(
    [7, 3, 5, 1, 2, 9, 6],
    [[0, 1, 2, 3], [0, 3, 4], [1, 4, 5, 6], [0, 4, 6], [4, 6], [1, 3, 7, 8, 0], [8, 9, 1]],
    items=11,
)

# Several samples for everybody: no two values of an update are equal, as those of the rows of a lone sample are.
SEVERAL = world_of(
    [7, 9, 5, 8, 6, 9, 6],
    [[0, 1, 2, 3], [0, 3, 4], [1, 4, 5, 6], [0, 4, 6], [4, 6], [1, 3, 7, 8, 0], [8, 9, 1]],
    items=11,
)

# ---------------------------------------------------------------------- settings


@dataclass(frozen=True)
class Settings:
    """What is simulated, and as a Method what is simulated against."""

    average: str = "clients"
    server: str = "add"
    lr: float = 0.3
    steps: int | None = None  # None: one pass over the local data
    batch_size: int | None = 4
    momentum: float = 0.0
    mu: float = 0.0
    scaffold: bool = False
    nova: bool = False
    clip_rows: float | None = None
    codec: str = ""  # sign, ef-sign, topk
    share: float = 0.3  # of the values that topk sends
    personal: str = ""  # a parameter that stays with the clients
    temper: float = 1.0  # of the averages over holders
    cap: float | None = None
    power: float = 0.5  # of the frequency-aware server
    beta: float = 0.5  # of the server with a history
    rho: float = 0.5
    server_lr: float = 0.7
    server_momentum: float = 0.6
    beta1: float = 0.8
    beta2: float = 0.9
    tau: float = 0.01

    def method(self, sampler: Any) -> fs.Method:
        parts = [fs.Prox(self.mu)] if self.mu else []
        parts += [fs.ControlVariates("II")] if self.scaffold else []
        parts += [fs.ClipRows(self.clip_rows)] if self.clip_rows else []
        parts += [fs.NormalisedSteps()] if self.nova else []
        parts += [fs.Personal((self.personal,), init="shared")] if self.personal else []
        parts += [CODECS[self.codec](self)] if self.codec else []
        epochs = 1 if self.steps is None else None
        solver = fs.SGD(self.lr, self.steps, epochs, self.batch_size, "ordered", momentum=self.momentum)
        average: Any = AVERAGES[self.average]
        if self.temper != 1 or self.cap is not None:
            average = replace(average, temper=self.temper, max_coef=self.cap)
        return fs.Method(local=solver, parts=tuple(parts), average=average, server=self._server(), sampler=sampler)

    def _server(self) -> Any:
        adaptive: dict[str, Any] = {"lr": self.server_lr, "beta1": self.beta1, "tau": self.tau}
        return {
            "add": lambda: fs.Add(self.server_lr),
            "momentum": lambda: fs.Add(self.server_lr, momentum=self.server_momentum),
            "adam": lambda: fs.servers.Adam(beta2=self.beta2, **adaptive),
            "yogi": lambda: fs.servers.Yogi(beta2=self.beta2, **adaptive),
            "adagrad": lambda: fs.servers.Adagrad(**adaptive),
            "frequency": lambda: fs.servers.FrequencyAware(self.server_lr, self.power),
            "history": lambda: fs.servers.ScaffoldHistory(self.server_lr, self.beta, rho=self.rho),
        }[self.server]()


AVERAGES = {
    "clients": fs.OverClients("clients"),
    "samples": fs.OverClients("samples"),
    "holders": fs.OverHolders("clients"),
    "holders by samples": fs.OverHolders("samples"),
    "holders unbiased": fs.OverHolders("unbiased"),
    "sampled holders": fs.OverSampledHolders("samples"),
}
CODECS: dict[str, Any] = {
    "sign": lambda s: fs.codecs.Sign(),
    "ef-sign": lambda s: fs.codecs.ErrorFeedbackSign(),
    "topk": lambda s: fs.codecs.TopK(s.share),
}


# ---------------------------------------------------------------------- clients


def gradient(x: Tree, ids: np.ndarray, label: np.ndarray) -> Tree:
    """Of the mean logistic loss over a batch."""
    bags, u = x[TABLE][ids].sum(1), x["out.weight"][0]
    error = (1 / (1 + np.exp(-(bags @ u + x["out.bias"][0]))) - label) / len(label)
    table = np.zeros_like(x[TABLE])
    np.add.at(table, ids, (error[:, None] * u)[:, None, :])
    return {TABLE: table, "out.weight": (error @ bags)[None], "out.bias": error.sum(keepdims=True)}


def train(world: World, i: int, sent: Tree, s: Settings, correction: Tree) -> tuple[Tree, int]:
    """Client i's parameters after its local steps, and how many those were. ``correction`` is Scaffold's c − c_i."""
    own = np.arange(world.offsets[i], world.offsets[i + 1])
    size = s.batch_size or len(own)
    batches = [own[at : at + size] for at in range(0, len(own), size)]
    steps = len(batches) if s.steps is None else s.steps
    x, d = {k: v.copy() for k, v in sent.items()}, {k: np.zeros_like(v) for k, v in sent.items()}
    for step in range(steps):
        batch = batches[step % len(batches)]
        g = gradient(x, world.ids[batch], world.label[batch])
        for k in x:
            d[k] = s.momentum * d[k] + g[k] + s.mu * (x[k] - sent[k]) + correction[k]
            x[k] -= s.lr * d[k]
    return x, steps


def encoded(s: Settings, p: np.ndarray, own: np.ndarray) -> np.ndarray:
    """What arrives of an update (plus residual) of one parameter; ``own``: the entries that the client has."""
    if s.codec == "sign":
        return np.sign(p)
    if s.codec == "ef-sign":
        return np.sign(p) * np.abs(p[own]).sum() / own.sum()
    sent, count = np.zeros_like(p), int(np.ceil(s.share * own.sum()))
    size = np.where(own, np.abs(p), -1.0)
    falling = np.argsort(-size, axis=None)
    at = falling[:count]
    if count < own.sum():  # else rounding would decide, and engines and this differ in it
        assert size.flat[falling[count]] < size.flat[at[-1]] * (1 - 1e-9), (
            "equal values at the edge: take another share"
        )
    sent.flat[at] = p.flat[at]
    return sent


def norm_of(s: Settings, steps: int) -> float:
    """FedNova's ‖a‖₁: where as many gradients of 1 lead, by lr."""
    x = d = 0.0
    for _ in range(steps):
        d = s.momentum * d + 1 + s.mu * x
        x -= s.lr * d
    return -x / s.lr


# ---------------------------------------------------------------------- the server


def mean_of(world: World, s: Settings, cohort: list[int], trees: list[Tree]) -> Tree:
    """The mean of what those who delivered sent, by the formulas of the averages."""
    w, held, n = world.sizes.astype(float), world.held, len(world.sizes)
    a = np.ones(len(cohort)) if s.average in ("clients", "holders") else w[cohort]
    out = {k: np.sum([ai * tree[k] for ai, tree in zip(a, trees, strict=True)], axis=0) for k in trees[0]}
    for k, total in out.items():
        if s.average == "holders unbiased":
            total *= n / (len(cohort) * w.sum())
        else:
            total /= a.sum()
        if k != TABLE or s.average in ("clients", "samples"):
            continue
        if s.average == "sampled holders":
            part, whole = a @ held[cohort], a.sum()
        elif s.average == "holders":
            part, whole = held.sum(0), n
        else:
            part, whole = w @ held, w.sum()
        coefficient = (whole / np.where(part > 0, part, whole)) ** s.temper
        total *= (coefficient if s.cap is None else np.minimum(coefficient, s.cap))[:, None]
    return out


def share_of(world: World, s: Settings, cohort: list[int]) -> float:
    """The cohort's share of the population: of its clients, or of its samples."""
    if s.average in ("clients", "holders", "holders unbiased"):
        return len(cohort) / len(world.sizes)
    return world.sizes[cohort].sum() / world.sizes.sum()


@dataclass
class Server:
    """Whole tables, every round; m, v and b by parameter."""

    s: Settings
    m: Tree = field(default_factory=dict)
    v: Tree = field(default_factory=dict)

    def step(self, x: Tree, update: Tree, sent: np.ndarray) -> None:
        """``sent``: the rows of the table that somebody sent."""
        for k, delta in update.items():
            x[k] += self.s.server_lr * self._direction(k, delta, sent[:, None] if k == TABLE else np.ones(1, bool))

    def _direction(self, k: str, delta: np.ndarray, sent: np.ndarray) -> np.ndarray:
        s, m, v = self.s, self.m.get(k, 0.0), self.v.get(k, self.s.tau**2)
        if s.server == "add":
            return delta
        if s.server == "momentum":
            self.m[k] = s.server_momentum * m + delta
            return self.m[k]
        if s.server == "frequency":  # m: in how many rounds a row was sent
            self.m[k] = m + sent
            return delta / np.maximum(self.m[k], 1) ** s.power
        if s.server == "history":
            self.m[k] = (1 - s.rho) * m + s.rho * delta
            return (1 - s.beta) * delta + s.beta * m
        self.m[k] = s.beta1 * m + (1 - s.beta1) * delta
        self.v[k] = {
            "adam": s.beta2 * v + (1 - s.beta2) * delta**2,
            "yogi": v - (1 - s.beta2) * delta**2 * np.sign(v - delta**2),
            "adagrad": v + delta**2,
        }[s.server]
        return self.m[k] / (np.sqrt(self.v[k]) + s.tau)


def simulate(world: World, start: Tree, s: Settings, cohorts: list[list[int]]) -> Tree:
    """The server's parameters after one round for each of ``cohorts``: the clients that delivered, maybe twice."""
    x, server = {k: v.copy() for k, v in start.items()}, Server(s)
    zero = {k: np.zeros_like(v) for k, v in x.items()}
    c, own = zero, [zero] * len(world.sizes)  # Scaffold's variates, zero outside S(i)
    residuals = [{k: v.copy() for k, v in zero.items()} for _ in world.sizes]
    private = [start[s.personal].copy() for _ in world.sizes] if s.personal else []
    for cohort in cohorts:
        if not cohort:
            continue
        sent, updates, changes, norms, kept = x, [], [], [], {}
        for i in cohort:
            mask = {k: world.held[i][:, None] if k == TABLE else 1.0 for k in x}
            correction = {k: mask[k] * (c[k] - own[i][k]) if s.scaffold else np.zeros(()) for k in x}
            y, steps = train(world, i, sent | ({s.personal: private[i]} if private else {}), s, correction)
            if private:
                private[i] = y[s.personal]
            update = {k: y[k] - sent[k] for k in x if k != s.personal}
            if s.codec:
                for k, u in update.items():
                    entries, p = np.broadcast_to(mask[k], u.shape) > 0, u + residuals[i][k]
                    update[k] = encoded(s, p, entries)
                    residuals[i][k] = p - update[k] if s.codec != "sign" else residuals[i][k]
            new = {k: -update[k] / (steps * s.lr) - correction[k] for k in update}
            changes.append({k: new[k] - own[i][k] for k in update})
            kept[i] = new if s.scaffold else own[i]
            norms.append(norm_of(s, steps))
            updates.append({k: u / norms[-1] for k, u in update.items()} if s.nova else update)
        mean = mean_of(world, s, cohort, updates)
        if s.nova:
            a = np.ones(len(cohort)) if s.average in ("clients", "holders") else world.sizes[cohort].astype(float)
            mean = {k: v * (a @ norms) / a.sum() for k, v in mean.items()}
        if s.codec == "sign":
            mean = {k: np.sign(v) for k, v in mean.items()}
        if s.clip_rows:
            length = np.linalg.norm(mean[TABLE], axis=1, keepdims=True)
            mean[TABLE] *= np.minimum(1.0, s.clip_rows / np.maximum(length, 1e-300))
        if s.scaffold:
            added, share = mean_of(world, s, cohort, changes), share_of(world, s, cohort)
            c = {k: c[k] + share * added[k] for k in c}
            own = [kept.get(i, variate) for i, variate in enumerate(own)]
        server.step(x, mean, world.held[cohort].max(0))
    return x


# ---------------------------------------------------------------------- against the library

Played = tuple[Tree, list[list[int]]]


def start_of(objective: fs.Objective) -> Tree:
    return {n: p.detach().numpy().copy() for n, p in objective.module.named_parameters()}


def play(world: World, method: fs.Method, folder: Path, rounds: int, **options: Any) -> Played:
    """What `fedsub.run` makes of it, and who delivered in each round, read from its run directory."""
    options = {"evaluate": fs.Evaluate(every=rounds), "seed": 4, **options}
    result = fs.run(method, world.objective(), world.clients(), rounds=rounds, out=folder, **options)
    assert options.get("engine", result.engine) == result.engine
    rows = [json.loads(line) for line in (folder / "traffic.jsonl").read_text().splitlines()]
    cohorts = [[i for k, i in enumerate(row["clients"]) if k not in row.get("lost", ())] for row in rows]
    return {k: v.numpy() for k, v in result.params.items()}, cohorts


def assert_close(found: Tree, expected: Tree, tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance * np.abs(value).max(), err_msg=name)
