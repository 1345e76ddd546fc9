"""`predict`: what a trained model says to new samples, beside the samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from fedsub.data.clients import Clients
from fedsub.errors import ColumnError, ConfigError, DataError
from fedsub.objective.objective import Objective
from fedsub.serving.asked import Asked, Run, asked, batches, classes_of
from fedsub.serving.samples import Samples, read


@dataclass(frozen=True)
class Predicted:
    """``frame`` is the data with new columns; ``unknown`` counts ids that training never saw, by column.

    ``incomplete`` counts the rows that have no score because something is missing, by column; ``without`` all that
    have none.
    """

    frame: pl.DataFrame
    unknown: Mapping[str, int] = field(default_factory=dict)
    incomplete: Mapping[str, int] = field(default_factory=dict)
    without: int = 0
    new_clients: int = 0  # of a personal model: clients that have nothing of their own, who get the shared model

    def sentences(self) -> list[str]:
        """What a reader of the scores must know."""
        out = [f"{count:,} ids of {name!r} were not in training." for name, count in self.unknown.items()]
        out += [f"{count:,} rows have no {name!r}." for name, count in self.incomplete.items()]
        if self.without:
            out.append(f"{self.without:,} of {len(self.frame):,} rows have no score.")
        if self.new_clients:
            out.append(f"{self.new_clients:,} clients were not in training; they have the shared model.")
        return out


def predict(
    run: Run,
    data: Any,
    *,
    module: nn.Module | Objective | None = None,
    client: str | None = None,
    unknown: str = "zero",
    prefix: str = "",
    separator: str | None = None,
    encoding: str | None = None,
) -> Predicted:
    """Score samples with a trained model; every row keeps its place, and labels are not needed.

    run       what `fedsub.run` returned, a run's directory, or what `fedsub.load` made of it
    data      a file (CSV, TSV, Parquet), a frame, or a dict of arrays
    module    the module that was trained, or its Objective, where fedsub cannot make it again (`fedsub.load`)
    client    the column of clients, if they have parameters of their own; by default the one of the training data
    unknown   ids that training never saw count as a row of "zero" (in lists they are left out), leave the row's score
              "empty", or are refused ("refuse")
    prefix    of the names of the new columns

    The new columns are ``score``, what the module says, and for a loss of two classes ``probability``; for
    losses.cross_entropy ``class``, its ``probability`` and its ``score``; for a loss of the user's own with several
    outputs ``score_0``, ``score_1`` … Rows in which something is missing have none.
    """
    found = asked(run, module)
    client = client_column(found, client)
    samples = read(found, data, client=client, unknown=unknown, separator=separator, encoding=encoding)
    found = found.with_spare_rows(samples.spare)
    said = answers(found, outputs(found, samples.clients)) if samples.clients is not None else {"score": np.zeros(0)}
    frame = samples.frame
    for name, values in said.items():
        if prefix + name in frame.columns:
            raise ColumnError(
                f"The data has a column {prefix + name!r} already; give the new ones a prefix=… (--prefix)."
            )
        frame = frame.with_columns(_placed(prefix + name, values, samples))
    return Predicted(
        frame, samples.unknown, samples.incomplete, len(frame) - len(samples.rows), _new_clients(found, samples)
    )


def client_column(found: Asked, given: str | None) -> str | None:
    """The column of clients, where a model needs it."""
    if found.personal is None:
        return None
    column = given or found.like.reading.get("client")
    if column is None:
        raise ConfigError(
            f"Clients of {found.source} have parameters of their own, so the column that says whose a sample is must "
            "be named: client=… (--client)."
        )
    return column


def outputs(found: Asked, clients: Clients) -> Tensor:
    """What the model says to all samples, in their order."""
    samples = np.arange(clients.samples)
    if found.personal is not None:
        return found.scorer().personal(found.personal)(found.personal, clients, samples)[1]
    arrays = clients.gather(samples, found.columns, local=False)
    said = [part.cpu() for part in batches(found, arrays)]
    if wrong := next((part for part in said if part.ndim < 1), None):
        raise DataError(f"The module returns a {list(wrong.shape)}, expected one entry a sample.")
    return torch.cat(said)


def answers(found: Asked, output: Tensor) -> dict[str, np.ndarray]:
    """The new columns, by name (`predict`)."""
    if found.kind == "HalfCrossEntropy":
        output = output[..., 0] - output[..., 1]
    elif output.ndim == 2 and output.shape[1] == 1:
        output = output[:, 0]
    if found.kind == "CrossEntropy" and output.ndim == 2:
        best = output.argmax(-1)
        names = classes_of(found)
        named = np.array(names)[best.numpy()] if names else best.numpy()
        top = best.unsqueeze(-1)
        return {
            "class": named,
            "probability": output.softmax(-1).gather(-1, top)[:, 0].numpy(),
            "score": output.gather(-1, top)[:, 0].numpy(),
        }
    if output.ndim > 1:
        flat = output.reshape(len(output), -1).numpy()
        return {f"score_{i}": flat[:, i] for i in range(flat.shape[1])}
    if found.kind in ("Binary", "HalfCrossEntropy"):
        return {"score": output.numpy(), "probability": output.sigmoid().numpy()}
    return {"score": output.numpy()}


def _placed(name: str, values: np.ndarray, samples: Samples) -> pl.Series:
    """A column with the values where they belong, and nothing in the other rows."""
    at = np.full(len(samples.frame), -1)
    at[samples.rows] = np.arange(len(samples.rows))
    found = pl.Series(name, values.tolist() if values.dtype.kind == "U" else values)
    return found.gather(pl.Series(np.where(at < 0, 0, at)).set(pl.Series(at < 0), None)) if len(values) else (
        pl.Series(name, [None] * len(at), dtype=pl.Float32)
    )  # fmt: skip


def _new_clients(found: Asked, samples: Samples) -> int:
    if found.personal is None or samples.clients is None:
        return 0
    return int((~np.isin(samples.clients.client_ids, found.like.client_ids)).sum())
