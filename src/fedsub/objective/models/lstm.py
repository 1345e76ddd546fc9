"""A classifier of token sequences: embedding, LSTM, one logit."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedsub.data.clients import Clients
from fedsub.errors import ConfigError
from fedsub.objective.losses import Batch, Binary
from fedsub.objective.models.columns import Roles, other_ids
from fedsub.objective.objective import Objective


class LSTMClassifier(nn.Module):
    """Embedding [B, T, dim] → LSTM [B, T, hidden] → its state at the last token → one logit.

    The Sent140 model of Ding et al. (NeurIPS 2022): embedding 25, two layers of 100. Their initialisers are not
    known; here embeddings start at N(0, ``word_std``²) and the rest as torch does, uniform within ±1/√hidden. Token 0
    is padding behind the real ones: it comes after the state that is read, so it has no effect. A sequence
    without tokens has the state 0.
    """

    def __init__(
        self,
        words: int,
        *,
        dim: int = 25,
        hidden: int = 100,
        layers: int = 2,
        word_std: float = 1.0,
        tokens: str = "tokens",
        padded: bool = True,
    ):
        super().__init__()
        self.tokens, self.padded = tokens, padded
        self.words = nn.Embedding(words, dim)
        nn.init.normal_(self.words.weight, std=word_std)
        self.lstm = nn.LSTM(dim, hidden, layers, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, batch: Batch) -> Tensor:
        ids = batch[self.tokens]
        place = torch.arange(1, ids.shape[1] + 1, device=ids.device)
        length = ((ids != 0) * place).amax(1) if self.padded else place[-1].expand(len(ids))
        # Engines need one shape in training, and so does what is exported; an evaluation stops at its longest sequence.
        if not self.training and not torch.compiler.is_exporting():
            ids = ids[:, : max(1, int(length.max()))]
        states, _ = self.lstm(self.words(ids))
        at = (length - 1).clamp(min=0).reshape(-1, 1, 1).expand(-1, 1, states.shape[2])
        last = states.gather(1, at).squeeze(1) * (length > 0).unsqueeze(1)
        return self.out(last).squeeze(-1)


def lstm(
    clients: Clients,
    label: str,
    *,
    dim: int = 25,
    hidden: int = 100,
    layers: int = 2,
    word_std: float = 1.0,
    columns: Mapping[str, str] | None = None,
) -> Objective:
    """The objective of kind "lstm", on the one column of lists of ids; other columns are left out."""
    if not 0 < word_std < float("inf"):
        raise ConfigError(f"word_std, the spread of the first word vectors, must be positive, got {word_std}.")
    lists = [c.name for c in clients.columns.values() if c.space is not None and (c.ragged or c.values.ndim > 1)]
    roles = Roles(clients, "lstm", {"tokens": lists}, columns)
    if "tokens" not in roles.given and len(lists) != 1:
        found = f"{len(lists)} of them ({', '.join(lists)})" if lists else f"only {', '.join(clients.columns)}"
        raise ConfigError(
            f"The model 'lstm' reads one column of lists of token ids, and the data has {found}; "
            'name it: columns = { tokens = "…" }, or choose another model.'
        )
    tokens = roles.ids("tokens", lists=True)
    space = clients.space_of(tokens)
    module = LSTMClassifier(
        space.size, dim=dim, hidden=hidden, layers=layers, word_std=word_std, tokens=tokens, padded=space.padding
    )
    tables = {"words.weight": tokens}
    return Objective(module, Binary(label), tables, unused=other_ids(clients, tables))
