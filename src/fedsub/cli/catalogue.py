"""`fedsub methods`: the catalogue of methods."""

from __future__ import annotations

import inspect
from typing import Any

from rich.table import Table
from rich.text import Text

from fedsub.cli.show import View
from fedsub.errors import ConfigError, nearest
from fedsub.method.names import normal

MEANING = {
    "lr": "local step size",
    "local_steps": "steps of a client in a round",
    "local_epochs": "passes over the client's data, instead of local_steps",
    "batch_size": "samples in a local batch; all = the client's whole data",
    "clients_per_round": "clients in a round; all = everyone",
    "clients_fraction": "C, instead: the share of the clients in a round, rounded up",
    "weighting": "samples or clients; FedSubAvg also unbiased",
    "server_lr": "step of the server; –: its own (add, frequency, history 1; adagrad 0.1; adam, yogi 0.01)",
    "batches": "shuffled, ordered or replacement",
    "replacement": "draw clients with replacement",
    "mu": "strength of the pull to what was sent",
    "temper": "power of the heat coefficient: 1 as in the paper, 0 is FedAvg",
    "max_coef": "largest heat coefficient; resolvable: that of a heat as large as its error, with private heat",
    "heat": "how it is counted: exact, or in private by rr:1, prr:2, hadamard:1,rows=100, histogram:1,rows=100, secure",
    "solver": "local solver: sgd or adam",
    "momentum": "of local SGD, from zero every round",
    "step_decay": "of local SGD: every step's rate is that times the one before",
    "original": "as in the paper: clients drawn by size, plain mean",
    "weight_decay": "local: adds weight_decay · x to the gradient",
    "clip_norm": "local: largest norm of a client's gradient",
    "schedule": "of lr over rounds: exponential:0.999, diminishing:100, cosine:400",
    "variates": "against drift: I or II (Scaffold), dynamic:0.1, admm:0.1, split:0.1, svrg",
    "alpha": "weight of the pull to what was sent, and how fast prices learn",
    "rho": "weight of the pull to what was sent, and how fast clients learn",
    "relax": "how far vectors move: 1 as in the paper, 0.5 calmer",
    "scale": "the paper's S: rows that a client meets oftener than others are moved less",
    "even": "divide lr by the client's number of steps, as in the paper",
    "holders": "the full gradient, too, over the holders of a row; not in the paper",
    "option": "I (an extra gradient pass) or II",
    "normalise": "FedNova's division by local steps",
    "clip_rows": "largest norm of a row's step, at the server",
    "server": "add, adam, yogi, adagrad, frequency or history",
    "server_momentum": "of server add",
    "beta1": "memory of the mean update (adam, yogi 0.9; adagrad 0)",
    "beta2": "memory of its squares (adam, yogi)",
    "tau": "adaptive servers: the larger, the less adaptive",
    "secure": "uplinks are added without being seen: union:0.5, clear:0.5, perturbed:0.5,preset=2; 0.5 is the clip",
    "iterates": "evaluated and kept: last; tail:0.25, the mean of the last quarter of rounds; ema:0.99",
    "sparse_server": "leave rows that nobody sent as they are",
    "codec": "of the upload: sign, ef-sign, topk:0.01, randomk:0.01, int8",
    "sampler": "uniform, by-size, poisson, pow-d:20, cpow-d:20, rpow-d:20, ucb:0.7",
    "candidates": "clients that are asked for their loss",
    "variant": "pow, cpow or rpow",
    "gamma": "discount of old losses",
    "q1": "steps of a client on its own factor in a round",
    "q2_hat": "of the steps on W: ⌊q2_hat / round⌋ + 1",
    "gamma1": "steps on H are 2 / (gamma1 · L_H)",
    "gamma2": "steps on W are 1 / (gamma2 · L_W)",
    "projection": "set of a column of H: none, nonnegative, simplex, ball:2.5 or one-hot",
    "projection_w": "set of a row of W: none, nonnegative or ball:2.5; –: nonnegative if H is",
    "l2": "ridge on both factors",
    "submodel": "exchange only the rows that a client has data of",
    "bounded": "no row moves further than the mean of what was sent",
    "step": "length of a gradient step",
    "peers": "nodes that each node asks, of every segment",
    "segments": "pieces of the model, asked for from peers of their own",
    "graph": "who may ask whom: complete, ring, torus, regular:8, small-world:8,0.1",
    "fresh": "draw the graph anew every round",
    "over": "a row's mean: over its holders, or all peers, of whom others stand for no change",
    "availability": "who is there: random:0.8, daily:24,0.3; –: everybody",
    "evaluated": "every node's own model (nodes), or the mean of all (mean)",
    "groups": "settings by parameter pattern, in a file or in Python",
}
MIXTURE = {  # of the mixture of global and local models
    "lam": "pull to the mean: 0 is purely local, large is one model for all",
    "p": "chance that an iteration averages; –: the best by theory",
    "alpha": "step size; –: the largest that theory allows",
    "rho": "how often the reference point moves: communication, computation or a number",
    "accuracy": "of the first local prox; later ones are more accurate",
    "local_steps": "local gradient steps before the mean is taken",
    "batch_size": "samples in a term; all = the client's whole data",
    "L": "largest curvature of a client's loss; –: known for linear models, else estimated",
    "mu": "strong convexity of the clients' losses; –: l2 of the objective, or estimated",
    "L_terms": "largest curvature of a term; – as for L",
}


def show(name: str | None, *, as_json: bool) -> None:
    from fedsub.methods import CATALOGUE

    view = View(as_json=as_json)
    if name is None:
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for key, entry in CATALOGUE.items():
            table.add_row(Text(key, "bold"), Text(entry.title), Text(entry.summary), Text(entry.paper, "dim"))
        if not as_json:
            view.console.print(table)
            view.line("\nFormula and settings of one of them: fedsub methods NAME")
        view.finish({"methods": [_plain(key, entry) for key, entry in CATALOGUE.items()]})
        return
    key = normal(name)
    if key not in CATALOGUE:
        raise ConfigError(f"There is no method {name!r}; {nearest(key, CATALOGUE)}")
    entry = CATALOGUE[key]
    if not as_json:
        view.line(f"{entry.title} ({key})", "bold")
        view.line(inspect.getdoc(entry.make) or entry.summary)
        view.line(f"\nFormula: {entry.formula}\n\nSettings, with defaults:")
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 2))
        meaning = MIXTURE if "L" in entry.defaults else MEANING
        for setting, default in entry.defaults.items():
            table.add_row(Text(setting, "bold"), Text(_value(setting, default)), Text(meaning.get(setting, ""), "dim"))
        view.console.print(table)
        one = next((s for s in ("lr", "lam", *entry.defaults) if s in entry.defaults), None)
        if one is not None:
            value = 0.1 if one in ("lr", "lam") else entry.defaults[one]
            view.line(
                f"\nIn a TOML file: [methods] {key} = {{ {one} = {value} }}    "
                f"On the command line: --set methods.{key}.{one}={value}"
            )
    view.finish(_plain(key, entry))


def _value(setting: str, default: Any) -> str:
    if default is None:
        return "all" if setting in ("batch_size", "clients_per_round") else "–"
    return str(default)


def _plain(key: str, entry: Any) -> dict[str, Any]:
    fields = {k: getattr(entry, k) for k in ("title", "summary", "formula", "paper")}
    return {"name": key, **fields, "settings": entry.defaults}
