"""The rows that some samples name, cut out of tables that are not at hand as a whole (`fedsub.trees.RowSource`).

The samples' ids are renumbered to the rows that were cut, as a client's are to its submodel.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedsub.data.clients import Space
from fedsub.trees import Model, Tree, rows_of

Arrays = dict[str, np.ndarray]


def cut(
    tables: Mapping[str, Space], model: Model, arrays: Arrays, also: Mapping[str, np.ndarray] | None = None
) -> tuple[Tree, Arrays, dict[str, np.ndarray]]:
    """(the model with the named rows only, the columns that name them so, those rows by space, sorted).

    Tables at hand stay as they are, unless their ids are those of a table that is not. Row 0 is always cut and stays
    row 0, for it may be padding; ``also``: by space, other rows to cut.
    """
    spread = {space.name: space for name, space in tables.items() if not isinstance(model[name], Tensor)}
    arrays, cuts = dict(arrays), {}
    for name, space in spread.items():
        named = [arrays[column].reshape(-1) for column in space.columns if column in arrays]
        more = np.zeros(1, np.int64) if also is None else also[name]
        cuts[name] = ids = np.unique(np.concatenate([np.zeros(1, np.int64), more, *named]))
        for column in space.columns:
            if column in arrays:
                arrays[column] = np.searchsorted(ids, arrays[column])
    out: Tree = {}
    for name, value in model.items():
        if name in tables and tables[name].name in cuts:
            out[name] = rows_of(value, torch.from_numpy(cuts[tables[name].name]).to(value.device))
        else:
            assert isinstance(value, Tensor)
            out[name] = value
    return out, arrays, cuts
