"""Example 1 of the FedSubAvg paper, trained for real beside its closed form.

Client 1 has the loss w1² + w2², the other N−1 clients have w2². With FedAvg the cold parameter w1 shrinks
by (1 − 2γ/N) a round, with FedSubAvg by (1 − 2γ), as fast as the hot one.

python examples/example1.py [picture.png]
"""

import sys

import torch
from matplotlib.figure import Figure
from torch import nn

import fedsub as fs

N, ROUNDS, LR, START = 20, 30, 0.05, (1.0, 1.0)


class Squares(nn.Module):
    """Σ w² over the parameters that a sample names; row 0 is padding."""

    def __init__(self):
        super().__init__()
        self.w = nn.Embedding.from_pretrained(torch.tensor([[0.0], [START[0]], [START[1]]]).double(), freeze=False)

    def forward(self, batch):
        return (self.w(batch["w"]).squeeze(-1) ** 2 * (batch["w"] != 0)).sum(-1)


data = {"client": list(range(N)), "w": [[1, 2], *[[2]] * (N - 1)], "label": [0] * N}
clients = fs.Clients.from_arrays(data, client="client", ids=["w"], label="label", sizes={"w": 3})
objective = fs.Objective(Squares(), lambda output, batch: output, tables={"w.weight": "w"})
settings = dict(lr=LR, local_steps=1, batch_size=1, clients_per_round=None, weighting="clients")
closed = fs.theory.example1(N, ROUNDS, LR, START)

figure = Figure(figsize=(7, 4), layout="constrained")
axes = figure.subplots()
for name, make, form, colour in (
    ("FedAvg", fs.methods.fedavg, closed.fedavg, "#0072B2"),
    ("FedSubAvg", fs.methods.fedsubavg, closed.fedsubavg, "#D55E00"),
):
    trained = []
    for rounds in (1, 5, 10, 20, ROUNDS):
        result = fs.run(make(**settings), objective, clients, rounds=rounds, engine="serial")
        w = result.params["w.weight"][1:, 0].tolist()
        assert abs(w[0] - form[rounds, 0]) < 1e-12
        assert abs(w[1] - form[rounds, 1]) < 1e-12
        trained.append((rounds, w[0]))
    axes.semilogy(form[:, 0], color=colour, ls="-", label=f"{name}: w1 (held by 1 client)")
    width = 6 if name == "FedAvg" else 2  # the two lines coincide: let both be seen
    axes.semilogy(form[:, 1], color=colour, ls=":", lw=width, label=f"{name}: w2 (held by all {N})")
    axes.plot(*zip(*trained, strict=True), "o", color=colour, mfc="none")
    print(f"{name:10} w1 = {form[-1, 0]:.4f}, w2 = {form[-1, 1]:.4f} after {ROUNDS} rounds; training agrees to 1e-12")
axes.set(
    xlabel="round", ylabel="value of the parameter", title=f"Example 1, N = {N}: lines closed form, circles trained"
)
axes.legend()
axes.grid(alpha=0.3)
picture = sys.argv[1] if len(sys.argv) > 1 else "example1.png"
figure.savefig(picture, dpi=150)
print("picture:", picture)
