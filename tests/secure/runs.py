"""Secure sums made at random, and a network that silences clients at a stage."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedsub.errors import SecureSumError
from fedsub.secure import Faulty, SecureClient, SecureServer, Segment, Setting, Summed, run_protocol, wire
from fedsub.secure.driver import Network


@dataclass
class Silent:
    """Nothing of these clients arrives from a stage on: {client: stage of its first lost message}."""

    from_: Mapping[int, int]

    def carry(self, messages):
        kept = []
        for client, data in messages:
            stage = wire.read(data, tuple(range(1, 10))).stage
            if stage < self.from_.get(client, 99):
                kept.append((client, data))
        return kept


@dataclass
class Run:
    setting: Setting
    values: dict[int, dict[str, np.ndarray]]
    options: dict = field(default_factory=dict)

    @staticmethod
    def of(count: int, *segments: Segment, seed: int = 0, **plan) -> "Run":
        draw = np.random.default_rng(seed)
        people = np.sort(draw.choice(10**6, count, replace=False)).tolist()
        setting = Setting.plan(7, 3, people, segments or (Segment("v", 50, 32, most=1000),), **plan)
        values = {
            c: {
                s.name: draw.integers(0, s.most or 2**s.bits - 1, s.length, dtype=np.uint64, endpoint=True)
                for s in setting.segments
            }
            for c in people
        }
        return Run(setting, values)

    def clients(self) -> dict[int, SecureClient]:
        return {c: SecureClient(self.setting, c, values) for c, values in self.values.items()}

    def play(self, network: Network | None = None) -> Summed:
        return run_protocol(self.clients(), SecureServer(self.setting), network)

    def plain(self, who) -> dict[str, np.ndarray]:
        return {
            s.name: sum((self.values[c][s.name] for c in who), np.zeros(s.length, np.uint64)).astype(s.dtype)
            for s in self.setting.segments
        }

    def assert_exact(self, summed: Summed) -> None:
        for name, value in self.plain(summed.clients).items():
            np.testing.assert_array_equal(summed.sums[name], value)


def random_run(seed: int, most_values: int = 10_000) -> bool:
    """One random protocol run over a network with all faults at once: an exact sum (True), or a clean abort."""
    draw = np.random.default_rng(seed)
    count, length = int(draw.integers(2, 41)), int(np.exp(draw.uniform(0, np.log(most_values))))
    bits = int(draw.choice([16, 32, 64]))
    plan = {}
    if count > 12 and draw.random() < 0.5:
        degree = 2 * int(draw.integers(3, count // 2 - 1))
        plan = {"degree": degree, "threshold": degree // 2 + 1}
    one_hot = draw.random() < 0.3
    most = 1 if one_hot else (2**bits - 1) // count
    segments = [Segment("v", max(length, count) if one_hot else length, bits, most)]
    if draw.random() < 0.5:
        segments.append(Segment("counts", int(draw.integers(1, 50)), 8, most=1 if count > 20 else 6))
    run = Run.of(count, *segments, seed=seed, **plan)
    if one_hot:
        for at, c in enumerate(run.setting.participants):
            run.values[c]["v"] = np.eye(1, segments[0].length, at, dtype=np.uint64)[0]
    worse = draw.random() < 0.3
    chances = draw.uniform(0, 0.1 if worse else 0.03, 4)
    network = Faulty(draw, *chances, replayed=float(draw.uniform(0, 0.3)))
    network.repeated = float(draw.uniform(0, 0.5))
    try:
        summed = run.play(network)
    except SecureSumError:
        return False
    assert len(set(summed.clients)) == len(summed.clients) >= run.setting.least
    run.assert_exact(summed)
    if one_hot:
        assert int(summed.sums["v"].max()) == 1
        assert int(summed.sums["v"].sum()) == len(summed.clients)
    return True
