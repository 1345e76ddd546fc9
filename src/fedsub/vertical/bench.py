"""`fedsub vertical bench`: the intersection of two large sets of ids, beside its curve operations alone.

Two processes with half of their ids in common align over a connection on this machine. Before and after, each times
the multiplications that it cannot do without, as the library does them: two for each of its own ids on average, own
plus others' together. CPU seconds of the process, one thread.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fedsub.errors import RunError
from fedsub.round.channels import Listener, connect
from fedsub.round.quiet import one_thread
from fedsub.vertical.align import intersect
from fedsub.vertical.curve import SIZE, Secret, hashed

IDS, TRIED = 1_000_000, 50_000
LIMIT = 1.5, 2.0  # of the curve operations alone; GiB a side


def run(count: int = IDS, progress: Callable[[str], None] = lambda what: None) -> dict[str, Any]:
    """What both sides measured, "first" and "second"."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fedsub.vertical.bench", str(count), folder]
        progress(f"two processes with {count:,} ids each")
        first = subprocess.Popen([*command, "0"], stdout=subprocess.PIPE, text=True)
        try:
            assert first.stdout is not None
            port = first.stdout.readline().strip()
            with subprocess.Popen([*command, port], stdout=subprocess.PIPE, text=True) as second:
                found = [json.loads(side.communicate()[0] or "null") for side in (first, second)]
        finally:
            if first.poll() is None:
                first.kill()
                first.wait()
    if None in found:
        raise RunError("A side of the alignment did not come to its end; what it printed says why.")
    return {"ids": count, "first": found[0], "second": found[1]}


def side(count: int, folder: str, port: int) -> None:
    """One of the two processes; port 0: it listens, and prints where."""
    first = port == 0
    if first:
        listener = Listener()
        print(listener.port, flush=True)
        channel = listener.accept(600)
        assert channel is not None
    else:
        channel = connect("127.0.0.1", port)
    begin = 0 if first else count // 2
    ids = np.random.default_rng(port).permutation(np.arange(begin, begin + count))
    alone = [_alone()]
    wall, cpu = time.perf_counter(), time.process_time()
    with channel:
        found = intersect(ids, channel, first=first, folder=folder)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    alone.append(_alone())
    assert found.rows is not None
    exact = set(ids[found.rows].tolist()) == set(range(count // 2, count)) and found.shared == count - count // 2
    curve = float(np.mean(alone)) * (found.own + found.others)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    told = {"cpu": cpu, "seconds": wall, "curve": curve, "ratio": cpu / curve, "peak_bytes": peak, "exact": exact}
    print(json.dumps(told | {"shared": found.shared, "microseconds": 1e6 * float(np.mean(alone))}))


def _alone() -> float:
    """CPU seconds of one multiplication."""
    secret, raw = Secret(), hashed(range(TRIED)).tobytes()
    multiply, load = secret._key.exchange, secret._load
    start = time.process_time()
    for at in range(0, len(raw), SIZE):
        multiply(load(raw[at : at + SIZE]))
    return (time.process_time() - start) / TRIED


def lines(found: dict[str, Any]) -> list[str]:
    """For people."""
    out = [f"Alignment of {found['ids']:,} with {found['ids']:,} ids"]
    for name in ("first", "second"):
        one = found[name]
        out.append(
            f"{name}: {one['cpu']:.0f} s of CPU ({one['seconds']:.0f} s by the clock), {one['ratio']:.2f} × the "
            f"{one['curve']:.0f} s of its curve operations alone ({one['microseconds']:.0f} µs each; at most "
            f"{LIMIT[0]:g} ×); peak {one['peak_bytes'] / 2**30:.2f} GiB (at most {LIMIT[1]:g}); {one['shared']:,} ids "
            f"shared, {'exactly those' if one['exact'] else 'NOT THOSE'} that are"
        )
    return out


if __name__ == "__main__":
    with one_thread():
        side(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
