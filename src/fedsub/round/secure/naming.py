"""Which rows the clients of a simulated round name, where they perturb them: of a union, not by what they hold alone.

A client is asked about every row of the union, of each space. That it holds a padding row everybody knows: it is named
by all. What it says is a function of (seed, space, client, row) for ever and of the round beside, so that nothing is
kept, and a run that is interrupted goes on alike.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedsub.data.clients import Space
from fedsub.method.groups import Cohort
from fedsub.privacy.heat import PermanentResponse
from fedsub.privacy.heat.words import Array, Words, simulated
from fedsub.round.layout import Asked


def words_of(seed: int, space: str, client: int) -> Words:
    """Where the randomness of a simulated client's answers about its rows comes from."""
    return simulated(seed, f"rows of {space}", np.array([client]))


def said(
    response: PermanentResponse, held: Array, union: Array, size: int, words: Words, round: int, *, padded: bool
) -> Array:  # fmt: skip
    """The rows of the union that one client names in a round, ascending."""
    first = int(padded and len(union) > 0 and union[0] == 0)
    asked, own = union[first:], held[held > 0] if padded else held
    settled = response.settle(response.told(own, size, words), asked, words)
    return np.concatenate([union[:first], asked[response.report(settled, asked, words, round)]])


def names(
    response: PermanentResponse, cohort: Cohort, unions: Mapping[str, Array], spaces: Mapping[str, Space], round: int,
    seed: int,
) -> dict[str, Asked]:  # fmt: skip
    """What all clients of a cohort say, by space."""
    out = {}
    for name, union in unions.items():
        space = spaces[name]
        each = [
            said(
                response, np.asarray(space.rows_of(client)), union, space.size, words_of(seed, name, client), round,
                padded=space.padding,
            )
            for client in cohort.clients.tolist()
        ]  # fmt: skip
        out[name] = Asked(np.concatenate(each), np.array([len(one) for one in each], np.int64))
    return out
