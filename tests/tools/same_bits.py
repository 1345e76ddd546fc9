"""Did a change of the code change a number? Digests of many small runs, to be compared between two commits.

    python tests/tools/same_bits.py record before.json        (at the old commit)
    python tests/tools/same_bits.py record after.json         (at the new one)
    python tests/tools/same_bits.py compare before.json after.json

Digests depend on the processor, so they are no test: record both on one machine. Weights and metrics are compared
bit for bit, the training loss of a round to 12 digits (it is a sum over clients, whose order may differ).
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import fedsub as fs

LOST = "lost" if "lost" in inspect.signature(fs.run).parameters else "dropout"
COMMON: dict[str, Any] = {"lr": 0.3, "local_steps": 3, "batch_size": 4, "clients_per_round": 6}


def clicks(seed: int = 0, clients: int = 20, items: int = 60) -> fs.Clients:
    """An item, a ragged history (padded) over the same table, a slot, a value and a label."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 14, clients)
    n = int(sizes.sum())
    arrays = {
        "item": draw.integers(1, items, n),
        "history": [draw.integers(1, items, draw.integers(0, 6)).tolist() for _ in range(n - 1)] + [[1] * 5],
        "slot": draw.integers(0, 7, n),
        "value": draw.normal(size=n).astype(np.float32),
        "label": draw.integers(0, 2, n),
    }
    return fs.Clients.from_arrays(
        arrays, offsets=np.concatenate([[0], np.cumsum(sizes)]), ids={"item": ["item", "history"], "slot": ["slot"]},
        label="label", values=["value"], sizes={"item": items, "slot": 7},
    )  # fmt: skip


class Clicks(nn.Module):
    """Two tables, a hidden layer; ``drop``: with dropout."""

    def __init__(self, items: int, drop: float = 0.0, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.items = nn.Embedding(items, 4, padding_idx=0, dtype=dtype)
        self.slots = nn.Embedding(7, 3, dtype=dtype)
        self.hidden, self.out = nn.Linear(12, 5, dtype=dtype), nn.Linear(5, 1, dtype=dtype)
        self.drop = nn.Dropout(drop)

    def forward(self, batch):
        mean = self.items(batch["history"]).mean(1)
        value = batch["value"].to(mean.dtype).unsqueeze(-1)
        x = torch.cat([self.items(batch["item"]), mean, self.slots(batch["slot"]), value], -1)
        return self.out(self.drop(torch.tanh(self.hidden(x)))).squeeze(-1)


def goal(clients: fs.Clients, **options: Any) -> fs.Objective:
    torch.manual_seed(3)
    tables = {"items.weight": ["item", "history"], "slots.weight": "slot"}
    return fs.Objective(Clicks(clients.size("item"), **options), fs.losses.binary("label"), tables)


def slots(local: Any = None, parts: tuple = (), average: Any = None, server: Any = None, sampler: Any = None):
    return fs.Method(
        local=local or fs.SGD(lr=0.3, local_steps=3, batch_size=4),
        parts=parts,
        average=average or fs.OverHolders("samples"),
        server=server or fs.Add(),
        sampler=sampler or fs.Uniform(6),
    )


class Halt(fs.Callback):
    def on_round(self, record: dict) -> None:
        if record["round"] == 3:
            raise InterruptedError


def cases() -> dict[str, Callable[[], Any]]:
    m, s, c, p = fs.methods, fs.servers, fs.sampling, fs.codecs
    data = clicks()
    out: dict[str, Callable[[], Any]] = {}

    def add(name: str, method: Any, engines: tuple[str, ...] = ("serial", "batched"), **options: Any) -> None:
        for engine in engines:
            drop, dtype = options.get("drop", 0.0), options.get("dtype", torch.float32)
            unused = ("drop", "dtype", "resume", "chunk" if engine == "serial" else "")
            rest = {k: v for k, v in options.items() if k not in unused}

            def one(engine: str = engine, rest: dict = rest, drop: float = drop, dtype: Any = dtype) -> Any:
                how = {"rounds": 5, "engine": engine, "seed": 2, "evaluate": fs.Evaluate(every=2), "test": data, **rest}
                if not options.get("resume"):
                    return fs.run(method, goal(data, drop=drop, dtype=dtype), data, **how)
                with tempfile.TemporaryDirectory() as folder:
                    how |= {"out": Path(folder) / "run", "checkpoint_every": 2}
                    with suppress(InterruptedError):
                        fs.run(method, goal(data, drop=drop, dtype=dtype), data, callbacks=[Halt()], **how)
                    return fs.run(method, goal(data, drop=drop, dtype=dtype), data, resume=True, **how)

            out[f"{name} / {engine}"] = one

    both = ("serial", "batched")
    for name in ("fedavg", "fedsubavg", "fedprox", "scaffold", "scaffold_server", "fednova", "fedavgm", "fedadam",
                 "fedyogi", "fedadagrad", "frequency_aware", "fedsubadam", "sampled_heat", "signsgd", "ef_signsgd",
                 "ucb_cs", "fedper"):  # fmt: skip
        add(name, getattr(m, name)(**COMMON), both)
    add("fedsgd", m.fedsgd(lr=0.3, clients_per_round=6))
    add("local_sgd", m.local_sgd(lr=0.3, local_steps=3, batch_size=4))
    add("centralsgd", m.centralsgd(lr=0.3, local_steps=3, batch_size=4, clients_per_round=6), ("serial",))
    add("power_of_choice", m.power_of_choice(candidates=9, **COMMON))
    add("epochs", slots(fs.SGD(lr=0.3, local_steps=None, local_epochs=2, batch_size=4)))
    add("whole data", slots(fs.SGD(lr=0.3, local_steps=2, batch_size=None)))
    add("momentum, decay, clip", slots(fs.SGD(lr=0.3, local_steps=3, batch_size=4, momentum=0.6, weight_decay=0.01,
                                              clip_norm=0.5)))  # fmt: skip
    add("local Adam", slots(fs.Adam(lr=0.05, local_steps=3, batch_size=4)))
    add("with replacement in batches", slots(fs.SGD(lr=0.3, local_steps=3, batch_size=4, batches="replacement")))
    add("by clients, tempered", slots(average=fs.OverHolders("clients", temper=0.5)))
    add("unbiased, capped", slots(average=fs.OverHolders("unbiased", max_coef=5.0)))
    add("clip rows", slots(parts=(fs.ClipRows(0.02),)))
    add("prox + scaffold + nova", slots(parts=(fs.Prox(0.1), fs.ControlVariates("I"), fs.NormalisedSteps()),
                                        average=fs.OverHolders("clients")))  # fmt: skip
    add("nova + clip rows", slots(parts=(fs.NormalisedSteps(), fs.ClipRows(0.02))))
    add("scaffold + adam", slots(parts=(fs.ControlVariates(),), server=s.Adam(lr=0.05), average=fs.OverHolders()))
    add("top-k", slots(parts=(p.TopK(0.2),)))
    add("random-k", slots(parts=(p.RandomK(0.2),), server=s.Adam(lr=0.05)))
    add("random-k unbiased", slots(parts=(p.RandomK(0.2, feedback=False),)))
    add("int8", slots(parts=(p.Int8(),)))
    add("int8 + prox + adagrad", slots(parts=(fs.Prox(0.1), p.Int8()), server=s.Adagrad(lr=0.05)))
    add("torch optimiser", slots(server=s.TorchOptimiser(lambda t: torch.optim.Adam(t, lr=0.02))))
    add("drawn twice", slots(sampler=c.Uniform(12, replacement=True)))
    add("drawn twice, scaffold", slots(parts=(fs.ControlVariates(),), average=fs.OverClients(),
                                       sampler=c.Uniform(12, replacement=True)))  # fmt: skip
    add("by size", slots(sampler=c.BySize(6)))
    add("poisson", slots(sampler=c.Poisson(4)))
    add("everyone", slots(sampler=fs.Everyone()))
    add("available", slots(sampler=c.Available(c.UCB(4), c.Random(0.5))))
    add("rpow", slots(sampler=c.PowerOfChoice(4, 9, "rpow")))
    add("cpow", slots(sampler=c.PowerOfChoice(4, 9, "cpow")))
    lost: dict[str, Any] = {LOST: 0.3}
    add("lost", slots(), **lost)
    add("lost, adam", slots(server=s.Adam(lr=0.05)), **lost)
    add("dropout layer", slots(), drop=0.4)
    add("float64", slots(), dtype=torch.float64)
    add("float64, by clients", slots(average=fs.OverClients()), dtype=torch.float64)
    add("chunks", slots(), ("batched",), chunk=2)
    add("workers", slots(parts=(fs.ControlVariates(),)), workers=2, chunk=3)
    add("diverging", slots(fs.SGD(lr=1e30, local_steps=3, batch_size=4)), rounds=1)
    for name in ("fedsubadam", "scaffold", "ef_signsgd", "ucb_cs", "fedper", "fedavgm"):
        add(f"{name}, resumed", getattr(m, name)(**COMMON), resume=True)
    for name in ("lgd", "l2gd", "l2gd_plus", "l2sgd", "l2sgd_plus", "apgd1", "apgd2", "iapgd", "al2sgd_plus"):
        add(name, _mixture(name), rounds=6)
    add("l2sgd_plus, resumed", _mixture("l2sgd_plus"), rounds=6, resume=True)
    ratings = fs.movielens_like(scale=0.02)

    def factorised(method: Any, **options: Any) -> Callable[[], Any]:
        def one() -> Any:
            torch.manual_seed(0)
            objective = fs.models.make_objective(ratings, "factorisation", rank=4)
            return fs.run(method, objective, ratings, rounds=4, seed=1, **options)

        return one

    out["fedmavg"] = factorised(m.fedmavg(clients_per_round=20, q2_hat=4))
    out["fedmavg, everyone"] = factorised(m.fedmavg(clients_per_round=None, q2_hat=4, projection="nonnegative"))
    out["fedmavg, submodels"] = factorised(m.fedmavg(clients_per_round=20, q2_hat=4, submodel=True))
    out["fedmavg, submodels, lost"] = factorised(m.fedmavg(clients_per_round=20, submodel=True), **{LOST: 0.3})
    out["sfmf"] = factorised(m.sfmf(step=1e-4))
    out["sfmf, submodels"] = factorised(m.sfmf(step=1e-4, submodel=True))
    return out


def _mixture(name: str) -> Any:
    make = getattr(fs.methods, name)
    given = {"lam": 0.5, "L": 4.0, "mu": 0.01, "L_terms": 8.0, "batch_size": 4}
    return make(**{k: v for k, v in given.items() if k in inspect.signature(make).parameters})


def digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def weights(result: Any) -> dict[str, str]:
    return {
        n: hashlib.blake2b(v.detach().contiguous().reshape(-1).view(torch.uint8).numpy(), digest_size=8).hexdigest()
        for n, v in sorted(result.params.items())
    }


def record(result: Any) -> dict[str, Any]:
    plain = ("round", "clients", "rejected")
    kept = [{k: v for k, v in r.items() if k in plain or "." in k} for r in result.history]
    loss = [None if r["loss"] is None else f"{r['loss']:.11e}" for r in result.history]
    metrics = digest({"history": kept, "loss": loss, "final": result.final})
    return {
        "weights": weights(result),
        "metrics": metrics,
        "bytes": [[r["down"], r["up"]] for r in result.history[1:]],
        "last": {k: v for k, v in result.history[-1].items() if "." in k},
        "size": {n: float(v.abs().double().sum()) for n, v in sorted(result.params.items())},
    }


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1] == "record":
        found = {}
        for name, case in cases().items():
            start = time.perf_counter()
            try:
                found[name] = record(case())
            except (fs.FedsubError, TypeError) as err:
                found[name] = {"error": f"{type(err).__name__}: {err}"}
            print(f"{time.perf_counter() - start:6.2f} s  {name}  {found[name].get('error', '')}", flush=True)
        Path(sys.argv[2]).write_text(json.dumps(found, indent=1))
        return
    before, after = (json.loads(Path(path).read_text()) for path in sys.argv[2:4])
    same = 0
    for name in before:
        old, new = before[name], after.get(name, {"error": "not there"})
        differs = [k for k in ("error", "weights", "metrics") if old.get(k) != new.get(k)]
        same += not differs
        if differs:
            gaps = {
                n: abs(size - new["size"].get(n, float("nan"))) / max(size, 1e-30)
                for n, size in old.get("size", {}).items()
                if "size" in new
            }
            worst = max(gaps.values(), default=float("nan"))
            print(f"{name}: {', '.join(differs)} differ; sums of |weights| by {worst:.2g}; {new.get('error', '')}")
        if old.get("bytes") and new.get("bytes") and "-b" in sys.argv:
            print(f"{name}: bytes {sum(map(sum, old['bytes']))} -> {sum(map(sum, new['bytes']))}")
    print(f"{same} of {len(before)} have the same weights and metrics, bit for bit")


if __name__ == "__main__":
    main()
