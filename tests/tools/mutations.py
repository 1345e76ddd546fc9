"""An attack on what is kept on disk: files are changed at random, and what comes out is told.

    python tests/tools/mutations.py --runs 400 --comparisons 400 --clients 500 --seed 1

Whatever was changed must be refused with a sentence, made again with a sentence, or make no difference. "silent" counts
what differs without a word, "raw" errors that are not fedsub's; both must stay 0.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import fedsub as fs
from fedsub.errors import FedsubError
from fedsub.running.run import finished_result
from fedsub.study.costs import estimated_seconds, phones
from fedsub.study.report import csv_rows, facts

KINDS = ("flip", "flips", "truncate", "append", "drop line", "swap lines", "repeat line", "zeros", "empty", "delete")
ROUNDS = 6


def mutate(path: Path, kind: str, draw: np.random.Generator) -> None:
    """Change a file, the way disks, copies and editors do."""
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    at = int(draw.integers(max(1, len(content))))
    if kind in ("flip", "flips") and content:
        changed = bytearray(content)
        for place in draw.integers(len(content), size=1 if kind == "flip" else 3):
            changed[place] ^= 1 << int(draw.integers(8))
        content = bytes(changed)
    elif kind == "truncate":
        content = content[:at]
    elif kind == "append":
        content += content[at : at + 40] if draw.integers(2) else b"\n"
    elif kind == "zeros":
        content = content[:at] + bytes(len(content[at : at + 16])) + content[at + 16 :]
    elif kind == "empty":
        content = b""
    elif kind.endswith(("line", "lines")) and lines:
        one, other = draw.integers(len(lines), size=2)
        if kind == "drop line":
            del lines[one]
        elif kind == "repeat line":
            lines.insert(one, lines[one])
        else:
            lines[one], lines[other] = lines[other], lines[one]
        content = b"".join(lines)
    path.unlink() if kind == "delete" else path.write_bytes(content)


def attack(
    whole: Path, look: Callable[[Path], Any], count: int, seed: int, name: str, skip: tuple[str, ...] = ()
) -> tuple[Counter, list[str]]:
    """Copies of a directory with one file changed each; ``look`` gives what is made of it, equal if all is well."""
    draw, told, wrong = np.random.default_rng(seed), Counter(), []
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / whole.name
        shutil.copytree(whole, copy)
        expected = look(copy)
        for number in range(count):
            shutil.rmtree(copy)
            shutil.copytree(whole, copy)
            files = sorted(p for p in copy.rglob("*") if p.is_file() and p.name not in (".lock", *skip))
            file, kind = files[draw.integers(len(files))], str(draw.choice(KINDS))
            mutate(file, kind, draw)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    end = "same" if look(copy) == expected else "silent"
            except FedsubError as error:
                end = "refused" if len(str(error)) > 20 else "silent"
            except Exception as error:
                end = "raw"
                wrong.append(repr(error))
            told[end] += 1
            if end in ("silent", "raw"):
                wrong.append(f"{name} {number}: {kind} of {file.relative_to(copy)}: {end}")
    return told, wrong


# What is attacked


class Net(nn.Module):
    def __init__(self, items: int):
        super().__init__()
        self.items, self.out = nn.Embedding(items, 2), nn.Linear(2, 1)

    def forward(self, batch):
        return self.out(self.items(batch["item"])).squeeze(-1)


def data() -> fs.Clients:
    draw = np.random.default_rng(0)
    n = 60
    return fs.Clients.from_arrays(
        {
            "user": [f"u{k}" for k in np.sort(draw.integers(0, 8, n))],
            "item": [f"i{k}" for k in draw.integers(0, 15, n)],
            "seen": [[f"i{k}" for k in draw.integers(0, 15, draw.integers(0, 4))] for _ in range(n)],
            "time": draw.normal(size=n),
            "liked": draw.integers(0, 2, n),
        },
        "user", ids={"item": ["item", "seen"]}, label="liked", values=["time"],
    )  # fmt: skip


def objective(clients: fs.Clients) -> fs.Objective:
    torch.manual_seed(0)
    return fs.Objective(Net(clients.size("item")), fs.losses.binary("liked"), {"items.weight": "item"})


METHODS: dict[str, Any] = {
    "fedadam": lambda: fs.methods.fedadam(lr=0.3, local_steps=2, clients_per_round=3),
    "fedper": lambda: fs.methods.fedper(personal=["items.*"], lr=0.3, local_steps=2, clients_per_round=3),
}


class Stop(fs.Callback):
    def on_round(self, record) -> None:
        if record["round"] == ROUNDS - 1:
            raise KeyboardInterrupt


def train(out: Path, clients: fs.Clients, method: str, **more: Any) -> fs.Result:
    return fs.run(
        METHODS[method](), objective(clients), clients, rounds=ROUNDS, engine="serial", out=out, checkpoint_every=2,
        evaluate=fs.Evaluate(every=2), resume=True, **more,
    )  # fmt: skip


def shown(out: Path) -> list[Any]:
    """What can be read of a run that came to its end."""
    result, trained = finished_result(out), fs.load(out)
    own = trained.personal
    return [
        result.history, str(result.final), estimated_seconds(out, phones()), (out / "traffic.jsonl").read_bytes(),
        {n: v.tolist() for n, v in trained.values.items()}, trained.config["parameters"],
        {s: None if v is None else v.tolist() for s, v in trained.vocabulary.items()},
        own and {c: {n: v.tolist() for n, v in own.params(c).items()} for c in own.client_ids.tolist()},
        facts._read(out, "versions.json"),
    ]  # fmt: skip


def attack_runs(count: int, seed: int) -> tuple[Counter, list[str]]:
    """Unfinished runs that are resumed, finished ones that are read, and finished ones that are resumed."""
    clients, told, wrong = data(), Counter(), []
    jobs = [(method, kind) for method in METHODS for kind in ("resume", "read", "resume the end")]
    with tempfile.TemporaryDirectory() as temporary:
        for k, (method, kind) in enumerate(jobs):
            out = Path(temporary) / f"{k}"
            if kind == "resume":
                with suppress(KeyboardInterrupt):
                    train(out, clients, method, callbacks=[Stop()])
            else:
                train(out, clients, method)

            def look(copy: Path, method=method, kind=kind) -> list[Any]:
                if kind != "read":
                    train(copy, clients, method)
                return shown(copy)

            share = count // len(jobs) + (k < count % len(jobs))
            found = attack(out, look, share, seed + k, f"{method}, {kind}")
            told, wrong = told + found[0], wrong + found[1]
    return told, wrong


def attack_comparisons(count: int, seed: int) -> tuple[Counter, list[str]]:
    """Finished comparisons of the command line that are drawn again by `fedsub resume`."""
    from fedsub.cli import folder
    from fedsub.cli import train as command
    from fedsub.cli.options import Flags
    from fedsub.cli.show import View
    from fedsub.cli.what import experiment

    class Looked(Exception):
        pass

    def look(copy: Path) -> list[Any]:
        out, _, made, _ = folder.load(copy)
        found = command.finished(made, out)
        if found is None:  # trained again, as resume would
            seen: list[Any] = []
            with _report_into(command, seen):
                command.train(made, View(quiet=True), command="compare", out=out, resume=True)
            (found,) = seen
        rows = csv_rows(found)
        times = [k for k, head in enumerate(rows[0]) if head.startswith("seconds")]
        runs = facts.runs(found)
        return [
            [[c for k, c in enumerate(row) if k not in times] for row in rows], found.notes,
            [(r.label, r.settings, r.versions, r.fingerprints) for r in runs],
        ]  # fmt: skip

    with tempfile.TemporaryDirectory() as temporary:
        table, out = Path(temporary) / "data.csv", Path(temporary) / "out"
        draw = np.random.default_rng(0)
        rows = [f"u{u},{i},{y}" for u, i, y in zip(*(draw.integers(0, m, 80) for m in (8, 12, 2)), strict=True)]
        table.write_text("\n".join(["user,item,liked", *rows]))
        flags = Flags(client="user", label="liked", table=["item"], rounds=3, every=1, engine="serial", seeds=2,
                      clients_per_round=4, out=str(out), quiet=True)  # fmt: skip
        made = experiment(str(table), flags, ["fedavg", "fedsubavg"])
        with _report_into(command, []):
            command.train(made, View(quiet=True), command="compare")
        return attack(out, look, count, seed, "comparison")


class _report_into:
    """Keep comparisons instead of drawing them."""

    def __init__(self, command: Any, seen: list[Any]):
        self.command, self.seen = command, seen

    def __enter__(self) -> None:
        self.before = self.command.report
        self.command.report = lambda comparison, *rest: self.seen.append(comparison)

    def __exit__(self, *_: object) -> None:
        self.command.report = self.before


def attack_clients(count: int, seed: int) -> tuple[Counter, list[str]]:
    """Saved clients that are opened, and read as training reads them; also unverified, where anything but a raw error
    will do."""

    def content(clients: fs.Clients) -> list[Any]:
        every = np.arange(clients.samples)
        parts = [clients.gather(every, local=local) for local in (True, False)]
        spaces = [(s.name, s.size, s.padding, None if s.vocabulary is None else s.vocabulary.tolist())
                  for s in clients.spaces.values()]  # fmt: skip
        return [
            clients.client_ids.tolist(), clients.offsets.tolist(), clients.label, clients.fingerprint, spaces,
            [{name: repr(values.tolist()) for name, values in part.items()} for part in parts],
        ]  # fmt: skip

    def look(copy: Path) -> list[Any]:
        with suppress(FedsubError):
            content(fs.Clients.open(copy, verify=False))
        return content(fs.Clients.open(copy))

    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "saved"
        data().save(out)
        return attack(out, look, count, seed, "clients")


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    for name in ("runs", "comparisons", "clients"):
        words.add_argument(f"--{name}", type=int, default=0)
    words.add_argument("--seed", type=int, default=0)
    asked = vars(words.parse_args())
    seed, bad = asked.pop("seed"), 0
    attacks = {"runs": attack_runs, "comparisons": attack_comparisons, "clients": attack_clients}
    for name, count in asked.items():
        if count:
            told, wrong = attacks[name](count, seed)
            print(f"{name}: {dict(told)}")
            print(*wrong, sep="\n")
            bad += len(wrong)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
