"""A party of the split model as a process: `python split_process.py label FOLDER shop …`, `… shop FOLDER`.

FOLDER holds keys and every party's run directory. A feature party takes a free port, or the one it had.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from sides import BATCH, ROUNDS, STEPS, world

from fedsub import vertical
from fedsub.disk.files import write_atomic
from fedsub.round.channels import Listener, client_tls, server_tls
from fedsub.vertical.serve import serve


def feature(name: str, folder: Path) -> None:
    party = next(p for p in world(2)[1] if p.name == name)
    keys, place = folder / "keys", folder / f"{name}.port"
    half = vertical.FeatureHalf(party, folder / name, resume=(folder / name).exists())
    tls = server_tls(
        keys / f"authority-{name}.pem", keys / f"authority-{name}.key", clients=keys / "authority-authority.pem"
    )
    listener = Listener(port=int(place.read_text()) if place.exists() else 0, tls=tls)
    write_atomic(place, str(listener.port).encode())
    serve(half, listener, lambda said: print(said, flush=True))


def label(folder: Path, names: list[str]) -> None:
    keys = folder / "keys"
    tls = client_tls(
        keys / "authority-authority.pem", certificate=keys / "authority-label.pem", key=keys / "authority-label.key"
    )
    lines = [
        vertical.Remote(name, "127.0.0.1", int((folder / f"{name}.port").read_text()), tls, patience=60)
        for name in names
    ]
    side, _ = world(len(names))
    out = folder / "label"
    vertical.run(
        side, lines, rounds=ROUNDS * 10, steps=STEPS, batch_size=BATCH, out=out, resume=out.exists(), checkpoint_every=2
    )  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "label":
        label(Path(sys.argv[2]), sys.argv[3:])
    else:
        feature(sys.argv[1], Path(sys.argv[2]))
