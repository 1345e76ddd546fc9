"""Killed in the middle of a secure round, a run goes on with fresh keys and ends with the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

# One import of torch; the processes that are killed, go on and are never interrupted are forks of it.
SCRIPT = """
import json, os, signal, sys
from hashlib import sha256
from pathlib import Path
import torch
import fedsub as fs
from fedsub.secure import client as party
from worlds import bag, item_data

folder = Path(sys.argv[1])
DATA = item_data((3, 7, 4, 9, 2, 5), items=20, width=3)


def train(name, rows, kill_at):
    log = open(folder / f"{name}-masks", "a", buffering=1)
    add, written = party.add_masks, party.SecureClient._write

    def watched(values, segments, masks, ciphers):
        masks = list(masks)
        for key, _ in masks:
            print(sha256(bytes(key)).hexdigest(), file=log)
        add(values, segments, masks, ciphers)

    def message(self, stage, *parts, view=None):
        values = any(s.name == "update/emb.weight" for s in self.setting.segments)
        if values and (self.setting.round, stage, self.me) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return written(self, stage, *parts, view=view)

    party.add_masks, party.SecureClient._write = watched, message
    fs.run(
        fs.methods.fedsubavg(
            clients_per_round=4, lr=0.3, local_steps=2, secure=fs.SecureSum(0.5, rows=rows, simulate=False)
        ),
        bag(DATA, dim=2), DATA, rounds=5, seed=1, engine="serial", out=folder / name, resume=(folder / name).exists(),
        checkpoint_every=2,
    )


def forked(name, rows, kill_at=None):
    child = os.fork()
    if not child:
        try:
            train(name, rows, kill_at)
        finally:
            os._exit(sys.exc_info()[0] is not None)
    return os.waitpid(child, 0)[1]


for rows, stages in {"union": (5, 7), "perturbed:2": (5,)}.items():  # masked values are sent; survivors vouched for
    whole = rows.partition(":")[0]
    assert forked(whole, rows) == 0
    cohort = json.loads((folder / whole / "traffic.jsonl").read_text().splitlines()[3])["clients"]
    for stage in stages:
        name = f"{whole}-killed{stage}"
        assert forked(name, rows, (4, stage, cohort[2])) == signal.SIGKILL
        print(name, len((folder / f"{name}-masks").read_text().split()))
        assert forked(name, rows) == 0
"""


def test_a_round_that_is_played_again_has_fresh_keys_and_the_same_result(tmp_path: Path) -> None:
    here = Path(__file__).parents[1]
    paths = [str(here), str(here.parent / "src"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    before = dict(line.split() for line in done.stdout.splitlines())
    assert sorted(before) == ["perturbed-killed5", "union-killed5", "union-killed7"]
    for name in before:
        again, whole = tmp_path / name, tmp_path / name.partition("-")[0]
        assert (again / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
        assert (again / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
        keys = (tmp_path / f"{name}-masks").read_text().split()
        assert 0 < int(before[name]) < len(keys)
        assert "resumed after round 2" in (again / "events.jsonl").read_text()
        # A pair's mask is added by one and taken off by the other of the same session; nothing is ever used again.
        assert max(Counter(keys).values()) == 2
        assert not set(keys[: int(before[name])]) & set(keys[int(before[name]) :])
        assert not set(keys) & set((tmp_path / f"{whole.name}-masks").read_text().split())
