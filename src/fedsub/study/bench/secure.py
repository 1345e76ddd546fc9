"""`fedsub bench --secure`: what a secure sum costs a client, beside its masks alone, beside ChaCha20 alone, and beside
Flower's SecAgg+ where a Python is given that has it.

Every turn measures all of them: CPU seconds of the process, one thread, the mean over all clients of the sum. A
client's time is all it does from its values to its last message: quantising, keys, shares, masks, agreement, unmasking.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from fedsub.errors import ConfigError
from fedsub.round.quiet import one_thread
from fedsub.secure import Identity, Quantiser, SecureClient, SecureServer, Segment, Setting, register
from fedsub.secure.ciphers import Modern
from fedsub.secure.masks import add_masks
from fedsub.secure.ring import zeros

CLIENTS, VALUES, TURNS = 100, 100_000, 8
MASKINGS = 10  # of a turn, of which the mean is taken as of the clients
STAGES = ("quantise", "keys", "shares", "masked", "agree", "unmask")
MEASURED = ("client", "signed", "server", "masks", "exchanges", "chacha")
FLOWER = Path(__file__).with_name("flower_secagg.py")


def run(
    *, rounds: int | None = None, flower: str | None = None, clients: int = CLIENTS, values: int = VALUES,
    progress: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:  # fmt: skip
    """Seconds of every turn: a client by stage, the server, masks alone, ChaCha20 alone, Flower's client by stage."""
    turns = rounds or TURNS
    out: dict[str, Any] = {"clients": clients, "values": values, **{name: [] for name in (*MEASURED, "flower")}}
    with one_thread():
        for turn in range(turns + 1):
            progress(f"turn {turn} of {turns}")
            measured = _turn(clients, values, turn)
            theirs = _flower(flower, clients, values) if flower else None
            if turn:  # the first one pays for memory and imports
                for name in MEASURED:
                    out[name].append(measured[name])
                out["bytes"] = {**measured["bytes"], "plain": 4 * values}
                out["flower"] += [theirs] if theirs else []
    out["threshold"] = _setting(clients, values, Quantiser(1.0)).threshold
    return out


def _setting(clients: int, values: int, quantiser: Quantiser) -> Setting:
    bits = max(32, quantiser.bits(clients))
    return Setting.plan(1, 1, range(clients), (Segment("values", values, bits, quantiser.most),))


def _turn(clients: int, values: int, turn: int) -> dict[str, Any]:
    """Two secure sums, without and with identities; then one client's masks alone, and streams alone."""
    setting = _setting(clients, values, Quantiser(1.0))
    took, served, crossed = _played(setting, turn, None)
    signed, _, more = _played(setting, turn, register(setting.participants))
    ciphers, keys = Modern(), [os.urandom(32) for _ in range(clients)]
    vector = zeros(setting.segments)
    at = time.process_time()
    for _ in range(MASKINGS):
        add_masks(vector, setting.segments, [(key, True) for key in keys], ciphers)
    masks = (time.process_time() - at) / MASKINGS
    return {
        "client": took, "signed": signed, "server": served, "masks": masks, "chacha": _chacha(keys, setting.nbytes),
        "exchanges": _exchanges(clients - 1, ciphers), "bytes": {**crossed, "signed": more},
    }  # fmt: skip


def _played(
    setting: Setting, turn: int, identities: dict[int, Identity] | None
) -> tuple[dict[str, float], float, dict[str, int]]:
    """One secure sum: the mean over all clients of each stage, the server, the bytes of a client."""
    quantiser, clients = Quantiser(1.0), len(setting.participants)
    values = setting.segments[0].length
    took: dict[str, float] = {stage: 0.0 for stage in STAGES}  # noqa: C420

    def timed(stage: str, step: Callable[[], Any]) -> Any:
        at = time.process_time()
        out = step()
        took[stage] += (time.process_time() - at) / clients
        return out

    people, total, up = {}, np.zeros(values, np.int64), []
    for c in range(clients):
        mine = np.random.default_rng([turn, c]).normal(0, 0.3, values)
        levels = timed("quantise", lambda mine=mine, c=c: quantiser.encode(mine, c))
        total += levels
        # Kept small between stages: a hundred clients share a memory here that each has for itself.
        given = {"values": levels.astype(setting.segments[0].dtype)}
        own = identities[c] if identities else None
        people[c] = timed("keys", lambda c=c, given=given, own=own: SecureClient(setting, c, given, identity=own))
        up.append(timed("keys", people[c].hello))
    known = identities[0].known if identities else None
    server, served, sent, got = SecureServer(setting, known=known), 0.0, len(up[0]), 0
    for stage in ("shares", "masked", "agree", "unmask", ""):
        at = time.process_time()
        for data in up:
            server.receive(data)
        down = server.advance()
        served += time.process_time() - at
        up = [timed(stage, lambda c=c, data=data: people[c].receive(data)) for c, data in down.items()]
        sent, got = sent + (len(up[0]) if up else 0), got + len(down.get(0, b""))
    assert server.summed is not None
    assert (server.summed.sums["values"] == total).all()
    return took, served, {"up": sent, "down": got}


def _exchanges(count: int, ciphers: Modern) -> float:
    """X25519 with every neighbour, and nothing else."""
    secret, publics = ciphers.pair()[0], [ciphers.pair()[1] for _ in range(count)]
    at = time.process_time()
    for public in publics:
        ciphers.agree(secret, public)
    return time.process_time() - at


def _chacha(keys: list[bytes], size: int) -> float:
    """The same bytes from the package `cryptography` and nothing else, each stream in one call."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    zeros_, into = bytes(size), bytearray(size)
    at = time.process_time()
    for _ in range(MASKINGS):
        for key in keys:
            Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update_into(zeros_, into)
    return (time.process_time() - at) / MASKINGS


def _flower(python: str, clients: int, values: int) -> dict[str, float]:
    try:
        done = subprocess.run(
            [python, str(FLOWER), str(clients), str(values), "1"], capture_output=True, text=True, check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        return json.loads(done.stdout.splitlines()[-1])[0]
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError) as err:
        said = err.stderr.strip().splitlines()[-1:] if isinstance(err, subprocess.CalledProcessError) else [str(err)]
        raise ConfigError(
            f"--flower takes a Python that has flwr 1.41; {python} did not run its SecAgg+: {' '.join(said)}"
        ) from err


def figures(found: dict[str, Any]) -> dict[str, float]:
    """The least of all turns, and the ratios of the bars."""
    client = min(sum(turn.values()) for turn in found["client"])
    masks, chacha = min(found["masks"]), min(found["chacha"])
    out = {
        "client": client, "masks": masks, "chacha": chacha, "server": min(found["server"]),
        "client_per_masks": client / masks, "masks_speed": chacha / masks,
    }  # fmt: skip
    if found["flower"]:
        out["flower"] = min(sum(turn.values()) for turn in found["flower"])
        out["flower_per_client"] = out["flower"] / client
    return out


def table(found: dict[str, Any]) -> Table:
    made = Table(
        title=f"Secure sum of {found['clients']} clients × {found['values']:,} values, 32 bits, threshold "
        f"{found['threshold']}, all neighbours: CPU ms",
        title_justify="left", caption_justify="left",
    )  # fmt: skip
    for head in ("", "least", "median", *STAGES):
        made.add_column(head, justify="right" if head else "left")

    def line(name: str, totals: list[float], *stages: str) -> None:
        made.add_row(name, f"{1e3 * min(totals):.2f}", f"{1e3 * float(np.median(totals)):.2f}", *stages)

    def staged(name: str, turns: list[dict[str, float]]) -> None:
        stages = [f"{1e3 * min(t[s] for t in turns):.2f}" if s in turns[0] else "" for s in STAGES]
        line(name, [sum(t.values()) for t in turns], *stages)

    staged("a client", found["client"])
    staged("a client with an identity", found["signed"])
    line("its masks alone", found["masks"])
    line("its key exchanges alone", found["exchanges"])
    line("bare ChaCha20, the same bytes", found["chacha"])
    if found["flower"]:
        staged("a client of Flower's SecAgg+", found["flower"])
    line("the server", found["server"])
    numbers, bytes_ = figures(found), found["bytes"]
    said = [
        f"a client / its masks: {numbers['client_per_masks']:.2f} (aim: at most 2); "
        f"masks at {numbers['masks_speed']:.2f} of bare ChaCha20's speed (aim: at least 0.5)"
    ]
    if found["flower"]:
        said.append(f"Flower's client / ours: {numbers['flower_per_client']:.0f} (aim: at least 5)")
    said.append(
        f"bytes of a client: {bytes_['up']:,} up, {bytes_['down']:,} down; its values alone {bytes_['plain']:,}; "
        f"with an identity {bytes_['signed']['up']:,} up, {bytes_['signed']['down']:,} down"
    )
    made.caption = "\n".join(said)
    return made
