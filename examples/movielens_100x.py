"""MovieLens a hundred times as large: 604,000 clients and 100 million samples, in bounded memory.

python examples/movielens_100x.py DIR [SCALE]     (DIR gets about 4 GB at scale 100, the default)

The data is streamed to DIR, opened memory-mapped, trained on for 100 rounds and evaluated every 10. Each of
the two steps runs in a process of its own and prints its time and its peak memory.
"""

import subprocess
import sys
import time

import fedsub as fs
from fedsub.running.session import peak_memory


def generate(folder: str, scale: float) -> None:
    about = fs.twins.TWINS["movielens-like"].write(folder, scale=scale)
    print(f"{about['clients']:,} clients, {about['samples']:,} samples; best test ce {about['test']['best']['ce']:.4f}")


def train(folder: str, scale: float) -> None:
    train, test = (fs.Clients.open(f"{folder}/{part}") for part in ("train", "test"))
    heat = fs.heat.summarise(train).overall
    print(f"feature heat dispersion: {heat.dispersion:,.0f}, hottest {heat.hottest}")
    method = fs.methods.fedsubavg(lr=0.1, clients_per_round=50, local_steps=10, batch_size=5)
    plan = fs.Evaluate(every=10, samples=10_000, final_samples=10_000)
    result = fs.run(method, fs.models.make_objective(train), train, test=test, rounds=100, evaluate=plan)
    for record in result.history:
        if "test.ce" in record:
            print(f"round {record['round']:3}  train ce {record['train.ce']:.4f}  test ce {record['test.ce']:.4f}")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        started = time.perf_counter()
        step = {"generate": generate, "train": train}[sys.argv[3]]
        step(sys.argv[1], float(sys.argv[2]))
        print(f"{sys.argv[3]}: {time.perf_counter() - started:.0f} s, peak memory {peak_memory() / 2**30:.2f} GiB")
    elif len(sys.argv) in (2, 3):
        for step in ("generate", "train"):
            subprocess.run([sys.executable, __file__, sys.argv[1], (*sys.argv, "100")[2], step], check=True)
    else:
        sys.exit(__doc__)
