"""What central differential privacy adds to a round on a table of 10 million rows; both take turns.

python tests/tools/dp_round.py [turns] [first round]

100,000 clients, 100 of them expected in a round, 300 rows of 16 each (`fedsub bench`'s growth). Every round, also the
late noise of rows that nobody sent for a long time: with a first round of 1000 all rows that come owe 1000 rounds.
"""

from __future__ import annotations

import sys

import numpy as np

from fedsub.study.bench.growth import measure

PLAIN = {"sampler": "poisson", "weighting": "clients"}
PRIVATE = {**PLAIN, "dp": "central:clip=1,noise=1,public_heat"}


def main(turns: int = 15, first: int = 1, rows: int = 10_000_000, clients: int = 100_000) -> float:
    """The median over rounds of what the private one costs beside the plain one of the same number."""
    configurations = [(clients, rows, PLAIN), (clients, rows, PRIVATE)]
    plain, private = measure([configurations], turns, warm_up=8, first=first)
    ratio = float(np.median(np.array(private.rounds) / np.array(plain.rounds)))
    for name, one in (("plain", plain), ("central DP", private)):
        print(f"{name}: {1e3 * one.median:.0f} ms of CPU a round (median), {one.peak / 2**30:.2f} GiB")
    print(f"rounds {first + 8} to {first + 7 + turns}: {ratio:.2f} times the plain round (median of pairs)")
    return ratio


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
