"""A net of one hidden layer on the 30 numbers of breast-cancer, for leaks_net.toml."""

from torch import Tensor, nn

import fedsub as fs


class Net(nn.Module):
    def __init__(self, width: int, hidden: int = 16):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.layers(batch["features"]).squeeze(-1)


def make_objective(clients: fs.Clients) -> fs.Objective:
    return fs.Objective(Net(clients.columns["features"].width), fs.losses.binary("label"))
