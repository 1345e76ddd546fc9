"""What may stand in every slot of a method, what makes no sense together, and short runs of the rest."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from worlds import bag, item_data

import fedsub as fs
from fedsub.disk.checkpoint import Checkpoints
from fedsub.method import codecs, sampling, servers
from fedsub.method.parts import Personal

DATA = item_data((1, 7, 4, 9, 2, 5, 8, 3), items=12, width=3)

LOCAL = fs.SGD(lr=0.3, local_steps=None, local_epochs=1, batch_size=4)  # steps differ by client

PARTS = {
    "none": (),
    "Prox": (fs.Prox(0.5),),
    "Scaffold II": (fs.ControlVariates("II"),),
    "Scaffold I": (fs.ControlVariates("I"),),
    "FedNova": (fs.NormalisedSteps(),),
    "ClipRows": (fs.ClipRows(0.05),),
    "Prox, Scaffold": (fs.Prox(0.5), fs.ControlVariates("II")),
    "FedPer": (Personal(("out.weight",)),),
    "FedDyn": (fs.Dynamic(0.5),),
    "FSVRG": (fs.AnchoredSteps(),),
}

NARROW = ("FedDyn", "FSVRG")  # with few choices of the other slots

AVERAGES = {
    "clients": fs.OverClients(),
    "samples": fs.OverClients("samples"),
    "holders": fs.OverHolders(),
    "holders by samples": fs.OverHolders("samples"),
    "holders unbiased": fs.OverHolders("unbiased"),
    "holders tempered": fs.OverHolders(temper=0.5, max_coef=2.0),
    "sampled holders": fs.OverSampledHolders("samples"),
}

SERVERS = {
    "Add": fs.Add(0.7),
    "momentum": fs.Add(momentum=0.6),
    "Adam": servers.Adam(lr=0.05),
    "Yogi": servers.Yogi(lr=0.05),
    "Adagrad": servers.Adagrad(lr=0.05),
    "frequency": servers.FrequencyAware(),
    "history": servers.ScaffoldHistory(),
    "torch": servers.TorchOptimiser(partial(torch.optim.Adam, lr=0.02)),
    "Adam sparse": servers.Adam(lr=0.05, sparse_server=True),
}

CODECS = {
    "plain": (),
    "Sign": (codecs.Sign(),),
    "EF-Sign": (codecs.ErrorFeedbackSign(),),
    "TopK": (codecs.TopK(0.3),),
    "RandomK": (codecs.RandomK(0.3),),
    "Int8": (codecs.Int8(),),
}

SAMPLERS = {
    "Uniform": fs.Uniform(4),
    "replacement": fs.Uniform(5, replacement=True),
    "BySize": sampling.BySize(4),
    "Poisson": sampling.Poisson(4),
    "pow-d": sampling.PowerOfChoice(3, 6),
    "rpow-d": sampling.PowerOfChoice(3, 6, "rpow"),
    "UCB": sampling.UCB(3),
    "Available": sampling.Available(fs.Uniform(3), sampling.Daily(4, 0.5)),
    "Everyone": fs.Everyone(),
}

CHOICES = (PARTS, AVERAGES, SERVERS, CODECS, SAMPLERS)

# The pairs that make no sense, and a word of the reason that is given.
REFUSED = {
    # The sign of a mean does not change when it is multiplied by a positive coefficient per row.
    **{("Sign", average): "correction would be lost" for average in AVERAGES if average.startswith("holders")},
    # Nor does that of an update when it is divided by the number of steps.
    ("FedNova", "Sign"): "would be lost",
    # c must be a mean of c_i; a mean over those holders that were sampled is none.
    **{(part, "sampled holders"): "sampled holders" for part in PARTS if "Scaffold" in part},
    # The loss of the shared model alone says nothing about a client's own.
    ("FedPer", "pow-d"): "means nothing",
    # Prices are means of what clients keep, and a client that is drawn twice keeps it once.
    ("FedDyn", "sampled holders"): "adds up to nothing",
    ("FedDyn", "replacement"): "drawn twice",
    **{("FedDyn", codec): "behind its back" for codec in ("Sign", "Int8")},
    # In every other round a gradient is sent, and the model must stand still.
    **{("FSVRG", server): "stands still" for server in SERVERS if server != "Add"},
    **{("FSVRG", codec): "sends a gradient" for codec in CODECS if codec != "plain"},
    # What was left out before would be sent twice.
    **{(codec, "replacement"): "drawn twice" for codec in ("EF-Sign", "TopK", "RandomK")},
}


def build(parts: str, average: str, server: str, codec: str, sampler: str) -> fs.Method:
    who = sampling.InTurns(SAMPLERS[sampler], 2) if parts == "FSVRG" else SAMPLERS[sampler]
    return fs.Method(
        local=LOCAL, parts=PARTS[parts] + CODECS[codec], average=AVERAGES[average], server=SERVERS[server],
        sampler=who,
    )  # fmt: skip


class Halt(fs.Callback):
    def on_round(self, record) -> None:
        if record["round"] == 3:
            raise InterruptedError


def goal_of() -> fs.Objective:
    return bag(DATA, seed=3, dim=2, dtype=torch.float64)


def saved(folder: Path) -> dict:
    """Everything that the last checkpoint of a run holds."""
    snapshot, _ = Checkpoints(folder / "checkpoints").load()
    return {**snapshot.tensors, **snapshot.tables}


ENGINES = pytest.mark.parametrize("engine", ["serial", "batched"])
