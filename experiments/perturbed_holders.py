"""How many rounds hide who alone holds a row, where names are perturbed and sums exact?

    python experiments/perturbed_holders.py [PRESET [SEEDS]]

50 clients take part in every round, and one client holds the row. It moves in the rounds in which that client named it,
and in no other; a round in which fewer than two name it tells nothing. Said is after how many rounds one client alone
agrees with all that was seen: the tenth, half and nine tenths of the seeds. That rows do move so is
`tests/round/test_perturbed_rounds.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from fedsub.privacy import PermanentResponse
from fedsub.round.secure.naming import said, words_of

CLIENTS, MOST = 50, 10_000


def rounds_until_known(preset: int, clients: int, seed: int) -> int:
    """Client 0 is the holder."""
    response, row, none = PermanentResponse(preset=preset), np.zeros(1, np.int64), np.zeros(0, np.int64)
    words, left = [words_of(seed, "item", client) for client in range(clients)], np.ones(clients, bool)
    for number in range(1, MOST + 1):
        names = np.array([
            len(said(response, none if client else row, row, 1, words[client], number, padded=False)) > 0
            for client in range(clients)
        ])  # fmt: skip
        if names.sum() >= 2:
            left &= names == names[0]
        if left.sum() == 1:
            return number
    return MOST


def main(preset: int = 2, seeds: int = 100, *, say: Callable[[str], None] = print) -> None:
    found = [rounds_until_known(preset, CLIENTS, seed) for seed in range(seeds)]
    tenth, half, most = np.percentile(found, [10, 50, 90]).round().astype(int).tolist()
    say(f"preset {preset}: after {half} rounds in half of {seeds} cases; a tenth {tenth}, nine tenths {most}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
