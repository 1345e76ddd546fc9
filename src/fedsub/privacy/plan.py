"""A run planned before it begins: what it will have spent after every number of rounds, as numbers and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsub.privacy.accounting import ACCOUNTANTS, calibrate, epsilon
from fedsub.privacy.spending import Spend

SHARES = (0.01, 0.1, 0.25, 0.5, 0.75, 1.0, 2.0)  # of the rounds planned, those that are shown


@dataclass(frozen=True)
class Plan:
    """Training of ``rounds`` rounds, each client in each with the chance ``rate``, after what was spent before."""

    noise: float
    rate: float
    rounds: int
    delta: float = 1e-5
    before: tuple[Spend, ...] = ()

    @classmethod
    def to(
        cls, epsilon: float, rate: float, rounds: int, delta: float = 1e-5, before: tuple[Spend, ...] = (),
        accountant: str = "rdp",
    ) -> Plan:  # fmt: skip
        """With the least noise that stays within ε."""
        return cls(calibrate(epsilon, delta, rounds, rate, before, accountant), rate, rounds, delta, before)

    def spent(self, rounds: int, accountant: str) -> float:
        once = Spend.gaussian("training", self.noise, rate=self.rate, times=rounds)
        return epsilon((*self.before, once), self.delta, accountant)

    def table(self) -> list[dict[str, float]]:
        """ε after some numbers of rounds, by accountant."""
        counts = sorted({max(1, round(share * self.rounds)) for share in SHARES})
        return [{"rounds": n, **{name: self.spent(n, name) for name in ACCOUNTANTS}} for n in counts]

    def draw(self, path: Path, rows: Sequence[dict[str, float]], budget: float | None = None) -> None:
        """ε over rounds."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(6.4, 4.0), layout="constrained")
        counts = [row["rounds"] for row in rows]
        names = {"rdp": "moments (rdp)", "pld": "loss distribution (pld)"}
        for name, style in zip(ACCOUNTANTS, ("-", "--"), strict=True):
            axes.plot(counts, [row[name] for row in rows], style, marker="o", markersize=4, label=names[name])
        axes.axvline(self.rounds, color="0.7", linewidth=1)
        if budget is not None:
            axes.axhline(budget, color="tab:red", linewidth=1, linestyle=":", label=f"budget {budget:g}")
        axes.set_xlabel("rounds")
        axes.set_ylabel(f"ε at δ = {self.delta:g}")
        axes.set_ylim(bottom=0)
        axes.set_title(f"noise {self.noise:.4g} × clip, rate {self.rate:.4g}", fontsize=10)
        axes.legend(frameon=False)
        axes.grid(alpha=0.25)
        figure.savefig(path, dpi=150)
        pyplot.close(figure)
